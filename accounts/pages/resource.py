"""The pages of one kind: list, new, detail with tabs, edit, delete. A subclass names its fields, columns and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils.text import capfirst

from accounts.models import AuditEntry, Role, User
from accounts.pages.bulk import Bulk
from accounts.pages.editing import Editing, Item
from accounts.pages.table import Column, Filter, Listing, Row, api_query, cells, listing, narrowed
from accounts.pages.views import STOP_POLLING, done, is_fragment, page
from accounts.permissions import may_change
from primer_site import documents, shells
from primer_site.errors import FieldError, Forbidden, Invalid, NotFound, PrimerError
from primer_site.requests import request_id

AUDIT_LINES = 100  # on the page of one object


class ResourcePages(Editing, Bulk):
    """One instance for each kind; its `urls` are mounted at `base`, which ends in a slash."""

    kind: ClassVar[str] = ""
    viewset: ClassVar[type[Any]]
    base: ClassVar[str] = ""
    section: ClassVar[str] = ""
    title: ClassVar[str] = ""  # of the list
    noun: ClassVar[str] = ""
    icon: ClassVar[str] = "cube"
    columns: ClassVar[Sequence[Column]] = ()
    filters: ClassVar[Sequence[Filter]] = ()
    page_sorts: ClassVar[Mapping[str, str]] = {}  # beside the API's: a page is numbered, so any column does
    search: ClassVar[str] = "Search by id or description"
    empty: ClassVar[str] = ""
    empty_cli: ClassVar[str] = ""
    tabs: ClassVar[Sequence[tuple[str, str]]] = (("", "Overview"), ("yaml", "YAML"))
    templates: ClassVar[str] = ""  # directory of this kind's templates
    detail_template: ClassVar[str] = "detail.html"
    live_tabs: ClassVar[frozenset[str]] = frozenset({""})  # those that ask again while something moves

    # -- what a subclass says

    def tab_context(self, request: HttpRequest, row: Any, item: Item, tab: str) -> dict[str, Any]:
        return {}

    def actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        """Buttons of the detail page: `{label, url, icon, primary, disabled, method}`."""
        return []

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        """Further facts of a page of rows by primary key, in a constant number of queries."""
        return {}

    def row_actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        """What a row of the list offers at its end, in the shape of `actions`."""
        return []

    def starters(self) -> list[tuple[str, str]]:
        """Label and URL of forms that are filled in already, for whoever has none of the kind yet."""
        return []

    def lacks(self) -> str:
        """Why none can be made now, or ""."""
        return ""

    def moving(self, row: Any) -> bool:
        """Whether the row changes by itself now, so that its page asks again."""
        return False

    def watched(self, row: Any) -> str:
        """A mark that changes with what others may do to a row at rest, for a page that asks for it; "" where nothing may."""
        return ""

    def consequences(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What a deletion takes along: `{lines, type_id}`."""
        return {"lines": [f"The {self.noun} {row.public_id}."], "type_id": False}

    def more_urls(self) -> list[URLPattern]:
        return []

    # -- small things

    def href(self, public_id: str, *rest: str) -> str:
        return "/".join([self.base.rstrip("/"), public_id, *rest, ""])

    def may_create(self, request: HttpRequest) -> bool:
        user = request.user
        if getattr(self.viewset, "admin_only", False):
            return isinstance(user, User) and user.is_admin
        return getattr(user, "role", Role.VIEWER) != Role.VIEWER

    def context(self, **given: Any) -> dict[str, Any]:
        return {"pages": self, "heading": self.title, **given}

    @property
    def urls(self) -> list[URLPattern]:
        name = self.kind
        return [
            path("", page(self.index), name=f"{name}-list"),
            path("new/", page(self.new), name=f"{name}-new"),
            *([path("bulk/", page(self.bulk), name=f"{name}-bulk")] if self.bulk_verbs else []),
            *self.more_urls(),
            path("<str:id>/", page(self.detail), name=f"{name}-detail"),
            path("<str:id>/row/", page(self.row), name=f"{name}-row"),
            *([path("<str:id>/live/", page(self.live), name=f"{name}-live")] if self.live_tabs else []),
            path("<str:id>/edit/", page(self.edit), name=f"{name}-edit"),
            path("<str:id>/delete/", page(self.delete), name=f"{name}-delete"),
            path("<str:id>/<slug:tab>/", page(self.detail), name=f"{name}-tab"),
        ]

    # -- the list

    def index(self, request: HttpRequest) -> HttpResponse:
        found = self.listing(request)
        fragment = is_fragment(request)
        may_create = self.may_create(request)
        context = self.context(
            listing=found, may_create=may_create, lacks=self.lacks() if may_create else "",
            starters=self.starters() if may_create and not found.rows else [],
        )  # fmt: skip
        return render(request, "partials/table.html" if fragment else "list.html", context)

    def listing(self, request: HttpRequest, rows: Any = None) -> Listing:
        door = self.door(request)
        if rows is None:
            rows = narrowed(request, door.rows(api_query(request, self.filters)), self.filters)
        return listing(
            request, rows, columns=self.columns, filters=self.filters, facets_of=door.rows(),
            sorts={"created_at": "created_at", **self.viewset.sorts, **self.page_sorts}, draw=lambda some: self.draw(request, some),
        )  # fmt: skip

    def draw(self, request: HttpRequest, rows: Sequence[Any]) -> list[Row]:
        items = self.door(request).shown(rows, many=True)
        extra = self.more_of(request, rows)
        found = []
        for item, row in zip(items, rows, strict=True):
            whole = {**item, **extra.get(row.pk, {})}
            href = self.href(row.public_id)
            refresh = f"{href}row/" if self.moving(row) else ""
            drawn = cells(self.columns, whole, row, href)
            actions = self.row_actions(request, row, whole)
            found.append(Row(row.public_id, href, whole, row, drawn, refresh, actions))
        return found

    def row(self, request: HttpRequest, id: str) -> HttpResponse:
        """One row that asks for itself while something moves; 286 ends that."""
        row = self.door(request).get(id)
        (drawn,) = self.draw(request, [row])
        answer = render(request, "partials/row.html", self.context(row=drawn))
        if not self.moving(row):
            answer.status_code = STOP_POLLING
        return answer

    # -- detail

    def detail(self, request: HttpRequest, id: str, tab: str = "") -> HttpResponse:
        if tab not in dict(self.tabs):
            raise NotFound(f"This {self.noun} has no such tab.")
        row = self.door(request).get(id)
        return render(request, self.detail_template, self.detail_context(request, row, tab))

    def detail_context(self, request: HttpRequest, row: Any, tab: str) -> dict[str, Any]:
        item = dict(self.door(request).shown(row))
        moving, mark = self.moving(row), self.watched(row)
        asks = (moving or mark) and tab in self.live_tabs
        refresh = self.href(row.public_id, "live") + f"?{urlencode({'tab': tab, 'was': mark})}" if asks else ""
        return self.context(
            row=row, item=item, id=row.public_id, tab=tab, refresh=refresh, moving=moving, actions=self.actions(request, row, item),
            changeable=may_change(self.user(request), row), copies=self.copies(request, row),
            body_template=f"{self.templates}/body.html", yaml=self._yaml_of(item) if tab == "yaml" else "",
            **self.tab_context(request, row, item, tab),
        )  # fmt: skip

    def _yaml_of(self, item: Item) -> str:
        return documents.write({"kind": self.kind, "spec": _plain(item)})

    def live(self, request: HttpRequest, id: str) -> HttpResponse:
        """The moving part of a detail page; 286 when it has come to rest."""
        tab = request.GET.get("tab", "")
        row = self.door(request).look(id)
        if not self.moving(row) and (mark := self.watched(row)) and mark == request.GET.get("was"):
            return HttpResponse(status=204)  # as it was: what is open or marked on the page stays so
        context = self.detail_context(request, row, tab if tab in dict(self.tabs) else "")
        answer = render(request, "partials/live.html", context)
        if not self.moving(row) and not self.watched(row):
            answer.status_code = STOP_POLLING
        return answer

    def copies(self, request: HttpRequest, row: Any) -> list[tuple[str, str]]:
        """The same object for a terminal; the token is named, never shown."""
        plural = f"{self.kind}s"
        url = request.build_absolute_uri(f"/v1/{plural}/{row.public_id}")
        return [
            ("CLI", shells.line("primectl describe", f"{self.kind}/{row.public_id}")),
            ("curl", f'curl -H "Authorization: Bearer $PRIMECTL_TOKEN" {shells.word(url)}'),
            ("YAML", shells.line("primectl get", f"{self.kind}/{row.public_id}", options="-o yaml")),
        ]

    # -- delete and actions

    def delete(self, request: HttpRequest, id: str) -> HttpResponse:
        door = self.door(request)
        row = door.get(id)
        if not may_change(self.user(request), row):
            raise Forbidden(f"Only its owner or an admin may delete this {self.noun}.")
        asked = self.consequences(request, row)
        error: PrimerError | None = None
        if request.method == "POST":
            if asked["type_id"] and request.POST.get("confirm", "").strip() != row.public_id:
                error = Invalid("The id does not match.", errors=[FieldError("confirm", f"type {row.public_id}")])
            else:
                try:
                    goes_on = door.delete(row.public_id)
                    words = "is being deleted" if goes_on else "deleted"
                    return done(request, f"{capfirst(self.noun)} {row.public_id} {words}.", self.base)
                except PrimerError as exc:
                    error = exc
        context = self.context(row=row, id=row.public_id, error=error, **asked)
        return render(request, "delete.html", context, status=error.status if error else 200)

    def act(self, action: str, words: str, *, then: Callable[[Item, str], str] | None = None) -> Any:
        """A view that posts an action of the API and goes back to the page."""

        @page
        def acting(request: HttpRequest, id: str) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseRedirect(self.href(id))
            try:
                answer = self.door(request).call("POST", action, id=id)
            except PrimerError as exc:
                if isinstance(exc, NotFound | Forbidden):
                    raise
                messages.error(request, f"{exc.detail} {exc.hint_text} (request {request_id(request)})")
                return HttpResponseRedirect(self.href(id), status=303)
            target = then(dict(answer.data), id) if then else self.href(id)
            return done(request, words.replace("{}", id), target)

        return acting


def audited(row: Any) -> list[dict[str, Any]]:
    """The latest lines of the audit log about one object, newest first: what was done, by whom, to which fields.

    An earlier object of the same name is another's story. Values, addresses and tokens stay in the log of the admins.
    """
    lines = AuditEntry.objects.filter(kind=row.KIND, object_id=row.public_id, at__gte=row.created_at)
    return [
        {"at": line.at.isoformat(), "kind": "audit", "text": line.action, "more": _who(line)}
        for line in lines.order_by("-at", "-pk")[:AUDIT_LINES]
    ]


def _who(line: AuditEntry) -> str:
    old, new = line.before or {}, line.after or {}
    names = [name for name in new if old.get(name) != new[name]] if old else []
    return f"by {line.actor_name}" + (f": {', '.join(names)}" if names else "")


def _plain(value: Any) -> Any:
    """DRF's ordered containers as plain ones, which YAML can write."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
