"""Files of a sandbox from the control plane: bytes in and out with bounded memory, errors typed."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from primer_site.errors import PrimerError, Timeout
from workspaces.execution import FileInfo, FileRange, Listing
from workspaces.runtime import protocol
from workspaces.sandbox_errors import ChannelClosed, FileChanged, ProtocolError, file_error
from workspaces.sandbox_link import Link, parse, takes_bulk
from workspaces.sandbox_replies import MAX_ITEMS, file_from, integer, listing_from, mapping

MAX_READ = 64 * 1024 * 1024  # bytes of one `read`: above, `read_stream`
CALL_S = 30.0  # deadline of one call
IDLE_S = 30.0  # deadline of each step of a stream
_WINDOW = 2 * 1024 * 1024  # bytes in flight of one download: what a client that does not read may cost
_PART = 512 * 1024  # what is handed on at once: each hand-over costs as much as copying a few hundred KiB
_PIECES = 1024  # frames that may wait one by one: a million of one byte must not become a million objects


@dataclass(slots=True)
class FileStream:
    """A file on its way: `info` with its ETag first, then exactly `length` bytes from `offset`, or FileChanged.

    Close `chunks` whether or not you began to read them: until then the sandbox holds the file open.
    """

    info: FileInfo
    offset: int
    length: int
    chunks: Incoming


@dataclass(slots=True)
class TreeStream:
    """A directory on its way, as the items of `workspaces.sandbox_tree`; close `chunks` as those of a file."""

    info: FileInfo
    chunks: Incoming


class _Transfer:
    """The sink of one read or write: opening event, bytes within the credit, one answer."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] | None = None
        self.answer: tuple[bool, dict[str, Any]] | None = None
        self.lost: Exception | None = None
        self.data: deque[bytes | memoryview] = deque()
        self.waiting = 0  # bytes of `data`
        self.received = self.limit = 0  # offsets; set by the opening event, before which nothing may come
        self.peer_limit = protocol.WINDOW
        self._wake = asyncio.Event()

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind in (protocol.DATA, protocol.BULK):
            data: bytes | memoryview
            if kind == protocol.DATA:
                _, offset, data = protocol.view_data(payload)
            else:
                offset, data = self.received, payload
            if offset != self.received or not data or offset + len(data) > self.limit:
                raise ProtocolError(log="file data out of order or beyond its credit")
            self.received += len(data)
            self.waiting += len(data)
            self.data.append(data)
            if len(self.data) > _PIECES:
                self.data = deque([memoryview(b"".join(self.data))])
            if self.waiting < _PART:
                return
        elif kind == protocol.CREDIT:
            self.peer_limit = max(self.peer_limit, protocol.unpack_credit(payload)[2])
        elif kind == protocol.EVENT and self.opened is None:
            self.opened = parse(payload)
            self.received = integer(self.opened, "start") if "start" in self.opened else 0
            self.limit = self.received + _WINDOW
        elif kind in (protocol.REPLY, protocol.FAIL):
            self.answer = (kind == protocol.FAIL, parse(payload))
        else:
            raise ProtocolError()
        self._wake.set()

    def on_lost(self, error: Exception) -> None:
        self.lost = error if isinstance(error, ProtocolError) else ChannelClosed()
        self._wake.set()

    def take(self, most: int) -> bytes:
        """What has come, about `most` bytes of it."""
        parts: list[bytes | memoryview] = []
        size = 0
        while self.data and size < most:
            parts.append(self.data.popleft())
            size += len(parts[-1])
        self.waiting -= size
        if len(parts) == 1 and isinstance(parts[0], bytes):
            return parts[0]
        return b"".join(parts)

    async def step(self) -> None:
        """Waits for the next frame; raises what ended the call, Timeout after thirty quiet seconds."""
        self.check()
        self._wake.clear()
        while not self._wake.is_set():
            received = self.received
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._wake.wait()
            except TimeoutError as exc:
                if self.received == received:  # else it is slow: what has come is not enough to be handed on
                    raise Timeout("The sandbox did not answer for 30 seconds.") from exc
        self.check()

    def check(self) -> None:
        if self.answer is not None and self.answer[0]:
            raise file_error(str(self.answer[1].get("code")), str(self.answer[1].get("message")))
        if self.answer is None and self.lost is not None:
            raise self.lost


class Incoming:
    """The bytes of one transfer in order, some at a time; an answer that is an error is raised where it comes.

    `end` is the offset where they must end (None: where they do); otherwise the file was changed, FileChanged. With an
    `end` the last of them wait for the answer: once a client has all that was announced, nothing can be taken back.
    """

    def __init__(self, link: Link, stream: int, transfer: _Transfer) -> None:
        self._link, self._stream, self.transfer = link, stream, transfer
        self._taken = transfer.received - sum(map(len, transfer.data))
        self.end: int | None = None
        self._closed = False

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> bytes:
        if self._closed:
            raise StopAsyncIteration
        transfer = self.transfer
        try:
            while (transfer.waiting < _PART or self._last) and transfer.answer is None and transfer.lost is None:
                await transfer.step()
            if self._last:
                transfer.check()
                if transfer.answer is not None and transfer.answer[1].get("changed") is True:
                    raise FileChanged
            if transfer.data:
                return await self._take()
            transfer.check()
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        if self.end is not None and self._taken != self.end:
            raise FileChanged
        raise StopAsyncIteration

    @property
    def _last(self) -> bool:
        """Whether what waits is the rest of it."""
        return self.end is not None and self._taken + self.transfer.waiting == self.end

    async def _take(self) -> bytes:
        transfer = self.transfer
        part = transfer.take(_PART)
        self._taken += len(part)
        if transfer.answer is None and transfer.limit - self._taken <= _WINDOW // 2:
            transfer.limit = self._taken + _WINDOW
            payload = protocol.pack_credit(protocol.FILE, self._taken, transfer.limit)
            await self._link.send((protocol.CREDIT, self._stream, payload))
        return part

    async def aclose(self) -> None:
        """Ends the transfer on both sides; also for one of which nothing was read."""
        if not self._closed:
            self._closed = True
            await _give_up(self._link, self._stream, self.transfer)


class FileCalls:
    """The file half of `Sandbox`. Paths are relative to the workspace, or absolute below it."""

    async def connected(self) -> Link:
        raise NotImplementedError

    async def call(self, op: str, body: dict[str, Any], *, timeout: float = CALL_S) -> dict[str, Any]:
        raise NotImplementedError

    async def stat(self, path: str, *, etag: bool = False) -> FileInfo:
        """One entry, links not followed; with `etag` the content of a regular file is hashed as well."""
        return file_from(mapping(await self._file_call("stat", path=path, etag=etag), "info"))

    async def list(
        self, path: str = "", *, recursive: bool = False, cursor: str | None = None, limit: int = MAX_ITEMS
    ) -> Listing:
        """One page in the order of names; `recursive` lists directories before what they hold."""
        body = await self._file_call("list", path=path, recursive=recursive, cursor=cursor, limit=limit)
        return listing_from(body)

    async def mkdir(self, path: str, *, parents: bool = False) -> FileInfo:
        """Makes a directory; with `parents` what is missing above it too, and an existing one is fine."""
        return file_from(mapping(await self._file_call("mkdir", path=path, parents=parents), "info"))

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> FileInfo:
        """Renames within the workspace; FileExists unless `overwrite`."""
        body = await self._file_call("move", source=source, target=target, overwrite=overwrite)
        return file_from(mapping(body, "info"))

    async def delete(self, path: str, *, recursive: bool = False, if_match: Sequence[str] | None = None) -> None:
        """Removes a file, a link itself, or a directory; DirectoryNotEmpty unless `recursive`. `if_match` are ETags of
        which a file must have one."""
        await self._file_call("delete", path=path, recursive=recursive, if_match=if_match, timeout=90.0)

    async def _file_call(self, op: str, *, timeout: float = CALL_S, **body: Any) -> dict[str, Any]:
        if op in ("mkdir", "move", "delete"):
            body["rid"] = secrets.token_hex(8)  # asked again over a new channel, it is answered and not done twice
        return await self.call(op, body, timeout=timeout)

    async def read(self, path: str, *, offset: int = 0, limit: int = MAX_READ) -> FileRange:
        """At most `limit` bytes of a regular file. A file that changes meanwhile gives a consistent prefix, `truncated`."""
        limit = min(limit, MAX_READ)
        for attempt in (1, 2):
            try:
                return await self._read_once(path, offset, limit)
            except ChannelClosed:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    async def _read_once(self, path: str, offset: int, limit: int) -> FileRange:
        incoming = await self._open("read", path=path, offset=max(0, offset), limit=limit)
        try:
            parts = [part async for part in incoming]
            answer = incoming.transfer.answer
            assert answer is not None  # noqa: S101 - the iteration ends with an answer or raises
            info = file_from(mapping(answer[1], "info"))
            return FileRange(info, offset, b"".join(parts), answer[1].get("truncated") is True)
        finally:
            await incoming.aclose()

    async def read_stream(
        self, path: str, *, offset: int = 0, limit: int | None = None, if_range: str | None = None
    ) -> FileStream:
        """Opens a regular file for a download of any size; memory stays at two MiB.

        A negative `offset` counts from the end. With `if_range` another version of the file than the one of that ETag
        is sent from its start to its end.
        """
        incoming = await self._open("read", path=path, offset=offset, limit=limit, if_range=if_range)
        try:
            opened = incoming.transfer.opened or {}
            info = file_from(mapping(opened, "info"))
            start, end = integer(opened, "start"), integer(opened, "end", 0, info.size_bytes)
            incoming.end = max(start, end)
            return FileStream(info, start, incoming.end - start, incoming)
        except BaseException:
            await incoming.aclose()
            raise

    async def pack(self, path: str = "") -> TreeStream:
        """Opens a directory, or all of the workspace, for a download of everything below it; memory stays at two MiB."""
        incoming = await self._open("pack", path=path)
        try:
            return TreeStream(file_from(mapping(incoming.transfer.opened or {}, "info")), incoming)
        except BaseException:
            await incoming.aclose()
            raise

    async def _open(self, op: str, **body: Any) -> Incoming:
        """Asks for bytes and waits for the event before the first of them, which may come with it: those wait."""
        link = await self.connected()
        transfer = _Transfer()
        stream = link.open_stream(transfer)
        try:
            asked = {"op": op, "credit": _WINDOW, "bulk": takes_bulk(), **body}
            await link.send((protocol.REQUEST, stream, _encode(asked)))
            while transfer.opened is None:
                await transfer.step()
                if transfer.answer is not None and transfer.opened is None:
                    raise ProtocolError(log="an answer before the file")
        except BaseException:
            await _give_up(link, stream, transfer)
            raise
        return Incoming(link, stream, transfer)

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        if_match: Sequence[str] | None = None,
        if_none_match: bool = False,
        parents: bool = True,
    ) -> FileInfo:
        """Puts a whole file in place at once, or leaves the old one; the ETag of the new content is in the answer.

        Raises PreconditionFailed, DiskFull, LinkRefused, NotAFile, and ChannelClosed where the channel broke while an
        iterator was being sent (bytes are sent again over a new channel, and the write still happens once).
        """
        body: dict[str, Any] = {"op": "write", "path": path, "mode": mode, "rid": secrets.token_hex(8)}
        body |= {"if_match": if_match, "if_none_match": if_none_match, "parents": parents}
        if not isinstance(data, bytes):
            return await self._write_once(body, data)
        body["size"] = len(data)
        for attempt in (1, 2, 3):
            try:
                return await self._write_once(body, data)
            except ChannelClosed:
                if attempt == 3:
                    raise
        raise AssertionError("unreachable")

    async def _write_once(self, body: dict[str, Any], data: bytes | AsyncIterator[bytes]) -> FileInfo:
        link = await self.connected()
        transfer = _Transfer()
        stream = link.open_stream(transfer)
        head = (protocol.REQUEST, stream, _encode(body))
        try:
            if isinstance(data, bytes) and len(data) <= protocol.CHUNK:  # one message, one answer
                await link.send(head, *_file_frames(stream, 0, data), (protocol.END, stream, bytes([protocol.FILE])))
            else:
                await link.send(head)
                await self._upload(link, stream, transfer, data)
            while transfer.answer is None:
                await transfer.step()
            transfer.check()
            return file_from(mapping(transfer.answer[1], "info"))
        finally:
            await _give_up(link, stream, transfer)

    @staticmethod
    async def _upload(link: Link, stream: int, transfer: _Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        sent = 0
        async for part in _pieces(data):
            while sent + len(part) > transfer.peer_limit and transfer.answer is None:
                await transfer.step()
            if transfer.answer is not None:
                return  # answered before the end: refused, or done already by the attempt before
            await link.send(*_file_frames(stream, sent, part))
            sent += len(part)
        await link.send((protocol.END, stream, bytes([protocol.FILE])))


async def _give_up(link: Link, stream: int, transfer: _Transfer) -> None:
    link.forget(stream)
    if transfer.answer is None and link.closed is None:
        with suppress(ChannelClosed):  # the runtime sees the end of the connection instead
            await link.send((protocol.ABORT, stream, b""))


def _encode(body: dict[str, Any]) -> bytes:
    """A request as JSON; PrimerError `name_too_long` rather than a frame that the runtime would refuse."""
    payload = protocol.dumps(body)
    if len(payload) > protocol.MAX_PAYLOAD:
        raise file_error("name_too_long", "")
    return payload


def _file_frames(stream: int, offset: int, data: bytes) -> list[tuple[int, int, bytes]]:
    return [(protocol.DATA, stream, protocol.pack_data(protocol.FILE, offset, data))] if data else []


async def _pieces(data: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Chunks of at most one frame."""
    step = protocol.CHUNK
    if isinstance(data, bytes):
        for start in range(0, len(data), step):
            yield data[start : start + step]
        return
    async for block in data:
        for start in range(0, len(block), step):
            yield block if len(block) <= step else block[start : start + step]


__all__ = ["CALL_S", "MAX_READ", "FileCalls", "FileStream", "PrimerError"]
