"""Programs in workspaces: started once, pumped by a task of their own, kept, and found again after a restart.

The one way to run something, for agents' tools and for the HTTP API alike. A run belongs to the runtime in its sandbox: it
ends by itself, by its timeout or by `cancel`, never because somebody stopped listening.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from primer_site import loop
from primer_site.errors import Conflict, FieldError, NotFound, PrimerError, RateLimited, Unavailable
from workspaces import access, exec_rows, services
from workspaces.exec_pump import START_WAIT_S, Suspended, close, coming, launch, let_go, recover, runs
from workspaces.exec_rows import NOT_STARTED, STREAMS
from workspaces.execution import DEFAULT_KEEP_BYTES, MIB, ExecOutcome, ExecRequest, OutputChunk, Stream
from workspaces.models import ExecState
from workspaces.output import Keeper, Kept
from workspaces.providers.base import ChannelClosed, EngineUnavailable
from workspaces.runs import Listener, Run
from workspaces.sandbox_errors import StartFailure

ARRIVAL_S = 5.0  # between a run's row and its place among the runs: a moment, unless the caller died
RUNNING_AT_ONCE = 64  # in one workspace; the runtime holds the same
INLINE_BYTES = 8 * MIB  # of a stream in one result; the rest of what is kept is read in pages

__all__ = [
    "START_WAIT_S", "ExecFinished", "NeverStarted", "Started", "Suspended", "begin", "cancel", "cancel_session", "close",
    "drain", "finished", "join", "live", "recover", "reopen", "stop_listening", "store", "stored", "stream", "wait_ended", "wait_started",
]  # fmt: skip
log = structlog.get_logger(__name__)
_draining = False


class NeverStarted(Conflict):
    """The program was never started."""

    hint = "Start it again."


@dataclass(frozen=True, slots=True)
class ExecFinished:
    """The end of a run, with what is kept of its output, of each stream at most what was asked for."""

    exec_id: str
    outcome: ExecOutcome
    stdout: Kept
    stderr: Kept

    @property
    def truncated(self) -> bool:
        return self.stdout.truncated or self.stderr.truncated


@dataclass(frozen=True, slots=True)
class Started:
    """A run that this call began, or, without a listener, one that an earlier call under the same key began."""

    exec_pk: int
    exec_id: str
    listener: Listener | None = None


# -- starting


def store(
    facts: access.Facts,
    request: ExecRequest,
    *,
    keep_bytes: int = DEFAULT_KEEP_BYTES,
    started_by: int | None = None,
    session_id: str | None = None,
    background: bool = False,
    claim_pk: int | None = None,
) -> tuple[int, bool]:
    """The first half of a start: stores that the run is about to begin; its key, and whether it was there already. Sync.

    `claim_pk`: the id stands for this claim of an Idempotency-Key, and a second call finds the first run. Raises `Conflict`
    (the id means another run, or the workspace has failed or is lost), `KeyFreed`, `RateLimited`, `Suspended`, and then
    leaves no row behind. What goes wrong later is in the run: see `finished`.
    """
    if _draining and session_id is None:
        raise Suspended(retry_after_s=5)
    if not facts.is_up:
        access.refuse(facts, start=True)
    if sum(run.workspace_pk == facts.pk for run in list(runs.values())) >= RUNNING_AT_ONCE:
        raise RateLimited(f"{RUNNING_AT_ONCE} programs are running in this workspace already.", retry_after_s=1)
    if services.touch_is_due(facts.last_activity_at):
        services.workspace_touch(facts.pk, facts.last_activity_at)
    exec_pk, known = exec_rows.insert(
        facts.pk, request, keep_bytes=keep_bytes, started_by=started_by, session_id=session_id, background=background,
        claim_pk=claim_pk, request_hash=exec_rows.digest(request, keep_bytes) if claim_pk is not None else "",
    )  # fmt: skip
    if not known:
        coming[exec_pk] = Future()  # in the same turn at writing: whoever finds the row finds this, too
    return exec_pk, known


async def join(exec_pk: int, exec_id: str) -> Started:
    """The run that an earlier call stored, as soon as that call has begun it."""
    if (arrival := coming.get(exec_pk)) is not None:
        await asyncio.wait({asyncio.wrap_future(arrival)}, timeout=ARRIVAL_S)
    return Started(exec_pk, exec_id)


def begin(
    exec_pk: int,
    request: ExecRequest,
    facts: access.Facts,
    *,
    keep_bytes: int = DEFAULT_KEEP_BYTES,
    session_id: str | None = None,
    listen: bool = False,
) -> Started:
    """The second half, on the loop: starts what `store` stored a moment ago, and its pump."""
    keepers: dict[Stream, Keeper] = {name: Keeper(keep_bytes) for name in STREAMS}
    run = Run(exec_pk, request.id, facts.pk, keepers, session_id)
    listener = Listener() if listen else None
    if listener is not None:
        run.listeners.add(listener)
    launch(run, request, facts)
    return Started(exec_pk, request.id, listener)


async def stream(
    workspace_pk: int,
    request: ExecRequest,
    *,
    keep_bytes: int = DEFAULT_KEEP_BYTES,
    started_by: int | None = None,
    session_id: str | None = None,
) -> AsyncGenerator[OutputChunk | ExecFinished, None]:
    """Runs a program and yields its output as it comes, then how it ended. Closing the generator does not end the program.

    Raises what keeps the program from starting: `StartFailure`, `WorkspaceFailed`, `WorkspaceLost`, `NotFound`, ….
    """
    facts = await loop.read(access.look, workspace_pk)
    exec_pk, _ = await loop.write(
        store, facts, request, keep_bytes=keep_bytes, started_by=started_by, session_id=session_id
    )
    started = begin(exec_pk, request, facts, keep_bytes=keep_bytes, session_id=session_id, listen=True)
    run, listener = runs[started.exec_pk], started.listener
    assert listener is not None  # noqa: S101 - `listen` was asked for
    try:
        while (chunk := await listener.next()) is not None:
            yield chunk
    finally:
        run.listeners.discard(listener)
    yield await _result(run, INLINE_BYTES)


def stop_listening(exec_pk: int, listener: Listener) -> None:
    """The reader has gone: nothing is kept for it, and it holds nobody up."""
    if (run := runs.get(exec_pk)) is not None:
        run.listeners.discard(listener)


# -- reading


async def wait_started(exec_pk: int, wait_s: float) -> None:
    """Waits until the program runs, or is known never to run; then raises the reason."""
    if (run := runs.get(exec_pk)) is None:
        return
    if await loop.heard(run.started, wait_s) and run.error is not None:
        raise run.error


async def finished(exec_pk: int, wait_s: float, *, inline_bytes: int = INLINE_BYTES) -> ExecFinished | None:
    """The result of a run, None when it has not ended within `wait_s` seconds. Raises what kept it from starting."""
    run = runs.get(exec_pk)
    if run is None:
        return await stored(exec_pk, inline_bytes)
    return await _result(run, inline_bytes) if await loop.heard(run.ended, wait_s) else None


async def _result(run: Run, inline_bytes: int) -> ExecFinished:
    if run.error is not None:
        raise run.error
    if run.outcome is not None and len(run.kept) == len(STREAMS):
        stdout, stderr = run.kept["stdout"].first(inline_bytes), run.kept["stderr"].first(inline_bytes)
        return ExecFinished(run.id, run.outcome, stdout, stderr)
    found = await stored(run.pk, inline_bytes)
    if found is None:
        raise Unavailable("The end of the run is not stored yet.")
    return found


async def stored(exec_pk: int, inline_bytes: int) -> ExecFinished | None:
    """An ended run from the database, None while it runs. Raises `StartFailure` or `NeverStarted` for one that never ran."""
    row, stdout, stderr = await loop.read(exec_rows.kept, exec_pk, inline_bytes)
    if row.state != ExecState.ENDED:
        return None
    if row.ended_by == NOT_STARTED:
        error = row.error or {}
        kind = StartFailure if error.get("code") == StartFailure.code else NeverStarted
        errors = [FieldError(**one) for one in error.get("errors", [])]
        raise kind(error.get("detail", ""), hint=error.get("hint", ""), errors=errors)
    return ExecFinished(row.slug, exec_rows.outcome_of(row), stdout, stderr)


def live(exec_pk: int) -> Run | None:
    """The run as this process pumps it, None when it does not."""
    return runs.get(exec_pk)


# -- ending


async def cancel(exec_pk: int, by: str) -> None:
    """Ends a run with all its processes; one that has ended stays as it is. `by` is who asked, and stands in the evidence.

    Raises what keeps it from being asked for (`EngineUnavailable`, `ChannelClosed`, …) where nobody would repeat it.
    """
    if exec_pk in coming:
        await join(exec_pk, "")  # or it would be killed before it starts, and then start
    run = runs.get(exec_pk)
    if run is None:
        await _cancel_elsewhere(exec_pk, by)
        return
    run.cancelled_by = run.cancelled_by or by
    if run.handle is None:
        if run.starting is not None:
            run.starting.cancel()
        try:  # it may have arrived; one that has not is not sent any more
            await _kill(run.workspace_pk, run.id, by)
        except PrimerError as exc:
            log.info("nothing to kill", exec=run.id, reason=exc.detail)
        return
    try:
        await run.handle.cancel(by)
    except (ChannelClosed, EngineUnavailable):
        log.info("cancel waits for the channel", exec=run.id)  # the pump repeats it when it is back


async def _cancel_elsewhere(exec_pk: int, by: str) -> None:
    """Ends what an ended run left behind, or a run that nobody pumps. A sandbox that is not there runs nothing."""
    row = await loop.read(exec_rows.load, exec_pk)
    if row.state == ExecState.RUNNING or row.survivors:
        try:
            await _kill(row.workspace_id, row.slug, by)
        except (NotFound, Conflict) as exc:
            log.info("nothing to kill", exec=row.slug, reason=exc.detail)


async def _kill(workspace_pk: int, exec_id: str, by: str) -> None:
    await access.using(workspace_pk, lambda sandbox: sandbox.kill_exec(exec_id, by))


async def cancel_session(session_id: str, by: str) -> None:
    """Ends everything that a session has running; one that cannot be reached keeps none of the others."""
    for run in [run for run in runs.values() if run.session_id == session_id]:
        try:
            await cancel(run.pk, by)
        except PrimerError as exc:
            log.warning("a program of a session was not cancelled", exec=run.id, reason=exc.detail)


async def wait_ended(exec_pk: int, wait_s: float) -> bool:
    """Whether a run has ended and is stored, waiting at most so long."""
    run = runs.get(exec_pk)
    return run is None or await loop.heard(run.ended, wait_s)


# -- the process


async def drain(seconds: float) -> None:
    """Takes no new programs of the API and waits for the running ones; the rest runs on and is found again after the restart.

    Programs of sessions are the sessions' to end: they need them while they drain themselves.
    """
    global _draining
    _draining = True
    ours = [run for run in runs.values() if run.session_id is None]
    if tasks := [run.task for run in ours if run.task is not None]:
        await asyncio.wait(tasks, timeout=seconds)
    await let_go([run for run in ours if run.pk in runs])


def reopen() -> None:
    """After a drain in a process that goes on (tests)."""
    global _draining
    _draining = False
