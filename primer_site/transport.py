"""Daphne's protocols with what they lack: sends that wait for the transport, bodies that stay on disk, and limits.

Daphne writes whatever an application sends into the transport's buffer at once, so one client that does not read costs
as much memory as the response is long. Here a send returns when the transport has room again, and a client that takes
nothing for too long is let go.
"""

from __future__ import annotations

import asyncio
import io
import json
from http import HTTPStatus
from typing import IO, Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.interfaces import IPushProducer
from twisted.web.http import HTTPChannel
from zope.interface import implementer

from primer_site import loop

HTTP_BLOCKED_S = 60.0  # a response that cannot move for so long ends its connection
SOCKET_BLOCKED_S = 10.0  # a socket that cannot move for so long is closed with TOO_SLOW
TOO_SLOW = 4408
TOO_MANY = 4429
BODY_CHUNK = 64 * 1024
SEND_AT_ONCE = 1024 * 1024  # Twisted offers the kernel 128 KiB, and then waits a turn of the loop to offer more
MAX_WAITING_MESSAGES = 64  # messages of one client that its application has not read yet


@implementer(IPushProducer)
class Gate:
    """Closed while the transport's buffer is full; the transport moves it by the producer interface."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._open.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self._open.set()

    def stopProducing(self) -> None:  # noqa: N802
        self._open.set()  # the connection is gone: nobody must wait for it

    async def wait(self, seconds: float) -> bool:
        """Waits until there is room (or nobody left to write to); False when `seconds` passed first."""
        return self._open.is_set() or await loop.heard(self._open, seconds)


class Request(WebRequest):  # type: ignore[misc]
    """One HTTP request. Its body stays in Twisted's file (memory below 100 KB, else disk) until the application reads it."""

    def __init__(self, channel: HTTPChannel, queued: object = False) -> None:
        # Twisted would read whole forms into memory for `args`, which nothing here uses.
        super().__init__(channel, queued, parsePOSTFormSubmission=False)
        self.gate = Gate()
        self.content: Any  # Twisted's file, there once the headers are read
        self.body: IO[bytes] | None = None
        self._received = 0
        self._too_large = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        self._too_large = (length or 0) > self.server.max_body_bytes
        super().gotLength(0 if self._too_large else length)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        # What is too large is read to its end and dropped: closing early resets the connection, and the client would
        # never see the answer that says why.
        self._received += len(data)
        if self._received > self.server.max_body_bytes and not self._too_large:
            self._too_large = True
            self.content.close()
            self.content = io.BytesIO()
        if not self._too_large:
            super().handleContentChunk(data)

    def process(self) -> Any:
        if self._too_large:
            return self.basic_error(413, b"", f"The body is larger than {self.server.max_body_bytes} bytes.")
        if self.server.stopping:
            return self.basic_error(503, b"", "The server is restarting. Try again in a moment.")
        self.registerProducer(self.gate, True)
        self.transport.SEND_LIMIT = SEND_AT_ONCE
        if self.channel._waitingForTransport:  # the response before this one is not yet taken
            self.gate.pauseProducing()
        # Daphne would queue the whole body in memory; it gets an empty one and `receive` reads the file.
        self.content.seek(0)
        self.body, self.content = self.content, io.BytesIO()
        return super().process()

    async def receive(self) -> dict[str, Any]:
        """The application's `receive`: the body piece by piece, then what Daphne queues (the end of the connection)."""
        # The pieces are at hand, so the application would read a long body without letting anybody else run.
        await asyncio.sleep(0)
        if self.body is not None:
            chunk = self.body.read(BODY_CHUNK)
            if not (more := len(chunk) == BODY_CHUNK):
                self._close_body()
            return {"type": "http.request", "body": chunk, "more_body": more}
        while True:
            message: dict[str, Any] = await self.application_queue.get()
            if message["type"] != "http.request":  # the empty body of `process`
                return message

    async def drained(self) -> None:
        """Waits for room in the transport; ends the connection of a client that takes nothing."""
        if not await self.gate.wait(HTTP_BLOCKED_S) and self.channel is not None:
            self.channel.forceAbortClient()

    def finish(self) -> None:
        self._close_body()
        if self.producer:
            self.unregisterProducer()
        super().finish()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        self._close_body()
        self.gate.stopProducing()
        super().connectionLost(reason)

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """Answers for the server itself, in the one error shape; nothing of this connection is trusted further."""
        title = HTTPStatus(status).phrase
        code = {413: "too_large", 503: "unavailable"}.get(status, "invalid" if status < 500 else "internal")
        detail = body if body.endswith(".") else f"{body}."
        problem = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "code": code,
            "detail": detail,
            "errors": [],
        }
        headers = [(b"Content-Type", b"application/problem+json"), (b"Connection", b"close")]
        if status == 503:
            headers.append((b"Retry-After", b"2"))
        self.channel.persistent = False
        if not self._response_started:
            self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
            self.handle_reply({"type": "http.response.body", "body": json.dumps(problem).encode()})
        else:  # half a response cannot be taken back: cutting it is the only honest end
            self.channel.forceAbortClient()

    def _close_body(self) -> None:
        if self.body is not None:
            self.body.close()
            self.body = None


class Socket(WebSocketProtocol):  # type: ignore[misc]
    """One WebSocket."""

    maxMessagePayloadSize: int  # noqa: N815 - autobahn's

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def onOpen(self) -> None:  # noqa: N802
        # The transport still reports to the HTTP channel that it was upgraded from.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self.gate, True)
        super().onOpen()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803
        if self.application_queue.qsize() >= MAX_WAITING_MESSAGES:
            self.muted = True
            self.application_queue.put_nowait({"type": "websocket.disconnect", "code": TOO_MANY})
            self.sendClose(code=TOO_MANY)
        else:
            super().onMessage(payload, isBinary)

    def sendMessage(self, *args: Any, **kwargs: Any) -> None:  # noqa: N802
        # autobahn holds what is sent to the limit for what is received; a transcript's event may be longer.
        limit, self.maxMessagePayloadSize = self.maxMessagePayloadSize, 0
        try:
            super().sendMessage(*args, **kwargs)
        finally:
            self.maxMessagePayloadSize = limit

    async def drained(self) -> None:
        """Waits for room in the transport; closes the socket of a client that takes nothing."""
        if not await self.gate.wait(SOCKET_BLOCKED_S):
            self.sendClose(code=TOO_SLOW)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: N802, N803
        self.gate.stopProducing()
        if self in self.server.connections:  # a refused handshake was never connected
            super().onClose(wasClean, code, reason)


class RequestFactory(HTTPFactory):  # type: ignore[misc]
    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        return protocol


class SocketFactory(WebSocketFactory):  # type: ignore[misc]
    protocol = Socket
