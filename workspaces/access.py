"""The way from a workspace to its sandbox: one kept client for each running workspace of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from primer_site import loop, vault
from primer_site.errors import Conflict, NotFound, PrimerError, Timeout
from workspaces import bells, engines, services
from workspaces.models import COMING, Desired, Phase, Workspace
from workspaces.providers.base import Channel, ChannelClosed, EngineUnavailable, ProviderError, Ref
from workspaces.sandbox import Sandbox

T = TypeVar("T")
POLL_S = 1.0
KNOWN_DOWN_WAIT_S = 2.5  # for one attempt to reach an engine that did not answer the last time
RETRY_AFTER_S = 5


class WorkspaceNotRunning(Conflict):
    """The workspace is not running."""

    code = "workspace_not_running"


class WorkspaceFailed(WorkspaceNotRunning):
    """The workspace failed to start."""


class WorkspaceLost(Conflict):
    """The workspace's sandbox vanished from its engine."""

    code = "workspace_lost"


@dataclass(frozen=True, slots=True)
class Facts:
    """A workspace's row as far as reaching its sandbox goes."""

    pk: int
    slug: str
    desired: str
    phase: str
    reason: str
    detail: str
    unknown: bool
    generation: int
    provider_pk: int
    ref: Ref | None
    disk_bytes: int
    env: dict[str, Any]
    secrets: str
    last_activity_at: datetime

    @property
    def is_up(self) -> bool:
        return self.phase == Phase.RUNNING and self.desired == Desired.RUNNING and self.ref is not None


# What `facts_of` reads, and the owner: look-ups on hot paths fetch no more.
COLUMNS = (
    "slug", "owner_id", "desired", "phase", "phase_reason", "phase_detail", "unknown_since", "generation", "provider_id",
    "ref", "spec", "env", "secrets", "last_activity_at",
)  # fmt: skip


def facts_of(row: Workspace) -> Facts:
    return Facts(
        pk=row.pk, slug=row.slug, desired=row.desired, phase=row.phase, reason=row.phase_reason,
        detail=row.phase_detail, unknown=row.unknown_since is not None, generation=row.generation,
        provider_pk=row.provider_id, ref=Ref.from_dict(row.ref) if row.ref else None,
        disk_bytes=row.spec["backend"].get("disk_bytes", 0), env=row.env, secrets=row.secrets, last_activity_at=row.last_activity_at,
    )  # fmt: skip


def look(workspace_pk: int) -> Facts:
    """Reads the row; raises `NotFound` for a deleted one."""
    row = Workspace.objects.live().only(*COLUMNS).filter(pk=workspace_pk).first()
    if row is None:
        raise NotFound("There is no such workspace.")
    return facts_of(row)


@dataclass(slots=True)
class _Kept:
    generation: int
    sandbox: Sandbox


_kept: dict[int, _Kept] = {}


async def open_sandbox(facts: Facts) -> Sandbox:
    """The open client of this generation's sandbox; the client of an earlier one is closed.

    Raises what kept it from opening: `ChannelClosed`, `EngineUnavailable`, `SandboxRefused`, ….
    """
    old = entry = _kept.get(facts.pk)
    if entry is None or entry.generation < facts.generation:
        # Kept before anything is waited for: callers at the same time share one client, and whoever forgets the
        # workspace meanwhile ends the attempts too.
        entry = _kept[facts.pk] = _Kept(facts.generation, _client(facts))
        if old is not None:
            await old.sandbox.close()
    elif entry.generation > facts.generation:
        raise ChannelClosed("The workspace was started again meanwhile.")
    await entry.sandbox.open()
    return entry.sandbox


async def open_while_known(facts: Facts) -> Sandbox:
    """The same for a caller who wants an answer soon: an engine that is known to be down is `EngineUnavailable` now.

    A channel that is open still serves, and one attempt is made in any case: the engine may be back.
    """
    opening = asyncio.ensure_future(open_sandbox(facts))
    opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody looks at it
    try:
        if facts.unknown:
            await asyncio.wait({opening}, timeout=KNOWN_DOWN_WAIT_S)
        with bells.watch(facts.pk) as bell:
            while not opening.done() and facts.is_up and not facts.unknown:
                ring = asyncio.ensure_future(bells.wait(bell, POLL_S))
                await asyncio.wait({opening, ring}, return_when=asyncio.FIRST_COMPLETED)
                ring.cancel()
                facts = await loop.read(look, facts.pk)
        if opening.done():
            return opening.result()
    finally:
        opening.cancel()
    if not facts.is_up:
        raise ChannelClosed("The sandbox went away meanwhile.")
    bells.ring(facts.pk)  # the reconciler looks at once whether the engine is back
    raise EngineUnavailable(retry_after_s=RETRY_AFTER_S)


def _client(facts: Facts) -> Sandbox:
    ref = facts.ref
    if ref is None:
        raise WorkspaceNotRunning(f"Workspace {facts.slug} has no sandbox.")

    async def open_channel() -> Channel:
        engine = await engines.engine_of(facts.provider_pk)  # asked each time: its settings may have changed
        try:
            return await engine.connect(ref)
        except ProviderError:
            bells.ring(facts.pk)  # the reconciler looks at once, and says whether there is anything left to wait for
            raise

    env = {name: value for name, value in facts.env.items() if value is not None} | vault.unseal(facts.secrets)
    secret = vault.channel_secret(facts.slug, facts.generation)
    return Sandbox(open_channel, secret, disk_bytes=facts.disk_bytes, env=env)


def kept(workspace_pk: int, generation: int) -> Sandbox | None:
    """The kept client, None when there is none of this generation."""
    found = _kept.get(workspace_pk)
    return found.sandbox if found is not None and found.generation == generation else None


async def forget(workspace_pk: int) -> None:
    """Closes the kept client: the sandbox stopped, went, or moved to another generation."""
    if (found := _kept.pop(workspace_pk, None)) is not None:
        await found.sandbox.close()


async def close_all() -> None:
    """At the end of the process: closes every client. What runs in the sandboxes runs on."""
    for workspace_pk in list(_kept):
        await forget(workspace_pk)


async def sandbox_for(workspace_pk: int, *, wait_s: float, start: bool = True, patient: bool = True) -> Sandbox:
    """The sandbox of a workspace: waits for one that is coming up and, with `start`, starts a stopped one.

    Waits at most `wait_s` seconds; when not `patient`, for no engine that does not answer. Raises `NotFound`,
    `WorkspaceFailed`, `WorkspaceLost`, `WorkspaceNotRunning` (stopped without `start`, or being deleted), `EngineUnavailable`, and `Timeout` when it is still starting then.
    """
    deadline = time.monotonic() + wait_s
    trouble: PrimerError | None = None
    with bells.watch(workspace_pk) as bell:
        while True:
            facts = await loop.read(look, workspace_pk)
            if facts.is_up:
                try:
                    async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                        return await (open_sandbox(facts) if patient else open_while_known(facts))
                except (ChannelClosed, EngineUnavailable) as exc:
                    if not patient and isinstance(exc, EngineUnavailable):
                        raise
                    trouble = exc
                except TimeoutError:
                    trouble = trouble or ChannelClosed()
            else:
                refuse(facts, start=start)
                if facts.phase == Phase.STOPPED and facts.desired != Desired.GONE:
                    await loop.write(services.workspace_wish_running, workspace_pk)
            left = deadline - time.monotonic()
            if left <= 0:
                raise _too_late(facts, trouble)
            await bells.wait(bell, min(POLL_S, left))


async def require_running(workspace_pk: int) -> Sandbox:
    """The sandbox of a running workspace, now; `WorkspaceNotRunning` names the phase otherwise."""
    facts = await loop.read(look, workspace_pk)
    require_up(facts)
    return await open_while_known(facts)


def require_up(facts: Facts) -> None:
    """Raises the typed error of a workspace that does not run now."""
    if not facts.is_up:
        refuse(facts, start=False)
        raise WorkspaceNotRunning(f"Workspace {facts.slug} is {facts.phase}: its files can be reached while it runs.")


async def using(workspace_pk: int, work: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Runs `work` with the sandbox of a running workspace. A sandbox that went away meanwhile is a typed error of the workspace."""
    try:
        return await work(await require_running(workspace_pk))
    except ChannelClosed:
        await require_known(workspace_pk)
        raise


async def require_known(workspace_pk: int) -> None:
    """After a lost channel: raises what the row says by now, when it says more than `running`."""
    facts = await loop.read(look, workspace_pk)
    if not facts.is_up:
        refuse(facts, start=False)


def refuse(facts: Facts, *, start: bool) -> None:
    """Raises the typed error of a workspace that does not come up by itself."""
    why = facts.detail or facts.reason.replace("_", " ")
    start_it = f"primectl workspace start {facts.slug}"
    match facts.phase:
        case Phase.FAILED:
            raise WorkspaceFailed(f"Workspace {facts.slug} failed to start: {why}", hint=f"Try again: {start_it}")
        case Phase.LOST if facts.reason == "data_lost":
            raise WorkspaceLost(f"Workspace {facts.slug} is lost: its files are gone.", hint="Create a new workspace.")
        case Phase.LOST:
            raise WorkspaceLost(
                f"Workspace {facts.slug} is lost: {why}", hint=f"If its files are still there, start it: {start_it}"
            )
        case Phase.DELETING:
            raise WorkspaceNotRunning(f"Workspace {facts.slug} is being deleted.", hint="Create a new workspace.")
        case Phase.STOPPED if not start:
            raise WorkspaceNotRunning(
                f"Workspace {facts.slug} is stopped. {facts.detail}".strip(), hint=f"Start it: {start_it}"
            )


def _too_late(facts: Facts, trouble: PrimerError | None) -> PrimerError:
    if facts.unknown or isinstance(trouble, EngineUnavailable):
        return EngineUnavailable(retry_after_s=RETRY_AFTER_S)
    if trouble is not None:
        return trouble
    if facts.phase in COMING:
        return Timeout(f"Workspace {facts.slug} is still {facts.phase}. Try again in a moment.")
    return WorkspaceNotRunning(f"Workspace {facts.slug} is {facts.phase}.")
