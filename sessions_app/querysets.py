"""Who sees what: the one place that looks at owners when sessions are read; and the counters that hand out seq numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.db import connections, models, router

from accounts.models import User
from primer_site.errors import Conflict

if TYPE_CHECKING:
    from sessions_app.models import AgentSession


_TAKE = "UPDATE {table} SET last_seq = last_seq + %s, state_rev = state_rev + 1 WHERE id = %s AND generation = %s"
_LAST = "SELECT last_seq FROM {table} WHERE id = %s"


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
        # By hand: this runs for every event of every session, and building the two statements took longer than they do.
        database = connections[router.db_for_write(self.model)]
        table = database.ops.quote_name(self.model._meta.db_table)
        with database.cursor() as cursor:
            cursor.execute(_TAKE.format(table=table), [count, session.pk, session.generation])
            if cursor.rowcount != 1:
                raise LostLease(f"Session {session.slug} is driven by another runner.")
            # The row is locked by the update (on SQLite the whole database is), so this reads what it wrote.
            cursor.execute(_LAST.format(table=table), [session.pk])
            last: int = cursor.fetchone()[0]
        return last - count + 1


def foreign(user: User, session: AgentSession) -> bool:
    """Whether the session belongs to somebody else: opening it leaves a line in the audit log."""
    return session.owner_id != user.pk
