"""Makes true what the rows wish for: desired -> engine -> observed. One reconciler for each workspace at a time, by lease."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import structlog

from primer_site import loop
from primer_site.errors import Invalid, PrimerError, Timeout
from primer_site.services import beat
from workspaces import access, bells, bringup, engines, execs, leases, sweep
from workspaces.bells import wake
from workspaces.models import AT_REST, COMING, Desired, Moved, Phase, Workspace, age
from workspaces.providers.base import DataLost, EngineUnavailable, Provider, Ref, StartFailed, State

__all__ = ["Reconciler", "serve", "wake"]

POLL_S = 1.0
STATUS_EVERY_S = 8.0  # of each running workspace: one that was removed behind our back is `lost` within 30 s
CHECKS_AT_ONCE = 8
RENEW_EVERY_S = 15.0
LIFE_EVERY_S = 2.0
SWEEP_EVERY_S = 60.0
HELPERS_EVERY_S = 20.0
MEASURE_EVERY_S = 1.0  # looks for engines whose measurement is old
START_DEADLINE_S = 120.0  # from the wish on, while the engine does not answer or others start first
BOOT_DEADLINE_S = 900.0  # of one start, with every command of its template
DESTROY_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.2  # at what an engine still has of a workspace that it removed
BACK_OFF_S = (1.0, 2.0, 5.0, 10.0)  # after a failure of the engine or of our own
UNUSABLE = (Invalid, engines.ProviderUnusable)  # settings with which no engine can even be spoken to

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    task: asyncio.Task[None]
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Reconciler:
    """Polls each second and hears bells in between; works on each workspace in a task of its own."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._seen: dict[int, float] = {}  # when the engine last told about a running workspace
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._next: dict[str, float] = {}
        self._ending = False

    def hear(self, workspace_pk: int) -> None:
        """Called on the loop for each bell: the row changed, or its channel broke."""
        self._seen.pop(workspace_pk, None)
        self._not_before.pop(workspace_pk, None)
        self._drive(workspace_pk)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            beat("reconciler")
            try:
                await self._round()
            except Exception:  # one bad row, or a database that is busy, must not end the work on the others
                log.exception("a round of the reconciler failed")
            await loop.heard(stop, POLL_S)

    async def _round(self) -> None:
        for workspace_pk in await loop.read(leases.due):
            self._drive(workspace_pk)
        if self._is_time("status", POLL_S * 2):
            for workspace_pk in await loop.read(leases.running):
                if self._status_is_old(workspace_pk):
                    self._drive(workspace_pk)
        if self._is_time("renew", RENEW_EVERY_S):
            await loop.write(leases.renew, list(self._jobs))
        if self._is_time("life", LIFE_EVERY_S):
            await loop.write(leases.end_of_life)
        if self._is_time("measure", MEASURE_EVERY_S):
            for provider_pk in await loop.read(leases.unmeasured):
                engines.measure_soon(provider_pk)
        if self._is_time("sweep", SWEEP_EVERY_S):
            loop.spawn(sweep.orphans(), name="orphan sweep")
        if self._is_time("helpers", HELPERS_EVERY_S):
            loop.spawn(sweep.helpers(), name="helper sweep")

    async def end(self) -> None:
        """Cuts what is under way. A start that is cut takes back what it made, and begins again after the restart."""
        self._ending = True
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3)

    def _is_time(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(name, 0.0):
            return False
        self._next[name] = now + every_s
        return True

    def _status_is_old(self, workspace_pk: int) -> bool:
        return time.monotonic() - self._seen.get(workspace_pk, 0.0) > STATUS_EVERY_S

    def _drive(self, workspace_pk: int) -> None:
        if (job := self._jobs.get(workspace_pk)) is not None:
            job.changed.set()
            return
        if time.monotonic() < self._not_before.get(workspace_pk, 0.0):
            return
        changed = asyncio.Event()
        task = asyncio.get_running_loop().create_task(
            self._work(workspace_pk, changed), name=f"reconcile {workspace_pk}"
        )
        self._jobs[workspace_pk] = _Job(task, changed)
        task.add_done_callback(lambda _: self._ended(workspace_pk))

    def _ended(self, workspace_pk: int) -> None:
        job = self._jobs.pop(workspace_pk)
        if job.changed.is_set() and not self._ending:  # a bell that rang after the last look
            self._drive(workspace_pk)

    async def _work(self, workspace_pk: int, changed: asyncio.Event) -> None:
        if not await loop.write(leases.claim, workspace_pk):
            return
        try:
            await self._steps(workspace_pk, changed)
            self._failures.pop(workspace_pk, None)
        except Moved as exc:  # the row moved under our hands: the next look sees where to
            log.info("reconcile again", workspace=workspace_pk, reason=exc.detail)
        except EngineUnavailable as exc:
            log.warning("engine does not answer", workspace=workspace_pk, cause=exc.log or exc.detail)
            engines.measure_soon(await loop.read(leases.provider_of, workspace_pk))
            await loop.write(leases.note_unknown, workspace_pk, exc.detail)
            self._back_off(workspace_pk)
        except PrimerError as exc:
            log.warning("reconcile failed", workspace=workspace_pk, code=exc.code, cause=exc.log or exc.detail)
            await loop.write(leases.note_stuck, workspace_pk, exc.code, exc.detail)
            self._back_off(workspace_pk)
        except Exception:
            log.exception("reconcile failed", workspace=workspace_pk)
            self._back_off(workspace_pk)
        finally:
            await loop.write(leases.release, workspace_pk)

    def _back_off(self, workspace_pk: int) -> None:
        count = self._failures[workspace_pk] = self._failures.get(workspace_pk, 0) + 1
        self._not_before[workspace_pk] = time.monotonic() + BACK_OFF_S[min(count, len(BACK_OFF_S)) - 1]
        self._seen[workspace_pk] = time.monotonic()

    async def _steps(self, workspace_pk: int, changed: asyncio.Event) -> None:
        """Step by step until the row rests."""
        while (row := await loop.read(leases.load, workspace_pk)) is not None:
            changed.clear()
            if row.desired == Desired.GONE or row.phase == Phase.DELETING:
                await delete(row)
            elif row.phase == Phase.FAILED and row.unknown_since is not None:
                await clean_up(row)
            elif row.phase in AT_REST:
                return
            elif row.desired == Desired.STOPPED:
                await stop(row)
            elif row.phase in COMING:
                await self._start(row, changed)
            else:
                if self._status_is_old(workspace_pk):
                    async with self._checks:
                        await check(row)
                    self._seen[workspace_pk] = time.monotonic()
                return

    async def _start(self, row: Workspace, changed: asyncio.Event) -> None:
        """Starts, and gives up at once when the wish changes: a delete does not wait for a slow start."""
        work = asyncio.ensure_future(start(row))
        try:
            while not work.done():
                bell = asyncio.ensure_future(changed.wait())
                await asyncio.wait({work, bell}, return_when=asyncio.FIRST_COMPLETED)
                bell.cancel()
                changed.clear()
                now = await loop.read(leases.load, row.pk)
                if not work.done() and (now is None or now.desired != Desired.RUNNING):
                    work.cancel()
                    await asyncio.wait({work})
                    return
            work.result()
            self._seen[row.pk] = time.monotonic()
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait({work})
            raise


async def start(row: Workspace) -> None:
    """One attempt. A failure that another attempt cannot mend makes the workspace `failed`, with nothing left behind."""
    try:
        async with asyncio.timeout(BOOT_DEADLINE_S):
            await bringup.boot(row)
    except Moved:
        raise
    except EngineUnavailable as exc:
        if age(row.phase_since) < START_DEADLINE_S:
            raise
        await fail(row, exc)
    except DataLost as exc:
        await settle(row, Phase.LOST, "data_lost", exc.detail)
    except PrimerError as exc:
        await fail(row, exc)
    except TimeoutError:
        await fail(row, StartFailed("The workspace was not ready before its deadline."))


async def fail(row: Workspace, error: PrimerError) -> None:
    """Removes what the attempt made (a volume with data stays) and stores reason, sentence and last boot lines."""
    log.warning("workspace failed", workspace=row.slug, code=error.code, detail=error.detail, cause=error.log)
    await access.forget(row.pk)
    clean = True
    try:
        await take_down(row)
    except UNUSABLE as also:
        log.warning("nothing to clean up", workspace=row.slug, cause=also.log or also.detail)
    except PrimerError as also:  # the first error is what people need
        log.warning("clean-up is incomplete", workspace=row.slug, code=also.code, cause=also.log or also.detail)
        clean = False  # tried again until it succeeds
    await settle(row, Phase.FAILED, error.code, error.detail, getattr(error, "boot_lines", ()))
    if not clean:
        await loop.write(leases.note_dirty, row.pk)


async def settle(row: Workspace, to: Phase, reason: str, detail: str = "", boot_lines: Iterable[str] = ()) -> None:
    """Stores where a workspace has come to rest, and ends every attempt to reach its sandbox."""
    facts = {"phase_reason": reason, "phase_detail": detail, "boot_lines": list(boot_lines)}
    await loop.write(leases.rest, row, to, **facts)
    await told(row)


async def told(row: Workspace) -> None:
    # After the row: an attempt that began while it still said `running` would otherwise go on until its own deadline.
    await access.forget(row.pk)
    bells.ring(row.pk)


async def take_down(row: Workspace) -> None:
    """Ends the sandbox. Its files stay where there are any that somebody has used."""
    engine = await engines.engine_of(row.provider_id)
    ref = ref_of(row, engine)
    async with deadline("The engine did not end the sandbox in time."):
        if row.prepared:
            await engine.stop(ref)
        else:
            await engine.destroy(ref)


async def clean_up(row: Workspace) -> None:
    """Removes what a failed start left on an engine that did not answer then."""
    await take_down(row)
    await loop.write(leases.note_clean, row.pk)


async def stop(row: Workspace) -> None:
    """Ends the sandbox, keeps its files. A workspace that never ran has none to keep."""
    await access.forget(row.pk)
    await take_down(row)
    await loop.write(leases.rest_stopped, row)
    await told(row)


async def delete(row: Workspace) -> None:
    """Removes container and files until nothing with the label is left; only then the row counts as deleted."""
    await access.forget(row.pk)
    try:
        await remove(row)
    except UNUSABLE:
        if row.ref is not None:  # something was made when the settings were good
            raise
    await loop.write(leases.mark_deleted, row.pk)
    await told(row)


async def remove(row: Workspace) -> None:
    """Removes container and files, and looks until there is nothing more."""
    engine = await engines.engine_of(row.provider_id)
    ref = ref_of(row, engine)
    async with deadline("The engine has not removed everything of this workspace yet; it is asked again."):
        while True:
            await engine.destroy(ref)
            left = await engine.status(ref)
            if left.state is State.GONE and not left.volume_exists:
                return
            await asyncio.sleep(LOOK_AGAIN_S)


@contextlib.asynccontextmanager
async def deadline(sentence: str) -> AsyncIterator[None]:
    """DESTROY_TIMEOUT_S for what is inside; `Timeout` with the sentence after it."""
    try:
        async with asyncio.timeout(DESTROY_TIMEOUT_S):
            yield
    except TimeoutError as exc:
        raise Timeout(sentence) from exc


async def check(row: Workspace) -> None:
    """Asks the engine about a running workspace and stores what it found when that is not `running`."""
    engine = await engines.engine_of(row.provider_id)
    status = await engine.status(ref_of(row, engine))
    if status.state in (State.RUNNING, State.STARTING):
        if row.unknown_since is not None:
            await loop.write(leases.note_known, row.pk)
        return
    to, reason = Phase.STOPPED, status.reason or "exited"
    if status.state is State.GONE:
        to, reason = Phase.LOST, status.reason or ("removed" if status.volume_exists else "data_lost")
    ended = f"The sandbox ended: {reason.replace('_', ' ')}{f' ({status.detail})' if status.detail else ''}."
    await settle(row, to, reason, SENTENCES.get(reason, ended), status.boot_lines)


SENTENCES = {
    "removed": "The container was removed outside Primer; the files are still there.",
    "data_lost": "The files were removed outside Primer.",
    "paused": "The container was paused outside Primer: the next start makes a fresh one over its files.",
    "out_of_memory": "The sandbox used more memory than it has and was ended by the kernel; the files are still there.",
}


def ref_of(row: Workspace, engine: Provider) -> Ref:
    """Where the sandbox is, or would be: names derive from the id, so a crash before the row was written loses nothing."""
    if row.ref:
        return Ref.from_dict(row.ref)
    return Ref(engine.kind, row.slug, row.generation, container_name=row.slug, volume_name=row.slug)


async def serve(stop: asyncio.Event) -> None:
    """The reconciler of this process, until `stop`: adopts what earlier processes left, then keeps rows and engines in step."""
    await loop.write(leases.void_foreign)
    reconciler = Reconciler()
    bells.listen(reconciler.hear)
    await execs.recover()
    try:
        await reconciler.run(stop)
    finally:
        bells.listen(None)
        await reconciler.end()
        await execs.close()
        await access.close_all()
        await engines.close_all()
