"""A transcript as a file: JSON lines for programs, Markdown and one self-contained HTML page for people.

Deltas of the answer are left out: the whole message follows them.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import lru_cache
from pathlib import Path

from django.contrib.staticfiles import finders
from django.template.loader import get_template
from django.utils.safestring import mark_safe

from primer_site import loop
from sessions_app.events import envelope, events_after
from sessions_app.fragments import Fragments, merged
from sessions_app.models import AgentSession, EventKind, SessionEvent

PAGE = 200
OPAQUE = "blocks"  # a provider's own form of a reply: of use to that provider alone
SHEETS = ("console.css", "transcript.css")


class Form(ABC):
    """One form of a transcript: what comes before its events, each page of them, and what comes after the last."""

    def __init__(self, session: AgentSession) -> None:
        self.session = session

    def head(self) -> str:
        return ""

    @abstractmethod
    def page(self, events: Sequence[SessionEvent]) -> str:
        """The text of some events, in order; called once for each page, on a database thread."""

    def tail(self) -> str:
        return ""


class JsonLines(Form):
    def page(self, events: Sequence[SessionEvent]) -> str:
        return "".join(map(json_line, events))


class Markdown(Form):
    def page(self, events: Sequence[SessionEvent]) -> str:
        return "".join(map(markdown, events))


class Html(Form):
    """One file without script, picture or request: styles are inside, light and dark follow the reader's system."""

    def __init__(self, session: AgentSession) -> None:
        super().__init__(session)
        self._fragments = Fragments()

    def head(self) -> str:
        session = self.session
        context = {
            "session": session,
            "agent": session.agent.slug,
            "workspace": session.workspace.slug,
            "styles": styles(),
        }
        return get_template("event/file_head.html").render({**context, "owner": session.owner.username})

    def page(self, events: Sequence[SessionEvent]) -> str:
        shown = (event for event in events if event.kind != EventKind.TEXT_DELTA)
        return "".join(self._fragments.of(one) for one in merged(shown))

    def tail(self) -> str:
        return get_template("event/file_tail.html").render({})


@lru_cache(maxsize=1)
def styles() -> str:
    """The console's own sheets as one text that can stand inside a <style> element."""
    paths = [finders.find(f"console/{name}") for name in SHEETS]
    text = "\n".join(Path(path).read_text(encoding="utf-8") for path in paths if path is not None)
    return mark_safe(text.replace("</", "<\\/"))  # noqa: S308 - files of ours


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


RENDERERS: dict[str, tuple[str, str, Callable[[AgentSession], Form]]] = {  # format: (content type, suffix, form)
    "jsonl": ("application/x-ndjson", "jsonl", JsonLines),
    "md": ("text/markdown; charset=utf-8", "md", Markdown),
    "html": ("text/html; charset=utf-8", "html", Html),
}


async def render(form: Form) -> AsyncGenerator[bytes, None]:
    """The whole transcript, page by page, in bounded memory. Drawn on a database thread: the loop has other work."""
    if head := await loop.read(form.head):
        yield head.encode("utf-8", "replace")
    after = 0
    while (found := await loop.read(_page, form, after)) is not None:
        after, text = found
        if text:
            yield text.encode("utf-8", "replace")
    if tail := form.tail():
        yield tail.encode()


def _page(form: Form, after: int) -> tuple[int, str] | None:
    events = events_after(form.session.pk, after, PAGE)
    return (events[-1].seq, form.page(events)) if events else None
