"""The embedded runner: queued sessions become tasks on the loop of this process. A bell makes it fast, a poll makes it right."""

from __future__ import annotations

import asyncio

import structlog

from primer_site import loop, services
from sessions_app import claims, signals
from sessions_app.runner import Halt, Run
from workspaces import execs

MAX_RUNS = 64  # of this process at once; the rest waits, the oldest first
POLL_S = 1.0
EXPIRY_CHECK_S = 5.0
END_S = 10.0  # for halted runs to write their end
log = structlog.get_logger(__name__)


class Dispatcher:
    """Claims queued sessions and drives them until it is told to stop."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()
        self._runs: dict[int, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._picking = asyncio.Lock()
        self.closing = False

    def wake(self) -> None:
        self._bell.set()

    def cancel(self, session_pk: int) -> None:
        """A cancel was stored: the run's guard reads it within a second, this makes it at once."""
        if run := self._runs.get(session_pk):
            loop.spawn(_cancel(run), name="cancel")

    async def serve(self, stop: asyncio.Event) -> None:
        """At boot ends what died with an earlier process, then picks sessions until `stop`."""
        await _cancel_execs(await loop.write(claims.interrupt_foreign))
        expiry_due = asyncio.get_running_loop().time() + EXPIRY_CHECK_S
        while not stop.is_set():
            services.beat("runner")
            self._bell.clear()
            async with self._picking:
                await self._pick()
            if asyncio.get_running_loop().time() >= expiry_due:
                await _cancel_execs(await loop.write(claims.interrupt_expired, set(self._runs)))
                expiry_due = asyncio.get_running_loop().time() + EXPIRY_CHECK_S
            await _either(self._bell, stop, POLL_S)

    async def _pick(self) -> None:
        free = MAX_RUNS - len(self._runs)
        if self.closing or free <= 0:
            return
        for pk in await loop.read(claims.queued, free):
            session = None if self.closing else await loop.write(claims.claim, pk)
            if session is not None:
                run = self._runs[pk] = Run(session)
                task = asyncio.create_task(self._drive(run), name=f"run {session.slug}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _drive(self, run: Run) -> None:
        try:
            await run.drive()
        except Exception:  # the lease runs out and the session is interrupted; the others go on
            log.exception("run broke", session=run.session.slug)
        finally:
            self._runs.pop(run.pk, None)
            self.wake()

    async def drain(self, seconds: float) -> None:
        """Takes nothing new, grants running sessions `seconds`, interrupts the rest and waits for their ends."""
        self.closing = True
        async with self._picking:  # a claim under way becomes a run, which has to end with the others
            pass
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, seconds))
        await self.halt_all("interrupted")

    async def halt_all(self, how: Halt) -> None:
        for run in list(self._runs.values()):
            run.halt(how, "restart")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)


async def _cancel(run: Run) -> None:
    by = await loop.read(claims.cancelled_by, run.pk)
    if by:
        run.halt("cancelled", by)


async def _cancel_execs(session_ids: list[str]) -> None:
    for session_id in session_ids:
        await execs.cancel_session(session_id, "restart")


async def _either(bell: asyncio.Event, stop: asyncio.Event, at_most: float) -> None:
    waits = [asyncio.create_task(bell.wait()), asyncio.create_task(stop.wait())]
    try:
        await asyncio.wait(waits, timeout=at_most, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()


_current: Dispatcher | None = None


async def serve(stop: asyncio.Event) -> None:
    """The background service of the server process."""
    global _current
    dispatcher = _current = Dispatcher()
    signals.listen(dispatcher.wake, dispatcher.cancel)
    try:
        await dispatcher.serve(stop)
    finally:
        if not stop.is_set():  # it failed and will be started again: its runs must not go on unseen
            await dispatcher.halt_all("interrupted")
        signals.listen(None, None)


async def drain(seconds: float) -> None:
    """At a stop of the server: see `Dispatcher.drain`."""
    if _current is not None:
        await _current.drain(seconds)
