"""A run's workspace: waited for or started, with each of its phases in the transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from primer_site import loop
from sessions_app.events import EventDraft
from sessions_app.models import EventKind
from workspaces import access, bells
from workspaces.models import Workspace

READY_S = 900.0  # pulling an image may take long; each phase has its own, shorter deadline


@dataclass(frozen=True, slots=True)
class Seen:
    phase: str
    reason: str
    verdict: str


def look(workspace_pk: int) -> Seen:
    row = Workspace.objects.get(pk=workspace_pk)
    return Seen(row.phase, row.phase_reason, (row.confinement or {}).get("verdict", "unknown"))


async def bring_up(workspace_pk: int, workspace_id: str, add: Callable[[EventDraft], Awaitable[None]]) -> str:
    """Returns the confinement verdict of the running workspace; raises what kept it from running (`PrimerError`)."""
    told: list[str] = []

    async def tell() -> Seen:
        seen = await loop.read(look, workspace_pk)
        if told[-1:] != [seen.phase]:
            told.append(seen.phase)
            data = {"workspace_id": workspace_id, "phase": seen.phase, "reason": seen.reason}
            await add(EventDraft(EventKind.WORKSPACE_PHASE, data))
        return seen

    ready = asyncio.create_task(_ready(workspace_pk))
    try:
        with bells.watch(workspace_pk) as bell:
            await tell()
            while not ready.done():
                ring = asyncio.create_task(bells.wait(bell, 1.0))
                await asyncio.wait({ready, ring}, return_when=asyncio.FIRST_COMPLETED)
                ring.cancel()
                await tell()
        await ready
        return (await tell()).verdict
    finally:
        ready.cancel()
        await asyncio.wait({ready})


async def _ready(workspace_pk: int) -> None:
    await access.sandbox_for(workspace_pk, wait_s=READY_S)
