"""The palette: pages, objects by id, and what can be done now. A plain page first; with scripts the same in a dialog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Case, Q, When
from django.db.models.functions import Substr
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.text import capfirst

from accounts.models import User
from accounts.pages.resource import ResourcePages
from accounts.pages.views import is_fragment
from accounts.permissions import may_change
from agents.pages.agents import AGENTS
from agents.pages.llm_providers import LLM_PROVIDERS
from primer_site.navigation import makes, sections
from primer_site.parsing import bad_text
from sessions_app.pages.sessions import SESSIONS
from workspaces.pages.providers import PROVIDERS
from workspaces.pages.templates import TEMPLATES
from workspaces.pages.workspaces import WORKSPACES

LONGEST = 200  # characters of a question
EACH = 5  # objects of a kind
NOTE = 120  # characters beside an id
# The kinds, and what is read beside the id: text that people gave the object.
KINDS: tuple[tuple[ResourcePages, str], ...] = (
    (WORKSPACES, "name"), (SESSIONS, "initial_instructions"), (TEMPLATES, "description"), (PROVIDERS, "description"),
    (AGENTS, "description"), (LLM_PROVIDERS, "description"),
)  # fmt: skip
OWN_PAGES = (
    ("Account", "/account/", "user-circle"), ("Change password", "/account/password/", "key"),
    ("Keyboard", "/account/keys/", "command-line"), ("API", "/v1/docs/", "code-bracket"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hit:
    """One line of the answer. With `post` it is a button that does it, else a link; `reason` says why it cannot be done."""

    label: str
    url: str
    icon: str
    note: str = ""
    post: bool = False
    reason: str = ""


def search(request: HttpRequest) -> HttpResponse:
    """`?q=` is looked for; `?here=` is the page that was open, whose object's actions come first."""
    text = request.GET.get("q", "").strip()[:LONGEST]
    asked = "" if bad_text(text) else text
    groups = [(title, hits) for title, hits in _groups(request, asked) if hits]
    context = {"heading": "Search", "q": text, "here_path": request.GET.get("here", "")[:LONGEST], "groups": groups}
    response = render(request, "partials/found.html" if is_fragment(request) else "search.html", context)
    patch_vary_headers(response, ("HX-Request",))
    return response


def _groups(request: HttpRequest, text: str) -> Iterator[tuple[str, list[Hit]]]:
    words = text.lower()
    found = [(pages, rows) for pages, name in KINDS if (rows := _objects(request, pages, name, words))]
    exact = next(((pages, rows[0]) for pages, rows in found if rows[0][0] == words), None)
    chosen = (exact[0], exact[1][0]) if exact else None if words else _open_object(request)
    if chosen is not None:
        yield f"{capfirst(chosen[0].noun)} {chosen[1]}", list(_actions_of(request, *chosen))
    for pages, rows in found:
        yield pages.title, [Hit(slug, pages.href(slug), pages.icon, note) for slug, note in rows]
    yield "Pages", [hit for hit in _pages(request) if words in hit.label.lower()]
    yield "Actions", [hit for hit in _made_here(request) if words in hit.label.lower()]


def _objects(request: HttpRequest, pages: ResourcePages, name: str, words: str) -> list[tuple[str, str]]:
    """Ids and names of what the caller sees of a kind: that very id first, then the newest. One query."""
    if not words:
        return []
    rows = pages.door(request).rows()
    fields = Q(slug__icontains=words) | (Q(name__icontains=words) if name == "name" else Q())
    first = Case(When(slug=words, then=0), default=1)
    found = rows.filter(fields).order_by(first, "-created_at", "-pk").annotate(note=Substr(name, 1, NOTE))
    return [(slug, note.strip().partition("\n")[0]) for slug, note in found.values_list("slug", "note")[:EACH]]


def _open_object(request: HttpRequest) -> tuple[ResourcePages, str] | None:
    """The object whose page the palette was opened on; the longest base wins: templates lie below workspaces."""
    here = request.GET.get("here", "")
    for pages, _ in sorted(KINDS, key=lambda kind: -len(kind[0].base)):
        if here.startswith(pages.base):
            slug = here.removeprefix(pages.base).partition("/")[0]
            if not slug or bad_text(slug):
                return None
            return (pages, slug) if pages.door(request).rows().filter(slug=slug).exists() else None
    return None


def _actions_of(request: HttpRequest, pages: ResourcePages, slug: str) -> Iterator[Hit]:
    """What its page offers in the state it is in: the same buttons, what may be changed, and the tabs."""
    row = pages.door(request).rows().get(slug=slug)
    item = dict(pages.door(request).shown(row))
    for action in pages.actions(request, row, item):
        yield Hit(
            action["label"], action["url"], action["icon"], post=action.get("method") != "get", reason=action.get("disabled", "")
        )  # fmt: skip
    for tab, label in pages.tabs:
        yield Hit(label, pages.href(slug, tab) if tab else pages.href(slug), pages.icon)
    if isinstance(request.user, User) and may_change(request.user, row):
        if pages.made_by_people:
            yield Hit("Edit", pages.href(slug, "edit"), "pencil-square")
        if item.get("status") not in ("queued", "running"):
            yield Hit("Delete", pages.href(slug, "delete"), "trash")


def _pages(request: HttpRequest) -> Iterator[Hit]:
    for title, entries in sections(request):
        for entry in entries:
            yield Hit(entry.label, entry.url, entry.icon, title if title != entry.label else "")
    for label, url, icon in OWN_PAGES:
        yield Hit(label, url, icon)


def _made_here(request: HttpRequest) -> Iterator[Hit]:
    for label, url in makes(request):
        yield Hit(label, url, "plus")
    yield Hit("Sign out", "/logout/", "arrow-right-on-rectangle", post=True)
