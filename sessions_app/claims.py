"""Who runs which session: claims by conditional UPDATE with a lease and a fencing generation. Sync; on the database threads."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from agents.redact import Redactor
from sessions_app.events import EventDraft, append
from sessions_app.models import AgentSession, EventKind, Status
from sessions_app.services import locked, refuse_use, session_interrupt
from workspaces.services import workspace_touch

HOLDER = secrets.token_hex(8)  # this process
LEASE = timedelta(seconds=30)


def queued(limit: int) -> list[int]:
    """The sessions that wait longest for a runner."""
    rows = AgentSession.objects.filter(status=Status.QUEUED).order_by("queued_at", "pk")
    return list(rows.values_list("pk", flat=True)[:limit])


@transaction.atomic
def claim(session_pk: int, holder: str = HOLDER) -> AgentSession | None:
    """Takes a queued session and says so in its transcript; None when another runner was faster or it was cancelled."""
    now = timezone.now()
    rows = AgentSession.objects.filter(pk=session_pk, status=Status.QUEUED)
    changed = rows.update(
        status=Status.RUNNING, generation=F("generation") + 1, lease_holder=holder, lease_until=now + LEASE,
        started_at=now, state_rev=F("state_rev") + 1,
    )  # fmt: skip
    if changed != 1:
        return None
    session = locked(AgentSession(pk=session_pk))
    append(session, EventDraft(EventKind.SESSION_STATUS, {"status": Status.RUNNING.value, "reason": ""}))
    return session


def renew(session: AgentSession) -> tuple[bool, str]:
    """Prolongs the lease. Returns whether it still is this runner's, and who asked for the run to end ("" nobody).

    Raises `Forbidden` when the session's owner lost the right to the workspace since the run began.
    """
    rows = AgentSession.objects.filter(pk=session.pk, generation=session.generation, status=Status.RUNNING)
    if rows.update(lease_until=timezone.now() + LEASE) != 1:
        return False, ""
    now = refuse_lost_right(session.pk)
    workspace_touch(
        now.workspace_id, now.workspace.last_activity_at
    )  # a model that thinks for long uses it all the same
    return True, now.cancel_requested_by


def refuse_lost_right(session_pk: int) -> AgentSession:
    """The session as it is now; raises `Forbidden` when its owner may not run code in its workspace any more.

    Roles and accounts change while a session waits or runs. Of a deleted workspace the run itself says what is wrong.
    """
    session = locked(AgentSession(pk=session_pk))
    if session.workspace.deleted_at is None:
        refuse_use(session.owner, session.workspace)
    return session


def cancelled_by(session_pk: int) -> str:
    """Who asked for the run to end, "" while nobody did."""
    found: str | None = AgentSession.objects.filter(pk=session_pk).values_list("cancel_requested_by", flat=True).first()
    return found or ""


def note_confinement(session: AgentSession, verdict: str) -> None:
    """Remembers how well the workspace was confined when the run began."""
    rows = AgentSession.objects.filter(pk=session.pk, generation=session.generation)
    rows.update(confinement=verdict, state_rev=F("state_rev") + 1)


@transaction.atomic
def note_used(
    session: AgentSession, totals: dict[str, Any], *drafts: EventDraft, redactor: Redactor | None = None
) -> None:
    """Stores events with what the run has used so far (`turns`, `tool_calls`, `usage`), in one transaction: a runner that
    dies takes none of it along."""
    append(session, *drafts, redactor=redactor)  # also moves state_rev
    AgentSession.objects.filter(pk=session.pk, generation=session.generation).update(**totals)


def interrupt_foreign() -> list[str]:
    """At boot of the one server process: runs of other processes are dead. Returns the ids of the sessions."""
    return _interrupt(
        AgentSession.objects.filter(status=Status.RUNNING).exclude(lease_holder=HOLDER),
        "The server was restarted in the middle of the run.",
    )


def interrupt_expired(mine: set[int]) -> list[str]:
    """Runs whose lease ran out: their process is gone or hangs. `mine` are the runs this process knows to be alive."""
    expired = AgentSession.objects.filter(status=Status.RUNNING, lease_until__lt=timezone.now()).exclude(pk__in=mine)
    return _interrupt(expired, "The process that ran this session is gone.")


def _interrupt(rows: Iterable[AgentSession], why: str) -> list[str]:
    found = []
    for session in rows:
        session_interrupt(session=session, why=why)
        found.append(session.slug)
    return found
