"""Sandboxes on an engine that no workspace stands behind: what the sweep did about each. Sync; on the database threads.

It is kept in the audit log: the page that shows it asks no engine, and another process, or the next one, knows it too.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.utils import timezone

from accounts.audit import audit_record
from accounts.models import AuditEntry
from workspaces.models import WorkspaceProvider

REMOVED: Final = "workspace_provider.sweep"
LEFT: Final = "workspace_provider.sweep_failed"
SHOWN_FOR: Final = timedelta(hours=24)
LISTED: Final = 20


def note_removed(provider_pk: int, workspace_id: str, parts: list[str]) -> None:
    """The sweep removed it: `parts` are what was there (container, volume, directory)."""
    _note(REMOVED, provider_pk, {"workspace_id": workspace_id, "parts": parts})


def note_left(provider_pk: int, workspace_id: str, why: str) -> None:
    """The sweep could not remove it. Said once for each day and not at each of its rounds."""
    slug = WorkspaceProvider.objects.values_list("slug", flat=True).get(pk=provider_pk)
    since = timezone.now() - SHOWN_FOR
    said = AuditEntry.objects.filter(
        action__in=[REMOVED, LEFT], at__gt=since, kind=WorkspaceProvider.KIND, object_id=slug,
        after__workspace_id=workspace_id,
    ).order_by("-at", "-pk").values_list("action", flat=True).first()  # fmt: skip
    if said != LEFT:
        _note(LEFT, provider_pk, {"workspace_id": workspace_id, "why": why})


def _note(action: str, provider_pk: int, facts: dict[str, Any]) -> None:
    slug = WorkspaceProvider.objects.values_list("slug", flat=True).get(pk=provider_pk)
    audit_record(None, action, kind=WorkspaceProvider.KIND, object_id=slug, after=facts)


def recent(provider: str = "") -> list[dict[str, Any]]:
    """`{provider, workspace_id, removed, parts, why, at}` of a day, newest first, the last word on each; one query."""
    rows = AuditEntry.objects.filter(action__in=[REMOVED, LEFT], at__gt=timezone.now() - SHOWN_FOR)
    rows = rows.filter(kind=WorkspaceProvider.KIND, object_id=provider) if provider else rows
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for slug, action, after, at in rows.order_by("-at", "-pk").values_list("object_id", "action", "after", "at")[:500]:
        facts = after or {}
        one = {"provider": slug, "workspace_id": facts["workspace_id"], "removed": action == REMOVED, "at": at}
        found.setdefault(
            (slug, facts["workspace_id"]), {**one, "parts": facts.get("parts", []), "why": facts.get("why", "")}
        )
    return list(found.values())[:LISTED]


def attention() -> list[dict[str, str]]:
    """Lines for an admin's overview: what is still there first."""
    found = []
    for one in sorted(recent(), key=lambda one: bool(one["removed"])):
        if one["removed"]:
            text = f"{one['workspace_id']} was on {one['provider']} without a workspace: the sweep removed {' and '.join(one['parts']) or 'it'}"
        else:
            text = f"{one['workspace_id']} is on {one['provider']} without a workspace and could not be removed: {one['why']} The sweep tries again each minute."
        level = "warn" if one["removed"] else "fail"
        found.append({"level": level, "text": text, "url": f"/workspaces/providers/{one['provider']}/"})
    return found
