"""Fragments of a transcript: each kind has one, nothing of a sandbox or a model gets out of its text, colours become classes."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from accounts.pages.ansi import Ansi, ansi, nearest
from sessions_app.fragments import WRITE_LINES, Fragments, merged, render_event
from sessions_app.models import EventKind, SessionEvent
from workspaces.pages.verdicts import verdict

EVIL = "</pre></bdi><script>alert(1)</script><img src=x onerror=alert(1)>\"'>{{ 987|add:1 }}\x1b[31mred\u202e\x07\x00"
TAGS = {
    "article", "a", "time", "section", "h1", "h2", "h3", "p", "span", "bdi", "b", "pre", "code", "div", "details", "summary", "ol",
    "ul", "li", "dl", "dt", "dd", "footer", "svg", "path", "em", "strong", "br", "hr", "table", "thead", "tbody", "tr", "th", "td",
    "blockquote", "del", "s",
}  # fmt: skip
ATTRIBUTES = {
    "class", "id", "href", "rel", "title", "tabindex", "datetime", "hidden", "open", "start", "download", "xmlns", "viewbox", "fill", "width",
    "height", "d", "fill-rule", "clip-rule", "aria-hidden", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin",
}  # fmt: skip
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class Reader(HTMLParser):
    """The elements and the text of a fragment; fails at whatever has no business there."""

    def __init__(self, html: str, tags: set[str] = TAGS) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.text = tags, ""
        self.links: list[str] = []
        self.feed(html)
        self.close()
        assert ODD.search(html) is None, "a control or bidi character is in the page"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.tags, f"<{tag}>"
        for name, value in attrs:
            assert name in ATTRIBUTES or name.startswith("data-"), f"{name}={value}"
            if name == "href":
                assert re.match(r"#e\d+$|/files/|/workspaces/|/sessions/|https?://|mailto:", value or ""), value
                self.links.append(value or "")

    def handle_decl(self, decl: str) -> None:
        assert decl.lower() == "doctype html"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        self.text += data


# One example of each kind; `test_every_kind_has_an_example` holds the list complete.
EXAMPLES: dict[str, dict[str, Any]] = {
    "session_status": {"status": "queued", "reason": "why"},
    "workspace_phase": {"workspace_id": "ws-1", "phase": "running", "reason": "why"},
    "user_message": {"text": "hello"},
    "turn_started": {"turn": 1, "model": "m"},
    "turn_ended": {"turn": 1, "stop_reason": "refusal", "usage": {"input_tokens": 812, "output_tokens": 143}, "duration_ms": 1900},
    "thinking_delta": {"text": "hm"},
    "text_delta": {"text": "I"},
    "assistant_message": {"text": "**bold**", "blocks": [], "provider": "scripted"},
    "tool_call": {"call_id": "c1", "name": "workspace__exec", "arguments": {"command": "ls", "cwd": "inner"}},
    "tool_output": {"call_id": "c1", "exec_id": "e1", "stream": "stderr", "offset": 0, "text": "out"},
    "tool_result": {
        "call_id": "c1", "exec_id": "e1", "ok": False, "text": "saw", "exit_code": 1, "ended_by": "exit", "evidence": {"limit": 5, "disk": "d"},
        "bytes": 3, "truncated": True, "duration_ms": 12.0, "files": [{"path": "a b.txt", "change": "modified", "diff": "@@ -1 +1 @@\n-a\n+b"}],
    },
    "warning": {"code": "c", "message": "careful", "hint": "do", "retry_in_s": 4.0, "attempt": 2},
    "error": {"code": "c", "message": "broken", "hint": "do", "request_id": "r-1"},
    "session_ended": {
        "reason": "failed", "detail": {"code": "c", "message": "it broke", "hint": "mend"}, "answer": "# 42",
        "totals": {"turns": 2, "tool_calls": 1, "usage": {"input_tokens": 1, "output_tokens": 2, "cost": 0.5}},
    },
}  # fmt: skip
CALLS: list[dict[str, Any]] = [
    {"call_id": "c", "name": "workspace__write", "arguments": {"path": "a.py", "content": "print(1)"}},
    {"call_id": "c", "name": "workspace__edit", "arguments": {"path": "a.py", "old": "x", "new": "y"}},
    {"call_id": "c", "name": "workspace__write", "arguments": {"path": 5}},
    {"call_id": "c", "name": "strange", "arguments": {"a": ["b", {"c": "d"}]}},
    {"call_id": "c", "name": "strange", "arguments": "no object"},
]


def event(kind: str, data: Any, seq: int = 7) -> dict[str, Any]:
    return {"seq": seq, "ts": "2026-01-02T03:04:05.678Z", "kind": kind, "data": data}


def poisoned(value: Any) -> Any:
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()} | {EVIL: EVIL}
    return [poisoned(item) for item in value] if isinstance(value, list) else value


def test_every_kind_has_an_example_and_a_partial_of_its_name() -> None:
    assert set(EXAMPLES) == set(EventKind.values)
    partials = {path.stem for path in Path(settings.BASE_DIR, "templates", "event").glob("*.html")} - {
        "unknown",
        "file_head",
        "file_tail",
    }
    assert partials == set(EventKind.values)


@pytest.mark.parametrize("kind", EventKind.values)
def test_a_fragment_carries_its_seq_and_kind_and_what_a_page_needs_to_place_it(kind: str) -> None:
    html = render_event(event(kind, EXAMPLES[kind]))
    assert f'id="e7" data-seq="7" data-kind="{kind}"' in html
    assert '<a class="at" href="#e7"><time datetime="2026-01-02T03:04:05.678Z">03:04:05</time></a>' in html
    for name, field in (("call", "call_id"), ("exec", "exec_id"), ("stream", "stream"), ("offset", "offset")):
        assert (f'data-{name}="{EXAMPLES[kind].get(field)}"' in html) == (field in EXAMPLES[kind])
    Reader(html)


@pytest.mark.parametrize(
    ("kind", "data"), [*EXAMPLES.items(), *[("tool_call", call) for call in CALLS], ("from_tomorrow", {"a": 1})]
)
def test_hostile_text_in_any_field_stays_text(kind: str, data: Any) -> None:
    html = Fragments("ws-0123456789abcdef", "sess-0123456789abcdef").of(event(kind, poisoned(data)))
    shown = Reader(html)
    assert not any(link.startswith("http") for link in shown.links)
    assert "988" not in shown.text  # no template is evaluated in data
    assert "alert(1)" not in "".join(shown.links)


@pytest.mark.parametrize("data", [None, [], "text", {}, {"call_id": None}, {"text": 5, "reason": None, "turn": "x"}])
@pytest.mark.parametrize("kind", [*EventKind.values, "from_tomorrow"])
def test_an_event_that_makes_no_sense_is_shown_as_json_and_breaks_nothing(kind: str, data: Any) -> None:
    Reader(render_event(event(kind, data)))


TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        EVIL,
        "<a href=javascript:x>",
        "[x](javascript:alert(1))",
        "\x1b]0;t\x07",
        "![i](http://x/y)",
        '[x](http://a/\u202e\x7f"<img>)',
    ]
)
JSON = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@rules(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(EventKind.values), data=st.data())
def test_whatever_an_event_holds_its_fragment_is_inert(kind: str, data: st.DataObject) -> None:
    values = {name: data.draw(JSON) for name in EXAMPLES[kind]}
    Reader(
        render_event(event(kind, {**EXAMPLES[kind], **{k: v for k, v in values.items() if data.draw(st.booleans())}}))
    )


def test_markdown_of_a_model_keeps_its_shape_and_loses_its_teeth() -> None:
    text = "# Title\n\n- a\n- b\n\n<script>x</script>\n\n![i](http://evil/i.png) [go](https://good.example/path) [no](javascript:alert(1))"
    html = render_event(event("assistant_message", {"text": text, "blocks": [], "provider": "p"}))
    assert "<h3>Title</h3>" in html  # the page has its own first and second level
    assert "<li>a</li>" in html
    assert Reader(html).links == ["#e7", "http://evil/i.png", "https://good.example/path"]  # an image is a link at most
    assert "(good.example)" in html
    assert "(evil)" in html


def test_links_to_files_and_output_are_there_only_for_a_workspace_that_can_be_reached() -> None:
    write = event(
        "tool_call", {"call_id": "c", "name": "workspace__write", "arguments": {"path": "a b.py", "content": "x"}}
    )
    gap = event("tool_output", {"call_id": "c", "exec_id": "e1", "stream": "stdout", "gap": [200_000, 300_000]})
    links = [Reader(Fragments("ws-1").of(one)).links[1:] for one in (write, gap)]
    assert links == [
        ["/files/ws-1/a%20b.py"],
        ["/workspaces/ws-1/exec/e1/", "/workspaces/ws-1/exec/e1/raw/?stream=stdout"],
    ]
    assert [Reader(Fragments().of(one)).links[1:] for one in (write, gap)] == [[], []]
    assert "97.7 KiB of stdout are not shown here (bytes 200000 to 300000)" in Reader(Fragments().of(gap)).text


def test_what_a_command_printed_is_linked_to_when_its_workspace_is_deleted() -> None:
    write = event(
        "tool_call", {"call_id": "c", "name": "workspace__write", "arguments": {"path": "a.py", "content": "x"}}
    )
    output = {"call_id": "c", "exec_id": "e1", "stream": "stderr"}
    gap = event("tool_output", {**output, "gap": [200_000, 300_000]})
    odd = event("tool_output", {**output, "offset": 0, "text": "caf\ufffd\n" + "x" * 9000})
    links = [Reader(Fragments("", "sess-1", "ws-1").of(one)).links[1:] for one in (write, gap, odd)]
    page, raw = "/workspaces/ws-1/exec/e1/", "/workspaces/ws-1/exec/e1/raw/?stream=stderr"
    assert links == [[], [page, raw], [raw, page + "?wide=1"]]
    plain = event("tool_output", {**output, "offset": 0, "text": "caf\u00e9\n"})
    assert Reader(Fragments("ws-1", "sess-1", "ws-1").of(plain)).links[1:] == []


def test_a_card_of_a_written_file_has_a_bounded_number_of_lines() -> None:
    content = {"path": "a.txt", "content": "\n" * 100_000}
    html = Fragments().of(event("tool_call", {"call_id": "c", "name": "workspace__write", "arguments": content}))
    assert html.count("<li>") == WRITE_LINES
    assert f"{100_000 - WRITE_LINES} more lines" in html


def test_thinking_says_how_long_it_took_from_what_came_before_it_to_its_last_word() -> None:
    drawer, since = Fragments(), event("turn_started", {"turn": 1})
    drawer.of(since)
    first = {**event("thinking_delta", {"text": "hm"}), "ts": "2026-01-02T03:04:07.900Z"}
    assert "Thought for 2 s" in drawer.of(first)
    assert "Thought for 5 s" in drawer.of({**first, "until": "2026-01-02T03:04:10.700Z"})
    assert "Thought<" in Fragments().of(first)


def test_an_event_that_is_linked_to_begins_a_piece_of_its_own() -> None:
    events = [
        SessionEvent(seq=n, kind="thinking_delta", data={"text": str(n)}, ts=datetime(2026, 1, 1, tzinfo=UTC))
        for n in (1, 2, 3)
    ]
    assert [(one["seq"], one["data"]["text"]) for one in merged(events, apart=2)] == [(1, "1"), (2, "23")]


def test_a_result_names_its_call_only_where_another_card_is_above_it() -> None:
    drawer = Fragments()
    for call_id, command in (("a", "first"), ("b", "second")):
        drawer.of(
            event("tool_call", {"call_id": call_id, "name": "workspace__exec", "arguments": {"command": command}})
        )
    result = {"ok": True, "text": "", "ended_by": "exit", "exit_code": 0}
    assert "$ first" in drawer.of(event("tool_result", {**result, "call_id": "a"}))
    assert "$ second" not in drawer.of(event("tool_result", {**result, "call_id": "b"}))


@pytest.mark.parametrize(
    ("data", "label"),
    [
        ({"ended_by": "exit", "exit_code": 0}, "exit 0"), ({"ended_by": "exit", "exit_code": 1}, "exit 1"),
        ({"ended_by": "signal", "signal": 9}, "signal 9"), ({"ended_by": "timeout", "evidence": {"limit": 60}}, "timeout after 60 s"),
        ({"ended_by": "cancelled", "evidence": {"cancelled_by": "bob"}}, "cancelled by bob"),
        ({"ended_by": "oom", "evidence": {"limit": 512 << 20}}, "out of memory (512 MiB)"),
        ({"ended_by": "pids", "evidence": {"limit": 256}}, "process limit (256)"),
        ({"ended_by": "disk", "evidence": {"limit": 1 << 30}}, "disk full (1 GiB)"),
        ({"ended_by": "output_cap", "evidence": {"limit": 256 << 20}}, "output cap (256 MiB)"),
        ({"ended_by": "lost"}, "lost"), ({"ok": True}, "done"), ({"ok": False}, "failed"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_few_words(data: dict[str, Any], label: str) -> None:
    assert verdict(data)[2] == label


def test_output_that_goes_on_is_one_piece_and_what_does_not_is_not() -> None:
    def output(seq: int, offset: int, text: str, stream: str = "stdout") -> SessionEvent:
        data = {"call_id": "c", "exec_id": "e", "stream": stream, "offset": offset, "text": text}
        return SessionEvent(seq=seq, kind="tool_output", data=data)

    found = merged([output(1, 0, "ab"), output(2, 2, "cd"), output(3, 0, "x", "stderr"), output(4, 9, "later")])
    assert [(one["seq"], one["data"]["text"]) for one in found] == [(1, "abcd"), (3, "x"), (4, "later")]


# -- terminal colours


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("\x1b[31mred\x1b[0m", '<span class="a-f1">red</span>'),
        ("\x1b[1;4;92mx\x1b[22my\x1b[m", '<span class="a-bold a-underline a-f10">x</span><span class="a-underline a-f10">y</span>'),
        ("\x1b[38;5;196mx", '<span class="a-fx a-fr5 a-fg0 a-fu0">x</span>'),
        ("\x1b[48;5;240mx", '<span class="a-bx a-bl a-br1 a-bg2">x</span>'),
        ("\x1b[38;2;255;0;0mx\x1b[39m.", '<span class="a-fx a-fr5 a-fg0 a-fu0">x</span>.'),
        ("\x1b[38:2::255:0:0mx", '<span class="a-fx a-fr5 a-fg0 a-fu0">x</span>'),
        ("\x1b[7mx", '<span class="a-reverse">x</span>'),
        ("\x1b[31;42;7mx", '<span class="a-f2 a-b1">x</span>'),
        ("\x1b[2J\x1b[10;20Hx\x1b[?1049h\x1b(B\x1bc", "x"),
        ("\x1b]0;title\x07a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\x1bPq\x1b\\", "alink"),
        ("\x9b31mred", '<span class="a-f1">red</span>'),
        ("\x1b[38;5;999mx\x1b[99999999999999mx\x1b[;;;mx", "xxx"),
        ("<b>&", "&lt;b&gt;&amp;"),
    ],
)  # fmt: skip
def test_colours_become_classes_and_every_other_sequence_goes(text: str, html: str) -> None:
    assert ansi(text) == html


def test_a_string_that_never_ends_hides_nothing() -> None:
    assert "rm -rf" in ansi("\x1b]52;c;rm -rf " + "x" * 5000)


@given(
    st.text(alphabet="\x1b[]0123456789;:m\x07\\PXab\n<\x9b\x9d", max_size=60), st.lists(st.integers(0, 60), max_size=4)
)
def test_cutting_a_stream_anywhere_changes_only_where_its_spans_end(text: str, cuts: list[int]) -> None:
    def feed(pieces: list[str]) -> list[tuple[str, str]]:
        stream, found = Ansi(), list[tuple[str, str, str]]()
        for piece in pieces:
            found += re.findall(
                r'<span class="(a-[^"]*)">((?:[^<]|<span class="ctl"[^>]*>[^<]*</span>)*)</span>|((?:[^<]|<span class="ctl"[^>]*>[^<]*</span>)+)',
                stream.feed(piece),
            )
        letters = [(style, letter) for style, inner, bare in found for letter in re.sub("<[^>]*>", "", inner or bare)]
        return letters

    edges = sorted({0, *[min(cut, len(text)) for cut in cuts], len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    whole, cut = feed([text]), feed(pieces)
    assert cut == whole


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_a_true_colour_becomes_one_of_the_256(red: int, green: int, blue: int) -> None:
    assert 16 <= nearest(red, green, blue) <= 255
    assert nearest(95, 135, 175) == 16 + 36 + 12 + 3
    assert nearest(128, 128, 128) == 244


def test_every_class_of_a_colour_is_in_the_sheet() -> None:
    sheet = Path(settings.STATICFILES_DIRS[0], "console", "transcript.css").read_text()
    every = "".join(f"\x1b[{code}mx" for code in range(110)) + "".join(
        f"\x1b[{layer};5;{n}mx" for layer in (38, 48) for n in range(256)
    )
    used = {name for names in re.findall('class="([^"]*)"', ansi(every)) for name in names.split()}
    assert len(used) > 70
    assert [name for name in used if not re.search(rf"\.{name}\b", sheet)] == []
