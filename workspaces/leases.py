"""The database side of the reconciler: who works on which workspace, what is due. Sync; called on the database threads."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from workspaces import services
from workspaces.models import COMING, Desired, Exec, ExecState, Health, Phase, Workspace, WorkspaceProvider, advance
from workspaces.providers.base import Ref

HOLDER = secrets.token_hex(8)  # this process
LEASE = timedelta(seconds=60)
MEASURED_FOR = timedelta(seconds=60)  # how long a measurement of an engine stands
DOWN_FOR = timedelta(seconds=5)  # the same for one that did not answer


def void_foreign() -> None:
    """At boot of the one server process: leases of earlier processes are worth nothing, since those are dead."""
    Workspace.objects.exclude(lease_holder__in=["", HOLDER]).update(lease_holder="", lease_until=None)


def claim(workspace_pk: int) -> bool:
    """Takes the lease of a live workspace unless another living process has it."""
    now = timezone.now()
    free = Q(lease_holder__in=["", HOLDER]) | Q(lease_until__lt=now) | Q(lease_until=None)
    rows = Workspace.objects.filter(free, pk=workspace_pk, deleted_at=None)
    return bool(rows.update(lease_holder=HOLDER, lease_until=now + LEASE))


def renew(workspace_pks: Iterable[int]) -> None:
    rows = Workspace.objects.filter(pk__in=list(workspace_pks), lease_holder=HOLDER)
    rows.update(lease_until=timezone.now() + LEASE)


def release(workspace_pk: int) -> None:
    Workspace.objects.filter(pk=workspace_pk, lease_holder=HOLDER).update(lease_holder="", lease_until=None)


def load(workspace_pk: int) -> Workspace | None:
    """The live row, None once it is deleted."""
    return Workspace.objects.live().filter(pk=workspace_pk).first()


def due() -> list[int]:
    """Workspaces that are on the way somewhere."""
    moving = Q(phase__in=[*COMING, Phase.DELETING]) | (Q(phase=Phase.RUNNING) & ~Q(desired=Desired.RUNNING))
    moving |= Q(phase=Phase.FAILED, unknown_since__isnull=False)  # something may be left on an engine that was down
    return list(Workspace.objects.live().filter(moving).values_list("pk", flat=True))


def running() -> list[int]:
    return list(Workspace.objects.live().filter(phase=Phase.RUNNING).values_list("pk", flat=True))


@transaction.atomic
def rest(row: Workspace, to: Phase, **facts: Any) -> None:
    """A workspace has come to rest by itself: nobody wishes it to run any more until somebody says so again."""
    advance(row, to=to, holder=HOLDER, desired=Desired.STOPPED, **facts)


@transaction.atomic
def rest_stopped(row: Workspace) -> None:
    """The stop that was wished for is done. Who wished it running while the engine ended it gets that, in the same write."""
    advance(row, to=Phase.STOPPED, holder=HOLDER, phase_reason="stopped")
    if row.desired == Desired.RUNNING:
        services.begin_again(row)


def store_ref(workspace_pk: int, ref: Ref) -> None:
    """Remembers where the sandbox is, as soon as it is anywhere."""
    Workspace.objects.filter(pk=workspace_pk, lease_holder=HOLDER).update(
        ref=ref.to_dict(), image_digest=ref.image_digest, state_rev=F("state_rev") + 1
    )


def store_prepared(workspace_pk: int) -> None:
    Workspace.objects.filter(pk=workspace_pk).update(prepared=True)


def store_confinement(workspace_pk: int, generation: int, confinement: dict[str, Any]) -> None:
    rows = Workspace.objects.filter(pk=workspace_pk, generation=generation)
    rows.update(confinement=confinement, state_rev=F("state_rev") + 1)


def note_unknown(workspace_pk: int, detail: str) -> None:
    """The engine does not answer: the phase stays what it was, and says since when nobody knows."""
    Workspace.objects.filter(pk=workspace_pk, unknown_since=None).update(
        unknown_since=timezone.now(), phase_detail=detail, state_rev=F("state_rev") + 1
    )


def note_dirty(workspace_pk: int) -> None:
    """A failed workspace whose engine was down when it had to be cleaned up."""
    Workspace.objects.filter(pk=workspace_pk).update(unknown_since=timezone.now())


def note_clean(workspace_pk: int) -> None:
    rows = Workspace.objects.filter(pk=workspace_pk, phase=Phase.FAILED)
    rows.update(unknown_since=None, state_rev=F("state_rev") + 1)


def note_known(workspace_pk: int) -> None:
    Workspace.objects.filter(pk=workspace_pk, unknown_since__isnull=False).update(
        unknown_since=None, phase_detail="", state_rev=F("state_rev") + 1
    )


def note_stuck(workspace_pk: int, reason: str, detail: str) -> None:
    """Why a stop or a delete has not come to its end yet; it is tried again."""
    rows = Workspace.objects.live().exclude(desired=Desired.RUNNING).exclude(phase_reason=reason, phase_detail=detail)
    rows.filter(pk=workspace_pk).update(phase_reason=reason, phase_detail=detail, state_rev=F("state_rev") + 1)


def mark_deleted(workspace_pk: int) -> None:
    Workspace.objects.filter(pk=workspace_pk, deleted_at=None, phase=Phase.DELETING).update(
        deleted_at=timezone.now(), ref=None, secrets="", state_rev=F("state_rev") + 1
    )


def end_of_life() -> None:
    """Deletes what has reached its age and stops what has been idle for too long."""
    now = timezone.now()
    for row in Workspace.objects.live().filter(expires_at__lte=now).exclude(phase=Phase.DELETING):
        services.workspace_delete(by=None, row=row, reason="expired")
    rows = Workspace.objects.live().filter(phase=Phase.RUNNING, desired=Desired.RUNNING)
    for row in rows.only("spec", "last_activity_at"):
        limit = row.spec.get("idle_timeout_s")  # not in the query: to SQLite a JSON null is greater than any number
        if not limit or now - row.last_activity_at <= timedelta(seconds=limit):
            continue
        if not Exec.objects.filter(workspace=row, state=ExecState.RUNNING).exists():
            services.workspace_stop(by=None, row=row, reason="idle")


def provider_of(workspace_pk: int) -> int:
    return int(Workspace.objects.values_list("provider_id", flat=True).get(pk=workspace_pk))


def live_providers() -> list[int]:
    """Every provider that may hold something of ours: live ones, and deleted ones that still have live workspaces."""
    rows = WorkspaceProvider.objects.filter(Q(deleted_at=None) | Q(workspaces__deleted_at=None))
    return list(rows.order_by().values_list("pk", flat=True).distinct())


def unmeasured() -> list[int]:
    """Live providers whose measurement is old; one that does not answer, or was never asked, is asked more often."""
    now = timezone.now()
    old = Q(checked_at=None) | Q(checked_at__lt=now - MEASURED_FOR)
    old |= Q(health__in=[Health.UNREACHABLE, Health.UNKNOWN], checked_at__lt=now - DOWN_FOR)
    return list(WorkspaceProvider.objects.live().filter(old).values_list("pk", flat=True))


def orphaned(workspace_ids: Iterable[str]) -> set[str]:
    """Which of these no live row stands behind."""
    ids = set(workspace_ids)
    return ids - set(Workspace.objects.live().filter(slug__in=ids).values_list("slug", flat=True))
