"""Markup, bidi and escape sequences in every field that somebody else fills: shown as text, never obeyed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from accounts.pages.ansi import UNDRAWN, Ansi, Style, ansi, restyled
from accounts.pages.text import CUT, MARKS, cut_lines, plain
from sessions_app.events import EventDraft, append
from sessions_app.models import EventKind
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_session
from workspaces.models import Workspace, WorkspaceProvider
from workspaces.pages import markup

MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
BIDI = "safe\u202egnp.exe"
ESCAPES = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x08\x9b"


def test_control_and_bidi_characters_become_visible_marks() -> None:
    shown = plain(f"a\x00b{BIDI}{ESCAPES}\ud800")
    assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202e\ud800]", shown)
    assert 'title="U+202E"' in shown
    assert 'title="U+001B"' in shown
    assert plain(MARKUP) == "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"


def test_a_flood_of_control_characters_is_no_flood_of_html() -> None:
    shown = plain("\x01" * (MARKS + 1000) + "\udcff\u202e")
    assert shown.count('<span class="ctl"') == MARKS
    assert len(shown) < 60 * MARKS
    assert shown.endswith("\u2401" * 1000 + "\ufffd\u25cc")


def test_a_cut_line_ends_its_colour_where_the_line_ends() -> None:
    stream = Ansi(limit=10)
    assert stream.feed("\x1b[31m0123456789ab\x1b[0mcd\nnext") == (
        '<span class="a-f1">0123456789</span> \u2026 [4 more characters on this line]\nnext'
    )
    assert stream.cut
    assert ansi("short\n\n" + "x" * 5) == "short\n\nxxxxx"


def test_what_a_line_has_behind_its_cut_costs_no_styles_and_leaves_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[str] = []

    def counted(style: Style, parameters: str) -> Style:
        applied.append(parameters)
        return restyled(style, parameters)

    monkeypatch.setattr("accounts.pages.ansi.restyled", counted)
    shown = Ansi(limit=10).feed("\x1b[31mx\x1b[0m" * 5000 + "\x1b[1;34m\nnext\x1b]0;a\nb\x07 word\x1b[m.")
    assert shown.count("<span") == 12
    assert shown.endswith(' [4990 more characters on this line]\nnext</span><span class="a-bold a-f4"> word</span>.')
    assert len(applied) <= 20 + 3
    applied.clear()
    stream = Ansi(limit=10)
    stream.feed("x" * 11 + "\x1b[1m" * 5000 + "\x1b[35m")
    assert len(applied) <= UNDRAWN
    assert stream.feed("next") == '<span class="a-bold a-f5">next</span>', "of the next part the line begins anew"


def test_an_endless_line_is_cut_and_says_by_how_much() -> None:
    text = "x" * 200_000
    shown = cut_lines(f"first\n{text}\nlast")
    assert len(shown) < CUT + 200
    assert f"{200_000 - CUT} more characters" in shown


@pytest.mark.parametrize(("source", "never"), [
    ("<script>alert(1)</script>", "<script"), ("![x](http://evil/a.png)", "<img"), ("[x](javascript:alert(1))", "javascript:alert(1)\""),
    ("[x](data:text/html,hi)", 'href="data'), ('<div hx-get="/x" id="a" class="b">', "<div"), ("[a](http://b \"onmouseover='x'\")", "title="),
])  # fmt: skip
def test_markdown_has_no_teeth(source: str, never: str) -> None:
    assert never not in markup.markdown(source)


def test_a_text_of_nothing_but_cells_is_no_table() -> None:
    rows = "|a" * 300 + "\n" + "|-" * 300 + "\n"
    assert "<td>" in markup.markdown(rows + "|x\n" * 2)
    assert "<td>" not in markup.markdown(rows + ("|" * 300 + "\n") * 100)


def test_a_link_of_a_model_says_where_it_leads() -> None:
    html = markup.markdown("[your bank](https://evil.example/login)")
    assert "(evil.example)" in html
    assert 'rel="noopener noreferrer nofollow"' in html


@pytest.mark.parametrize("name", ["a.py", "a.html", "a.svg", "a.md", "a.unknown", "Makefile"])
def test_code_is_escaped_in_every_language(name: str) -> None:
    html = "\n".join(markup.lines_of(f"{MARKUP}\n{BIDI}{ESCAPES}", name))
    assert "<script" not in html
    assert "<img" not in html
    assert "\u202e" not in html


def test_an_image_is_told_by_its_bytes_and_never_by_its_name() -> None:
    assert markup.image_type(b"\x89PNG\r\n\x1a\n0000") == "image/png"
    assert markup.image_type(b"RIFF0000WEBPVP8 ") == "image/webp"
    assert markup.image_type(b"<svg onload=alert(1)>") == ""
    assert markup.image_type(b"<!doctype html>") == ""


@pytest.mark.django_db
def test_hostile_text_is_inert_on_every_page_that_shows_it(settings: Any) -> None:
    plain_static = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": plain_static}}
    evil = MARKUP + BIDI + ESCAPES.replace("\x00", "")
    bob = make_admin()
    provider = make_provider()
    WorkspaceProvider.objects.update(description=evil, reasons=[evil], engine={"name": evil}, health="degraded")
    template = make_template(
        provider=provider, description=evil, labels={"k": evil}, init_commands=[["sh", "-c", evil]]
    )
    agent = make_agent(bob, description=evil, system_prompt=[evil])
    workspace = make_workspace(make_user(), template, name=evil[:100], labels={"k": evil})
    finding = {"name": "uid", "expected": evil, "observed": evil, "ok": False}
    Workspace.objects.update(
        phase="failed", phase_detail=evil, boot_lines=[evil], phase_reason="x",
        confinement={"verdict": "failed", "checked_at": "2026-01-01T00:00:00Z", "checks": [finding]},
    )  # fmt: skip
    session = make_session(make_user(), agent, text=evil)
    call = {"call_id": evil, "name": evil, "arguments": {"x": evil}}
    output = {"call_id": evil, "exec_id": "exec-0", "stream": "stdout", "offset": 0, "text": evil}
    append(session, EventDraft(EventKind.TOOL_CALL, call), EventDraft(EventKind.TOOL_OUTPUT, output),
           EventDraft(EventKind.ASSISTANT_MESSAGE, {"text": evil, "blocks": [], "provider": "x"}))  # fmt: skip
    client = Client(headers={"Accept": "text/html"})
    client.force_login(bob)
    paths = [
        "/", "/workspaces/", f"/workspaces/{workspace.slug}/", f"/workspaces/{workspace.slug}/confinement/",
        f"/workspaces/{workspace.slug}/activity/", f"/workspaces/{workspace.slug}/yaml/", f"/workspaces/{workspace.slug}/delete/",
        f"/workspaces/{workspace.slug}/edit/", "/workspaces/providers/", "/workspaces/providers/fake/", "/workspaces/providers/fake/edit/",
        "/workspaces/templates/", "/workspaces/templates/plain/", "/workspaces/templates/plain/edit/", "/workspaces/templates/plain/history/",
        "/workspaces/templates/plain/yaml/", "/compute/agents/", f"/compute/agents/{agent.slug}/", f"/compute/agents/{agent.slug}/edit/",
        "/sessions/", f"/sessions/{session.slug}/", f"/sessions/{session.slug}/raw/", "/admin/audit/", "/files/",
        f"/sessions/{session.slug}/timeline/", f"/sessions/{session.slug}/files/", f"/sessions/{session.slug}/?find=alert", "/admin/system/",
    ]  # fmt: skip
    for path in paths:
        html = client.get(path).content.decode()
        assert "<script>alert" not in html, path
        assert "<img src=x" not in html, path
        # A control holds what will be sent back, as it is.
        shown = re.sub(r"<textarea.*?</textarea>|<option.*?</option>|<input[^>]*>", "", html, flags=re.S)
        assert "\u202egnp" not in shown, path
