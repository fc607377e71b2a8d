"""A model endpoint on this machine: HTTP/1.1 by hand, so that an answer can be cut, split, delayed or broken at any byte."""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agents.messages import Usage

KEY = "sk-sentinel-9f8e7d6c5b4a/+value"  # also what must appear nowhere


@dataclass(frozen=True)
class Says:
    """What the model says next. A call's arguments are JSON text as the model spelled it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # (name, arguments)
    stop: str = ""  # in the words of `agents.messages.StopReason`
    usage: Usage = field(default_factory=lambda: Usage(10, 5))
    ids: tuple[str, ...] = ()  # of the calls, where a test wants its own
    redacted: str = ""  # a thought that nobody may read


@dataclass(frozen=True)
class Fails:
    """An HTTP failure instead of an answer; or, with `inside`, an error event in the middle of an answer with status 200."""

    status: int = 500
    kind: str = "api_error"
    message: str = "Internal server error"
    headers: tuple[tuple[str, str], ...] = ()
    inside: bool = False
    raw: bytes | None = None  # the whole body, instead of the API's own form


@dataclass(frozen=True)
class How:
    """How an answer goes over the wire. `cut`: only so many bytes of the body, then the end; `split`: pieces that
    begin at these bytes; `hang`: silence for ever after so many bytes; `chunked`: whether the end of the body is marked."""

    cut: int | None = None
    split: Sequence[int] = ()
    hang: int | None = None
    chunked: bool = True
    raw: bytes | None = None  # these bytes instead of the body
    media: str = "text/event-stream"  # what it says it is; "" says nothing


Answer = Says | Fails
Step = Answer | tuple[Answer, How] | Callable[[dict[str, Any]], Answer]


class Refused(Exception):
    """The request is one that the real API answers with 400."""


class StubServer(ABC):
    """Answers questions by `steps`, the last one for ever; checks every request as the real API does."""

    path: str  # of a question

    def __init__(self, *steps: Step) -> None:
        self.steps: list[Step] = list(steps) or [Says("Hello.")]
        self.asked: list[dict[str, Any]] = []  # bodies, in order
        self.headers: list[dict[str, str]] = []
        self.refusals: list[str] = []
        self.max_tokens_of_context: int | None = None
        self.redirect_to = ""
        self.listing: tuple[str, bytes] | None = None  # the type and body that a list of models has instead
        self.needs_key = True
        self.closes = False  # the connection, instead of any answer
        self.open = self.most_open = 0
        self.hung = threading.Event()
        self.dropped = threading.Event()  # the client went away from a hanging answer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    # -- the API

    @abstractmethod
    def check(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        """Raises `Refused` with the API's sentence."""

    @abstractmethod
    def sse(self, says: Says, number: int) -> bytes: ...

    @abstractmethod
    def error(self, status: int, kind: str, message: str) -> dict[str, Any]: ...

    @abstractmethod
    def error_event(self, fails: Fails) -> bytes: ...

    @abstractmethod
    def models(self) -> dict[str, Any]: ...

    # -- the server

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        """Closes everything; a second time does nothing."""
        loop, self._loop = self._loop, None
        if loop is None:
            return

        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            loop.stop()

        asyncio.run_coroutine_threadsafe(end(), loop)
        self._thread.join(10)
        loop.close()

    def _run(self) -> None:
        assert self._loop is not None
        loop = self._loop
        asyncio.set_event_loop(loop)

        async def listen() -> None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=2**26)
            self.port = self._server.sockets[0].getsockname()[1]
            self._ready.set()

        loop.run_until_complete(listen())
        loop.run_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.closes:
            return False
        if self.redirect_to:
            await _send(writer, 302, b"", ("location", self.redirect_to))
            return True
        if self.needs_key and KEY not in (
            headers.get("x-api-key"),
            headers.get("authorization", "").removeprefix("Bearer "),
        ):
            key = headers.get("authorization", "").removeprefix("Bearer ")
            await self._fail(writer, Fails(401, "authentication_error", f"Incorrect API key provided: {key}"))
            return True
        if method == "GET":
            self.headers.append(headers)
            media, listed = self.listing or ("application/json", json.dumps(self.models()).encode())
            await _send(writer, 200, listed, media=media)
            return True
        if path != self.path:
            await self._fail(writer, Fails(404, "not_found_error", f"no {path}"))
            return True
        return await self._asked(json.loads(body), headers, reader, writer)

    async def _asked(
        self, body: dict[str, Any], headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        number = len(self.asked) - len(self.refusals)  # of those that got an answer
        self.asked.append(body)
        self.headers.append(headers)
        try:
            self.check(body, headers)
        except Refused as exc:
            self.refusals.append(str(exc))
            await self._fail(writer, Fails(400, "invalid_request_error", str(exc)))
            return True
        step = self.steps[min(number, len(self.steps) - 1)]
        answer, how = step if isinstance(step, tuple) else (step, How())
        if not isinstance(answer, Says | Fails):
            answer = answer(body)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if isinstance(answer, Fails) and not answer.inside:
                await self._fail(writer, answer)
                return True
            events = self.error_event(answer) if isinstance(answer, Fails) else self.sse(answer, number)
            return await self._stream(writer, reader, how.raw if how.raw is not None else events, how)
        finally:
            self.open -= 1

    async def _fail(self, writer: asyncio.StreamWriter, fails: Fails) -> None:
        body = json.dumps(self.error(fails.status, fails.kind, fails.message)).encode()
        await _send(writer, fails.status, body if fails.raw is None else fails.raw, *fails.headers)

    async def _stream(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, body: bytes, how: How) -> bool:
        framing = "transfer-encoding: chunked" if how.chunked else "connection: close"
        named = "request-id: req_stub_7\r\nx-request-id: req_stub_7"
        media = f"content-type: {how.media}\r\n" if how.media else ""
        writer.write(f"HTTP/1.1 200 OK\r\n{media}{named}\r\n{framing}\r\n\r\n".encode())
        ends = [n for n in (how.cut, how.hang) if n is not None]
        body = body[: ends[0]] if ends else body
        for begin, end in pairwise([0, *how.split, len(body)]):
            await asyncio.sleep(0.001 if begin else 0)
            await _piece(writer, body[begin:end], how.chunked)
        if how.hang is not None:
            self.hung.set()
            await reader.read()  # until the client closes
            self.dropped.set()
            return False
        if how.cut is not None:
            return False
        if how.chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return how.chunked


async def _piece(writer: asyncio.StreamWriter, data: bytes, chunked: bool) -> None:
    if data:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        await writer.drain()


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, *headers: tuple[str, str], media: str = "application/json"
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def require(condition: object, sentence: str) -> None:
    if not condition:
        raise Refused(sentence)


def size_in_tokens(body: dict[str, Any]) -> int:
    """About four characters each, as good as any for a stub."""
    return len(json.dumps([body.get("system"), body["messages"]])) // 4
