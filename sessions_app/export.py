"""A transcript as a file: JSON lines for programs, Markdown for people. Deltas are left out: the whole message follows them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable

from primer_site import loop
from sessions_app.events import envelope, events_after
from sessions_app.models import EventKind, SessionEvent

PAGE = 200
OPAQUE = "blocks"  # a provider's own form of a reply: of use to that provider alone


def json_line(event: SessionEvent) -> str:
    """One event as one line; "" for what an export leaves out."""
    if event.kind == EventKind.TEXT_DELTA:
        return ""
    whole = envelope(event)
    whole["data"] = {key: value for key, value in event.data.items() if key != OPAQUE}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n"


def markdown(event: SessionEvent) -> str:
    """One event as a block of Markdown; "" for what a reader does not miss."""
    data = event.data
    match event.kind:
        case EventKind.USER_MESSAGE:
            return f"## User\n\n{fenced(data['text'])}"
        case EventKind.ASSISTANT_MESSAGE if data["text"].strip():
            return f"## Assistant\n\n{fenced(data['text'])}"
        case EventKind.TOOL_CALL:
            arguments = json.dumps(data["arguments"], ensure_ascii=False, indent=2)
            return f"### Call {inline(data['name'])}\n\n{fenced(arguments, 'json')}"
        case EventKind.TOOL_RESULT:
            return f"### Result\n\n{fenced(data['text'])}"
        case EventKind.WARNING | EventKind.ERROR:
            return f"**{event.kind}** {inline(data['message'])}\n\n"
        case EventKind.SESSION_ENDED:
            detail = data["detail"]
            return f"---\n\nended: {data['reason']}" + (f" — {inline(detail['message'])}" if detail else "") + "\n"
    return ""


def fenced(text: str, language: str = "") -> str:
    """Text as a code block that its content cannot leave: the fence is longer than any run of backticks inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}\n\n"


def inline(text: str) -> str:
    """Hostile text as inline code on one line."""
    plain = " ".join(str(text).split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if "`" in plain else f"`{plain}`"


RENDERERS: dict[str, tuple[str, str, Callable[[SessionEvent], str]]] = {  # format: (content type, suffix, of an event)
    "jsonl": ("application/x-ndjson", "jsonl", json_line),
    "md": ("text/markdown; charset=utf-8", "md", markdown),
}


async def render(session_pk: int, one: Callable[[SessionEvent], str]) -> AsyncGenerator[bytes, None]:
    """The whole transcript, page by page, in bounded memory."""
    after = 0
    while batch := await loop.read(events_after, session_pk, after, PAGE):
        after = batch[-1].seq
        if text := "".join(map(one, batch)):
            yield text.encode()
