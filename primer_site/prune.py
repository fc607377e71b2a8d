"""What is kept for a while only: `primer prune`, and once a day in the running server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import structlog

from primer_site import loop, report

FIRST_S = 300.0  # after the start of the server: not while everything else begins
EVERY_S = 24 * 3600.0
BATCH, SMALL_BATCH = 1000, 20  # rows of one transaction, of rows that much hangs on: others write meanwhile
AGED = ("sessions", "commands", "audit")

log = structlog.get_logger(__name__)


def prune() -> int:
    """`primer prune`: one line for each kind. It may run beside the server."""
    from django.conf import settings

    from primer_site.setup import configure

    configure()
    days = settings.PRIMER_KEEP_DAYS
    if not days:
        report.ok("kept", "sessions, commands and audit entries for ever: PRIMER_KEEP_DAYS is 0")
    for name, batches in jobs():
        report.ok(name, f"{sum(batches)} removed" + (f", older than {days} days" if name in AGED else ", expired"))
    return _prune_engines()


def jobs() -> list[tuple[str, Iterator[int]]]:
    """Each kind and its removal, which does a transaction at each step and yields how many went. Sync."""
    from accounts.models import AuditEntry
    from accounts.services import prune_idempotency
    from sessions_app.models import AgentSession, Status
    from workspaces.models import Exec, ExecState

    found: list[tuple[str, Iterator[int]]] = []
    if (before := cutoff()) is not None:
        found = [
            ("sessions", _batches(AgentSession.objects.filter(status=Status.ENDED, ended_at__lt=before), SMALL_BATCH)),
            ("commands", _batches(Exec.objects.filter(state=ExecState.ENDED, ended_at__lt=before), SMALL_BATCH)),
            ("audit", _batches(AuditEntry.objects.filter(at__lt=before), BATCH)),
        ]
    return [*found, ("keys", _once(prune_idempotency)), ("sign-ins", _once(_sign_ins))]


def cutoff() -> datetime | None:
    """What ended before this moment goes; None keeps all for ever."""
    from django.conf import settings
    from django.utils import timezone

    days = settings.PRIMER_KEEP_DAYS
    return timezone.now() - timedelta(days=days) if days else None


def _batches(rows: Any, size: int) -> Iterator[int]:
    """Removes rows with all that belongs to them in one transaction: none is ever seen without its parts."""
    from django.db import transaction

    label = rows.model._meta.label
    while pks := list(rows.order_by("pk").values_list("pk", flat=True)[:size]):
        with transaction.atomic():
            _, counts = rows.filter(pk__in=pks).delete()
        yield counts.get(label, 0)


def _once(function: Callable[[], int]) -> Iterator[int]:
    yield function()


def _sign_ins() -> int:
    """Console sign-ins whose time is over."""
    from django.contrib.sessions.models import Session
    from django.utils import timezone

    removed, _ = Session.objects.filter(expire_date__lt=timezone.now()).delete()
    return removed


def _prune_engines() -> int:
    """A line for each engine; one that does not answer keeps what it has until the next time."""
    from primer_site import destroy
    from primer_site.errors import PrimerError
    from workspaces import engines

    async def one(kind: str, config: dict[str, Any], secrets: dict[str, Any]) -> list[str]:
        engine = engines.build(kind, config, secrets)
        try:
            return await engine.prune_shared()
        finally:
            await engine.close()

    for settings in destroy.engines():
        try:
            names = asyncio.run(one(*settings))
            report.ok("engine", ", ".join([*names, "removed"]) if names else "no unused runtime volume of this install")
        except PrimerError as exc:
            report.warn("engine", exc.detail, "what is unused there stays until the next primer prune")
    _prune_images()
    return 0


def _prune_images() -> None:
    from primer_site.errors import PrimerError

    try:
        report.ok("image", f"{len(_replaced_images())} removed that newer builds had replaced")
    except PrimerError as exc:
        report.warn("image", exc.detail, "images that newer builds replaced, if any, stay until the next primer prune")


def _replaced_images() -> list[str]:
    """What `primer image build` replaced, removed from the engine where it builds; `PrimerError` when it cannot look. Sync."""
    from primer_site import engine
    from workspaces import image

    return image.drop_replaced(engine_url=engine.url())


# -- in the server


async def serve(stop: asyncio.Event) -> None:
    """The background service: once soon after the start, then daily, until `stop`."""
    pause = FIRST_S
    while not await _stopped(stop, pause):
        await once(stop)
        pause = EVERY_S


async def _stopped(stop: asyncio.Event, within_s: float) -> bool:
    return await loop.heard(stop, within_s)


async def once(stop: asyncio.Event) -> None:
    """One round. A kind that fails is logged and leaves the others their turn."""
    counts: dict[str, int] = {}
    for name, batches in jobs():
        try:
            while not stop.is_set() and (removed := await loop.write(next, batches, None)) is not None:
                counts[name] = counts.get(name, 0) + removed
        except Exception:
            log.exception("prune failed", kind=name)
    for name, engines_work in (("volumes", _volumes), ("images", _images)):
        counts[name] = 0
        try:
            counts[name] = 0 if stop.is_set() else len(await engines_work())
        except Exception:
            log.exception("prune failed", kind=name)
    log.info("pruned", **counts)


async def _images() -> list[str]:
    from primer_site.errors import PrimerError

    try:
        return await asyncio.to_thread(_replaced_images)
    except PrimerError as exc:
        log.info("images are pruned another day", reason=exc.detail)
        return []


async def _volumes() -> list[str]:
    from workspaces import engines, leases

    removed: list[str] = []
    for provider_pk in await loop.read(leases.live_providers):
        try:
            removed += await (await engines.engine_of(provider_pk)).prune_shared()
        except Exception as exc:
            log.info("an engine is pruned another day", provider=provider_pk, reason=str(exc))
    return removed
