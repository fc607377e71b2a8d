"""One proven connection to a runtime: handshake, frames in order, streams. Every byte that comes in is hostile."""

from __future__ import annotations

import asyncio
import contextvars
import json
import secrets
from collections.abc import Coroutine
from functools import cache
from typing import Any, Protocol, TypeVar

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from workspaces.providers.base import Channel, PouringChannel
from workspaces.runtime import gmac, protocol
from workspaces.sandbox_errors import ChannelClosed, ProtocolError, SandboxBusy, SandboxRefused

HANDSHAKE_S = 10.0
PING_EVERY_S = 3.0
SILENT_AFTER_S = (
    10.0  # code inside can stop the bridge: a new channel then takes its place, within any sensible timeout
)
WRITE_S = 60.0  # one frame that the transport does not take
_READ = 256 * 1024
T = TypeVar("T")


class Sink(Protocol):
    """What serves one stream. `on_frame` must not block and keeps at most what it gave credit for."""

    def on_frame(self, kind: int, payload: bytes) -> None: ...

    def on_lost(self, error: Exception) -> None: ...


def spawn(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of its own context: what outlives a request must not carry the request's context variables."""
    return asyncio.create_task(work, context=contextvars.Context())


def parse(payload: bytes) -> dict[str, Any]:
    """A control payload as an object; numbers JSON does not know, deep nesting and huge integers are refused."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        body = json.loads(payload, parse_constant=refuse)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError() from exc
    if not isinstance(body, dict):
        raise ProtocolError()
    return body


def tagger(key: bytes) -> protocol.Tag:
    """GMAC under a key of 32 bytes, the MAC of bulk frames: AES-GCM that encrypts nothing."""
    cipher = AESGCM(key)
    return lambda nonce, data: cipher.encrypt(nonce, b"", data)


@cache
def takes_bulk() -> bool:
    """Whether bulk frames are worth asking for: they are where the processor helps with AES."""
    return gmac.faster(tagger(bytes(32)))


class Link:
    """After `open` returns, both ends are proven. The first fault closes it for all its streams."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._encoder, self._decoder = protocol.Encoder(), protocol.Decoder()
        self._sinks: dict[int, Sink] = {}
        self._next_stream = 1
        self._write_lock = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._heard_at, self._heard_bytes = 0.0, 0
        self._opened_at = 0.0
        self.closed: Exception | None = None
        self.boot_id = ""
        self.greeting: dict[str, Any] = {}

    # -- handshake

    async def open(self, secret: bytes) -> None:
        """Proves both ends to each other, within ten seconds.

        Raises ChannelClosed, ProtocolError, SandboxRefused (another token was claimed), SandboxBusy.
        """
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._handshake(secret)
        except TimeoutError as exc:
            await self._channel.close()
            raise ChannelClosed("The sandbox did not answer the handshake in time.") from exc
        except protocol.ProtocolViolation as exc:
            await self._channel.close()
            raise ProtocolError() from exc
        except BaseException:
            await self._channel.close()
            raise
        self._heard_at = self._opened_at = asyncio.get_running_loop().time()
        self._reader = spawn(self._read_all())
        self._pinger = spawn(self._ping_all())

    async def _handshake(self, secret: bytes) -> None:
        kind, raw = await self._next_handshake_frame()
        if kind != protocol.GREETING:
            raise ProtocolError()
        self.greeting = greeting = parse(raw)
        if greeting.get("protocol") != protocol.PROTOCOL:
            raise ProtocolError("The sandbox runs another version of the runtime.")
        self.boot_id = str(greeting.get("boot_id"))[:64]
        key = protocol.token_hash(secret)
        nonce = secrets.token_bytes(16)
        script = protocol.transcript(raw, nonce)
        frames = b""
        if greeting.get("claimed") is False:
            frames = self._encoder.encode(protocol.CLAIM, 0, protocol.dumps({"hash": key.hex()}))
        proof = protocol.derive(key, script, b"client").hex()
        frames += self._encoder.encode(protocol.AUTH, 0, protocol.dumps({"nonce": nonce.hex(), "proof": proof}))
        await self._channel.write(frames)
        kind, raw = await self._next_handshake_frame()
        if kind == protocol.REFUSED:
            raise SandboxBusy() if parse(raw).get("code") == "busy" else SandboxRefused()
        if kind != protocol.WELCOME:
            raise ProtocolError()
        expected = protocol.derive(key, script, b"server").hex()
        if not protocol.same_bytes(expected.encode(), str(parse(raw).get("proof")).encode("ascii", "replace")):
            raise SandboxRefused()
        self._encoder.secure(protocol.derive(key, script, b"c2s"))
        bulk = tagger(protocol.derive(key, script, b"s2c-bulk"))
        self._decoder.secure(protocol.derive(key, script, b"s2c"), tag=bulk)

    async def _next_handshake_frame(self) -> tuple[int, bytes]:
        while True:
            frame = self._decoder.next()
            if frame is not None:
                return frame[0], frame[2]
            data = await self._channel.read(protocol.MAX_GREETING)
            if not data:
                raise ChannelClosed()
            self._decoder.feed(data)

    # -- streams

    def open_stream(self, sink: Sink) -> int:
        """A fresh stream number served by `sink`; raises ChannelClosed when the link is gone."""
        if self.closed is not None:
            raise ChannelClosed() from self.closed
        stream = self._next_stream
        self._next_stream += 1
        self._sinks[stream] = sink
        return stream

    def forget(self, stream: int) -> None:
        self._sinks.pop(stream, None)

    async def send(self, *frames: tuple[int, int, bytes]) -> None:
        """Sends frames back to back and waits for the transport; raises ChannelClosed."""
        async with self._write_lock:
            if self.closed is not None:
                raise ChannelClosed() from self.closed
            # encoded inside the lock: the counter of the MAC is the order on the wire
            data = b"".join(self._encoder.encode(*frame) for frame in frames)
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._channel.write(data)
            except asyncio.CancelledError:
                self._fail(ChannelClosed("A write was cut off, so the rest of the stream means nothing."))
                raise
            except Exception as exc:
                self._fail(exc)
                raise ChannelClosed() from exc

    # -- the end

    @property
    def proved_useful(self) -> bool:
        """Whether it lived for a while or carried something, so that the next one may be opened without a pause."""
        return self._heard_at - self._opened_at > 5.0 or self._heard_bytes > 64 * 1024

    async def _read_all(self) -> None:
        error: Exception = ChannelClosed()
        try:
            if isinstance(self._channel, PouringChannel):
                await self._channel.pour(self._take)
            else:
                while data := await self._channel.read(_READ):
                    self._take(data)
        except protocol.ProtocolViolation as exc:
            error = ProtocolError(log=str(exc))
        except Exception as exc:  # a sink that refuses a reply, a transport that breaks: the link is over either way
            error = exc
        self._fail(error)
        await self._channel.close()

    def _take(self, data: bytes | memoryview) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._heard_bytes += len(data)
        self._decoder.feed(data)
        while (frame := self._decoder.next()) is not None:
            self._dispatch(*frame)

    def _dispatch(self, kind: int, stream: int, payload: bytes) -> None:
        sink = self._sinks.get(stream)
        if sink is not None:  # frames for a stream that was given up are late, not wrong
            sink.on_frame(kind, payload)

    async def _ping_all(self) -> None:
        """An engine that died may leave a stream that never ends: silence is told from quiet by asking."""
        loop = asyncio.get_running_loop()
        while self.closed is None:
            await asyncio.sleep(PING_EVERY_S)
            if loop.time() - self._heard_at > SILENT_AFTER_S:
                self._fail(ChannelClosed("The sandbox did not answer for 45 seconds."))
                await self._channel.close()
                return
            try:
                await self.send((protocol.REQUEST, 0, protocol.dumps({"op": "ping"})))
            except ChannelClosed:
                return

    def _fail(self, error: Exception) -> None:
        if self.closed is not None:
            return
        self.closed = error
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.on_lost(error)

    async def close(self) -> None:
        self._fail(ChannelClosed("The channel was closed by this server."))
        for task in (self._pinger, self._reader):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._channel.close()


class Call:
    """The sink of a request with one answer: `result` is a future of (failed, body)."""

    def __init__(self) -> None:
        self.result: asyncio.Future[tuple[bool, dict[str, Any]]] = asyncio.get_running_loop().create_future()

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind not in (protocol.REPLY, protocol.FAIL):
            raise ProtocolError()
        if not self.result.done():
            self.result.set_result((kind == protocol.FAIL, parse(payload)))

    def on_lost(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error if isinstance(error, ProtocolError) else ChannelClosed())
            self.result.exception()  # nobody may be waiting any more
