"""One verb for several objects: what it would leave alone and why, then each by itself, and what failed."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from accounts.models import User
from accounts.pages.door import Door
from accounts.permissions import may_change
from primer_site.errors import FieldError, Invalid, PrimerError

MOST = 100  # objects at once: a page of the list


class Bulk:
    """The part of a kind's pages that takes several ids."""

    base: ClassVar[str]
    bulk_verbs: ClassVar[tuple[tuple[str, str], ...]] = ()  # (verb, its button)
    bulk_warning: ClassVar[str] = ""

    def door(self, request: HttpRequest) -> Door:
        raise NotImplementedError

    def context(self, **given: Any) -> dict[str, Any]:
        raise NotImplementedError

    def bulk_refusal(self, verb: str, row: Any) -> str:
        """Why the verb leaves this row alone, or ""."""
        return ""

    def bulk_do(self, request: HttpRequest, verb: str, public_id: str) -> None:
        self.door(request).delete(public_id)

    def bulk(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseRedirect(self.base)
        verb, names = request.POST.get("do", ""), list(dict.fromkeys(request.POST.getlist("id")))[:MOST]
        label = dict(self.bulk_verbs).get(verb)
        if label is None:
            raise Invalid("There is no such change.", errors=[FieldError("do", "is unknown")])
        eligible, refused = self._sorted(request, verb, names)
        if "sure" not in request.POST or not eligible:
            context = self.context(
                verb=verb, label=label, asked=len(names), eligible=eligible, refused=refused, warning=self.bulk_warning
            )
            return render(request, "bulk.html", context)
        failures = []
        for name in eligible:
            try:
                self.bulk_do(request, verb, name)
            except PrimerError as exc:
                failures.append(f"{name}: {exc.detail}")
        done = len(eligible) - len(failures)
        messages.success(request, f"{label}: {done} of {len(names)} done.")
        for text in failures:
            messages.error(request, text)
        return HttpResponseRedirect(self.base, status=303)

    def _sorted(self, request: HttpRequest, verb: str, names: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Those the verb takes, and the others with the reason; what one may not see is not there."""
        rows = {row.public_id: row for row in self.door(request).rows().filter(slug__in=names)}
        user = request.user
        eligible, refused = [], []
        for name in names:
            row = rows.get(name)
            if row is None:
                why = "is not there"
            elif not (isinstance(user, User) and may_change(user, row)):
                why = "is not yours to change"
            else:
                why = self.bulk_refusal(verb, row)
            if why:
                refused.append((name[:100], why))
            else:
                eligible.append(name)
        return eligible, refused
