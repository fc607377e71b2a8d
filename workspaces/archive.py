"""A directory as a tar stream, made of the items of a sandbox: well-formed whatever happens to the tree meanwhile. Pure.

POSIX ustar headers, with pax records where a name or a number does not fit. Regular files and directories only, paths
relative, owner 0, no special mode bits. A file that shrank while it was read is filled up with zeros to the size that its
header announces, and named as `shrunk`. The last member is always `./`, a directory; its pax record `comment` is a JSON object that says what is
not in the archive or not as it should be:

    {"left_out": [{"path": "a/link", "why": "symlink"}], "left_out_count": 1, "entries": 12}

Standard programs ignore comments. An archive that does not end with this member was cut off.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

from workspaces.sandbox_errors import ProtocolError
from workspaces.sandbox_tree import Entry, Item, Left, Unpacker

BLOCK = 512
PIECE = 64 * 1024  # what is collected before it is handed on
MAX_NAMED = 1000  # of what is left out: the rest is only counted
MAX_NAMED_BYTES = 256 * 1024
END = bytes(2 * BLOCK)
_LARGEST = 8**11 - 1  # of eleven octal digits


class TarWriter:
    """Items in, archive out; remembers nothing but what was left out."""

    def __init__(self) -> None:
        self._current = b""
        self._missing = 0  # bytes of the current file
        self._padding = 0
        self._told = False  # that the current file is not as it should be
        self._named: list[dict[str, str]] = []
        self._named_bytes = 0
        self.left_out = self.entries = 0

    def add(self, item: Item) -> Iterator[bytes]:
        """The bytes that an item stands for. ProtocolError for more content than was announced."""
        if isinstance(item, bytes):
            yield self._content(item)
        elif isinstance(item, Left):
            self._leave(item)
        else:
            yield from self._complete()
            self.entries += 1
            self._current, self._told = item.path, False
            self._missing, self._padding = item.size_bytes, -item.size_bytes % BLOCK
            yield header(item)

    def finish(self) -> Iterator[bytes]:
        """The last member and the end mark."""
        yield from self._complete()
        note = {"left_out": self._named, "left_out_count": self.left_out, "entries": self.entries}
        yield header(Entry(b".", "dir", 0, 0o755, 0.0), {b"comment": json.dumps(note).encode()}) + END

    def _content(self, data: bytes) -> bytes:
        if len(data) > self._missing:
            raise ProtocolError(log="more content than the entry announced")
        self._missing -= len(data)
        if self._missing:
            return data
        padding, self._padding = self._padding, 0
        return data + bytes(padding)

    def _complete(self) -> Iterator[bytes]:
        """What the current file still lacks, as zeros."""
        if self._missing and not self._told:
            self._leave(Left(self._current, "shrunk"))
        fill = self._missing + self._padding
        self._missing = self._padding = 0
        while fill:
            yield bytes(min(fill, PIECE))
            fill -= min(fill, PIECE)

    def _leave(self, item: Left) -> None:
        self._told = self._told or item.path == self._current
        self.left_out += 1
        path = item.path.decode("utf-8", "surrogateescape")
        self._named_bytes += len(path)
        if len(self._named) < MAX_NAMED and self._named_bytes <= MAX_NAMED_BYTES:
            self._named.append({"path": path, "why": item.why})


async def archive(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The archive of a packed directory, in pieces of about 64 KiB, so that the loop is never held for long."""
    unpacker, writer, held = Unpacker(), TarWriter(), bytearray()
    async for chunk in chunks:
        for item in unpacker.feed(chunk):
            for piece in writer.add(item):
                held += piece
                if len(held) >= PIECE:
                    yield bytes(held)
                    held.clear()
    unpacker.finish()
    for piece in writer.finish():
        held += piece
        if len(held) >= PIECE:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def header(entry: Entry, records: dict[bytes, bytes] | None = None) -> bytes:
    """The header of one member, with a pax header before it where one is needed."""
    name = entry.path + b"/" if entry.kind == "dir" else entry.path
    pax = dict(records or {})
    if len(name) > 100:
        if not _decodes(name):
            pax[b"hdrcharset"] = b"BINARY"
        pax[b"path"] = name
    if entry.size_bytes > _LARGEST:
        pax[b"size"] = b"%d" % entry.size_bytes
    modified_at = min(max(0, int(entry.modified_at)), _LARGEST)
    kind = b"5" if entry.kind == "dir" else b"0"
    size = entry.size_bytes if b"size" not in pax else 0
    block = _block(name[:100], kind, size, entry.mode & 0o777, modified_at)
    if not pax:
        return block
    body = b"".join(_record(key, value) for key, value in pax.items())
    extended = _block(b"PaxHeaders/" + name[:80], b"x", len(body), 0o644, 0)
    return extended + body + bytes(-len(body) % BLOCK) + block


def _block(name: bytes, kind: bytes, size: int, mode: int, modified_at: int) -> bytes:
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, size, modified_at)
    block = bytearray(name.ljust(100, b"\0") + numbers + b"        " + kind + bytes(100) + b"ustar\x0000")
    block += bytes(BLOCK - len(block))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH key=value`, where the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _decodes(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
