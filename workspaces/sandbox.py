"""The async client of the runtime in a sandbox: one kept channel for all calls, re-opened and resumed when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from primer_site.errors import PrimerError, Timeout
from workspaces.execution import MIB, ExecOutcome, ExecRequest, Survivor
from workspaces.providers.base import Channel, ProviderError
from workspaces.runtime import protocol
from workspaces.sandbox_errors import ChannelClosed, ProtocolError, SandboxRefused, exec_error, file_error
from workspaces.sandbox_exec import ExecHandle
from workspaces.sandbox_files import CALL_S, FileCalls
from workspaces.sandbox_link import Call, Link, spawn
from workspaces.sandbox_replies import integer, items, mapping, number, text

LOST_AFTER_S = 30.0  # without a channel, an exec counts as lost
_BACKOFF_S = (0.05, 2.0)
_REFUSALS = 3  # in a row: one may have been forged into a bridge that was just starting
_EXEC_CALLS = {"cancel", "kill", "execs", "start", "attach"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the runtime says of itself and its surroundings; text is hostile. `limits` holds what its cgroup says."""

    version: str
    boot_id: str
    uid: int
    pid: int
    hostname: str
    python: str
    machine: str
    workdir: str
    rss_bytes: int
    limits: dict[str, float]


@dataclass(frozen=True, slots=True)
class ExecInfo:
    """A run that the runtime still knows; `state` is starting, running or ended."""

    id: str
    state: str
    pid: int
    program: str
    stdout_bytes: int
    stderr_bytes: int
    survivors: tuple[Survivor, ...]


# Python knows a compiled module by the second and the size of its source: after an edit of the same size within a second
# it would run the old one.
BASE_ENV: Final = {"PYTHONDONTWRITEBYTECODE": "1"}


QUIET_WAIT_S = 2.0  # for programs that are being started, before none may start


class Sandbox(FileCalls):
    """Safe for any number of concurrent calls of one event loop.

    `open_channel` gives a fresh byte stream to the runtime each time; `secret` is this sandbox's token, which is never
    sent. `disk_bytes` is the soft limit that the runtime watches (0: none), `env` goes below each exec's own, BASE_ENV below both.
    """

    def __init__(
        self,
        open_channel: Callable[[], Awaitable[Channel]],
        secret: bytes,
        *,
        disk_bytes: int = 0,
        env: Mapping[str, str] | None = None,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._open_channel, self._secret = open_channel, secret
        self._disk_bytes, self._env = disk_bytes, {**BASE_ENV, **(env or {})}
        self._lost_after_s = lost_after_s
        self._link: Link | None = None
        self._lock = asyncio.Lock()
        self._delay = 0.0
        self._facts: Facts | None = None
        self._closing = False
        self._handles: set[ExecHandle] = set()
        self._quiet = asyncio.Lock()
        self._admits = asyncio.Event()
        self._admits.set()

    # -- the channel

    async def open(self) -> None:
        """Opens the channel and learns the facts; raises what kept it from doing so for the whole deadline."""
        await self.connected()

    async def close(self) -> None:
        """Closes the channel. Programs run on; their handles end with ChannelClosed."""
        self._closing = True
        for handle in list(self._handles):
            await handle.detach()
        if self._link is not None:
            await self._link.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a channel, as far as this end knows."""
        return self._link is not None and self._link.closed is None and not self._closing

    @property
    def facts(self) -> Facts:
        """What the runtime said when the channel was last opened; ChannelClosed before the first time."""
        if self._facts is None:
            raise ChannelClosed("The sandbox was not opened yet.")
        return self._facts

    async def connected(self) -> Link:
        """The kept link, or a new one with growing pauses until the deadline; then the last error."""
        if self._link is not None and self._link.closed is None:
            return self._link
        try:
            async with asyncio.timeout(self._lost_after_s + 1):
                async with self._lock:
                    return await self._reconnect()
        except TimeoutError as exc:
            raise ChannelClosed("The sandbox did not answer in time.") from exc

    async def _reconnect(self) -> Link:
        loop = asyncio.get_running_loop()
        deadline, refusals = loop.time() + self._lost_after_s, 0
        if self._link is not None and self._link.proved_useful:
            self._delay = 0.0  # the one before worked: no need to be careful
        while True:
            if self._closing:
                raise ChannelClosed("This server has closed the channel.")
            if self._link is not None and self._link.closed is None:
                return self._link
            await asyncio.sleep(self._delay)
            self._delay = min(_BACKOFF_S[1], max(_BACKOFF_S[0], 2 * self._delay))
            try:
                return await self._open_once()
            except SandboxRefused:
                refusals += 1
                if refusals >= _REFUSALS:
                    raise
            except PrimerError as exc:
                if loop.time() + self._delay > deadline:
                    raise exc if isinstance(exc, ProviderError) else ChannelClosed() from exc
            except OSError as exc:
                if loop.time() + self._delay > deadline:
                    raise ChannelClosed() from exc

    async def _open_once(self) -> Link:
        link = Link(await self._open_channel())
        await link.open(self._secret)
        try:
            answer = await _ask(link, "hello", {"disk_bytes": self._disk_bytes}, 10.0)
            self._facts = _facts_from(answer)
        except BaseException:
            await link.close()
            raise
        previous, self._link = self._link, link
        if previous is not None:
            await previous.close()
        return link

    async def call(self, op: str, body: dict[str, Any], *, timeout: float = CALL_S) -> dict[str, Any]:
        """One request and its answer, asked again over a new channel when the old one broke. Raises Timeout and what the
        operation raises. Safe to repeat: changes carry an id that the runtime remembers."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            link = await self.connected()
            try:
                return await _ask(link, op, body, max(0.1, deadline - asyncio.get_running_loop().time()))
            except ChannelClosed:
                if self._closing or asyncio.get_running_loop().time() >= deadline:
                    raise

    # -- programs

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[int]:
        """While it is held no program starts through this client but with `through`; starts wait for its end.

        Gives how many programs run now, those that an ended run left behind included.
        """
        async with self._quiet:
            self._admits.clear()
            try:
                late = 0
                if started := [asyncio.ensure_future(handle.wait_started()) for handle in self._handles]:
                    # What was let in before is in the list below; what has lost its channel would hold up the others.
                    late = len((await asyncio.wait(started, timeout=QUIET_WAIT_S))[1])
                    for one in started:
                        one.cancel()
                    await asyncio.gather(*started, return_exceptions=True)
                running = sum(max(run.state != "ended", len(run.survivors)) for run in await self.list_execs())
                yield max(running, late)
            finally:
                self._admits.set()

    async def start_exec(self, request: ExecRequest, *, through: bool = False) -> ExecHandle:
        """Starts a program and returns when it runs; a known id attaches instead, so a repeated start runs nothing twice.

        Raises StartFailure (which part and why), Invalid, SandboxBusy, and ChannelClosed when no channel can be had.
        """
        if sum(map(len, request.argv)) + sum(len(k) + len(v) for k, v in request.env.items()) > 2 * MIB:
            facts = {"part": "argv0", "reason": "argument_too_long"}
            raise exec_error("cannot_start", "", facts, program=request.argv[0])
        if not through:
            await self._admits.wait()
        handle = self._follow(request.id, request, (0, 0))
        await handle.wait_started()
        return handle

    async def attach(self, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0) -> ExecHandle:
        """Follows a run that is known to the runtime, from these offsets on; ExecUnknown otherwise."""
        handle = self._follow(exec_id, None, (stdout_offset, stderr_offset))
        await handle.wait_started()
        return handle

    def _follow(self, exec_id: str, request: ExecRequest | None, offsets: tuple[int, int]) -> ExecHandle:
        env = {**self._env, **request.env} if request is not None else {}
        handle = ExecHandle(
            exec_id, connect=self.connected, cancel=self._cancel, request=request, env=env, offsets=offsets
        )
        self._handles.add(handle)
        handle.on_done(self._handles.discard)
        return handle

    async def run(
        self, request: ExecRequest, *, keep_bytes: int = MIB, through: bool = False
    ) -> tuple[ExecOutcome, bytes, bytes]:
        """Runs to the end; returns the outcome and the first `keep_bytes` of stdout and of stderr."""
        return await self.collect(await self.start_exec(request, through=through), keep_bytes)

    @staticmethod
    async def collect(handle: ExecHandle, keep_bytes: int) -> tuple[ExecOutcome, bytes, bytes]:
        """The same for a program that was started already."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        async for chunk in handle.output():
            buffer = kept[chunk.stream]
            buffer += chunk.data[: max(0, keep_bytes - len(buffer))]
        return await handle.outcome(), bytes(kept["stdout"]), bytes(kept["stderr"])

    async def _cancel(self, exec_id: str, by: str) -> None:
        await self.call("cancel", {"id": exec_id, "by": by})

    async def kill_exec(self, exec_id: str, by: str) -> int:
        """Ends a run and everything it started, also what it left behind; returns how many processes could not be ended."""
        answer = await self.call("kill", {"id": exec_id, "by": by}, timeout=60.0)
        return integer(answer, "left")

    async def list_execs(self) -> list[ExecInfo]:
        """Runs that the runtime knows: running, and ended ones it has not forgotten yet."""
        return [_exec_from(item) for item in items(await self.call("execs", {}), "items")]

    async def shutdown(self) -> None:
        """Ends all programs and a runtime that is not PID 1 (the local provider's); the channel ends with it."""
        await self.call("shutdown", {})


async def _ask(link: Link, op: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    sink = Call()
    stream = link.open_stream(sink)
    try:
        async with asyncio.timeout(timeout):
            await link.send((protocol.REQUEST, stream, protocol.dumps({"op": op, **body})))
            failed, answer = await sink.result
    except TimeoutError as exc:
        raise Timeout("The sandbox did not answer in time.") from exc
    finally:
        link.forget(stream)
    if not failed:
        return answer
    code, message = str(answer.get("code")), str(answer.get("message"))
    raise exec_error(code, message, answer) if op in _EXEC_CALLS else file_error(code, message)


def _facts_from(body: dict[str, Any]) -> Facts:
    limits = mapping(body, "limits")
    return Facts(
        version=text(body, "version", 64),
        boot_id=text(body, "boot_id", 64),
        uid=integer(body, "uid"),
        pid=integer(body, "pid"),
        hostname=text(body, "hostname", 256),
        python=text(body, "python", 64),
        machine=text(body, "machine", 64),
        workdir=text(body, "workdir", 4096),
        rss_bytes=integer(body, "rss_bytes"),
        limits={name: number(limits, name) for name in ("memory_bytes", "pids", "cpu_cores") if name in limits},
    )


def _exec_from(item: dict[str, Any]) -> ExecInfo:
    state = text(item, "state", 16)
    if state not in ("starting", "running", "ended"):
        raise ProtocolError(log="an unknown state")
    return ExecInfo(
        id=text(item, "id", 128),
        state=state,
        pid=integer(item, "pid"),
        program=text(item, "program", 256),
        stdout_bytes=integer(item, "stdout_bytes"),
        stderr_bytes=integer(item, "stderr_bytes"),
        survivors=tuple(
            Survivor(integer(one, "pid", 1), text(one, "command", 1000)) for one in items(item, "survivors")
        ),
    )


__all__ = ["ExecHandle", "ExecInfo", "Facts", "Sandbox", "spawn"]
