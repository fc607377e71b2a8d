"""The transcript as one HTML file: whole, without script or request, in bounded memory, and also when the workspace is gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from accounts.models import User
from agents.models import Agent
from primer_site import loop
from sessions_app import claims, export
from sessions_app.events import EventDraft, append
from sessions_app.models import AgentSession, EndedReason, EventKind
from sessions_app.services import session_end
from tests.factories import Api
from tests.sessions.cast import make_session
from tests.sessions.test_fragments import EVIL, EXAMPLES, TAGS, Reader, poisoned
from workspaces.models import Workspace

pytestmark = pytest.mark.usefixtures("quiet_database")
FRAME = {"html", "head", "meta", "title", "style", "body", "main"}


class Page(Reader):
    """The whole file. Nothing in it may fetch or run anything."""

    def __init__(self, html: str) -> None:
        self.metas: list[dict[str, str | None]] = []
        self.styles = ""
        self._in_style = False
        super().__init__(html, TAGS | FRAME)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "meta":
            self.metas.append(dict(attrs))
        elif tag == "html":
            assert attrs == [("lang", "en")]
        else:
            self._in_style = tag == "style"
            super().handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles += data
        else:
            super().handle_data(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def download(person: Api, session: AgentSession, form: str = "html") -> tuple[Any, str]:
    answer = person.get(f"sessions/{session.slug}/transcript", format=form)
    assert answer.status_code == 200, answer.content

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return answer, loop.run(read(), 30).decode()


@pytest.fixture
def session(owner: User, agent: Agent, workspace: Workspace) -> AgentSession:
    """One that has ended, with one of each kind of event, hostile text in every field of them."""
    made = claims.claim(make_session(owner, agent, workspace, text=EVIL).pk)
    assert made is not None
    drafts = [EventDraft(EventKind(kind), poisoned(data)) for kind, data in EXAMPLES.items() if kind != "session_ended"]
    append(made, *drafts)
    detail = {"code": "c", "message": EVIL, "hint": EVIL}
    return session_end(session=made, reason=EndedReason.FAILED, detail=detail, answer=EVIL)


def test_the_file_is_an_attachment_that_stands_alone(session: AgentSession, alice: Api) -> None:
    answer, html = download(alice, session)
    assert answer["Content-Type"] == "text/html; charset=utf-8"
    assert answer["Content-Disposition"] == f'attachment; filename="{session.slug}.html"'
    page = Page(html)
    (policy,) = [meta["content"] for meta in page.metas if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert {"charset": "utf-8"} in page.metas
    assert html.count("<style>") == 1
    assert not re.search(r"url\(|@import|expression|javascript|</", page.styles)
    assert "light-dark(" in page.styles
    assert "color-scheme:light dark" in page.styles


def test_nothing_that_a_sandbox_or_a_model_said_leaves_its_text(session: AgentSession, alice: Api) -> None:
    _, html = download(alice, session)
    page = Page(html)
    assert "alert(1)" in page.text
    assert "988" not in page.text
    assert [link for link in page.links if not link.startswith("#e")] == []  # it links to nothing but itself
    assert html.rstrip().endswith("</html>")


def test_deltas_of_the_answer_are_left_out_and_every_other_event_is_there_in_order(
    session: AgentSession, alice: Api
) -> None:
    _, html = download(alice, session)
    seqs = [int(seq) for seq in re.findall(r'data-seq="(\d+)"', html)]
    kinds = dict(session.events.values_list("seq", "kind"))
    assert seqs == [seq for seq in sorted(kinds) if kinds[seq] != "text_delta"]


def test_all_three_forms_are_readable_after_the_workspace_is_deleted(session: AgentSession, alice: Api) -> None:
    before = {form: download(alice, session, form)[1] for form in export.RENDERERS}
    Workspace.objects.update(phase="deleting", desired="gone", deleted_at=session.ended_at)
    assert alice.get(f"workspaces/{session.workspace.slug}").status_code == 404
    assert {form: download(alice, session, form)[1] for form in export.RENDERERS} == before


def test_a_long_line_of_output_is_not_cut_where_an_event_ends(
    owner: User, agent: Agent, workspace: Workspace, alice: Api
) -> None:
    made = claims.claim(make_session(owner, agent, workspace).pk)
    assert made is not None
    pieces = [("\x1b[3", 0), ("1mone line in ", 3), ("pieces\n", 17)]
    for text, offset in pieces:
        data = {"call_id": "c", "exec_id": "e", "stream": "stdout", "offset": offset, "text": text}
        append(made, EventDraft(EventKind.TOOL_OUTPUT, data))
    _, html = download(alice, made)
    assert '<span class="a-f1">one line in pieces\n</span>' in html


def test_a_long_transcript_comes_page_by_page_and_not_from_the_loop(
    owner: User, agent: Agent, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_session(owner, agent, workspace)
    append(made, *[EventDraft(EventKind.USER_MESSAGE, {"text": f"number {n}"}) for n in range(1000)])
    pages: list[int] = []

    class Counted(export.Html):
        def page(self, events: Any) -> str:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()  # drawing is work for another thread
            pages.append(len(events))
            return super().page(events)

    async def read(parts: AsyncGenerator[bytes, None]) -> int:
        return max([len(part) async for part in parts])

    largest = loop.run(read(export.render(Counted(made))), 30)
    assert (sum(pages), max(pages)) == (1002, export.PAGE)
    assert largest < 512 * 1024


def test_markdown_and_json_lines_hold_the_same_hostile_session(session: AgentSession, alice: Api) -> None:
    assert "alert(1)" in download(alice, session, "md")[1]
    assert download(alice, session, "jsonl")[1].count("\n") == session.events.exclude(kind="text_delta").count()


def test_charlie_gets_404_for_alices_file(session: AgentSession, charlie: Api) -> None:
    assert charlie.get(f"sessions/{session.slug}/transcript", format="html").status_code == 404
