"""Events of a transcript as HTML: one partial `templates/event/<kind>.html` for each kind, for pages, sockets and the exported file.

Everything in an event is hostile text: the partials autoescape, and what arrives here as HTML comes from the few functions
that escape (`plain`, Ansi, Markdown, highlighting). A fragment needs no script. Its root carries what one needs:
`id="e<seq>"`, `data-seq`, `data-kind`, and where they apply `data-call`, `data-exec`, `data-stream`, `data-offset`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from django.template.loader import get_template
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from accounts.pages.ansi import Ansi
from accounts.pages.text import cut_lines, plain, visible
from sessions_app.events import envelope
from sessions_app.models import EventKind, SessionEvent
from workspaces.pages.markup import lines_of, markdown
from workspaces.pages.verdicts import size, verdict

TEXT_LIMIT = 256 * 1024  # characters of one text that are drawn
DIFF_LINES = 2000
WRITE_LINES = 2000  # of a written file that its card shows: a model may write a quarter of a million empty ones
STREAMS_KEPT = 64  # streams whose colours are remembered, and calls whose names are
UNKNOWN: Final = "unknown"
_MERGED = {
    EventKind.TOOL_OUTPUT: ("call_id", "exec_id", "stream"),
    EventKind.THINKING_DELTA: (),
    EventKind.TEXT_DELTA: (),
}
Envelope = Mapping[str, Any]
Context = dict[str, Any]


def render_event(event: SessionEvent | Envelope, workspace: str = "") -> SafeString:
    """One event by itself. `workspace`: id of one that can be linked to; "" when it is deleted or out of reach."""
    return Fragments(workspace).of(event)


def merged(events: Iterable[SessionEvent], apart: int = 0) -> list[dict[str, Any]]:
    """Envelopes in which neighbours that go on with the same text are one, so that no line is cut where an event ends.

    `until` is the time of the last of them. The event with the seq `apart` begins a piece of its own: a link leads to it.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        one, last = envelope(event), found[-1] if found else None
        same = _MERGED.get(EventKind(event.kind))
        if (
            last is not None
            and same is not None
            and last["kind"] == event.kind
            and "text" in one["data"]
            and event.seq != apart
        ):
            before, data = last["data"], one["data"]
            joins = (
                "offset" not in data or before.get("offset", 0) + len(before.get("text", "").encode()) == data["offset"]
            )
            if "text" in before and joins and all(before.get(name) == data.get(name) for name in same):
                last |= {"data": {**before, "text": before["text"] + data["text"]}, "until": one["ts"]}
                continue
        found.append(one)
    return found


class Fragments:
    """Draws a transcript in order: colours go on from chunk to chunk, and a result names the call it belongs to."""

    def __init__(self, workspace: str = "", session: str = "", runs: str = "") -> None:
        """Ids of what can be linked to; `runs` is the workspace whose outputs are kept, which stay when it is deleted."""
        self.workspace, self.session, self.runs = workspace, session, runs or workspace
        self._ansi: OrderedDict[tuple[str, str], Ansi] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._card = ""  # the call whose card was drawn last
        self._since: datetime | None = None  # when thinking began: the last event that was none
        self._until: datetime | None = None  # when the event that is drawn now ended

    def of(self, event: SessionEvent | Envelope) -> SafeString:
        """The fragment of one event; an event that cannot be drawn as what it says it is, is drawn as JSON."""
        one = envelope(event) if isinstance(event, SessionEvent) else event
        kind, data = str(one["kind"]), one["data"]
        self._until = parse_datetime(str(one.get("until") or one["ts"]))
        if kind != EventKind.THINKING_DELTA:
            self._since = self._until
        build = _BUILDERS.get(kind)
        try:
            name, context = (kind, build(self, data)) if build else (UNKNOWN, _unknown(kind, data))
        except (KeyError, TypeError, ValueError, AttributeError):  # written by an older version, or by nobody we know
            name, context = UNKNOWN, _unknown(kind, data)
        inner = get_template(f"event/{name}.html").render(
            {"data": data, "workspace": self.workspace, "ts": one["ts"], **context}
        )
        return _wrapped(one, name, inner, context)

    # -- one builder for each kind; each returns what its partial shows

    def _text(self, data: Mapping[str, Any]) -> Context:
        text = _cut(data["text"])
        return {"text": plain(cut_lines(text)), "code": looks_like_code(text), "hidden": not text}

    def _thought(self, data: Mapping[str, Any]) -> Context:
        spent = (self._until - self._since).total_seconds() if self._until and self._since else 0
        return {**self._text(data), "spent": round(spent) if spent >= 1 else 0}

    def _assistant(self, data: Mapping[str, Any]) -> Context:
        text = _cut(data["text"])
        return {"html": markdown(text), "hidden": not text.strip()}

    def _turn(self, data: Mapping[str, Any]) -> Context:
        usage = data.get("usage") or {}
        return {
            "turn": int(data["turn"]), "model": data.get("model", ""), "seconds": seconds_shown(data.get("duration_ms")),
            "read": usage.get("input_tokens", 0), "written": usage.get("output_tokens", 0),
            "stop_reason": str(data.get("stop_reason") or ""),
        }  # fmt: skip

    def _plain(self, data: Mapping[str, Any]) -> Context:
        return {}

    def _call(self, data: Mapping[str, Any]) -> Context:
        call_id, name, arguments = str(data["call_id"]), str(data["name"]), data["arguments"]
        tool = name.removeprefix("workspace__")
        if not isinstance(arguments, dict):
            arguments = {"": arguments}
        shape = _SHAPES.get(tool, _other)(arguments)
        _remember(self._names, call_id, str(shape["title"] or name)[:120])
        self._card = call_id
        raw = json.dumps(arguments, ensure_ascii=False, indent=2)
        path = arguments.get("path") if tool in ("write", "edit", "read") else None
        link = f"/files/{self.workspace}/{quote(path)}" if self.workspace and isinstance(path, str) else ""
        return {"name": name, "tool": tool, "link": link, "raw": plain(cut_lines(_cut(raw))), **shape}

    def _output(self, data: Mapping[str, Any]) -> Context:
        call_id, stream = str(data["call_id"]), str(data["stream"])
        known = self.runs and "exec_id" in data
        kept = f"/workspaces/{self.runs}/exec/{quote(str(data['exec_id']), safe='')}/" if known else ""
        links = {"link": kept, "raw": f"{kept}raw/?stream={stream}" if kept else ""}
        context: Context = {"stderr": stream == "stderr", "of": self._of(call_id), **links}
        if gap := data.get("gap"):
            first, last = int(gap[0]), int(gap[1])
            return {**context, "gap": (first, last), "size": size(last - first)}
        colours = self._ansi.get((call_id, stream)) or _remember(self._ansi, (call_id, stream), Ansi())
        colours.cut, text = False, str(data["text"])
        return {**context, "text": colours.feed(text), "cut": colours.cut, "odd": "\ufffd" in text}

    def _result(self, data: Mapping[str, Any]) -> Context:
        call_id = str(data["call_id"])
        for stream in ("stdout", "stderr"):
            self._ansi.pop((call_id, stream), None)
        ok = bool(data["ok"])
        vocabulary, word, label = verdict(data)
        return {
            "ok": ok, "vocabulary": vocabulary, "word": word, "label": label, "of": self._of(call_id),
            "saw": plain(cut_lines(_cut(data["text"]))), "seconds": seconds_shown(data.get("duration_ms")),
            "size": size(data["bytes"]) if data.get("bytes") else "", "lost": data.get("ended_by") == "lost",
            "files": [self._changed(one) for one in data.get("files") or ()],
            "evidence": [(str(key), value) for key, value in (data.get("evidence") or {}).items() if value],
        }  # fmt: skip

    def _notice(self, data: Mapping[str, Any]) -> Context:
        message, hint, retry = str(data["message"]), str(data.get("hint") or ""), data.get("retry_in_s")
        # While it is tried again by itself there is nothing for people to do, and the hint is about what they could.
        return {"message": message, "hint": "" if retry is not None else hint, "retry": retry}

    def _ended(self, data: Mapping[str, Any]) -> Context:
        totals = data.get("totals") or {}
        usage = totals.get("usage") or {}
        return {
            "reason": str(data["reason"]), "detail": data.get("detail") or {}, "html": markdown(_cut(data.get("answer") or "")),
            "turns": totals.get("turns", 0), "calls": totals.get("tool_calls", 0), "read": usage.get("input_tokens", 0),
            "written": usage.get("output_tokens", 0), "cost": usage.get("cost"), "took": seconds_shown(totals.get("duration_ms")),
            "changed": f"/sessions/{self.session}/files/" if self.session else "",
        }  # fmt: skip

    # -- what several of them need

    def _of(self, call_id: str) -> str:
        """The name of the call, where its card is not the one above."""
        return "" if call_id == self._card else self._names.get(call_id, "")

    def _file(self, path: str) -> str:
        return f"/files/{self.workspace}/{quote(path)}" if self.workspace else ""

    def _changed(self, item: Mapping[str, Any]) -> Context:
        path, lines = str(item["path"]), diff_lines(str(item.get("diff") or ""))
        return {
            "change": str(item["change"]), "path": path, "link": self._file(path), "diff": lines,
            "added": sum(sign == "+" for sign, _ in lines), "removed": sum(sign == "-" for sign, _ in lines),
            "same": item.get("diff") == "",
        }  # fmt: skip


_BUILDERS: dict[str, Callable[[Fragments, Mapping[str, Any]], Context]] = {
    EventKind.SESSION_STATUS: Fragments._plain,
    EventKind.WORKSPACE_PHASE: Fragments._plain,
    EventKind.USER_MESSAGE: Fragments._text,
    EventKind.TURN_STARTED: Fragments._turn,
    EventKind.TURN_ENDED: Fragments._turn,
    EventKind.THINKING_DELTA: Fragments._thought,
    EventKind.TEXT_DELTA: Fragments._text,
    EventKind.ASSISTANT_MESSAGE: Fragments._assistant,
    EventKind.TOOL_CALL: Fragments._call,
    EventKind.TOOL_OUTPUT: Fragments._output,
    EventKind.TOOL_RESULT: Fragments._result,
    EventKind.WARNING: Fragments._notice,
    EventKind.ERROR: Fragments._notice,
    EventKind.SESSION_ENDED: Fragments._ended,
}


def _wrapped(one: Envelope, name: str, inner: str, context: Context) -> SafeString:
    data = one["data"]
    facts = {"call": "call_id", "exec": "exec_id", "stream": "stream", "offset": "offset"}
    known = [(key, data.get(field)) for key, field in facts.items()] if isinstance(data, Mapping) else []
    attributes = "".join(format_html(' data-{}="{}"', key, visible(value)) for key, value in known if value is not None)
    when = parse_datetime(str(one["ts"]))
    return format_html(
        '<article class="ev ev-{}" id="e{}" data-seq="{}" data-kind="{}"{}{}>'
        '<a class="at" href="#e{}"><time datetime="{}">{}</time></a>{}</article>\n',
        name, one["seq"], one["seq"], one["kind"], mark_safe(attributes), mark_safe(" hidden" if context.get("hidden") else ""),  # noqa: S308
        one["seq"], one["ts"], f"{when:%H:%M:%S}" if when else "", mark_safe(inner),  # noqa: S308 - drawn by a template
    )  # fmt: skip


def _unknown(kind: str, data: object) -> Context:
    return {"kind": kind, "raw": plain(cut_lines(_cut(json.dumps(data, ensure_ascii=False, indent=2, default=str))))}


def _remember(store: OrderedDict[Any, Any], key: object, value: Any) -> Any:
    store[key] = value
    while len(store) > STREAMS_KEPT:
        store.popitem(last=False)
    return value


# -- shapes of calls


def _write(arguments: Mapping[str, Any]) -> Context:
    path, content = str(arguments["path"]), str(arguments["content"])
    lines = lines_of(_cut(content), path)
    return {"shape": "write", "title": f"write {path}", "size": size(len(content.encode("utf-8", "replace"))),
            "lines": lines[:WRITE_LINES], "more_lines": len(lines[WRITE_LINES:])}  # fmt: skip


def _edit(arguments: Mapping[str, Any]) -> Context:
    old, new = (str(arguments[name]).split("\n") for name in ("old", "new"))
    diff = [("-", plain(cut_lines(line))) for line in old] + [("+", plain(cut_lines(line))) for line in new]
    return {"shape": "edit", "title": f"edit {arguments['path']}", "diff": diff[:DIFF_LINES]}


def diff_lines(diff: str) -> list[tuple[str, SafeString]]:
    """The lines of a unified diff: what each stands for (+, -, @ or a blank) and its text."""
    lines = _cut(diff).split("\n")[:DIFF_LINES] if diff else []
    return [(line[:1], plain(cut_lines(line if line[:1] == "@" else line[1:]))) for line in lines]


def _exec(arguments: Mapping[str, Any]) -> Context:
    return {"shape": "exec", "title": f"$ {arguments['command']}", "command": plain(cut_lines(_cut(str(arguments["command"])))),
            "rest": [(name, value) for name, value in arguments.items() if name != "command"]}  # fmt: skip


def _other(arguments: Mapping[str, Any]) -> Context:
    shown = [
        (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in arguments.items()
    ]
    return {"shape": "other", "title": "", "rows": [(name, cut_lines(_cut(value))) for name, value in shown]}


def _or_other(build: Callable[[Mapping[str, Any]], Context]) -> Callable[[Mapping[str, Any]], Context]:
    """A model may call a tool with arguments that do not fit it: then they are shown as they are."""

    def shape(arguments: Mapping[str, Any]) -> Context:
        try:
            return build(arguments)
        except KeyError:
            return _other(arguments)

    return shape


_SHAPES: dict[str, Callable[[Mapping[str, Any]], Context]] = {
    "write": _or_other(_write),
    "edit": _or_other(_edit),
    "exec": _or_other(_exec),
}


# -- words


def seconds_shown(duration_ms: object) -> str:
    """Milliseconds as `0.02 s` or `3.4 s`; "" for what is no number."""
    if not isinstance(duration_ms, int | float):
        return ""
    return f"{duration_ms / 1000:.2f} s" if duration_ms < 100 else f"{duration_ms / 1000:.1f} s"


def _cut(text: str) -> str:
    """A bounded text: no page is built from an unbounded one."""
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}\n… [{len(text) - TEXT_LIMIT} more characters]"


def looks_like_code(text: str) -> bool:
    """Whether a message reads better with its own line breaks and a fixed width."""
    lines = text.split("\n")
    signs = ("    ", "\t", "```", "import ", "from ", "def ", "class ", "print(", "#!", "for ", "if ", "return ")
    return len(lines) > 1 and sum(line.startswith(signs) for line in lines) * 3 >= len(lines)
