"""Pumps: each run has a task that takes its output, follows it over lost channels and restarts, and stores its end."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress

import structlog
from django.db import DatabaseError

from primer_site import loop, metrics
from primer_site.crashpoints import reach
from primer_site.errors import PrimerError, Unavailable
from workspaces import access, bells, exec_rows
from workspaces.exec_rows import STREAMS
from workspaces.execution import Evidence, ExecOutcome, ExecRequest
from workspaces.providers.base import ChannelClosed, EngineUnavailable
from workspaces.runs import Run, patiently

START_WAIT_S = 120.0  # for a workspace that is coming up, or has to be started first
AGAIN_WAIT_S = 30.0  # for one look whether a broken channel comes back
AGAIN_PAUSE_S = (0.05, 0.2, 1.0, 2.0, 5.0)
WATCH_S = 60.0

log = structlog.get_logger(__name__)
runs: dict[int, Run] = {}  # by exec; what this process pumps
coming: dict[int, Future[None]] = {}  # by exec; stored by a view's thread, and on its way to the loop
_watching: asyncio.Task[None] | None = None


class Suspended(Unavailable):
    """The server is restarting. The program runs on and its output is kept."""

    hint = "Read the run by its id when the server is back."


def launch(run: Run, request: ExecRequest | None = None, facts: access.Facts | None = None) -> None:
    """Starts the program, or without a request looks for one that was started before, and pumps it."""
    runs[run.pk] = run
    if (arrival := coming.pop(run.pk, None)) is not None:
        arrival.set_result(None)
    run.starting = asyncio.ensure_future(_start(run, request, facts) if request and facts else _attach_again(run))
    run.task = asyncio.get_running_loop().create_task(_pump(run), name=f"pump {run.id}")


async def _start(run: Run, request: ExecRequest, facts: access.Facts) -> object:
    """The handle of the started program; raises what keeps it from starting."""
    sandbox = access.kept(facts.pk, facts.generation) if facts.is_up else None
    if sandbox is None or not sandbox.is_open:
        # Who waits for an answer of the API hears at once that the engine is down; a session has time.
        patient = run.session_id is not None
        sandbox = await access.sandbox_for(run.workspace_pk, wait_s=START_WAIT_S, patient=patient)
    try:
        handle = await sandbox.start_exec(request)
    except ChannelClosed:
        # The client gave up, or was closed because the sandbox stopped. The program may have started: it is looked for,
        # and never started a second time. What became of the workspace is the better reason, where there is one.
        bells.ring(run.workspace_pk)
        await access.sandbox_for(run.workspace_pk, wait_s=AGAIN_WAIT_S, start=False)
        return await _attach_again(run)
    reach("exec-start")
    return handle


async def _pump(run: Run) -> None:
    """Takes a run from its start to its stored end, whatever happens to the channel in between."""
    began = time.monotonic()
    try:
        outcome = await _outcome(run, began)
        await run.finish(outcome)
        metrics.exec_seen(outcome.ended_by, began, outcome.duration_ms)
    except asyncio.CancelledError:
        if run.cancelled_by is None:
            run.error = Suspended(retry_after_s=5)
            raise
        await run.finish(_unseen(run, "cancelled", began))
        metrics.exec_seen("cancelled", began, None)
    except PrimerError as exc:
        run.error = exc
        await patiently(exec_rows.refuse, run.pk, exc)
        metrics.exec_seen(exec_rows.NOT_STARTED, began, None)
    except Exception:
        log.exception("end of a run cannot be stored as it is", exec=run.id)
        await _give_up(run, began)
    finally:
        runs.pop(run.pk, None)
        run.close()
    await run.acknowledge()  # the end is stored: the sandbox may forget the rest


async def _give_up(run: Run, began: float) -> None:
    run.trouble = "This server could not store how the program ended."
    try:
        await run.give_up(_unseen(run, "lost", began))
    except Exception as exc:  # the watch takes it up again
        log.exception("end of a run cannot be stored", exec=run.id)
        run.error = Unavailable(run.trouble, log=str(exc))


async def _outcome(run: Run, began: float) -> ExecOutcome:
    """How it ended. What fails unexpectedly here is no reason to leave a program alone: it is looked for again."""
    for pause in AGAIN_PAUSE_S:
        try:
            return await _follow(run) or _unseen(run, "lost", began)
        except PrimerError:
            raise
        except Exception:
            log.exception("pump failed", exec=run.id, again_in_s=pause)
        if run.handle is not None:
            with suppress(PrimerError):
                await run.handle.detach()
        await asyncio.sleep(pause)
        run.starting = asyncio.ensure_future(_attach_again(run))
    run.trouble = (
        "This server failed to take the output of the program and gave it up; it may have run on to its timeout."
    )
    with suppress(PrimerError):
        await (await access.require_running(run.workspace_pk)).kill_exec(run.id, "primer")
    return _unseen(run, "lost", began)


async def _follow(run: Run) -> ExecOutcome | None:
    """Takes all output and the outcome; None when the run cannot be found any more."""
    assert run.starting is not None  # noqa: S101 - set by launch
    handle = await run.starting
    while handle is not None:
        run.handle = handle
        run.started.set()
        try:
            if run.cancelled_by is not None:
                await handle.cancel(run.cancelled_by)
            async for chunk in handle.output(settled=run.settled):
                await run.take(chunk)
            outcome: ExecOutcome = await handle.outcome()
            return outcome
        except (ChannelClosed, EngineUnavailable):
            log.warning("channel lost during a run", exec=run.id)
            bells.ring(run.workspace_pk)
            handle = await _attach_again(run)
        except PrimerError as exc:  # what answers there is not our runtime any more
            log.error("run given up", exec=run.id, cause=exc.log or exc.detail)
            return None
    return None


async def _attach_again(run: Run) -> object | None:
    """The handle of a run that is there already, from where its output was last seen; None when it is lost."""
    count = 0
    while True:
        try:
            sandbox = await access.sandbox_for(run.workspace_pk, wait_s=AGAIN_WAIT_S, start=False)
            totals = run.totals
            return await sandbox.attach(run.id, stdout_offset=totals["stdout"], stderr_offset=totals["stderr"])
        except PrimerError as exc:
            if not (exc.retryable or isinstance(exc, ChannelClosed)):
                log.info("run not found again", exec=run.id, reason=exc.log or exc.detail)
                return None
        await asyncio.sleep(AGAIN_PAUSE_S[min(count, len(AGAIN_PAUSE_S) - 1)])
        count += 1


def _unseen(run: Run, ended_by: str, began: float) -> ExecOutcome:
    """The outcome of a run whose end nobody saw."""
    evidence = Evidence(cancelled_by=run.cancelled_by) if ended_by == "cancelled" else Evidence()
    totals, duration_ms = run.totals, (time.monotonic() - began) * 1000
    return ExecOutcome(ended_by, None, None, totals["stdout"], totals["stderr"], duration_ms, evidence=evidence)  # type: ignore[arg-type]


# -- the process


async def recover() -> None:
    """At boot: finds the runs of dead processes again. Those of the API are pumped on, those of sessions are ended."""
    global _watching
    await take_up(None)
    if _watching is None:
        _watching = asyncio.get_running_loop().create_task(_watch(), name="watch runs")


async def take_up(own_since_s: float | None) -> None:
    """Pumps what nobody pumps: everything at boot (None), later what this process began so long ago and lost hold of."""
    for pk, exec_id, workspace_pk, session_id, keep_bytes in await loop.write(
        exec_rows.take_over, list(runs), own_since_s
    ):
        keepers = {name: await loop.write(exec_rows.restore, pk, name, keep_bytes) for name in STREAMS}
        run = Run(pk, exec_id, workspace_pk, keepers, session_id)
        run.cancelled_by = "restart" if session_id is not None else None
        launch(run)


async def _watch() -> None:
    """A caller that was cancelled while its row was stored, or a pump that could not store an end, leaves such a run."""
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            await take_up(WATCH_S)
        except DatabaseError as exc:
            log.warning("runs without a pump were not looked for", cause=str(exc))


async def close() -> None:
    """Lets go of every run without ending it: what is kept so far is stored for the next process."""
    global _watching
    if _watching is not None:
        _watching.cancel()
        _watching = None
    await let_go(list(runs.values()))


async def let_go(some: list[Run]) -> None:
    for run in some:
        if run.task is not None:
            run.task.cancel()
            await asyncio.wait({run.task})
        if isinstance(run.error, Suspended):
            await run.suspend()
