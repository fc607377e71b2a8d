"""The bridge: copies bytes between the engine's stream (stdin, stdout) and the runtime's socket. Few imports: it is
started for each channel. It knows no key, and what it carries is authenticated end to end."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import _socket
import fcntl
import os
import select

_HOLD = 512 * 1024  # bytes waiting in one direction
_TAKE = 256 * 1024
_SET_PIPE_SIZE, _PIPE = 1031, 512 * 1024  # the engine takes 32 KiB at a time: a pipe that holds more saves waiting
_TRIES, _PAUSE_S = 250, 0.02  # to reach a runtime that does not listen yet: 5 s in all


class _Way:
    """One direction: from a descriptor to another, with what is on its way; into a pipe the kernel moves it, where it can."""

    def __init__(self, source: int, target: int, *, piped: bool = False) -> None:
        self.source, self.target = source, target
        self.buffer = bytearray()
        self.ended = False  # the source gives no more
        self.closed = False  # the target was told
        self.waits_for_room = False
        self._splice = getattr(os, "splice", None) if piped else None  # from Python 3.10 on

    @property
    def done(self) -> bool:
        return self.ended and not self.buffer

    def waits(self) -> list[tuple[int, int]]:
        """The descriptors that it waits for, each with what has to happen there."""
        if self.waits_for_room:
            return [(self.target, select.POLLOUT)]
        reading = not self.ended and len(self.buffer) < _HOLD
        found = [(self.source, select.POLLIN)] if reading else []
        return [*found, (self.target, select.POLLOUT)] if self.buffer else found

    def move(self) -> None:
        if self._splice is not None and not self.ended:
            try:
                self.waits_for_room = False
                self.ended = not self._splice(self.source, self.target, _HOLD, flags=os.SPLICE_F_NONBLOCK)
                return
            except BlockingIOError:
                self.waits_for_room = _readable(self.source)
                return
            except BrokenPipeError:  # nobody takes it any more
                self.ended = True
                return
            except OSError:  # not between these two, or not on this kernel
                self._splice = None
        self._copy()

    def _copy(self) -> None:
        if not self.ended and len(self.buffer) < _HOLD:
            try:
                data = os.read(self.source, _TAKE)
                self.buffer += data
                self.ended = not data
            except BlockingIOError:
                pass
            except OSError:
                self.ended = True
        while self.buffer:
            try:
                del self.buffer[: os.write(self.target, memoryview(self.buffer)[:_TAKE])]
            except BlockingIOError:
                return
            except OSError:  # nobody takes it any more
                self.buffer.clear()
                self.ended = True


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _connected(address: str | bytes) -> _socket.socket | None:
    """A socket to the runtime; at a start the bridge is often a little early, and another exec would cost 55 ms."""
    for _ in range(_TRIES):
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            sock.connect(address)
            return sock
        except OSError:
            sock.close()
            select.select([], [], [], _PAUSE_S)
    return None


def bridge(address: str) -> int:
    """Ends when the runtime closes, after passing on what it said; the end of stdin is passed on as a half-close."""
    sock = _connected(b"\0" + os.fsencode(address[1:]) if address.startswith("@") else address)
    if sock is None:
        os.write(2, b"primer-bridge: the runtime does not listen\n")
        return 69
    fd = sock.fileno()
    try:
        fcntl.fcntl(1, _SET_PIPE_SIZE, _PIPE)
    except OSError:
        pass  # no pipe, or this user has many large ones already
    for each in (0, 1, fd):
        os.set_blocking(each, False)
    up, down = _Way(0, fd), _Way(fd, 1, piped=True)
    while not down.done:
        masks: dict[int, int] = {}
        for way in (up, down):
            for each, mask in way.waits():
                masks[each] = masks.get(each, 0) | mask
        poll = select.poll()
        for each, mask in masks.items():
            poll.register(each, mask)
        poll.poll()
        up.move()
        down.move()
        if up.done and not up.closed:
            up.closed = True
            try:
                sock.shutdown(_socket.SHUT_WR)
            except OSError:
                pass
    return 0
