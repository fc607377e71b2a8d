"""Secrets that a page shows once: kept from the POST that made them to the page that it leads to, and gone with that.

The answer to the POST carries nothing, so that a reload makes nothing again. In between the value lies sealed in the
session's row, for a few minutes at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from primer_site import vault

KEPT_S: Final = 300  # a browser follows at once; what was never fetched is not shown to whoever comes later
SLOT: Final = "shown_once"


def keep(request: HttpRequest, to: str, made: Mapping[str, Any], *, hidden: str) -> HttpResponse:
    """Leads to the page `to`, which shows `made` the next time it is asked for, and no other page does."""
    told = {name: value for name, value in made.items() if name != hidden and isinstance(value, str)}
    sealed = vault.seal({hidden: made[hidden]})
    request.session[SLOT] = {"to": to, "until": time.time() + KEPT_S, "told": told, "sealed": sealed}
    return HttpResponseRedirect(to, status=303)


def take(request: HttpRequest) -> dict[str, Any] | None:
    """What is to be shown on this page now, for the last time."""
    kept = request.session.get(SLOT)
    if kept is None or kept["to"] != request.path:
        return None
    del request.session[SLOT]
    return {**kept["told"], **vault.unseal(kept["sealed"])} if time.time() < kept["until"] else None


def unstored(response: HttpResponse) -> HttpResponse:
    """The page with a secret on it: no cache keeps it, so the way back does not show it again."""
    response["Cache-Control"] = "no-store"
    return response
