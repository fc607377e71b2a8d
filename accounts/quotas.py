"""How much one user may have at once: a runaway script fills nobody else's machine."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from accounts.models import User
from primer_site.errors import RateLimited


def refuse_more(owner: User, rows: QuerySet[Any], *, what: str, setting: str, hint: str) -> None:
    """Raises `RateLimited` when as many of the `rows` are the owner's as the setting allows; 0 is no limit.

    Call it inside the transaction that adds one: two requests at once must not both find the last place free.
    """
    limit: int = getattr(settings, setting)
    if limit and rows.filter(owner=owner).count() >= limit:
        raise RateLimited(
            f"{owner.username} has {limit} {what}, and this server allows no more for each user ({setting}).", hint=hint
        )
