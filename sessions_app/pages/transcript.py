"""The transcript as the page shows it: the newest events or those around one, older ones on demand, newer ones by poll."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString, mark_safe

from accounts.pages.door import Door
from accounts.pages.table import number
from sessions_app.api import SessionViewSet
from sessions_app.events import envelope, events_after
from sessions_app.fragments import Fragments, merged
from sessions_app.models import AgentSession, EventKind, SessionEvent, Status
from sessions_app.pages.find import QUERY_CHARS, search

OUTPUTS = '<div class="outs" data-outputs>'
FIRST = 200  # events of the first paint
BEFORE = 50  # of them before the one that a link leads to
PAGE = 200
FILES = 500
RAW_CHARS = 8192  # of one event as JSON
SHOWN: dict[str, tuple[EventKind, ...]] = {
    "messages": (EventKind.USER_MESSAGE, EventKind.TEXT_DELTA, EventKind.ASSISTANT_MESSAGE, EventKind.SESSION_ENDED),
    "calls": (EventKind.TOOL_CALL, EventKind.TOOL_OUTPUT, EventKind.TOOL_RESULT),
    "thinking": (EventKind.THINKING_DELTA,),
    "problems": (EventKind.WARNING, EventKind.ERROR, EventKind.SESSION_ENDED),
}
SHOWS = (
    ("", "Everything"),
    ("messages", "Messages"),
    ("calls", "Calls"),
    ("thinking", "Thinking"),
    ("problems", "Warnings and errors"),
)
MAX_SEQ = 10**15


def opened(request: HttpRequest, session: AgentSession) -> dict[str, Any]:
    """The part of the transcript that the URL asks for: the newest events, or those around `?at=`, of the kinds of `?show=`.

    With `?find=` also where that text stands in the whole of it.
    """
    at = number(request, "at", 1, MAX_SEQ) if request.GET.get("at") else 0
    show = request.GET.get("show", "")
    text = request.GET.get("find", "").strip()[:QUERY_CHARS]
    context: dict[str, Any] = {
        "show": show if show in SHOWN else "",
        "shows": SHOWS,
        "find": text,
        "kinds": " ".join(SHOWN.get(show, ())),
    }
    if text:
        found = search(session, text, number(request, "from", 1, MAX_SEQ) if request.GET.get("from") else 0)
        at = at or (found.seqs[0] if found.seqs else 0)
        context |= {
            "found": found, "place": found.place(at), "hits": ",".join(map(str, found.seqs)),
            "next_hit": found.step(at, 1), "previous_hit": found.step(at, -1),
        }  # fmt: skip
    return context | window(session, at, SHOWN.get(show, ())) | {"at": at}


def window(session: AgentSession, at: int = 0, kinds: tuple[EventKind, ...] = ()) -> dict[str, Any]:
    """At most FIRST events in order and the `seq` behind which the socket joins; with `at` those around it."""
    rows = SessionEvent.objects.filter(session=session)
    last = rows.order_by("-seq").values_list("seq", flat=True).first() or 0
    rows = rows.filter(kind__in=kinds) if kinds else rows
    if not at or at > last:
        return drawn(session, list(rows.filter(seq__lte=last).order_by("-seq")[:FIRST])[::-1], last=last)
    before = list(rows.filter(seq__lt=at).order_by("-seq")[:BEFORE])[::-1]
    behind = list(rows.filter(seq__gte=at, seq__lte=last).order_by("seq")[: FIRST - BEFORE + 1])
    shown = [*before, *behind[: FIRST - BEFORE]]
    newer = behind[-1].seq if len(behind) > FIRST - BEFORE else 0
    return drawn(session, shown, last=last, at=at) | {"newer": newer}


def arranged(events: list[SessionEvent], fragments: Fragments, at: int = 0) -> list[SafeString]:
    """Fragments where they belong: output and result stand inside the card of their call, as the page's script puts them."""
    whole = [event.seq for event in events if event.kind == EventKind.ASSISTANT_MESSAGE]
    shown = [event for event in events if event.kind != EventKind.TEXT_DELTA or not whole or event.seq > whole[-1]]
    found: list[str] = []
    cards: dict[str, tuple[int, list[str]]] = {}  # call: (place of its card, what goes into it)
    for one in merged(shown, apart=at):
        call, html = str(one["data"].get("call_id") or ""), fragments.of(one)
        if one["kind"] in (EventKind.TOOL_OUTPUT, EventKind.TOOL_RESULT) and call in cards:
            cards[call][1].append(html)
            continue
        if one["kind"] == EventKind.TOOL_CALL:
            cards[call] = (len(found), [])
        found.append(html)
    for place, inside in cards.values():
        card = found[place]
        # The last one: an argument that a model wrote is escaped, so it holds no such element.
        before, _, after = card.rpartition(OUTPUTS)
        found[place] = f"{before}{OUTPUTS}{''.join(inside)}{after}"
    return [mark_safe(html) for html in found]  # noqa: S308 - fragments of our own templates


def linkable(session: AgentSession) -> str:
    """The workspace that links can lead to, "" when it is gone."""
    return session.workspace.slug if session.workspace.deleted_at is None else ""


def drawn(session: AgentSession, events: list[SessionEvent], last: int = 0, at: int = 0) -> dict[str, Any]:
    first = events[0].seq if events else 0
    return {
        "fragments": arranged(events, Fragments(linkable(session), session.slug, session.workspace.slug), at),
        "first_seq": first,
        "last_seq": max(last, events[-1].seq if events else 0),
        "older": first > 1,
    }


def events(request: HttpRequest, id: str) -> HttpResponse:
    """`?after=` the events behind a seq as fragments (what the page polls without a socket); `?before=` a page of older ones."""
    session = Door(SessionViewSet, request).get(id)
    if "before" in request.GET:
        rows = SessionEvent.objects.filter(session=session, seq__lt=number(request, "before", 1, MAX_SEQ))
        show = request.GET.get("show", "")
        rows = rows.filter(kind__in=SHOWN[show]) if show in SHOWN else rows
        shown = drawn(session, list(rows.order_by("-seq")[:PAGE])[::-1])
        return render(request, "sessions/older.html", {"id": id, "show": show if show in SHOWN else "", **shown})
    after = number(request, "after", 1, MAX_SEQ) if request.GET.get("after") != "0" else 0
    fragments = Fragments(linkable(session), session.slug, session.workspace.slug)
    found = [{**envelope(event), "html": fragments.of(event)} for event in events_after(session.pk, after, PAGE)]
    body = json.dumps({"items": found, "ended": session.status == Status.ENDED and len(found) < PAGE})
    return HttpResponse(body, content_type="application/json")


def changed_files(session: AgentSession) -> list[dict[str, Any]]:
    """What the tools say they changed: the last word on each path, how often, and the event that says so."""
    rows = SessionEvent.objects.filter(session=session, kind=EventKind.TOOL_RESULT).order_by("seq")
    found: dict[str, dict[str, Any]] = {}
    for seq, files in rows.values_list("seq", "data__files").iterator(chunk_size=500):
        for item in files or []:
            path, change = str(item.get("path", "")), str(item.get("change", ""))
            one = found.setdefault(path, {"path": path, "first": change, "times": 0})
            one |= {"change": change if one["first"] != "created" else "created", "seq": seq, "times": one["times"] + 1}
    return [found[path] for path in sorted(found)[:FILES]]


def raw_page(request: HttpRequest, session: AgentSession) -> dict[str, Any]:
    """Events as JSON, a page at a time."""
    after = number(request, "after", 1, MAX_SEQ) if request.GET.get("after") else 0
    rows = events_after(session.pk, after, PAGE)
    shown = [
        (event.seq, event.kind, _short(json.dumps(envelope(event), ensure_ascii=False, indent=2))) for event in rows
    ]
    more = bool(rows) and rows[-1].seq < session.last_seq
    return {"raw": shown, "after": after, "before": max(0, after - PAGE), "next_after": rows[-1].seq if more else None}


def _short(text: str) -> str:
    left = len(text) - RAW_CHARS
    return text if left <= 0 else f"{text[:RAW_CHARS]}\n… [{left} more characters; the file of JSON lines has them]"
