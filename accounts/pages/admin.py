"""Admin: users, everybody's tokens, the audit log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path

from accounts.api import AuditViewSet, TokenViewSet, UserViewSet
from accounts.models import Role
from accounts.pages import once
from accounts.pages.door import Door
from accounts.pages.table import Filter, Row, api_query, listing, narrowed
from accounts.pages.views import UNPROCESSABLE, done, is_fragment, page
from primer_site import problems
from primer_site.errors import PrimerError

AUDIT_FILTERS = (
    Filter("actor", "Actor", "actor_name"),
    Filter("action", "Action", "action"),
    Filter("object_kind", "Kind", "kind"),
    Filter("actor_kind", "By", "actor_kind"),
    Filter("within", "Time", since="at"),
)
EXPORT = 20_000  # lines
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run


class Kind:
    """What the shared list templates ask of a kind."""

    def __init__(self, base: str, title: str, noun: str, empty: str) -> None:
        self.base, self.title, self.noun, self.empty = base, title, noun, empty
        self.search, self.icon, self.section, self.kind, self.empty_cli = (
            "Search",
            "clipboard-document-list",
            "Admin",
            "",
            "",
        )


AUDIT = Kind("/admin/audit/", "Audit log", "entry", "Nothing in this range.")


# -- users


def users(request: HttpRequest, *, error: PrimerError | None = None) -> HttpResponse:
    view = Door(UserViewSet, request).view("GET", "list", query=api_query(request, ()))
    rows = view.filter_queryset(view.get_queryset()).order_by("username")[:500]
    made = once.take(request)
    context = {"heading": "Users", "rows": rows, "roles": Role.choices, "made": made, "error": error}
    response = render(request, "admin/users.html", context, status=UNPROCESSABLE if error else 200)
    return once.unstored(response) if made else response


def user_new(request: HttpRequest) -> HttpResponse:
    """Makes a user; the list shows the generated password once."""
    if request.method != "POST":
        return HttpResponseRedirect("/admin/users/")
    body = {"username": request.POST.get("username", "").strip(), "role": request.POST.get("role", Role.MEMBER)}
    try:
        made = Door(UserViewSet, request).call("POST", "create", data=body).data
    except Exception as exc:
        return users(request, error=known(exc))
    return once.keep(request, "/admin/users/", made, hidden="password")


def user_change(request: HttpRequest, name: str) -> HttpResponse:
    """Role, activity, or a new password, which is shown once. To shut somebody out or to end their tokens is asked twice."""
    if request.method != "POST":
        return HttpResponseRedirect("/admin/users/")
    shuts = request.POST.get("active") == "0"
    if "sure" not in request.POST and (shuts or "reset_password" in request.POST):
        Door(UserViewSet, request).call("GET", "retrieve", id=name)  # for admins alone, and of a user that there is
        context = {"heading": "Disable user" if shuts else "Reset password", "name": name, "shuts": shuts}
        return render(request, "admin/user_sure.html", context)
    body: dict[str, Any] = {}
    if "role" in request.POST:
        body["role"] = request.POST["role"]
    if "active" in request.POST:
        body["active"] = request.POST["active"] == "1"
    if "reset_password" in request.POST:
        body["reset_password"] = True
    try:
        answer = Door(UserViewSet, request).call("PATCH", "partial_update", id=name, data=body).data
    except Exception as exc:
        return users(request, error=known(exc))
    if answer.get("password") is not None:
        return once.keep(request, "/admin/users/", answer, hidden="password")
    return done(request, f"User {name} changed.", "/admin/users/")


def known(exc: Exception) -> PrimerError:
    error = problems.to_error(exc)
    if isinstance(error, problems.Bug):
        raise exc
    return error


# -- tokens


def tokens(request: HttpRequest) -> HttpResponse:
    view = Door(UserViewSet, request).view("GET", "list")  # for admins alone, as the list of users is
    assert view is not None  # noqa: S101 - the check is what counts
    rows = (
        Door(TokenViewSet, request).view("GET", "list", query={"all": "true"}).get_queryset().order_by("-created")[:500]
    )
    return render(request, "admin/tokens.html", {"heading": "Tokens", "tokens": rows, "everybody": True})


# -- audit


def audit(request: HttpRequest) -> HttpResponse:
    """Who did what, newest first; `?format=csv|jsonl` is the same range as a file."""
    query = api_query(request, AUDIT_FILTERS) | {
        name: request.GET[name] for name in ("since", "until", "object_id") if request.GET.get(name)
    }
    view = Door(AuditViewSet, request).view("GET", "list", query=query)
    rows = narrowed(request, view.filter_queryset(view.get_queryset()), AUDIT_FILTERS)
    if (form := request.GET.get("format", "")) in EXPORTS:
        return exported(rows.order_by("-at", "-pk")[:EXPORT], form)
    found = listing(
        request, rows, columns=(), filters=AUDIT_FILTERS, facets_of=view.get_queryset(), sorts=AuditViewSet.sorts, draw=_entries
    )  # fmt: skip
    template = "admin/audit_rows.html" if is_fragment(request) else "admin/audit.html"
    return render(request, template, {"heading": "Audit log", "listing": found, "pages": AUDIT})


def _entries(rows: Sequence[Any]) -> list[Row]:
    return [Row(str(row.pk), "", {"changes": changes(row.before, row.after)}, row, []) for row in rows]


def changes(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """What differs between the two, field by field."""
    old, new = before or {}, after or {}
    return [(name, old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


def exported(rows: Any, form: str) -> HttpResponse:
    kind, lines = EXPORTS[form]
    answer = HttpResponse("".join(lines(rows)), content_type=kind)
    answer["Content-Disposition"] = f'attachment; filename="audit.{form}"'
    return answer


def _csv(rows: Any) -> Iterator[str]:
    """Old columns first: whoever reads them by number still does. A change is one cell of JSON for each side."""
    names = ("at", "actor_name", "action", "kind", "object_id", "address", "request_id", "actor_kind", "token")
    yield _line((*names, "before", "after"))
    for row in rows:
        sides = ("" if side is None else json.dumps(side, ensure_ascii=False) for side in (row.before, row.after))
        yield _line([safe_cell(text) for text in (*(str(getattr(row, name)) for name in names), *sides)])


def _line(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def safe_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _jsonl(rows: Any) -> Iterator[str]:
    from accounts.serializers import AuditSerializer

    for row in rows:
        yield json.dumps(AuditSerializer(row).data, ensure_ascii=False, default=str) + "\n"


EXPORTS: dict[str, tuple[str, Callable[[Any], Iterator[str]]]] = {
    "csv": ("text/csv; charset=utf-8", _csv),
    "jsonl": ("application/x-ndjson", _jsonl),
}
urls: list[URLPattern] = [
    path("admin/users/", page(users), name="users"),
    path("admin/users/new/", page(user_new), name="user-new"),
    path("admin/users/<str:name>/", page(user_change), name="user-change"),
    path("admin/tokens/", page(tokens), name="tokens"),
    path("admin/audit/", page(audit), name="audit"),
]
