"""Reads a tar stream from somebody we do not trust: one member at a time, headers of bounded size, nothing looked up.

Plain tar, pax and the GNU extensions for long names. What else there is (links, devices, sparse files) comes as a member
that is neither file nor directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cli.errors import CliError

BLOCK = 512
PIECE = 256 * 1024
MAX_HEADER = 1024 * 1024  # of what describes one member
MAX_PADDING = 64 * 1024  # behind the end; a tar fills up its last record of 10 KiB
_LINKS = b"12"
_FILES = b"0\0" + b"7"


class Broken(CliError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the archive is broken: {why}")


class Reader:
    """`read(n)` over the pieces of a response: exactly `n` bytes, or Broken. Each piece is copied once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = memoryview(b"")

    def some(self, most: int) -> memoryview:
        """At least one byte of what comes next; Broken at the end."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                raise Broken("it ends early")
            self._held = memoryview(piece)
        part, self._held = self._held[:most], self._held[most:]
        return part

    def read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.some(count)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def drain(self) -> None:
        """Takes the padding behind the archive, so that the connection ends as the server meant it. More is left unread."""
        left = MAX_PADDING - len(self._held)
        self._held = memoryview(b"")
        while left > 0 and (piece := next(self._pieces, None)) is not None:
            left -= len(piece)


@dataclass
class TarMember:
    """`kind` is file, dir, link or special; `note` is the comment of its pax header, "" without one."""

    reader: Reader
    name: str
    kind: str
    size: int
    mode: int
    note: str

    def __post_init__(self) -> None:
        self._left, self._padding = self.size, -self.size % BLOCK

    def pieces(self) -> Iterator[bytes]:
        """The content, once, in order."""
        while self._left:
            part = self.reader.some(min(self._left, PIECE))
            self._left -= len(part)
            yield bytes(part)

    def skip(self, count: Callable[[int], None]) -> None:
        """What was not read of it; `count` is told its bytes first, so that a limit ends it before they are waited for."""
        count(self._left)
        left, self._left, self._padding = self._left + self._padding, 0, 0
        while left:
            left -= len(self.reader.some(min(left, PIECE)))


def members(reader: Reader, count: Callable[[int], None]) -> Iterator[TarMember]:
    """The members in order; `count` is told the bytes of headers beyond the usual block, and of content that nobody read.

    Broken for what is no archive.
    """
    records: dict[str, bytes] = {}
    while True:
        block = reader.read(BLOCK)
        if not any(block):
            reader.drain()
            return
        _check(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in (b"x", b"g", b"X", b"L", b"K"):
            if size > MAX_HEADER:
                raise Broken(f"a header of {size} bytes")
            count(BLOCK + size)
            body = reader.read(size + -size % BLOCK)[:size]
            if kind in (b"x", b"X"):
                records |= _pax(body)
            elif kind == b"L":
                records.setdefault("path", body.rstrip(b"\0"))
            continue
        member = _member(reader, block, kind, size, records)
        records = {}
        yield member
        member.skip(count)


def _member(reader: Reader, block: bytes, kind: bytes, size: int, records: dict[str, bytes]) -> TarMember:
    name = records.get("path") or _plain_name(block)
    if "size" in records:
        size = _decimal(records["size"])
    # As others have it: directories, links and devices have no content, whatever size they give.
    what = "special"
    if kind in _FILES:
        what = "dir" if kind == b"\0" and name.endswith(b"/") else "file"  # the oldest tar had no other way
    elif kind == b"5":
        what = "dir"
    elif kind in _LINKS:
        what = "link"
    if what in ("dir", "link") or kind in b"346":
        size = 0
    note = records.get("comment", b"").decode("utf-8", "replace")
    return TarMember(reader, name.decode("utf-8", "surrogateescape"), what, size, _number(block[100:108]), note)


def _plain_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0")[0]
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _check(block: bytes) -> None:
    """The sum of a header's bytes, its own field counted as spaces; old programs added signed ones."""
    rest = block[:148] + b" " * 8 + block[156:]
    unsigned = sum(rest)
    signed = unsigned - 256 * sum(byte > 127 for byte in rest)
    if _number(block[148:156]) not in (unsigned, signed):
        raise Broken("a header has a wrong checksum")


def _number(field: bytes) -> int:
    """Octal digits, or, with the highest bit set, the GNU way for what they cannot hold."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(field[1:], "big")
        if not 0 <= value < 1 << 63:
            raise Broken("a number is out of range")
        return value
    digits = field.split(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise Broken("a number is not octal")
    return int(digits or b"0", 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise Broken("a number is out of range")
    return int(text)


def _pax(body: bytes) -> dict[str, bytes]:
    """`LENGTH key=value` lines, LENGTH counting all of the line."""
    found: dict[str, bytes] = {}
    at, end = 0, len(body.rstrip(b"\0"))
    while at < end:
        space = body.find(b" ", at, at + 20)
        size = _decimal(body[at:space] if space > 0 else b"")
        key, mark, value = body[space + 1 : at + size].partition(b"=")
        at += size
        if at > len(body) or not mark or not value.endswith(b"\n"):
            raise Broken("a pax record is cut off")
        found[key.decode("utf-8", "replace")] = value[:-1]
    return found


def left_out(note: str) -> tuple[list[dict[str, Any]], int]:
    """What a server says in the last member that it left out: what it names, and how much there is in all."""
    try:
        body = json.loads(note)
    except (ValueError, RecursionError):
        return [], 0
    if not isinstance(body, dict):
        return [], 0
    named, count = body.get("left_out"), body.get("left_out_count")
    items = [item for item in named if isinstance(item, dict)] if isinstance(named, list) else []
    return items, max(len(items), count if isinstance(count, int) else 0)
