"""What is kept of a stream: its first three quarters and its last quarter up to a limit, with the gap between them. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

_TWO = b'\b\t\n\f\r"\\'  # characters that JSON writes as two
_SIX = bytes(code for code in range(32) if code not in _TWO)  # and as six


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept bytes of one ended stream. `gap` is [from, to) in stream offsets, None when nothing is missing; when only
    the beginning of what is kept is here, `next_offset` is where it goes on."""

    data: bytes
    gap: tuple[int, int] | None = None
    next_offset: int | None = None

    def first(self, limit: int) -> Kept:
        """At most `limit` bytes of it."""
        if len(self.data) <= limit:
            return self
        behind = self.gap is not None and limit >= self.gap[0]
        skipped = self.gap[1] - self.gap[0] if self.gap and behind else 0
        return Kept(self.data[:limit], self.gap, limit + skipped)

    @property
    def truncated(self) -> bool:
        return self.gap is not None


class Keeper:
    """Takes a stream in order and keeps at most `limit` bytes of it. Bytes below `stored` are in the database already.

    Memory: what is not stored yet of the head, and the tail. A jump in the offsets (output lost with a process of the
    control plane that died) ends the head: the gap then covers what is missing.
    """

    def __init__(self, limit: int, *, stored: int = 0) -> None:
        self.head_limit = limit - limit // 4
        self.tail_limit = limit // 4
        self.stored = stored  # the head up to here is in the database
        self.total = stored  # offset behind the last byte that was seen
        self.head = bytearray()  # from `stored` on
        self._head_closed = False
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    @property
    def head_end(self) -> int:
        return self.stored + len(self.head)

    @property
    def tail_start(self) -> int:
        return self.total - self._tail_bytes

    @property
    def settled(self) -> int:
        """Offset below which the source may forget the bytes: they are stored, or, behind a head that is full and stored,
        only the moving tail is left to keep, which a crash may cost (its gap then says so)."""
        over = self._head_closed or self.stored >= self.head_limit
        return self.total if over and not self.head else self.stored

    @property
    def gap(self) -> tuple[int, int] | None:
        """What lies between head and tail now; it grows while the stream goes on."""
        return (self.head_end, self.tail_start) if self.tail_start > self.head_end else None

    def take(self, offset: int, data: bytes) -> None:
        """Adds bytes at `offset`; what was seen before (a replay after a reconnect) is skipped."""
        if offset < self.total:
            data = data[self.total - offset :]
        elif offset > self.total:
            self._head_closed = True
            self._tail.clear()
            self._tail_bytes = 0
            self.total = offset
        self.total += len(data)
        if not self._head_closed and (room := self.head_limit - self.head_end) > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self._head_closed = True
            self._add_tail(data)

    def _add_tail(self, data: bytes) -> None:
        self._tail.append(data[-self.tail_limit :] if self.tail_limit else b"")
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes > self.tail_limit:
            surplus = self._tail_bytes - self.tail_limit
            first = self._tail.popleft()
            if len(first) > surplus:
                self._tail.appendleft(first[surplus:])
                self._tail_bytes -= surplus
            else:
                self._tail_bytes -= len(first)

    def tail(self) -> bytes:
        return b"".join(self._tail)

    def unstored(self) -> tuple[int, bytes]:
        """The head's bytes that are not in the database yet, with their offset."""
        return self.stored, bytes(self.head)

    def mark_stored(self, count: int) -> None:
        """Forgets so many bytes of the head: they are in the database now."""
        del self.head[:count]
        self.stored += count

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """Kept bytes in memory at or behind `offset`: their offset (behind the gap when it was met) and at most `limit` bytes.

        Offsets below `stored` are the caller's to read from the database.
        """
        if offset < self.head_end:
            start = offset - self.stored
            return offset, bytes(self.head[start : start + limit])
        offset = max(offset, self.tail_start)
        return offset, self._tail_piece(offset - self.tail_start, limit)

    def _tail_piece(self, start: int, limit: int) -> bytes:
        """A part of the tail, which may be 16 MiB: only what is asked for is copied."""
        parts: list[bytes] = []
        for part in self._tail:
            if limit <= 0:
                break
            if start < len(part):
                parts.append(part[start : start + limit])
                limit -= len(parts[-1])
            start = max(0, start - len(part))
        return b"".join(parts)


class Decoder:
    """Turns byte chunks into JSON-safe pieces without cutting characters: text where it is UTF-8, else base64 by the caller."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held = b""

    @property
    def waiting(self) -> int:
        """Bytes of a character that is not whole yet."""
        return len(self._held)

    def feed(self, data: bytes, final: bool = False) -> tuple[bytes, str | None]:
        """The bytes that are due now and their text, None where they are not UTF-8. At most 3 bytes wait."""
        data = self._held + data
        self._decoder.reset()
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError:
            self._held = b""
            return data, None
        waiting = self._decoder.getstate()[0]
        self._held = bytes(waiting)
        due = data[: len(data) - len(waiting)]
        return due, text

    def flush(self) -> bytes:
        """The beginning of a character whose rest never came."""
        held, self._held = self._held, b""
        return held


def is_costly(data: bytes) -> bool:
    """Whether JSON's escapes (a NUL takes six characters) would more than double it: base64 then is shorter."""
    six, two = (len(data) - len(data.translate(None, escaped)) for escaped in (_SIX, _TWO))
    return 5 * six + two > len(data)


def as_text(data: bytes) -> str | None:
    """The text of `data`, None when it is not UTF-8 or costly as JSON."""
    if is_costly(data):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
