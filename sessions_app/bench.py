"""The workbench of a session's tools: its workspace, and no other. Runs are rows of `exec`, so all output stays readable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from agents.tools.base import BenchFailed, ExecCommand, ExecStarted, OutputPage
from primer_site import loop
from primer_site.errors import NotFound, PrimerError
from workspaces import access, exec_output, exec_rows, execs
from workspaces.execution import ExecOutcome, ExecRequest, FileRange, Listing, OutputChunk, Stream
from workspaces.models import Exec, new_exec_id
from workspaces.providers.base import ChannelClosed, EngineUnavailable
from workspaces.sandbox import Sandbox

READY_S = 60.0  # for a sandbox that is coming back
DEAD_S = 20.0  # for a cancelled program to be gone
T = TypeVar("T")
# What says that there is no sandbox to work in, whatever the call was.
NO_SANDBOX = (EngineUnavailable, ChannelClosed, access.WorkspaceNotRunning, access.WorkspaceLost)


class SandboxBench:
    """Implements `Workbench` over one workspace. `cancelled_by` is set before the reader of an exec is cancelled."""

    def __init__(self, *, workspace_pk: int, session_id: str, user_pk: int) -> None:
        self._workspace_pk = workspace_pk
        self._session_id = session_id
        self._user_pk = user_pk
        self.cancelled_by = "primer"
        self.unseen = False  # a program was cancelled, and its sandbox was not there to say what became of it

    async def exec(self, command: ExecCommand) -> AsyncGenerator[ExecStarted | OutputChunk | ExecOutcome, None]:
        request = ExecRequest(
            id=new_exec_id(), argv=command.argv, cwd=command.cwd, stdin=command.stdin, timeout_s=command.timeout_s
        )
        yield ExecStarted(request.id)
        ended = False
        try:
            stream = execs.stream(self._workspace_pk, request, started_by=self._user_pk, session_id=self._session_id)
            async with aclosing(stream) as items:
                async for item in items:
                    if isinstance(item, OutputChunk):
                        yield item
                    else:
                        ended = True
                        yield item.outcome
        except NO_SANDBOX as exc:
            ended = True
            raise _failed(exc) from exc
        except PrimerError:
            ended = True
            raise
        finally:
            if not ended:  # the reader was cancelled or went away: the program must not outlive its call
                await asyncio.shield(asyncio.ensure_future(self._kill(request.id)))

    async def _kill(self, exec_id: str) -> None:
        await execs.cancel_session(self._session_id, self.cancelled_by)
        pk = await loop.read(_pk_of, exec_id, self._session_id)
        if pk is not None:
            await execs.wait_ended(pk, DEAD_S)
            self.unseen |= not await loop.read(_end_was_seen, pk)

    async def read_output(self, exec_id: str, stream: Stream, *, offset: int, limit: int) -> OutputPage:
        pk = await loop.read(_pk_of, exec_id, self._session_id)
        if pk is None:
            raise NotFound(f"No command {exec_id[:40]} ran in this session.")
        page = await exec_output.read(pk, stream, offset, limit)
        return OutputPage(page.offset, page.data, page.gap, await self._length(pk, stream))

    async def _length(self, exec_pk: int, stream: Stream) -> int:
        """Bytes of a stream so far, also of a command that still runs."""
        if (run := execs.live(exec_pk)) is not None:
            return run.keepers[stream].total
        row = await loop.read(exec_rows.load, exec_pk)
        return int(getattr(row, f"{stream}_bytes") or 0)

    async def read(self, path: str, *, offset: int, limit: int) -> FileRange:
        async def work(sandbox: Sandbox) -> FileRange:
            return await sandbox.read(path, offset=offset, limit=limit)

        return await self._with_sandbox(work)

    async def write(self, path: str, data: bytes, *, if_match: str | None = None) -> bool:
        async def work(sandbox: Sandbox) -> bool:
            new = False
            try:
                await sandbox.stat(path)
            except NotFound:
                new = True
            await sandbox.write(path, data, if_match=if_match, parents=True)
            return new

        return await self._with_sandbox(work)

    async def list(self, path: str, *, cursor: str | None = None) -> Listing:
        async def work(sandbox: Sandbox) -> Listing:
            return await sandbox.list(path, cursor=cursor)

        return await self._with_sandbox(work)

    async def _with_sandbox(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        try:
            sandbox = await access.sandbox_for(self._workspace_pk, wait_s=READY_S)
        except PrimerError as exc:  # whatever it is, there is no sandbox
            raise _failed(exc) from exc
        try:
            return await work(sandbox)
        except NO_SANDBOX as exc:
            raise _failed(exc) from exc


def _failed(exc: PrimerError) -> BenchFailed:
    return BenchFailed(exc.detail, hint=exc.hint_text, cause_code=exc.code)


def _end_was_seen(exec_pk: int) -> bool:
    """Whether the sandbox told the end of a run: only then there is an exit code or a signal."""
    row = Exec.objects.values("exit_code", "signal").get(pk=exec_pk)
    return row["exit_code"] is not None or row["signal"] is not None


def _pk_of(exec_id: str, session_id: str) -> int | None:
    return Exec.objects.filter(slug=exec_id, session_id=session_id).values_list("pk", flat=True).first()
