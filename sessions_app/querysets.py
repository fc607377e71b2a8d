"""Who sees what: the one place that looks at owners when sessions are read; and the counters that hand out seq numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import F

from accounts.models import User
from primer_site.errors import Conflict

if TYPE_CHECKING:
    from sessions_app.models import AgentSession


class LostLease(Conflict):
    """Another runner holds this session."""

    code = "lost_lease"


class SessionQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User) -> Self:
        """Sessions of the user; an admin sees everybody's."""
        if not user.is_active:
            return self.none()
        return self if user.is_admin else self.filter(owner=user)

    def active(self) -> Self:
        """Queued or running: what keeps an agent in use."""
        return self.exclude(status="ended")

    def reserve_seq(self, session: AgentSession, count: int) -> int:
        """Takes `count` numbers and returns the first; call it inside a transaction.

        The update is fenced: a runner whose lease went to another generation gets `LostLease`, and writes nothing.
        """
        rows = self.filter(pk=session.pk, generation=session.generation)
        if rows.update(last_seq=F("last_seq") + count, state_rev=F("state_rev") + 1) != 1:
            raise LostLease(f"Session {session.slug} is driven by another runner.")
        # The row is locked by the update (on SQLite the whole database is), so this reads what it wrote.
        last: int = self.values_list("last_seq", flat=True).get(pk=session.pk)
        return last - count + 1


def foreign(user: User, session: AgentSession) -> bool:
    """Whether the session belongs to somebody else: opening it leaves a line in the audit log."""
    return session.owner_id != user.pk
