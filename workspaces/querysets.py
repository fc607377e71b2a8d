"""Who sees what: the one place that looks at owners when rows are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from accounts.models import User
from primer_site.resource import LiveQuerySet

if TYPE_CHECKING:
    from workspaces.models import Exec, Workspace


class SharedQuerySet(LiveQuerySet):
    """Providers and templates: everyone signed in sees the live ones."""

    def visible_to(self, user: User) -> Self:
        return self.live() if user.is_active else self.none()


class WorkspaceQuerySet(LiveQuerySet):
    def visible_to(self, user: User) -> Self:
        """Live workspaces of the user; an admin sees everybody's."""
        rows = self.live() if user.is_active else self.none()
        return rows if user.is_admin else rows.filter(owner=user)


# Of the workspace of a run, which is joined to every row of a list: what is long, and not shown with the run.
_LONG = ("spec", "env", "secrets", "boot_lines", "phases", "ref", "applied", "confinement", "channel")


class ExecQuerySet(LiveQuerySet):
    def live(self) -> Self:
        return self

    def visible_to(self, user: User) -> Self:
        """Runs in workspaces of the user, deleted ones included: their output outlives the sandbox."""
        if not user.is_active:
            return self.none()
        rows = self.defer(*(f"workspace__{name}" for name in _LONG))
        return rows if user.is_admin else rows.filter(workspace__owner=user)


def foreign(user: User, obj: Workspace | Exec | Any) -> bool:
    """Whether the object belongs to somebody else: opening it leaves a line in the audit log."""
    return bool(obj.owner_id != user.pk)
