"""Search in the stored transcript: every event of it, whatever part of it a page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sessions_app.models import AgentSession, EventKind, SessionEvent

QUERY_CHARS: Final = 200
STEPS: Final = 2000  # events that the page can go through
LISTED: Final = 50  # of them with an excerpt
AROUND: Final = 40  # characters of an excerpt on each side
MOST_CHARS: Final = 64 * 1024 * 1024  # of text that one look reads
OPAQUE: Final = frozenset({"blocks", "call_id", "exec_id", "provider", "stream", "workspace_id", "ended_by"})
FLOWS: Final = {
    EventKind.TOOL_OUTPUT,
    EventKind.THINKING_DELTA,
}  # a line of theirs may begin in one event and end in the next
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours: nobody sees them


@dataclass(frozen=True, slots=True)
class Hit:
    """An event in which the text stands, and the first place there."""

    seq: int
    kind: str
    before: str
    text: str
    after: str


@dataclass(slots=True)
class Found:
    """What was found. `seqs` are the events in order, at most STEPS; `stopped_at` is where a very long transcript was left."""

    query: str
    matches: int = 0
    events: int = 0
    seqs: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    stopped_at: int = 0

    def step(self, seq: int, by: int) -> int:
        """The seq of the next (1) or previous (-1) event with the text, seen from `seq`; round at the ends, 0 for none."""
        if not self.seqs:
            return 0
        if by > 0:
            return next((one for one in self.seqs if one > seq), self.seqs[0])
        return next((one for one in reversed(self.seqs) if one < seq), self.seqs[-1])

    def place(self, seq: int) -> int:
        """Which of the events `seq` is, counted from 1; 0 when it is none of them."""
        return self.seqs.index(seq) + 1 if seq in self.seqs else 0


def search(session: AgentSession, query: str, after: int = 0) -> Found:
    """Looks for `query` (upper and lower case are the same) in what people can read of the events behind `after`.

    What a reply said word by word is left out: the whole message follows it.
    """
    found = Found(query)
    pattern = re.compile(re.escape(query), re.IGNORECASE)
    rows = SessionEvent.objects.filter(session=session, seq__gt=after).exclude(kind=EventKind.TEXT_DELTA)
    tails: dict[tuple[Any, ...], str] = {}
    read = 0
    for seq, kind, data in rows.order_by("seq").values_list("seq", "kind", "data").iterator(chunk_size=500):
        first: tuple[str, re.Match[str]] | None = None
        for text in _readable(kind, data, tails, len(query) - 1):
            read += len(text)
            for match in pattern.finditer(text):
                first = first or (text, match)
                found.matches += 1
        if first is not None:
            _take(found, seq, kind, *first)
        if read > MOST_CHARS:
            found.stopped_at = seq
            break
    return found


def _readable(kind: str, data: Any, tails: dict[tuple[Any, ...], str], kept: int) -> Iterator[str]:
    """The texts of an event without colours; before what goes on with an earlier one stand `kept` characters of that.

    That is one less than are looked for: whatever is found reaches into this event.
    """
    for text in _texts(data):
        shown = _ESCAPES.sub("", text)
        if kind in FLOWS and isinstance(data, dict):
            flow = (kind, data.get("call_id"), data.get("stream"))
            shown = tails.get(flow, "") + shown
            tails[flow] = shown[-kept:] if kept else ""
        yield shown


def _take(found: Found, seq: int, kind: str, text: str, match: re.Match[str]) -> None:
    found.events += 1
    if len(found.seqs) < STEPS:
        found.seqs.append(seq)
    if len(found.hits) < LISTED:
        start, end = match.span()
        before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND]
        found.hits.append(Hit(seq, kind, _one_line(before), match[0], _one_line(after)))


def _texts(value: Any, name: str = "") -> Iterator[str]:
    """What can be read in an event's data; ids and a provider's own form of a reply cannot."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in OPAQUE:
                yield from _texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, name)


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))
