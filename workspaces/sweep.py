"""The orphan sweep: everything with our label that no live row stands behind is removed; other instances are never touched."""

from __future__ import annotations

import structlog

from primer_site import loop
from primer_site.errors import PrimerError
from workspaces import engines, leases, unowned
from workspaces.providers.base import EngineUnavailable

log = structlog.get_logger(__name__)


async def orphans() -> list[str]:
    """Sweeps every engine once and returns the ids of the workspaces that were removed. An engine that is down waits."""
    removed: list[str] = []
    for provider_pk in await loop.read(leases.live_providers):
        try:
            removed += await _sweep(provider_pk)
        except PrimerError as exc:
            log.info("sweep postponed", provider=provider_pk, reason=exc.detail)
    return removed


async def helpers() -> None:
    """What starts of a server that died left beside workspaces which live on: no row tells of it, and no id."""
    for provider_pk in await loop.read(leases.live_providers):
        try:
            await (await engines.engine_of(provider_pk)).sweep_helpers()
        except PrimerError as exc:
            log.debug("sweep of helpers postponed", provider=provider_pk, reason=exc.detail)


async def _sweep(provider_pk: int) -> list[str]:
    engine = await engines.engine_of(provider_pk)
    found = {ref.workspace_id: ref for ref in await engine.discover()}
    # Rows are read after the engine: a row is always older than what it stands for, so nothing new looks like an orphan.
    lone = await loop.read(leases.orphaned, list(found))
    removed = []
    for workspace_id in sorted(lone):
        try:
            parts = await engine.destroy(found[workspace_id])
        except EngineUnavailable:
            raise
        except PrimerError as exc:  # one that cannot be removed keeps none of the others
            log.warning("what no workspace stands behind cannot be removed", workspace=workspace_id, reason=exc.detail)
            await loop.write(unowned.note_left, provider_pk, workspace_id, exc.detail)
            continue
        log.warning("removed what no workspace stands behind", workspace=workspace_id, parts=parts)
        await loop.write(unowned.note_removed, provider_pk, workspace_id, parts)
        removed.append(workspace_id)
    return removed
