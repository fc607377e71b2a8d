"""The wire between control plane and sandbox: frames, their authentication, and the numbers both ends agree on. Pure.

A frame is `length u32 | kind u8 | stream u32 | payload | mac`, big-endian; `length` counts what follows it. Control
payloads are JSON objects, data payloads raw bytes behind a channel number and an offset.

Handshake. The control plane holds a token derived from its own key; the token never travels.
 1. The runtime speaks first: GREETING with its version, a nonce, its boot id, and whether it was claimed.
 2. A runtime that nobody has claimed since its start takes CLAIM, the *hash* of the token, from the first connection.
    No program of a user has run at that moment, so nobody inside can be first, and nobody inside can listen.
 3. The client sends AUTH: its nonce and a keyed BLAKE2b over greeting and nonce, key = that hash.
 4. The runtime answers WELCOME with its own proof. Two keys, one per direction, are derived from the same transcript;
    from here on each frame ends in a 16-byte MAC over an implicit counter, the header and the payload.
 5. A client that asks for bulk data may say that it takes BULK frames. Their MAC is a GMAC under a key of its own, whose
    nonce is the same counter and the stream; a runtime that cannot make it sends DATA, one that does not know it too.

What code in the sandbox (same uid) can do: connect and be refused, kill the bridge, and, while a bridge is young, write
into its stream. Each of these breaks a channel, which the client re-opens. What it cannot do: read the hash (the runtime
is not dumpable), forge, alter, reorder, drop or replay a frame unnoticed (MAC and counter), replay another
connection (both nonces are in the keys), or pose as the runtime (WELCOME's proof). Somebody who takes the runtime over
can answer anything: the client checks size, type and time of every reply. Replies of one sandbox prove nothing
about another: each has its own token.

Flow control is absolute: CREDIT carries the offset up to which the receiver has taken the bytes (they may be forgotten)
and the offset up to which the sender may go. Repeating one changes nothing, so a new connection starts from offsets.
"""

from __future__ import annotations

import struct
from _blake2 import blake2b
from _operator import _compare_digest

TYPE_CHECKING = False  # `typing` would cost PID 1 a megabyte
if TYPE_CHECKING:
    from typing import Any, Callable

    Tag = Callable[[bytes, bytes], bytes]  # a MAC of 16 bytes from a nonce of 12 that never comes again, and the bytes

VERSION = "1.0.0"
PROTOCOL = 1

CHUNK = 64 * 1024  # bytes of one data frame, and of one read of a pipe
BULK_CHUNK = 512 * 1024  # bytes of one bulk frame: what a frame costs beside its bytes is then nothing
WINDOW = 1024 * 1024  # bytes in flight of one direction of one stream
MAX_PAYLOAD = 4 * 1024 * 1024  # a start request carries argv and env: the kernel takes about 2 MiB, JSON escapes them
MAX_GREETING = 4096  # limit of every frame before both ends are proven
MAC_BYTES = 16
DEFAULT_GRACE_S = 2.0  # between TERM and KILL
MAX_SURVIVORS = 64  # that are listed of a run

GREETING, CLAIM, AUTH, WELCOME, REFUSED = 1, 2, 3, 4, 5
REQUEST, REPLY, FAIL, EVENT = 16, 17, 18, 19
DATA, CREDIT, END, ABORT, BULK = 32, 33, 34, 35, 36  # BULK: the next bytes of a file, nothing else in it

STDIN, STDOUT, STDERR, FILE = 0, 1, 2, 3  # channels of a stream
# What the bytes of a packed directory are made of: items of `kind u8 | length u32 | payload`. An entry (JSON) is followed
# by its content, in as many items as it takes; what is left out, or changed while it was read, is an item with a reason.
ITEM_ENTRY, ITEM_CONTENT, ITEM_LEFT = 1, 2, 3
ITEM_HEAD = struct.Struct(">BI")

_HEAD = struct.Struct(">IBI")
_DATA = struct.Struct(">BQ")
_CREDIT = struct.Struct(">BQQ")
_COUNTER = struct.Struct(">Q")
_NONCE = struct.Struct(">QI")
_OVERHEAD = _HEAD.size - 4
_MAX_PARTS = 256  # in which a bulk frame may lie here: half a million of one byte must not become objects


class ProtocolViolation(Exception):
    """The peer sent what the protocol does not allow; the connection is worth nothing any more."""


class BadMac(ProtocolViolation):
    """A frame was not made by the holder of the key, or not in this place of the stream."""


def token_hash(secret: bytes) -> bytes:
    """What the runtime learns instead of the token."""
    return blake2b(secret[:4096], digest_size=32, person=b"primer-claim").digest()


def transcript(greeting: bytes, client_nonce: bytes) -> bytes:
    return _COUNTER.pack(len(greeting)) + greeting + client_nonce


def derive(key: bytes, script: bytes, purpose: bytes) -> bytes:
    """`purpose`: client, server (proofs), c2s, s2c (frame keys), s2c-bulk (of bulk frames)."""
    return blake2b(script, key=key, digest_size=32, person=b"primer-" + purpose).digest()


def same_bytes(one: bytes, other: bytes) -> bool:
    """Compares in constant time."""
    return _compare_digest(one, other)


class Encoder:
    """Turns frames into bytes; with a key each carries its MAC, and the order of `encode` is the order on the wire."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._counter = 0

    def secure(self, key: bytes) -> None:
        self._key, self._counter = key, 0

    def encode(self, kind: int, stream: int, payload: bytes = b"") -> bytes:
        if self._key is None:
            return _HEAD.pack(_OVERHEAD + len(payload), kind, stream) + payload
        head = _HEAD.pack(_OVERHEAD + len(payload) + MAC_BYTES, kind, stream)
        mac = blake2b(_COUNTER.pack(self._counter) + head, key=self._key, digest_size=MAC_BYTES)
        mac.update(payload)
        self._counter += 1
        return b"".join((head, payload, mac.digest()))

    def encode_bulk(self, stream: int, data: bytes, tag: Tag) -> tuple[bytes, bytes, bytes]:
        """A bulk frame in three parts, so that nobody has to copy what it carries; only on a secured connection."""
        mac = tag(_NONCE.pack(self._counter, stream), data)
        self._counter += 1
        return _HEAD.pack(_OVERHEAD + len(data) + MAC_BYTES, BULK, stream), data, mac


class Decoder:
    """Turns bytes into frames. Holds at most one frame beside the bytes just fed; raises ProtocolViolation, BadMac."""

    def __init__(self, limit: int = MAX_GREETING) -> None:
        self._buffer = bytearray()
        self._key: bytes | None = None
        self._tag: Tag | None = None
        self._counter = 0
        self._limit = limit
        self._bulk = -1  # the stream of the bulk frame that is coming
        self._parts: list[bytes] = []  # what has come of it
        self._missing = 0  # bytes of it, the MAC not counted

    def secure(self, key: bytes, limit: int = MAX_PAYLOAD, tag: Tag | None = None) -> None:
        """`tag` makes the MAC of bulk frames; without it none is accepted."""
        self._key, self._counter, self._limit, self._tag = key, 0, limit, tag

    def feed(self, data: bytes | memoryview) -> None:
        if self._missing:
            part = bytes(data[: self._missing])
            self._missing -= len(part)
            self._parts.append(part)
            if len(self._parts) > _MAX_PARTS:
                self._parts = [b"".join(self._parts)]
            data = data[len(part) :]
        if data:
            self._buffer += data

    def next(self) -> tuple[int, int, bytes] | None:
        """The next whole frame as (kind, stream, payload), None when more bytes are needed; a frame that is too long is
        refused by its header."""
        buffer = self._buffer
        if self._bulk >= 0:
            return self._next_bulk()
        if len(buffer) < _HEAD.size:
            return None
        length, kind, stream = _HEAD.unpack_from(buffer)
        tail = MAC_BYTES if self._key is not None else 0
        most = BULK_CHUNK if kind == BULK else self._limit
        if not _OVERHEAD + tail <= length <= _OVERHEAD + tail + most:
            raise ProtocolViolation(f"a frame announces {length} bytes")
        if kind == BULK:
            return self._begin_bulk(stream, length - _OVERHEAD - tail)
        end = 4 + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            payload = bytes(view[_HEAD.size : end - tail])
            if self._key is not None:
                mac = blake2b(_COUNTER.pack(self._counter), key=self._key, digest_size=MAC_BYTES)
                mac.update(view[: end - tail])
                if not _compare_digest(mac.digest(), bytes(view[end - tail : end])):
                    raise BadMac("a frame carries a wrong MAC")
        self._counter += 1
        del buffer[:end]
        return kind, stream, payload

    def _begin_bulk(self, stream: int, size: int) -> tuple[int, int, bytes] | None:
        if self._tag is None:
            raise ProtocolViolation("nobody asked for bulk frames")
        come, self._buffer = bytes(self._buffer[_HEAD.size :]), bytearray()
        self._bulk, self._missing = stream, size
        self.feed(come)
        return self._next_bulk()

    def _next_bulk(self) -> tuple[int, int, bytes] | None:
        if self._missing or len(self._buffer) < MAC_BYTES or self._tag is None:
            return None
        stream, payload = self._bulk, b"".join(self._parts)
        if not _compare_digest(self._tag(_NONCE.pack(self._counter, stream), payload), bytes(self._buffer[:MAC_BYTES])):
            raise BadMac("a frame carries a wrong MAC")
        self._counter += 1
        del self._buffer[:MAC_BYTES]
        self._bulk, self._parts = -1, []
        return BULK, stream, payload


def pack_data(channel: int, offset: int, data: bytes) -> bytes:
    return _DATA.pack(channel, offset) + data


def unpack_data(payload: bytes) -> tuple[int, int, bytes]:
    """channel, offset, bytes."""
    channel, offset, data = view_data(payload)
    return channel, offset, bytes(data)


def view_data(payload: bytes) -> tuple[int, int, memoryview]:
    """The same without a copy of the bytes."""
    if len(payload) < _DATA.size:
        raise ProtocolViolation("a data frame is too short")
    channel, offset = _DATA.unpack_from(payload)
    return channel, offset, memoryview(payload)[_DATA.size :]


def pack_item(kind: int, payload: bytes) -> bytes:
    return ITEM_HEAD.pack(kind, len(payload)) + payload


def pack_credit(channel: int, taken: int, limit: int) -> bytes:
    return _CREDIT.pack(channel, taken, limit)


def unpack_credit(payload: bytes) -> tuple[int, int, int]:
    """channel, offset taken for good, offset up to which the peer may send."""
    if len(payload) != _CREDIT.size:
        raise ProtocolViolation("a credit frame has a wrong size")
    channel, taken, limit = _CREDIT.unpack(payload)
    return channel, taken, limit


def _json_codec() -> tuple[Any, Any]:
    """The C halves of `json` alone: the package brings `re` and `enum`, more than a megabyte of PID 1."""
    import _json

    class Context:
        strict, object_hook, object_pairs_hook, memo = True, None, None, None
        parse_float, parse_int, parse_constant = float, int, float

    scan = _json.make_scanner(Context)  # type: ignore[arg-type]

    def refuse(value: object) -> object:
        raise TypeError(f"{type(value).__name__} is not JSON")

    encode = _json.make_encoder(None, refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, False)
    return scan, encode


_scan, _encode = _json_codec()


def dumps(value: dict[str, Any]) -> bytes:
    """ASCII JSON; lone surrogates, which stand for the bytes of a hostile file name, survive as escapes."""
    return "".join(_encode(value, 0)).encode("ascii")


def loads(payload: bytes) -> dict[str, Any]:
    """One JSON object; ProtocolViolation for anything else."""
    try:
        text = payload.decode("ascii")
        value, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError, OverflowError) as error:
        raise ProtocolViolation("a control frame is not JSON") from error
    if end != len(text) or not isinstance(value, dict):
        raise ProtocolViolation("a control frame is not one JSON object")
    return value
