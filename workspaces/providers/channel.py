"""A byte stream to one exec of the engine, spoken by hand over asyncio: no thread per sandbox, and writes feel back-pressure."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Final

from workspaces.providers.base import ChannelClosed, EngineForbidden, EngineUnavailable
from workspaces.providers.endpoint import Endpoint
from workspaces.runtime import protocol

HEAD_LIMIT: Final = 16 * 1024
BUFFER: Final = 256 * 1024
STDOUT, STDERR = 1, 2
CLOSE_TIMEOUT_S: Final = 1.0
ERROR_TAIL: Final = 2000  # bytes of the exec's stderr kept for the log


class StreamChannel:
    """A socket as a channel. What comes out of it is hostile, and its end proves nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pushed = b""
        self.error_tail = b""  # last bytes of the other side's stderr where the stream has one, for the log

    async def read(self, limit: int) -> bytes:
        """At most `limit` bytes, b"" at the end; `ChannelClosed` when the stream has not the form that it must have."""
        if self._pushed:
            data, self._pushed = self._pushed[:limit], self._pushed[limit:]
            return data
        try:
            return await self._take(limit)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return b""

    async def _take(self, limit: int) -> bytes:
        return await self._reader.read(limit)

    def push_back(self, data: bytes) -> None:
        """Makes `data` the next bytes that `read` returns."""
        self._pushed = data + self._pushed

    @property
    def ended(self) -> bool:
        """Whether the other side is known to have gone."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (ConnectionError, ssl.SSLError) as exc:
            raise ChannelClosed() from exc

    async def close(self) -> None:
        self._writer.close()
        try:
            # TLS says goodbye and waits for an answer, which a dead engine does not give.
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_TIMEOUT_S)
        except (OSError, ssl.SSLError):  # TimeoutError is an OSError
            self._writer.transport.abort()


class EngineChannel(StreamChannel):
    """The stdin and stdout of an exec, in the engine's own frames: kind u8, three zeros, length u32, bytes.

    A failed exec answers 101 as well and writes engine text to the stream, so the caller believes only the runtime's own
    greeting.
    """

    _kind = STDOUT
    _left = 0  # bytes of the current frame that were not read yet
    _head = b""  # what has come of the header of the next one

    async def _take(self, limit: int) -> bytes:
        # Frames are of 32 KiB at most: as many as have come are taken apart in one go, one wait for each would be felt.
        while data := await self._reader.read(limit):
            if payload := self._unframed(memoryview(data)):
                return payload
        return b""

    def _unframed(self, data: memoryview) -> bytes:
        """What is stdout of it. `ChannelClosed` for what is not in frames."""
        parts = []
        while data:
            if self._left == 0:
                missing = 8 - len(self._head)
                self._head += data[:missing]
                data = data[missing:]
                if len(self._head) == 8:
                    self._begin(self._head)
                    self._head = b""
                continue
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            if self._kind == STDOUT:
                parts.append(part)
            else:
                self.error_tail = (self.error_tail + part)[-ERROR_TAIL:]
        return b"".join(parts)

    def _begin(self, header: bytes) -> None:
        self._kind, self._left = header[0], int.from_bytes(header[4:], "big")
        if self._kind not in (STDOUT, STDERR) or header[1:4] != b"\0\0\0":
            raise ChannelClosed("The engine's stream does not have the engine's format.")


async def greeted(channel: StreamChannel) -> None:
    """Waits for the runtime's greeting and puts it back; `ChannelClosed` for an end or for anything else."""
    decoder, raw = protocol.Decoder(), b""
    try:
        while (frame := decoder.next()) is None:
            data = await channel.read(4096)
            if not data:
                raise ChannelClosed("The runtime in the sandbox did not answer.", log=repr(channel.error_tail))
            raw += data
            decoder.feed(data)
    except protocol.ProtocolViolation as exc:
        raise ChannelClosed("What answers in the sandbox is not the runtime.", log=repr(raw[:500])) from exc
    if frame[0] != protocol.GREETING:
        raise ChannelClosed("What answers in the sandbox is not the runtime.", log=repr(raw[:500]))
    channel.push_back(raw)


async def open_exec(
    endpoint: Endpoint, context: ssl.SSLContext | None, api_version: str, exec_id: str, timeout_s: float
) -> EngineChannel:
    """Starts a created exec and takes over its connection (`Upgrade: tcp`); errors are `ChannelClosed` or `EngineUnavailable`."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await _connect(endpoint, context)
            try:
                await _upgrade(reader, writer, f"/v{api_version}/exec/{exec_id}/start")
            except BaseException:
                writer.close()
                raise
    except TimeoutError as exc:
        late = "The container engine did not open a stream in time."
        raise EngineUnavailable(late, log=endpoint.label) from exc
    except PermissionError as exc:
        raise EngineForbidden(log=str(exc)) from exc
    except (OSError, ssl.SSLError, asyncio.IncompleteReadError) as exc:
        raise EngineUnavailable(log=str(exc)) from exc
    return EngineChannel(reader, writer)


async def _connect(
    endpoint: Endpoint, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.socket_path:
        return await asyncio.open_unix_connection(endpoint.socket_path, limit=BUFFER)
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=BUFFER)


async def _upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as exc:
        raise ChannelClosed("The engine's answer is not HTTP.") from exc
    status = answer.split(b"\r\n", 1)[0].split(b" ")
    # 200 is what engines answer that keep the old form of the same takeover.
    if len(answer) > HEAD_LIMIT or not answer.startswith(b"HTTP/1.") or status[1:2] not in ([b"101"], [b"200"]):
        raise ChannelClosed("The engine did not open a stream to the sandbox.", log=repr(answer[:500]))
