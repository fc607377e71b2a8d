"""A byte stream to one exec of the engine, spoken by hand over asyncio: no thread per sandbox, and writes feel back-pressure."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable
from typing import Final

from workspaces.providers.base import ChannelClosed, EngineForbidden, EngineUnavailable
from workspaces.providers.endpoint import Endpoint
from workspaces.providers.wire import Take, Wire
from workspaces.runtime import protocol

HEAD_LIMIT: Final = 16 * 1024
STDOUT, STDERR = 1, 2
ERROR_TAIL: Final = 2000  # bytes of the exec's stderr kept for the log


class StreamChannel:
    """A socket as a channel. What comes out of it is hostile, and its end proves nothing."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pushed = b""
        self.error_tail = b""  # last bytes of the other side's stderr where the stream has one, for the log

    async def read(self, limit: int) -> bytes:
        """At most `limit` bytes, b"" at the end; `ChannelClosed` when the stream has not the form that it must have."""
        while not self._pushed:
            data = await self._wire.read()
            if not data:
                return b""
            self._pushed = b"".join(self._payloads(memoryview(data)))
        data, self._pushed = self._pushed[:limit], self._pushed[limit:]
        return data

    async def pour(self, take: Take) -> None:
        """Calls `take` with all that comes, as it comes, until the end; see `Wire.pour`."""

        def unpack(data: memoryview) -> None:
            for part in self._payloads(data):
                take(part)

        if self._pushed:
            data, self._pushed = self._pushed, b""
            take(memoryview(data))
        await self._wire.pour(unpack)

    def _payloads(self, data: memoryview) -> Iterable[memoryview]:
        return (data,)

    def push_back(self, data: bytes) -> None:
        """Makes `data` the next bytes that `read` returns."""
        self._pushed = data + self._pushed

    @property
    def ended(self) -> bool:
        """Whether the other side is known to have gone."""
        return self._wire.ended

    async def write(self, data: bytes) -> None:
        await self._wire.write(data)

    async def close(self) -> None:
        await self._wire.close()


class EngineChannel(StreamChannel):
    """The stdin and stdout of an exec, in the engine's own frames: kind u8, three zeros, length u32, bytes.

    A failed exec answers 101 as well and writes engine text to the stream, so the caller believes only the runtime's own
    greeting.
    """

    _kind = STDOUT
    _left = 0  # bytes of the current frame that were not read yet
    _head = b""  # what has come of the header of the next one

    def __init__(self, wire: Wire, come: bytes = b"") -> None:
        super().__init__(wire)
        self._pushed = b"".join(self._payloads(memoryview(come)))

    def _payloads(self, data: memoryview) -> Iterable[memoryview]:
        """What is stdout of it. `ChannelClosed` for what is not in frames."""
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
                yield part
            else:
                self.error_tail = (self.error_tail + part)[-ERROR_TAIL:]

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
            wire = await _connect(endpoint, context)
            try:
                return EngineChannel(wire, await _upgrade(wire, f"/v{api_version}/exec/{exec_id}/start"))
            except BaseException:
                wire.transport.abort()
                raise
    except TimeoutError as exc:
        late = "The container engine did not open a stream in time."
        raise EngineUnavailable(late, log=endpoint.label) from exc
    except PermissionError as exc:
        raise EngineForbidden(log=str(exc)) from exc
    except (OSError, ssl.SSLError) as exc:
        raise EngineUnavailable(log=str(exc)) from exc


async def _connect(endpoint: Endpoint, context: ssl.SSLContext | None) -> Wire:
    loop = asyncio.get_running_loop()
    if endpoint.socket_path:
        return (await loop.create_unix_connection(Wire, endpoint.socket_path))[1]
    return (await loop.create_connection(Wire, endpoint.host, endpoint.port, ssl=context))[1]


async def _upgrade(wire: Wire, path: str) -> bytes:
    """Turns the connection into the stream of the exec; returns what has come of that already."""
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await wire.write(request.encode() + body)
    answer = b""
    while b"\r\n\r\n" not in answer[:HEAD_LIMIT] and len(answer) < HEAD_LIMIT:
        data = await wire.read()
        if not data:
            raise EngineUnavailable(log=f"the end after {answer[:500]!r}")
        answer += data
    head, end, rest = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    # 200 is what engines answer that keep the old form of the same takeover.
    if not end or not head.startswith(b"HTTP/1.") or status[1:2] not in ([b"101"], [b"200"]):
        raise ChannelClosed("The engine did not open a stream to the sandbox.", log=repr(head[:500]))
    return rest
