"""Bytes of one stream between the pipe and the client: kept until acknowledged, never more than a window."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_INT = struct.Struct("i")


class Output:
    """One output pipe. `total` counts bytes read; of them those from `base` to `stored` are kept, up to `sent` were sent."""

    def __init__(self, channel: int, fd: int, close_fd: Callable[[int], None]) -> None:
        self._close_fd = close_fd  # takes it out of the poll as well
        self.channel = channel
        self.fd = fd  # -1 once closed
        self.total = self.stored = 0
        self.base = 0
        self.sent = 0
        self.limit = 0  # the client's credit
        self.window = protocol.WINDOW
        self.over = 0  # bytes still owed to the run after its end, read beyond the window
        self.discard = False
        self.eof = False
        self._buffer = bytearray()

    @property
    def kept(self) -> int:
        return self.stored - self.base

    @property
    def room(self) -> int:
        """How much may be read now; 0 stops reading, and the pipe makes the program wait."""
        if self.fd < 0 or self.eof:
            return 0
        if self.discard:
            return protocol.CHUNK
        return min(protocol.CHUNK, max(self.window - self.kept, self.over))

    def read(self) -> int:
        """Takes what the pipe has, at most one chunk; -1 when nothing is there, 0 at its end."""
        try:
            data = os.read(self.fd, self.room)
        except BlockingIOError:
            self.over = 0
            return -1
        except OSError:
            data = b""
        if not data:
            self.eof = True
            return 0
        self.over = max(0, self.over - len(data))
        self.total += len(data)
        if not self.discard:
            self._buffer += data
            self.stored = self.total
        return len(data)

    def owe(self) -> None:
        """The main process has ended: what it left in the pipe belongs to the run, also when the window is full."""
        if self.fd >= 0 and not self.eof:
            try:
                waiting = _INT.unpack(fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0"))[0]
            except OSError:
                waiting = 0
            self.over = min(waiting, protocol.WINDOW)

    def chunk(self) -> tuple[int, bytes] | None:
        """The next bytes to send and their offset, within the credit; None when there is nothing to send."""
        size = min(self.stored, self.limit, self.sent + protocol.CHUNK) - self.sent
        if size <= 0:
            return None
        offset = self.sent
        with memoryview(self._buffer) as view:
            data = bytes(view[offset - self.base : offset - self.base + size])
        self.sent += size
        return offset, data

    def credit(self, taken: int, limit: int) -> None:
        """Forgets what was taken for good. Offsets that never existed come from a broken client: they are cut off."""
        self.limit = max(self.limit, limit)
        taken = min(taken, self.sent)
        if taken > self.base:
            del self._buffer[: taken - self.base]
            self.base = taken

    def rewind(self, offset: int) -> int:
        """A new connection continues here; returns where the kept bytes really begin for it."""
        self.sent = min(max(offset, self.base), self.stored)
        self.limit = 0
        return self.sent

    def drop(self) -> None:
        self._buffer = bytearray()
        self.base = self.sent = self.stored

    def close_pipe(self) -> None:
        if self.fd >= 0:
            self._close_fd(self.fd)
            self.fd = -1


class Input:
    """Bytes on their way into a program's stdin; `accepted` is the offset up to which the client has sent them."""

    def __init__(self, fd: int, close_fd: Callable[[int], None]) -> None:
        self._close_fd = close_fd
        self.fd = fd
        self.accepted = 0
        self.written = 0
        self.ended = False
        self._pending = bytearray()

    def move(self, fd: int) -> None:
        """Another pipe, for a keeper that was replaced before anything was written."""
        self.close_pipe()
        self.fd = fd

    def add(self, offset: int, data: bytes) -> None:
        skip = self.accepted - offset  # a new connection may repeat what had arrived
        if skip < 0 or len(self._pending) + len(data) > 2 * protocol.WINDOW:
            raise protocol.ProtocolViolation("stdin came out of order")
        data = data[skip:]
        self.accepted += len(data)
        if self.fd < 0:
            self.written = self.accepted  # the program closed it: the rest goes nowhere
        else:
            self._pending += data

    @property
    def waiting(self) -> bool:
        return self.fd >= 0 and bool(self._pending)

    def flush(self) -> None:
        """Writes what the pipe takes, and closes it behind the last byte."""
        while self.fd >= 0 and self._pending:
            try:
                count = os.write(self.fd, memoryview(self._pending)[: protocol.CHUNK])
            except BlockingIOError:
                return
            except OSError:  # the program reads no more
                self.close()
                return
            del self._pending[:count]
            self.written += count
        if self.ended:
            self.close()

    def close(self) -> None:
        self._pending.clear()
        self.written = self.accepted
        self.close_pipe()

    def close_pipe(self) -> None:
        if self.fd >= 0:
            self._close_fd(self.fd)
            self.fd = -1
