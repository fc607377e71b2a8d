"""Who sees what: models and agents are everybody's to see, and their slugs are global."""

from __future__ import annotations

from typing import Self

from accounts.models import User
from primer_site.resource import LiveQuerySet


class SharedQuerySet(LiveQuerySet):
    """Everyone signed in sees the live rows; who may change one is `may_change`'s to say."""

    def visible_to(self, user: User) -> Self:
        return self.live() if user.is_active else self.none()
