"""The page of a session without scripts: windows and links into a long transcript, search, kinds, timeline, files, the end."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import User
from sessions_app.models import AgentSession, SessionEvent
from tests.console.site import browser, no_manifest
from tests.factories import make_user
from tests.sessions.cast import make_session
from workspaces.models import Workspace

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db
EVIL = "</pre><script>alert(1)</script>"


def told(
    session: AgentSession, *events: tuple[str, dict[str, Any]], since: datetime | None = None, step_s: float = 1
) -> None:
    """Events behind those that are there, `step_s` seconds apart."""
    session.refresh_from_db()
    first = session.last_seq + 1
    since = since or timezone.now()
    SessionEvent.objects.bulk_create(
        SessionEvent(session=session, seq=first + n, kind=kind, data=data, ts=since + timedelta(seconds=step_s * n))
        for n, (kind, data) in enumerate(events)
    )
    AgentSession.objects.filter(pk=session.pk).update(last_seq=first + len(events) - 1)


def printed(text: str, offset: int = 0, call: str = "c1", stream: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "tool_output", {"call_id": call, "exec_id": "exec-1", "stream": stream, "offset": offset, "text": text}


def called(name: str = "exec", call: str = "c1", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tool_call", {"call_id": call, "name": f"workspace__{name}", "arguments": arguments}


def resulted(call: str = "c1", **facts: Any) -> tuple[str, dict[str, Any]]:
    return "tool_result", {"call_id": call, "ok": True, "text": "", "files": [], **facts}


def ended(session: AgentSession, reason: str, **detail: str) -> None:
    session.refresh_from_db()
    AgentSession.objects.filter(pk=session.pk).update(
        status="ended", ended_reason=reason, ended_at=timezone.now(), ended_detail=detail or None
    )


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def session(alice: User) -> AgentSession:
    return make_session(alice)


def shown(user: User, path: str) -> str:
    answer = browser(user).get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return str(answer.content.decode())


def seqs(html: str) -> list[int]:
    return [int(seq) for seq in re.findall(r'<article [^>]*data-seq="(\d+)"', html)]


# -- links into a long transcript


def test_a_link_to_an_old_event_shows_it_among_its_neighbours_and_the_way_on(
    alice: User, session: AgentSession
) -> None:
    told(session, *[("warning", {"message": f"note {n}"}) for n in range(1000)])
    path = f"/sessions/{session.slug}/"
    newest = shown(alice, path)
    assert (min(seqs(newest)), max(seqs(newest))) == (803, 1002)
    assert 'data-live="1"' in newest
    around = shown(alice, f"{path}?at=300")
    assert (min(seqs(around)), max(seqs(around))) == (250, 449)
    assert "?at=450#e450" in around
    assert "data-part" in around
    assert 'data-live="1"' not in around
    assert 'http-equiv="refresh"' not in around, "what somebody reads does not jump away"
    last = shown(alice, f"{path}?at=1000")
    assert max(seqs(last)) == 1002
    assert "data-part" not in last


def test_an_event_that_a_link_leads_to_stands_apart_from_what_it_goes_on_with(
    alice: User, session: AgentSession
) -> None:
    told(session, called(command="seq"), *[printed(f"line {n}\n", offset=7 * n) for n in range(5)])
    path = f"/sessions/{session.slug}/"
    assert seqs(shown(alice, path)) == [1, 2, 3, 4]
    assert seqs(shown(alice, f"{path}?at=6")) == [1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    "query",
    [
        "at=0",
        "at=-1",
        "at=x",
        "at=99999999999",
        "show=nothing",
        "find=%00",
        "from=x",
        "find=" + "a" * 5000,
        "find=(%5B",
    ],
)
def test_an_odd_question_about_a_transcript_is_answered(query: str, alice: User, session: AgentSession) -> None:
    assert 1 in seqs(shown(alice, f"/sessions/{session.slug}/?{query}"))


def test_kinds_that_nobody_asked_for_are_left_out_of_every_part(alice: User, session: AgentSession) -> None:
    told(session, *[("warning", {"message": "careful"}), called(command="ls")] * 300)
    page = shown(alice, f"/sessions/{session.slug}/?show=problems")
    assert set(re.findall(r'data-kind="(\w+)"', page)) == {"warning"}
    assert len(seqs(page)) == 200
    older = re.search(r'data-older="([^"]+)"', page)
    assert older is not None
    part = shown(alice, older[1].replace("&amp;", "&"))
    assert set(re.findall(r'data-kind="(\w+)"', part)) == {"warning"}
    assert len(seqs(part)) == 100
    assert f'data-last="{602}"' in page, "what is not shown has been seen all the same"


# -- search


def test_search_looks_through_the_whole_transcript_and_not_the_part_that_is_shown(
    alice: User, session: AgentSession
) -> None:
    told(
        session,
        ("assistant_message", {"text": "a Needle here, a needle there"}),
        *[("warning", {"message": "hay"})] * 500,
        printed("needle"),
    )
    page = shown(alice, f"/sessions/{session.slug}/?find=NEEDLE")
    assert "1 of 2 events" in page
    assert "3 matches" in page
    assert 3 in seqs(page)
    assert "504" not in map(str, seqs(page))
    assert 'data-hits="3,504"' in page
    assert "find=NEEDLE&amp;at=504#e504" in page
    behind = shown(alice, f"/sessions/{session.slug}/?find=NEEDLE&at=504")
    assert "2 of 2 events" in behind
    assert 504 in seqs(behind)
    assert "#e3" in behind, "after the last one comes the first"


def test_a_line_that_is_cut_between_events_is_found_and_colours_are_no_part_of_it(
    alice: User, session: AgentSession
) -> None:
    told(
        session,
        printed("one two th"),
        printed("ree four", stream="stderr"),
        printed("ree \x1b[31mred\x1b[0m", offset=10),
    )
    page = shown(alice, f"/sessions/{session.slug}/?find=three red")
    assert "1 match of" in page
    assert 'data-hits="5"' in page
    assert "stands nowhere" in shown(alice, f"/sessions/{session.slug}/?find=three four")


def test_what_nobody_can_read_is_not_searched(alice: User, session: AgentSession) -> None:
    told(
        session,
        ("assistant_message", {"text": "yes", "blocks": [{"signature": "xyzzy"}], "provider": "xyzzy"}),
        ("text_delta", {"text": "xyzzy"}),
    )
    assert "stands nowhere" in shown(alice, f"/sessions/{session.slug}/?find=xyzzy")


def test_what_is_found_and_what_was_sought_stay_text(alice: User, session: AgentSession) -> None:
    told(session, printed(f"before {EVIL} after"))
    page = shown(alice, f"/sessions/{session.slug}/?find=%3Cscript%3E")
    assert "1 match of" in page
    assert "<script>alert" not in page
    assert 'value="&lt;script&gt;"' in page


def test_a_very_long_transcript_is_searched_in_parts(alice: User, session: AgentSession, monkeypatch: Any) -> None:
    monkeypatch.setattr("sessions_app.pages.find.MOST_CHARS", 1000)
    told(session, *[printed("needle" + "x" * 400, offset=n * 406) for n in range(10)])
    page = shown(alice, f"/sessions/{session.slug}/?find=needle")
    stopped = re.search(r"Searched up to event (\d+)", page)
    assert stopped is not None
    rest = shown(alice, f"/sessions/{session.slug}/?find=needle&from={stopped[1]}")
    assert f'data-hits="{int(stopped[1]) + 1},' in rest


# -- timeline


def test_the_timeline_has_a_bar_and_a_row_for_each_call_and_leaves_idle_hours_out(
    alice: User, session: AgentSession
) -> None:
    monday = timezone.now() - timedelta(days=1)
    run: list[tuple[str, dict[str, Any]]] = [("turn_started", {"turn": 1, "model": "m"}), ("assistant_message", {"text": ""}), called(command="sleep 1"),
           resulted(ended_by="exit", exit_code=3, ok=False, duration_ms=1000.0), ("turn_ended", {"turn": 1})]  # fmt: skip
    told(session, *run, since=monday)
    told(
        session,
        ("turn_started", {"turn": 2, "model": "m"}),
        ("assistant_message", {"text": "x"}),
        since=monday + timedelta(hours=3),
    )
    ended(session, "completed")
    page = shown(alice, f"/sessions/{session.slug}/timeline/")
    assert "2 model calls, 2.0 s" in page
    assert "1 tool call, 1.0 s" in page
    assert page.count('class="bar ') == 3
    assert "sleep 1" in page
    assert "exit 3" in page
    assert "after a pause of 2 h" in page or "after a pause of 3.0 h" in page
    widths = [float(found) for found in re.findall(r'<rect x="[\d.]+" width="([\d.]+)"', page)]
    assert min(widths) > 50, "three hours in which nothing happened squeeze no bar"
    assert "?at=3#e3" in page
    assert "style=" not in page


def test_a_call_without_an_end_is_said_to_have_none(alice: User, session: AgentSession) -> None:
    told(
        session,
        ("turn_started", {"turn": 1, "model": EVIL}),
        ("assistant_message", {"text": ""}),
        called(name=EVIL, command=EVIL),
    )
    page = shown(alice, f"/sessions/{session.slug}/timeline/")
    assert ">runs<" in page
    assert "<script>alert" not in page
    ended(session, "interrupted")
    assert ">no end<" in shown(alice, f"/sessions/{session.slug}/timeline/")


def test_calls_that_make_no_sense_break_no_timeline(alice: User, session: AgentSession) -> None:
    told(
        session,
        ("turn_started", {}),
        ("tool_call", {"name": None, "arguments": "x"}),
        ("tool_result", {"duration_ms": "long", "exit_code": []}),
        ("turn_started", {"turn": "x"}),
    )
    shown(alice, f"/sessions/{session.slug}/timeline/")


def test_a_timeline_of_thousands_of_calls_comes_in_pages_with_a_constant_number_of_queries(
    alice: User, session: AgentSession
) -> None:
    def rounds(first: int, count: int) -> list[tuple[str, dict[str, Any]]]:
        return [
            one
            for n in range(first, first + count)
            for one in (
                called(call=f"c{n}", command=f"run {n}"),
                printed("x" * 50, call=f"c{n}"),
                resulted(f"c{n}", duration_ms=900.0),
            )
        ]

    client = browser(alice)
    told(session, *rounds(0, 10))
    with CaptureQueriesContext(connection) as few:
        client.get(f"/sessions/{session.slug}/timeline/")
    told(session, *rounds(10, 3330))
    with CaptureQueriesContext(connection) as many:
        page = client.get(f"/sessions/{session.slug}/timeline/").content.decode()
    assert len(many) <= len(few)
    assert page.count('class="bar ') == 100
    assert len(page) < 200_000
    following = re.search(r'href="(\?after=\d+)" rel="next"', page)
    assert following is not None
    assert "run 100<" in shown(alice, f"/sessions/{session.slug}/timeline/{following[1]}")


# -- files, raw, neighbours


def test_the_files_of_a_session_name_the_call_and_survive_the_workspace(alice: User, session: AgentSession) -> None:
    changed = [{"path": "a.txt", "change": "created"}, {"path": EVIL, "change": "modified"}]
    told(session, resulted(files=changed), resulted(files=[{"path": "a.txt", "change": "modified", "diff": "x"}]))
    page = shown(alice, f"/sessions/{session.slug}/files/")
    assert "created" in page
    assert "the last of 2 calls" in page
    assert "?at=4#e4" in page
    assert "<script>alert" not in page
    assert f"/files/{session.workspace.slug}/a.txt" in page
    Workspace.objects.update(phase="deleting", desired="gone", deleted_at=timezone.now())
    gone = shown(alice, f"/sessions/{session.slug}/files/")
    assert "a.txt" in gone
    assert f"/files/{session.workspace.slug}" not in gone


def test_a_huge_event_is_cut_in_the_raw_view_and_says_so(alice: User, session: AgentSession) -> None:
    told(session, printed("y" * 100_000), *[("warning", {"message": "m"})] * 300)
    page = shown(alice, f"/sessions/{session.slug}/raw/")
    assert "more characters; the file of JSON lines has them" in page
    assert len(page) < 400_000
    assert "?after=200" in page
    assert "?after=0" in shown(alice, f"/sessions/{session.slug}/raw/?after=200")


def test_the_neighbours_of_a_session_are_ones_own(alice: User, session: AgentSession) -> None:
    theirs = make_session(make_user("charlie"))
    later = make_session(alice, workspace=session.workspace)
    page = shown(alice, f"/sessions/{session.slug}/")
    assert f'href="/sessions/{later.slug}/" rel="next"' in page
    assert 'rel="prev"' not in page
    assert theirs.slug not in page
    assert f'href="/sessions/{session.slug}/" rel="prev"' in shown(alice, f"/sessions/{later.slug}/")


# -- ends


def test_each_way_to_end_offers_the_next_step(alice: User, session: AgentSession) -> None:
    path = f"/sessions/{session.slug}/"
    running = shown(alice, path)
    assert "wait or cancel" in running
    assert "Continue</button>" not in running
    told(session, ("error", {"message": "it broke"}))
    ended(session, "failed", code="x", message="it broke", hint="")
    assert "?at=3#e3" in shown(alice, path)
    ended(session, "interrupted", code="interrupted", message="The server stopped.", hint="")
    page = shown(alice, path)
    assert "Continue</button>" in page
    assert "Nothing is repeated" in page
    ended(session, "cancelled", code="cancelled", message="Cancelled by alice.", hint="")
    assert "No command of it runs any more" in shown(alice, path)
    ended(session, "completed")
    assert "Continue</button>" not in shown(alice, path)
    assert "Re-run</button>" in shown(alice, path)


def test_a_met_limit_can_be_raised_in_a_new_session_with_the_same_input(alice: User) -> None:
    session = make_session(alice, text="Run this code: print(1)", limits={"max_turns": 3})
    ended(session, "limit", code="max_turns", message="The run met its limit of 3 turns.", hint="")
    page = shown(alice, f"/sessions/{session.slug}/")
    link = re.search(r'href="(/sessions/new/[^"]+)"', page.split('id="composer"')[1])
    assert link is not None
    form = shown(alice, link[1].replace("&amp;", "&"))
    assert "Run this code: print(1)" in form
    assert re.search(r'name="limits.max_turns"[^>]*value="6"', form)
    assert f'value="{session.workspace.slug}" selected' in form
    theirs = browser(make_user("charlie")).get(f"/sessions/new/?again={session.slug}&max_turns=9")
    assert theirs.status_code == 404


def test_continue_opens_an_interrupted_session_again_and_names_who_did(alice: User, session: AgentSession) -> None:
    ended(session, "interrupted", code="interrupted", message="The server stopped.", hint="")
    page = shown(alice, f"/sessions/{session.slug}/")
    text = re.search(r'name="text" value="([^"]+)"', page)
    assert text is not None
    browser(alice).post(f"/sessions/{session.slug}/messages/", {"text": text[1]})
    session.refresh_from_db()
    assert session.status == "queued"
    assert "continued by alice" in shown(alice, f"/sessions/{session.slug}/")


def test_who_may_only_look_is_offered_no_step(session: AgentSession, alice: User) -> None:
    ended(session, "limit", code="max_turns", message="m", hint="")
    from accounts.models import Role

    User.objects.filter(pk=alice.pk).update(role=Role.VIEWER)
    page = shown(User.objects.get(pk=alice.pk), f"/sessions/{session.slug}/")
    assert "Re-run" not in page
    assert 'name="text"' not in page


def test_what_a_write_replaced_is_shown_as_a_diff(alice: User, session: AgentSession) -> None:
    diff = f"@@ -1,2 +1,2 @@\n-{EVIL}\n+new\n same"
    told(
        session,
        called("write", path="a.txt", content="new\nsame"),
        resulted(files=[{"path": "a.txt", "change": "modified", "diff": diff}]),
    )
    page = shown(alice, f"/sessions/{session.slug}/")
    assert "Changes of" in page
    assert '<span class="add">+ new' in page
    assert "+1 −1" in page
    assert "<script>alert" not in page
    told(session, resulted("c2", files=[{"path": "a.txt", "change": "modified", "diff": ""}]))
    assert "no line differs" in shown(alice, f"/sessions/{session.slug}/")
