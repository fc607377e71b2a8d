"""The transcript as the page shows it: the newest events first painted, older ones on demand, newer ones by poll."""

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

OUTPUTS = '<div class="outs" data-outputs>'
FIRST = 200  # events of the first paint
PAGE = 200
MAX_SEQ = 10**15


def first_paint(session: AgentSession) -> dict[str, Any]:
    """The newest events in order, and the `seq` behind which the socket joins."""
    newest = list(SessionEvent.objects.filter(session=session).order_by("-seq")[:FIRST])
    return drawn(session, newest[::-1])


def arranged(events: list[SessionEvent], workspace: str) -> list[SafeString]:
    """Fragments where they belong: output and result stand inside the card of their call, as the page's script puts them."""
    whole = [event.seq for event in events if event.kind == EventKind.ASSISTANT_MESSAGE]
    shown = [event for event in events if event.kind != EventKind.TEXT_DELTA or not whole or event.seq > whole[-1]]
    fragments = Fragments(workspace)
    found: list[str] = []
    cards: dict[str, tuple[int, list[str]]] = {}  # call: (place of its card, what goes into it)
    for one in merged(shown):
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


def drawn(session: AgentSession, events: list[SessionEvent]) -> dict[str, Any]:
    first = events[0].seq if events else 0
    return {
        "fragments": arranged(events, linkable(session)),
        "first_seq": first,
        "last_seq": events[-1].seq if events else 0,
        "older": first > 1,
    }


def events(request: HttpRequest, id: str) -> HttpResponse:
    """`?after=` the events behind a seq as fragments (what the page polls without a socket); `?before=` a page of older ones."""
    session = Door(SessionViewSet, request).get(id)
    if "before" in request.GET:
        before = number(request, "before", 1, MAX_SEQ)
        rows = SessionEvent.objects.filter(session=session, seq__lt=before).order_by("-seq")[:PAGE]
        return render(request, "sessions/older.html", {"id": id, **drawn(session, list(rows)[::-1])})
    after = number(request, "after", 1, MAX_SEQ) if request.GET.get("after") != "0" else 0
    fragments = Fragments(linkable(session))
    found = [{**envelope(event), "html": fragments.of(event)} for event in events_after(session.pk, after, PAGE)]
    body = json.dumps({"items": found, "ended": session.status == Status.ENDED and len(found) < PAGE})
    return HttpResponse(body, content_type="application/json")


def changed_files(session: AgentSession) -> list[dict[str, str]]:
    """What the tools say they changed, the last word on each path."""
    rows = (
        SessionEvent.objects.filter(session=session, kind=EventKind.TOOL_RESULT)
        .order_by("seq")
        .values_list("data", flat=True)
    )
    found: dict[str, str] = {}
    for data in rows:
        for item in data.get("files") or []:
            found[str(item.get("path", ""))] = str(item.get("change", ""))
    return [{"path": path, "change": change} for path, change in sorted(found.items())]


def raw_page(request: HttpRequest, session: AgentSession) -> dict[str, Any]:
    """Events as JSON, a page at a time."""
    after = number(request, "after", 1, MAX_SEQ) if request.GET.get("after") else 0
    rows = events_after(session.pk, after, PAGE)
    shown = [
        (event.seq, event.kind, json.dumps(envelope(event), ensure_ascii=False, indent=2)[:8192]) for event in rows
    ]
    return {"raw": shown, "next_after": rows[-1].seq if len(rows) == PAGE else None}
