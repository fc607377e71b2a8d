"""The only writer of the transcript. Sync and in one transaction for a batch; the bell rings after the commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from channels.layers import get_channel_layer
from django.db import transaction
from django.utils import timezone

from agents.redact import Redactor
from agents.services import llm_provider_key
from primer_site import loop, vault
from sessions_app.models import AgentSession, EventKind, SessionEvent
from sessions_app.redact import clean

MERGED = frozenset({EventKind.TEXT_DELTA, EventKind.THINKING_DELTA, EventKind.TOOL_OUTPUT})


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event that has no number yet."""

    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def flow(self) -> tuple[Any, ...] | None:
        """What it may be merged with: deltas of one kind, text of one stream of one call. None: with nothing."""
        if self.kind not in MERGED or "text" not in self.data:
            return None
        return (self.kind, self.data.get("call_id"), self.data.get("exec_id"), self.data.get("stream"))


def append(session: AgentSession, *drafts: EventDraft, redactor: Redactor | None = None) -> list[SessionEvent]:
    """Stores drafts with dense seq numbers, known secrets masked; raises `LostLease` when another runner holds the session.

    A run, which appends often, hands in the session's redactor: making it opens sealed secrets.
    """
    if not drafts:
        return []
    redactor, now = redactor or redactor_of(session), timezone.now()
    with transaction.atomic():
        first = AgentSession.objects.reserve_seq(session, len(drafts))
        events = [
            SessionEvent(
                session_id=session.pk, seq=first + index, ts=now, kind=draft.kind, data=clean(draft.data, redactor)
            )
            for index, draft in enumerate(drafts)
        ]
        SessionEvent.objects.bulk_create(events)
        transaction.on_commit(partial(ring, session.pk, events[-1].seq), robust=True)
    return events


def redactor_of(session: AgentSession) -> Redactor:
    """Masks the workspace's secrets and the model's key."""
    provider = session.agent.provider
    return _redactor(llm_provider_key(provider), session.workspace.secrets, provider.secrets)


@lru_cache(maxsize=64)
def _redactor(key: str, *sealed: str) -> Redactor:
    return Redactor([key, *_texts([vault.unseal(text) for text in sealed])])


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def group_of(session_pk: int) -> str:
    return f"session.{session_pk}"


def ring(session_pk: int, seq: int) -> None:
    """Tells the readers of every process that there is something new. It carries no data, and losing it costs a second."""
    loop.spawn(_ring(session_pk, seq), name="session bell")


async def _ring(session_pk: int, seq: int) -> None:
    await get_channel_layer().group_send(group_of(session_pk), {"type": "session.ring", "seq": seq})


def events_after(session_pk: int, after: int, limit: int) -> list[SessionEvent]:
    """At most `limit` stored events behind `after`, in order."""
    rows = SessionEvent.objects.filter(session_id=session_pk, seq__gt=after).order_by("seq")
    return list(rows[:limit])


def envelope(event: SessionEvent) -> dict[str, Any]:
    """The event as clients see it."""
    return {
        "seq": event.seq,
        "ts": event.ts.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "kind": event.kind,
        "data": event.data,
    }
