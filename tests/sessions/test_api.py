"""Sessions over the API, without running any: who sees what, what is refused, lists, events and transcripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import AuditEntry, Role
from agents.models import Agent
from primer_site import loop
from sessions_app import claims
from sessions_app.events import EventDraft, append
from sessions_app.models import AgentSession, EndedReason, EventKind
from sessions_app.services import locked, session_end
from tests.factories import Api, api, make_user, make_workspace
from tests.sessions.cast import make_agent, make_session, start
from workspaces.models import Workspace, WorkspaceTemplate

ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None), ("PATCH", "", {"labels": {}}), ("DELETE", "", None), ("POST", "/messages", {"text": "x"}),
    ("POST", "/cancel", None), ("POST", "/rerun", None), ("GET", "/events", None), ("GET", "/transcript", None),
)  # fmt: skip


@pytest.fixture
def agent(transactional_db: Any, owner: Any) -> Agent:
    return make_agent(owner)


@pytest.fixture
def session(workspace: Workspace, agent: Agent, owner: Any) -> AgentSession:
    return locked(make_session(owner, agent, workspace))


@pytest.fixture
def over(session: AgentSession) -> AgentSession:
    """The session, ended."""
    session_end(session=session, reason=EndedReason.COMPLETED, answer="42")
    return session


def refused(answer: Any, status: int, code: str, field: str = "", words: str = "") -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    if field:
        messages = [error["message"] for error in body["errors"] if error["field"] == field]
        assert messages, body
        assert words in messages[0], messages
    return body


def test_a_new_session_is_queued_with_its_first_events(
    workspace: Workspace, agent: Agent, owner: Any, alice: Api
) -> None:
    item = alice.get(f"sessions/{start(alice, workspace, agent)}").json()
    assert (item["status"], item["ended_reason"], item["answer"], item["last_seq"]) == ("queued", None, "", 2)
    assert (item["owner"], item["agent_id"], item["workspace_id"]) == ("alice", agent.slug, workspace.slug)
    assert item["usage"] == {
        "input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost": None,
    }  # fmt: skip
    page = alice.get(f"sessions/{item['id']}/events").json()
    assert [event["kind"] for event in page["items"]] == ["session_status", "user_message"]
    assert page["last_seq"] == 2


@pytest.mark.parametrize("missing", ["", "ws-0123456789abcdef", "nope\nnope"])
def test_a_reference_that_leads_nowhere_is_named(workspace: Workspace, agent: Agent, alice: Api, missing: str) -> None:
    good = {"agent_id": agent.slug, "workspace_id": workspace.slug, "initial_instructions": "x"}
    for field in ("agent_id", "workspace_id"):
        refused(alice.post("sessions", {**good, field: missing}), 422, "invalid", field)
    body = {"agent_id": agent.slug, "template_id": missing, "initial_instructions": "x"}
    refused(alice.post("sessions", body), 422, "invalid", "template_id")
    assert not AgentSession.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workspace_id": None}, "workspace_id"), ({"template_id": "plain"}, "workspace_id"),
        ({"initial_instructions": " \n"}, "initial_instructions"), ({"initial_instructions": None}, "initial_instructions"),
        ({"initial_instructions": "\ud83d"}, "initial_instructions"), ({"initial_instructions": "a\x00"}, "initial_instructions"),
        ({"initial_instructions": "x" * 1_000_001}, "initial_instructions"), ({"limits": {"max_turns": 0}}, "limits.max_turns"),
        ({"limits": {"turns": 1}}, "limits.turns"), ({"status": "running"}, "status"), ({"owner": "bob"}, "owner"),
        ({"labels": {"k": 1.5, "": "x"}}, "labels"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(
    workspace: Workspace, agent: Agent, alice: Api, change: dict[str, Any], field: str
) -> None:
    body = {"agent_id": agent.slug, "workspace_id": workspace.slug, "initial_instructions": "x", **change}
    refused(alice.post("sessions", body), 422, "invalid", field)


def test_charlie_gets_404_on_every_route_of_alices_session_and_cannot_use_her_workspace(
    session: AgentSession, workspace: Workspace, agent: Agent, charlie: Api
) -> None:
    for method, tail, body in ROUTES:
        refused(charlie.call(method, f"sessions/{session.slug}{tail}", body), 404, "not_found")
    assert charlie.get("sessions").json()["total"] == 0
    body = {"agent_id": agent.slug, "workspace_id": workspace.slug, "initial_instructions": "x"}
    refused(charlie.post("sessions", body), 422, "invalid", "workspace_id", "no workspace")
    assert charlie.get("sessions", owner="alice").json()["total"] == 0


def test_nobody_gets_401_on_every_route(session: AgentSession) -> None:
    for method, tail, body in ROUTES:
        refused(api().call(method, f"sessions/{session.slug}{tail}", body), 401, "unauthenticated")


def test_a_viewer_sees_own_sessions_and_starts_none(workspace: Workspace, agent: Agent) -> None:
    viewer = make_user("victor")
    own = make_workspace(viewer, workspace.template)
    session = make_session(viewer, agent, own)
    viewer.role = Role.VIEWER
    viewer.save()
    person = api(viewer)
    assert person.get(f"sessions/{session.slug}").status_code == 200
    for method, tail, body in ROUTES:
        if method != "GET":
            refused(person.call(method, f"sessions/{session.slug}{tail}", body), 403, "forbidden")


def test_an_admin_opens_somebody_elses_session_and_it_is_written_down_once(session: AgentSession, bob: Api) -> None:
    for _ in range(3):
        assert bob.get(f"sessions/{session.slug}").status_code == 200
        assert bob.get(f"sessions/{session.slug}/events").status_code == 200
    (entry,) = AuditEntry.objects.filter(action="session.open")
    assert (entry.actor_name, entry.object_id) == ("bob", session.slug)
    assert bob.get("sessions", owner="alice").json()["total"] == 1
    assert bob.get("sessions", owner="charlie").json()["total"] == 0


def test_an_admin_may_cancel_and_it_says_who(session: AgentSession, bob: Api) -> None:
    item = bob.post(f"sessions/{session.slug}/cancel").json()
    assert (item["status"], item["ended_detail"]["message"]) == ("ended", "Cancelled by bob.")


def test_a_session_that_is_not_over_is_not_deleted(session: AgentSession, alice: Api) -> None:
    body = refused(alice.delete(f"sessions/{session.slug}"), 409, "conflict")
    assert "cancel" in body["hint"].lower()
    refused(alice.post(f"sessions/{session.slug}/messages", {"text": "x"}), 409, "conflict")


def test_a_deleted_session_is_gone_with_its_events(over: AgentSession, alice: Api) -> None:
    assert alice.delete(f"sessions/{over.slug}").status_code == 204
    for method, tail, body in ROUTES:
        refused(alice.call(method, f"sessions/{over.slug}{tail}", body), 404, "not_found")


def test_the_same_message_sent_twice_with_a_key_is_one_message(over: AgentSession, alice: Api) -> None:
    answers = [
        alice.post(f"sessions/{over.slug}/messages", {"text": "again"}, headers={"Idempotency-Key": "m1"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    messages = [
        event for event in alice.get(f"sessions/{over.slug}/events").json()["items"] if event["kind"] == "user_message"
    ]
    assert [event["data"]["text"] for event in messages][1:] == ["again"]


def test_a_message_to_a_session_of_a_deleted_workspace_is_409(
    over: AgentSession, workspace: Workspace, alice: Api
) -> None:
    assert alice.delete(f"workspaces/{workspace.slug}").status_code == 202
    body = refused(alice.post(f"sessions/{over.slug}/messages", {"text": "x"}), 409, "conflict")
    assert workspace.slug in body["detail"]
    refused(alice.post(f"sessions/{over.slug}/rerun"), 409, "conflict")
    assert alice.get(f"sessions/{over.slug}/events").status_code == 200


def test_a_session_keeps_the_agent_as_it_was(over: AgentSession, agent: Agent, alice: Api) -> None:
    assert (
        alice.patch(f"agents/{agent.slug}", {"system_prompt": ["changed"], "limits": {"max_turns": 1}}).status_code
        == 200
    )
    assert alice.delete(f"agents/{agent.slug}").status_code == 204
    item = alice.get(f"sessions/{over.slug}").json()
    assert (item["agent_id"], item["limits"]["max_turns"]) == (agent.slug, 50)
    body = refused(alice.post(f"sessions/{over.slug}/rerun"), 409, "conflict")
    assert agent.slug in body["detail"]


def test_an_agent_in_use_is_kept(session: AgentSession, agent: Agent, alice: Api) -> None:
    body = refused(alice.delete(f"agents/{agent.slug}"), 409, "in_use")
    assert session.slug in body["detail"]


def test_reading_again_is_304_until_something_happens(session: AgentSession, alice: Api) -> None:
    etag = alice.get(f"sessions/{session.slug}")["ETag"]
    assert alice.get(f"sessions/{session.slug}", headers={"If-None-Match": etag}).status_code == 304
    append(session, EventDraft(EventKind.WARNING, {"message": "x"}))
    assert alice.get(f"sessions/{session.slug}", headers={"If-None-Match": etag}).status_code == 200


def test_events_are_paged_by_seq(session: AgentSession, alice: Api) -> None:
    append(session, *[EventDraft(EventKind.WARNING, {"message": str(number)}) for number in range(10)])
    seen: list[int] = []
    while items := alice.get(f"sessions/{session.slug}/events", after=seen[-1] if seen else 0, limit=5).json()["items"]:
        seen += [event["seq"] for event in items]
    assert seen == list(range(1, 13))
    wrong: list[dict[str, Any]] = [
        {"after": "x"},
        {"after": "-1"},
        {"limit": "0"},
        {"limit": "501"},
        {"after": "9" * 30},
    ]
    for query in wrong:
        refused(alice.get(f"sessions/{session.slug}/events", **query), 422, "invalid", *query)


def test_lists_know_their_filters(session: AgentSession, over: AgentSession, alice: Api) -> None:
    assert alice.get("sessions", status="ended", ended_reason="completed").json()["total"] == 1
    assert alice.get("sessions", status="running").json()["total"] == 0
    assert alice.get("sessions", workspace_id=session.workspace.slug, agent_id=session.agent.slug).json()["total"] == 1
    assert alice.get("sessions", q="print(6").json()["total"] == 1
    refused(alice.get("sessions", answer="42"), 422, "invalid", "answer")
    assert alice.patch(f"sessions/{over.slug}", {"labels": {"a": "b"}}).json()["labels"] == {"a": "b"}
    assert alice.get("sessions", label="a=b").json()["total"] == 1


def test_a_list_needs_few_queries(
    workspace: Workspace, agent: Agent, owner: Any, alice: Api, django_assert_max_num_queries: Any
) -> None:
    for _ in range(12):
        make_session(owner, agent, workspace)
    with django_assert_max_num_queries(6):
        assert len(alice.get("sessions").json()["items"]) == 12


def transcript(person: Api, session: AgentSession, form: str) -> str:
    answer = person.get(f"sessions/{session.slug}/transcript", format=form)
    assert answer.status_code == 200
    assert answer["Content-Disposition"].startswith("attachment")

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return str(loop.run(read(), 20).decode())


@pytest.fixture
def told(session: AgentSession) -> AgentSession:
    """A session with one of everything, hostile text included."""
    claimed = claims.claim(session.pk)
    assert claimed is not None
    said = {"text": "I run ``` it", "blocks": [{"opaque": "signature"}], "provider": "scripted"}
    call = {"call_id": "c1", "name": "workspace__exec", "arguments": {"command": "echo '```'"}}
    result = {"call_id": "c1", "ok": True, "text": "exit 0\n````\n# heading", "exit_code": 0, "ended_by": "exit"}
    append(
        claimed, EventDraft(EventKind.TEXT_DELTA, {"text": "I run"}), EventDraft(EventKind.ASSISTANT_MESSAGE, said),
        EventDraft(EventKind.TOOL_CALL, call), EventDraft(EventKind.TOOL_RESULT, result),
        EventDraft(EventKind.WARNING, {"code": "x", "message": "careful\n# no heading"}),
    )  # fmt: skip
    detail = {"code": "max_turns", "message": "The run met its limit.", "hint": ""}
    session_end(session=claimed, reason=EndedReason.LIMIT, detail=detail)
    return claimed


def test_a_transcript_as_json_lines_leaves_out_deltas_and_opaque_blocks(told: AgentSession, alice: Api) -> None:
    lines = [json.loads(line) for line in transcript(alice, told, "jsonl").splitlines()]
    assert "text_delta" not in {line["kind"] for line in lines}
    assert [line["kind"] for line in lines][-1] == "session_ended"
    (said,) = [line["data"] for line in lines if line["kind"] == "assistant_message"]
    assert said == {"text": "I run ``` it", "provider": "scripted"}


def test_a_transcript_as_markdown_keeps_hostile_text_inside_its_fences(told: AgentSession, alice: Api) -> None:
    text = transcript(alice, told, "md")
    assert "## User\n\n```\nRun this code: print(6 * 7)\n```" in text
    assert "## Assistant\n\n````\nI run ``` it\n````" in text
    assert "`````\nexit 0\n````\n# heading\n`````" in text
    assert "`careful # no heading`" in text
    assert text.endswith("ended: limit — `The run met its limit.`\n")


def test_a_transcript_of_another_form_is_refused(over: AgentSession, alice: Api) -> None:
    refused(alice.get(f"sessions/{over.slug}/transcript", format="pdf"), 422, "invalid", "format", "jsonl, md, html")


def test_a_throw_away_session_makes_its_workspace_at_once(
    template: WorkspaceTemplate, agent: Agent, alice: Api, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    body = {"agent_id": agent.slug, "template_id": template.slug, "initial_instructions": "x", "labels": {"a": "b"}}
    item = alice.post("sessions", body).json()
    workspace = alice.get(f"workspaces/{item['workspace_id']}").json()
    assert (workspace["owner"], workspace["template_id"], workspace["labels"]) == ("alice", template.slug, {"a": "b"})
    cancelled = alice.post(f"sessions/{item['id']}/cancel").json()
    assert cancelled["ended_reason"] == "cancelled"
    assert Workspace.objects.get(slug=item["workspace_id"]).desired == "gone"
