"""One exec seen from the control plane: it survives lost channels, resumes by offset, and ends in exactly one outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from primer_site.errors import PrimerError
from workspaces.execution import ExecOutcome, ExecRequest, OutputChunk, Stream
from workspaces.runtime import protocol
from workspaces.sandbox_errors import ChannelClosed, ExecUnknown, ProtocolError, exec_error
from workspaces.sandbox_link import Link, parse, spawn
from workspaces.sandbox_replies import integer, mapping, outcome_from

WINDOW = 256 * 1024  # bytes of one stream that may wait here for their reader
OVERTIME_S = 45.0  # beyond timeout and grace: sweeps of the runtime, a slow machine
MAX_FAULTS = 10  # wrong frames in a row: a bridge can be disturbed while it is young, a runtime that lies is given up
STALLED_S = 30.0  # of output that was announced and does not come
_MERGE_BYTES, _MAX_CHUNKS = 4096, 4096
_STREAMS: dict[int, Stream] = {protocol.STDOUT: "stdout", protocol.STDERR: "stderr"}
Connect = Callable[[], Awaitable[Link]]


class ExecHandle:
    """A running or ended program. `output()` has one reader; reading it is what lets the program go on printing."""

    def __init__(
        self,
        exec_id: str,
        *,
        connect: Connect,
        cancel: Callable[[str, str], Awaitable[None]],
        request: ExecRequest | None,
        env: dict[str, str],
        offsets: tuple[int, int] = (0, 0),
    ) -> None:
        loop = asyncio.get_running_loop()
        self.id = exec_id
        self.pid: int | None = None
        self._connect, self._cancel, self._request, self._env = connect, cancel, request, env
        self._chunks: deque[OutputChunk] = deque()
        self._received = {protocol.STDOUT: offsets[0], protocol.STDERR: offsets[1]}
        self._consumed = dict(self._received)
        self._settled: Callable[[Stream], int] | None = None
        self._told = dict.fromkeys(_STREAMS, 0)  # of what was taken
        self._limit = dict(self._received)
        self._wake = asyncio.Event()
        self._outcome: asyncio.Future[ExecOutcome] = loop.create_future()
        self._started: asyncio.Future[None] = loop.create_future()
        self._session: asyncio.Future[None] = loop.create_future()
        self._credited = asyncio.Event()
        self._heard = asyncio.Event()  # this session was told where the streams are
        self._stdin_sent = self._stdin_limit = 0
        self._link: Link | None = None
        self._stream = 0
        self._boot_id = ""
        self._asked = self._resuming = self._confirmed = False
        self._ends = (0, 0)
        self._faults = 0
        self._began, self._moved_at = loop.time(), loop.time()
        self._driver = spawn(self._drive())

    # -- what callers use

    async def wait_started(self) -> None:
        """Returns when the program runs; raises StartFailure, Invalid, SandboxBusy, or ChannelClosed."""
        await asyncio.shield(self._started)

    async def output(self, *, settled: Callable[[Stream], int] | None = None) -> AsyncIterator[OutputChunk]:
        """What the program prints, in order for each stream; ends when the run has ended and all of it was given.

        A chunk counts as taken, and is forgotten by the sandbox, when the next one is asked for; with `settled`, which
        gives the offset below which a stream is stored, only below that: the caller says `acknowledge` when it has moved,
        and a program that is a window (up to 1 MiB) ahead of it waits.
        """
        self._settled = settled
        await self.acknowledge()
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                yield chunk
                await self._take(chunk)
            if self._complete():
                await self.acknowledge()
                return
            self._wake.clear()
            await self._wake.wait()

    async def acknowledge(self) -> None:
        """Tells the sandbox what it may forget, where that has moved. Also after the end."""
        await self._send_credit(*[channel for channel in _STREAMS if self._taken(channel) > self._told[channel]])

    async def outcome(self) -> ExecOutcome:
        """How it ended. A program that prints more than a window ends only if somebody reads `output()` meanwhile."""
        return await asyncio.shield(self._outcome)

    async def cancel(self, by: str) -> None:
        """Asks the runtime to end it (TERM, grace, KILL); `by` is kept in the evidence. The outcome follows."""
        await self._cancel(self.id, by)

    def on_done(self, callback: Callable[[ExecHandle], object]) -> None:
        """Calls back once nothing of this exec needs the channel any more."""
        self._driver.add_done_callback(lambda _: callback(self))

    async def detach(self) -> None:
        """Stops following it; the program runs on and can be attached to again."""
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        if self._link is not None:
            self._link.forget(self._stream)
            with suppress(ChannelClosed):  # detached by that already
                await self._link.send((protocol.ABORT, self._stream, b""))
        self._break(ChannelClosed("This server stopped following the program."))

    # -- frames from the runtime

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind == protocol.DATA:
            self._on_data(*protocol.unpack_data(payload))
        elif kind == protocol.CREDIT:
            _, _, limit = protocol.unpack_credit(payload)
            self._stdin_limit = max(self._stdin_limit, limit)
            self._credited.set()
        elif kind == protocol.EVENT:
            self._on_started(parse(payload))
        elif kind == protocol.REPLY:
            body = mapping(parse(payload), "outcome")
            self._on_outcome(outcome_from(body), (integer(body, "stdout_end"), integer(body, "stderr_end")))
        elif kind == protocol.FAIL:
            body = parse(payload)
            self._on_failure(self._error(str(body.get("code")), str(body.get("message")), body))
        else:
            raise ProtocolError()

    def _error(self, code: str, message: str, facts: dict[str, Any]) -> PrimerError:
        asked = self._request
        return exec_error(code, message, facts, program=asked.argv[0] if asked else "", cwd=asked.cwd if asked else "")

    def on_lost(self, error: Exception) -> None:
        self._faults += isinstance(error, ProtocolError)
        self._credited.set()
        if not self._session.done():
            self._session.set_result(None)

    def _on_data(self, channel: int, offset: int, data: bytes) -> None:
        received = self._received.get(channel)
        if received is None or offset != received or not data or offset + len(data) > self._limit[channel]:
            raise ProtocolError(log="output out of order or beyond its credit")
        self._received[channel] += len(data)
        self._moved_at, self._faults = asyncio.get_running_loop().time(), 0
        self._append(OutputChunk(_STREAMS[channel], offset, data))
        self._wake.set()

    def _append(self, chunk: OutputChunk) -> None:
        """Joins small neighbours, so that a million one-byte frames do not become a million objects."""
        if self._chunks:
            full = len(self._chunks) >= _MAX_CHUNKS  # then also across the other stream, whose order is not promised
            for back in (1, 2) if full and len(self._chunks) > 1 else (1,):
                last = self._chunks[-back]
                if last.stream == chunk.stream and (full or len(last.data) + len(chunk.data) <= _MERGE_BYTES):
                    self._chunks[-back] = OutputChunk(last.stream, last.offset, last.data + chunk.data)
                    return
        self._chunks.append(chunk)

    def _on_started(self, body: dict[str, Any]) -> None:
        self.pid = integer(body, "pid")
        for channel, name in _STREAMS.items():
            position = integer(body, name)
            if position < self._received[channel]:
                raise ProtocolError(log="a stream went back")
            if position > self._received[channel]:  # what lay between is gone, which the next offset shows
                self._limit[channel] = max(self._limit[channel], position + WINDOW)
            self._received[channel] = position
        accepted = integer(body, "stdin", 0, len(self._stdin))
        if self._resuming:
            self._stdin_sent = accepted
        self._stdin_limit = max(self._stdin_limit, accepted + protocol.WINDOW)
        self._confirmed = True
        self._heard.set()
        self._credited.set()
        if not self._started.done():
            self._started.set_result(None)

    def _on_outcome(self, outcome: ExecOutcome, ends: tuple[int, int]) -> None:
        """`ends`: where the bytes end that will come; above them, output was counted and not kept (output_cap)."""
        self._moved_at = asyncio.get_running_loop().time()
        received = self._received[protocol.STDOUT], self._received[protocol.STDERR]
        totals = outcome.stdout_bytes, outcome.stderr_bytes
        if not all(have <= end <= total for have, end, total in zip(received, ends, totals, strict=True)):
            raise ProtocolError(log="fewer bytes than were sent")
        self._ends = ends
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        if not self._started.done():
            self._started.set_result(None)
        self._wake.set()
        if self._complete():
            self.on_lost(ChannelClosed())

    def _on_failure(self, error: PrimerError) -> None:
        if isinstance(error, ExecUnknown) and self._confirmed:
            self._lose()  # the runtime has forgotten it: pruned, or another one
        else:
            self._break(error)
        self.on_lost(error)

    # -- the driver

    async def _drive(self) -> None:
        """Follows the exec over as many connections as it takes."""
        while not self._complete():
            try:
                link = await self._connect()
            except PrimerError as exc:
                self._lose() if self._asked else self._break(exc)
                return
            if self._faults >= MAX_FAULTS or self._overdue() or (self._asked and link.boot_id != self._boot_id):
                self._lose()  # another runtime: whether the program ran cannot be known, and it must not run twice
                return
            try:
                await self._follow(link)
            except ChannelClosed:
                continue  # the next connection resumes
            except PrimerError as exc:
                self._break(exc)
                return

    async def _follow(self, link: Link) -> None:
        self._session = asyncio.get_running_loop().create_future()
        self._link, self._boot_id = link, link.boot_id
        self._heard.clear()
        self._stream = link.open_stream(self)
        pump: asyncio.Task[None] | None = None
        try:
            opening = (protocol.REQUEST, self._stream, self._opening())
            self._resuming, self._asked = self._asked, True
            # what the lost connection may not have delivered any more: a full window would wait for it for ever
            again = self._credits(*_STREAMS) if self._resuming else []
            await link.send(opening, *self._first_stdin(), *again)
            if self._request is not None and (self._resuming or self._stdin_sent < len(self._stdin)):
                pump = spawn(self._pump_stdin(link, self._stream))
            while not self._session.done():
                pending: set[asyncio.Future[Any]] = {self._session}
                if not self._outcome.done():
                    pending.add(self._outcome)
                await asyncio.wait(pending, timeout=self._guard(), return_when=asyncio.FIRST_COMPLETED)
                if not self._session.done() and self._overdue():
                    self._lose()
                    return
        finally:
            link.forget(self._stream)
            if pump is not None:
                pump.cancel()

    def _opening(self) -> bytes:
        """The request of this connection: the start until it is confirmed (it attaches if it was heard), then attach."""
        body: dict[str, Any] = {"op": "attach", "id": self.id, "credit": WINDOW}
        body["stdout_offset"], body["stderr_offset"] = self._received[protocol.STDOUT], self._received[protocol.STDERR]
        waiting = max(self._received[channel] - self._consumed[channel] for channel in _STREAMS)
        body["credit"] = max(0, WINDOW - waiting)
        for channel in _STREAMS:
            self._limit[channel] = max(self._limit[channel], self._received[channel] + body["credit"])
        request = self._request
        if request is not None and not self._confirmed:
            body |= {
                "op": "start",
                "argv": list(request.argv),
                "cwd": request.cwd,
                "env": self._env,
                "stdin": bool(request.stdin),
                "timeout_s": request.timeout_s,
                "output_kill_bytes": request.output_kill_bytes,
            }
        payload = protocol.dumps(body)
        if len(payload) > protocol.MAX_PAYLOAD:
            raise self._error("cannot_start", "", {"part": "argv0", "reason": "argument_too_long"})
        return payload

    # -- stdin

    @property
    def _stdin(self) -> bytes:
        return self._request.stdin if self._request is not None else b""

    def _first_stdin(self) -> list[tuple[int, int, bytes]]:
        """What may go together with the start: a small input costs no second message."""
        if self._resuming or not self._stdin:
            return []
        self._stdin_limit = protocol.WINDOW
        return self._stdin_frames(self._stream)

    def _stdin_frames(self, stream: int) -> list[tuple[int, int, bytes]]:
        end = min(len(self._stdin), self._stdin_limit, self._stdin_sent + 4 * protocol.CHUNK)
        frames = []
        while self._stdin_sent < end:
            piece = self._stdin[self._stdin_sent : min(end, self._stdin_sent + protocol.CHUNK)]
            frames.append((protocol.DATA, stream, protocol.pack_data(protocol.STDIN, self._stdin_sent, piece)))
            self._stdin_sent += len(piece)
        if self._stdin_sent == len(self._stdin):
            frames.append((protocol.END, stream, bytes([protocol.STDIN])))
        return frames

    async def _pump_stdin(self, link: Link, stream: int) -> None:
        """Sends the rest as the program reads; after a new connection, from where the runtime says it has it."""
        try:
            await self._heard.wait()
            while True:
                self._credited.clear()
                frames = self._stdin_frames(stream)
                if frames:
                    await link.send(*frames)
                if self._stdin_sent == len(self._stdin):
                    return
                await self._credited.wait()
        except PrimerError:
            return  # the session ends for the same reason

    # -- credit and the end

    async def _take(self, chunk: OutputChunk) -> None:
        channel = protocol.STDOUT if chunk.stream == "stdout" else protocol.STDERR
        self._consumed[channel] = chunk.offset + len(chunk.data)
        if self._limit[channel] - self._consumed[channel] <= WINDOW // 2:
            await self._send_credit(channel)

    def _taken(self, channel: int) -> int:
        consumed = self._consumed[channel]
        return consumed if self._settled is None else min(consumed, self._settled(_STREAMS[channel]))

    def _credits(self, *channels: int) -> list[tuple[int, int, bytes]]:
        frames = []
        for channel in channels:
            taken = self._told[channel] = self._taken(channel)
            frames.append((protocol.CREDIT, self._stream, protocol.pack_credit(channel, taken, self._limit[channel])))
        return frames

    async def _send_credit(self, *channels: int) -> None:
        """Says how far the output may be forgotten and may go on; a channel that just broke is told at the next one."""
        if channels and self._link is not None and self._link.closed is None:
            for channel in channels:
                self._limit[channel] = max(self._limit[channel], self._consumed[channel] + WINDOW)
            with suppress(ChannelClosed):
                await self._link.send(*self._credits(*channels))
        if self._complete():
            self.on_lost(ChannelClosed())

    def _complete(self) -> bool:
        """Ended, and every byte that was announced has been read."""
        if not self._outcome.done():
            return False
        if self._outcome.cancelled() or self._outcome.exception() is not None:
            return True
        outcome = self._outcome.result()
        if outcome.ended_by == "lost":
            return not self._chunks
        return not self._chunks and self._ends == (self._received[protocol.STDOUT], self._received[protocol.STDERR])

    def _guard(self) -> float | None:
        now = asyncio.get_running_loop().time()
        if self._outcome.done():
            return STALLED_S
        if self._request is None:
            return None
        return max(0.01, self._began + self._request.timeout_s + OVERTIME_S - now)

    def _overdue(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._outcome.done():  # slow readers are welcome: only bytes that we have room for can be late
            room = any(self._received[channel] < self._limit[channel] for channel in _STREAMS)
            return not self._chunks and room and now - self._moved_at > STALLED_S
        return self._request is not None and now > self._began + self._request.timeout_s + OVERTIME_S

    def _lose(self) -> None:
        """The verdict when nobody can tell any more: with what had arrived, and never taken for success."""
        elapsed = (asyncio.get_running_loop().time() - self._began) * 1000
        out, err = self._received[protocol.STDOUT], self._received[protocol.STDERR]
        outcome = ExecOutcome("lost", None, None, out, err, elapsed)
        if self._outcome.done():
            self._outcome = asyncio.get_running_loop().create_future()
        self._outcome.set_result(outcome)
        if not self._started.done():
            self._started.set_result(None)
        self._wake.set()

    def _break(self, error: PrimerError) -> None:
        for future in (self._outcome, self._started):
            if not future.done():
                future.set_exception(error)
                future.exception()  # told to whoever asks; not everybody does
        self._wake.set()
