"""The bridge: copies bytes between the engine's stream (stdin, stdout) and the runtime's socket. Few imports: it is
started for each channel. It knows no key, and what it carries is authenticated end to end."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import _socket
import os
import select

_HOLD = 256 * 1024  # bytes waiting in one direction
_TAKE = 64 * 1024
_TRIES, _PAUSE_S = 250, 0.02  # to reach a runtime that does not listen yet: 5 s in all


class _Way:
    """One direction: from a descriptor to another, with what is on its way."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.buffer = bytearray()
        self.ended = False  # the source gives no more
        self.closed = False  # the target was told

    def move(self) -> None:
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
    for each in (0, 1, fd):
        os.set_blocking(each, False)
    up, down = _Way(0, fd), _Way(fd, 1)
    while not (down.ended and not down.buffer):
        masks: dict[int, int] = {}
        for way in (up, down):
            if not way.ended and len(way.buffer) < _HOLD:
                masks[way.source] = masks.get(way.source, 0) | select.POLLIN
            if way.buffer:
                masks[way.target] = masks.get(way.target, 0) | select.POLLOUT
        poll = select.poll()
        for each, mask in masks.items():
            poll.register(each, mask)
        poll.poll()
        up.move()
        down.move()
        if up.ended and not up.buffer and not up.closed:
            up.closed = True
            try:
                sock.shutdown(_socket.SHUT_WR)
            except OSError:
                pass
    return 0
