"""The items of a packed directory, out of a sandbox that may lie: what may become a name and a size is decided here. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from workspaces.runtime import protocol
from workspaces.sandbox_errors import ProtocolError
from workspaces.sandbox_link import parse
from workspaces.sandbox_replies import MAX_INT, integer, number, text

MAX_PATH = 64 * 1024  # bytes
_MAX_PAYLOAD = 512 * 1024  # a path of that many bytes, each of them as a JSON escape
REASONS = ("symlink", "other", "unreadable", "vanished", "shrunk", "changed", "moved", "too_long", "failed")


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file, of which `size_bytes` bytes follow, or a directory. `path` is relative and goes nowhere up."""

    path: bytes
    kind: Literal["file", "dir"]
    size_bytes: int
    mode: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is not in the archive; `shrunk`, `failed` and `changed` may be of a file that is, in that order
    shorter than announced, not read to its end, and written to while it was read."""

    path: bytes
    why: str


Item = Entry | Left | bytes  # bytes: content of the last entry


class Unpacker:
    """Bytes in, items out; what the protocol does not allow is a ProtocolError. Holds at most one item."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Item]:
        buffer = self._buffer
        buffer += data
        at, head = 0, protocol.ITEM_HEAD.size
        try:
            while len(buffer) - at >= head:
                kind, length = protocol.ITEM_HEAD.unpack_from(buffer, at)
                if length > _MAX_PAYLOAD:
                    raise ProtocolError(log=f"an item of {length} bytes")
                if len(buffer) - at - head < length:
                    break
                payload = bytes(buffer[at + head : at + head + length])
                at += head + length
                yield _item(kind, payload)
        finally:
            del buffer[:at]

    def finish(self) -> None:
        """At the end of the bytes: half an item is a ProtocolError."""
        if self._buffer:
            raise ProtocolError(log="the tree ends in the middle of an item")


def _item(kind: int, payload: bytes) -> Item:
    if kind == protocol.ITEM_CONTENT:
        return payload
    body = parse(payload)
    path = _path(text(body, "path", 8 * MAX_PATH))
    if kind == protocol.ITEM_LEFT:
        why = text(body, "why", 32)
        return Left(path, why if why in REASONS else "failed")
    if kind != protocol.ITEM_ENTRY:
        raise ProtocolError(log="an unknown item")
    what = text(body, "kind", 16)
    if what not in ("file", "dir"):
        raise ProtocolError(log="an entry that is neither file nor directory")
    size = integer(body, "size_bytes", 0, MAX_INT if what == "file" else 0)
    return Entry(
        path,
        "file" if what == "file" else "dir",
        size,
        integer(body, "mode", 0, 0o7777),
        number(body, "modified_at", -float(MAX_INT)),
    )


def _path(text: str) -> bytes:
    """The bytes of a path below the directory; nothing that leads out of it gets a name in an archive of ours."""
    try:
        path = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ProtocolError(log="a path that no file can have") from None
    parts = path.split(b"/")
    if len(path) > MAX_PATH or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise ProtocolError(log="a path that leads elsewhere")
    return path
