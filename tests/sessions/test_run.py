"""A session from its creation to its end, with real programs, over the API."""

from __future__ import annotations

import pytest

from accounts.models import User
from agents.models import Agent
from sessions_app.models import AgentSession
from tests.eventually import eventually
from tests.factories import Api, make_user, make_workspace
from tests.sessions.cast import call, ended, events_of, start, until_event
from tests.sessions.conftest import Playing, Process
from workspaces import services
from workspaces.models import Exec, Phase, Workspace, WorkspaceTemplate

RECIPE = """\
Run this code: import socket, os
print('RESULT', 6 * 7)
open('out.txt', 'w').write(str(6 * 7))
"""


def test_a_snippet_runs_and_its_output_is_the_answer(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    session_id = start(alice, workspace, agent, "Run this code: print(6 * 7)")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"]) == ("completed", "The snippet printed:\n42"), item
    assert (item["turns"], item["tool_calls"], item["ended_detail"]) == (3, 2, None)
    assert item["usage"]["cost"] is None
    events = events_of(session_id)
    assert [event.kind for event in events][:3] == ["session_status", "user_message", "session_status"]
    assert events[-1].kind == "session_ended"
    assert events[-1].data["answer"] == item["answer"]
    assert item["last_seq"] == len(events)


def test_the_transcript_shows_the_calls_with_arguments_output_and_verdict(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    session_id = start(alice, workspace, agent, RECIPE)
    ended(alice, session_id)
    events = events_of(session_id)
    calls = [event.data for event in events if event.kind == "tool_call"]
    assert [data["name"] for data in calls] == ["workspace__write", "workspace__exec"]
    assert calls[0]["arguments"]["path"] == "snippet.py"
    assert calls[1]["arguments"] == {"command": "python snippet.py"}
    (output,) = [event.data for event in events if event.kind == "tool_output"]
    assert (output["stream"], output["offset"], output["text"]) == ("stdout", 0, "RESULT 42\n")
    write, run = [event.data for event in events if event.kind == "tool_result"]
    assert write["files"] == [{"path": "snippet.py", "change": "created"}]
    assert (run["exit_code"], run["ended_by"], run["ok"], run["truncated"]) == (0, "exit", True, False)
    row = Exec.objects.get(slug=run["exec_id"])
    assert (row.session_id, row.started_by) == (session_id, make_user())
    assert alice.get(f"workspaces/{workspace.slug}/files/read", path="out.txt").json()["content"] == "42"


def test_the_workspaces_phases_are_in_the_transcript_of_a_session_that_waited_for_it(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    session_id = start(alice, workspace, agent)
    item = ended(alice, session_id)
    phases = [event.data["phase"] for event in events_of(session_id) if event.kind == "workspace_phase"]
    assert phases[-1] == "running"
    assert len(set(phases)) == len(phases)
    assert item["confinement"] in ("proven", "degraded", "failed", "unknown")


def test_a_stopped_workspace_is_started_for_a_session(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    ended(alice, start(alice, workspace, agent))
    assert alice.post(f"workspaces/{workspace.slug}/stop").status_code in (200, 202)
    eventually(lambda: Workspace.objects.get(pk=workspace.pk).phase == Phase.STOPPED, within=20)
    item = ended(alice, start(alice, workspace, agent, "Run this code: print(open('snippet.py').read()[:5])"))
    assert item["answer"] == "The snippet printed:\nprint"


def test_a_failing_program_is_reported_and_the_session_completes(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    item = ended(alice, start(alice, workspace, agent, "Run this code: raise SystemExit(3)"))
    assert item["ended_reason"] == "completed"
    assert item["answer"].startswith("The snippet failed: exit 3.")


def test_a_workspace_that_cannot_start_fails_the_session_with_its_reason(
    process: Process, template: WorkspaceTemplate, agent: Agent, owner: User, alice: Api
) -> None:
    template.provider.config = {**template.provider.config, "fault": "refuses"}
    template.provider.spec_rev += 1
    template.provider.save()
    workspace = make_workspace(owner, template)
    session_id = start(alice, workspace, agent)
    services.workspace_delete(by=None, row=Workspace.objects.get(pk=workspace.pk))
    item = ended(alice, session_id)
    assert item["ended_reason"] == "failed"
    assert item["ended_detail"]["code"] == "workspace_not_running"
    error = [event.data for event in events_of(session_id) if event.kind == "error"]
    assert [data["message"] for data in error] == [item["ended_detail"]["message"]]
    template.provider.config = {"kind": "fake", "root_path": template.provider.config["root_path"]}
    template.provider.spec_rev += 1
    template.provider.save()


def test_an_agent_whose_model_is_gone_fails_with_a_sentence(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    agent.provider.deleted_at = agent.created_at
    agent.provider.save()
    item = ended(alice, start(alice, workspace, agent))
    assert item["ended_detail"]["code"] == "llm_config"
    assert "scripted does not exist any more" in item["ended_detail"]["message"]


def test_limits_of_the_session_win_over_the_agents(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"calls": [call("true")]}, limits={"max_turns": 40})
    item = ended(alice, start(alice, workspace, agent, "go", limits={"max_turns": 2}))
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("limit", "max_turns")
    assert item["limits"] == {"max_turns": 2, "max_tool_calls": 200, "timeout_s": 1800, "max_tokens": None}


def test_the_wall_clock_ends_the_program_too(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"calls": [call("echo started; sleep 600")]})
    session_id = start(alice, workspace, agent, "go", limits={"timeout_s": 1})
    item = ended(alice, session_id)
    assert item["ended_reason"] == "timed_out"
    (result,) = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert (result["ok"], result["ended_by"]) == (False, "cancelled")
    eventually(lambda: Exec.objects.get(slug=result["exec_id"]).ended_by == "cancelled", within=10)


def test_a_throw_away_workspace_is_removed_at_the_end(
    process: Process, template: WorkspaceTemplate, agent: Agent, alice: Api
) -> None:
    body = {"agent_id": agent.slug, "template_id": template.slug, "initial_instructions": "print(1)"}
    answer = alice.post("sessions", body)
    assert answer.status_code == 201, answer.content
    item = ended(alice, answer.json()["id"])
    assert item["answer"] == "The snippet printed:\n1"
    eventually(lambda: alice.get(f"workspaces/{item['workspace_id']}").status_code == 404, within=20)
    assert alice.get(f"sessions/{item['id']}/events").status_code == 200
    refused = alice.post(f"sessions/{item['id']}/messages", {"text": "again"})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "is deleted" in refused.json()["detail"]


def test_two_sessions_share_a_workspace_and_see_each_others_files(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    first = start(alice, workspace, agent, "Run this code: import time; time.sleep(0.3); print('one')")
    second = start(alice, workspace, agent, "Run this code: import time; time.sleep(0.3); print('one')")
    assert {ended(alice, one)["ended_reason"] for one in (first, second)} == {"completed"}


def test_a_message_continues_the_conversation(process: Process, workspace: Workspace, agent: Agent, alice: Api) -> None:
    session_id = start(alice, workspace, agent, "Run this code: print('first')")
    ended(alice, session_id)
    before = AgentSession.objects.get(slug=session_id)
    answer = alice.post(f"sessions/{session_id}/messages", {"text": "Run this code: print('second')"})
    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["ended_reason"], answer.json()["answer"]) == ("queued", None, "")
    item = ended(alice, session_id)
    assert item["answer"] == "The snippet printed:\nsecond"
    assert item["turns"] == 2 * before.turns
    turns = [event.data["turn"] for event in events_of(session_id) if event.kind == "turn_started"]
    assert turns == [1, 2, 3, 4, 5, 6]


def test_a_message_while_it_runs_is_409(process: Process, workspace: Workspace, playing: Playing, alice: Api) -> None:
    session_id = start(alice, workspace, playing({"calls": [call("sleep 600")]}), "go")
    until_event(session_id, "tool_call")
    refused = alice.post(f"sessions/{session_id}/messages", {"text": "hello?"})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert alice.delete(f"sessions/{session_id}").status_code == 409
    assert alice.delete(f"agents/{AgentSession.objects.get(slug=session_id).agent.slug}").status_code == 409
    assert alice.post(f"sessions/{session_id}/cancel").json()["ended_reason"] == "cancelled"


def test_a_cancel_ends_the_command_and_the_workspace_goes_on_working(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"calls": [call("echo $$; exec sleep 600")]})
    session_id = start(alice, workspace, agent, "go")
    pid = int(until_event(session_id, "tool_output").data["text"])
    answer = alice.post(f"sessions/{session_id}/cancel")
    assert answer.status_code == 200, answer.content
    item = answer.json()
    assert (item["ended_reason"], item["ended_detail"]["message"]) == ("cancelled", "Cancelled by alice.")
    (result,) = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert (result["ended_by"], result["evidence"]) == ("cancelled", {"cancelled_by": "alice"})
    row = Exec.objects.get(slug=result["exec_id"])
    assert (row.ended_by, row.evidence["cancelled_by"]) == ("cancelled", "alice")
    alive = alice.post(f"workspaces/{workspace.slug}/exec", {"command": f"kill -0 {pid} 2>&1; echo done"}).json()
    assert "done" in alive["stdout"]
    assert "No such process" in alive["stdout"]
    assert alice.post(f"sessions/{session_id}/cancel").json()["ended_reason"] == "cancelled"  # again is fine


def test_a_rerun_is_a_new_session_with_the_same_input(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    session_id = start(alice, workspace, agent, "print(5)", labels={"team": "red"})
    ended(alice, session_id)
    answer = alice.post(f"sessions/{session_id}/rerun")
    assert answer.status_code == 201, answer.content
    again = ended(alice, answer.json()["id"])
    assert again["id"] != session_id
    assert (again["answer"], again["labels"]) == ("The snippet printed:\n5", {"team": "red"})
    assert alice.delete(f"sessions/{session_id}").status_code == 204
    assert alice.get(f"sessions/{session_id}").status_code == 404


@pytest.mark.parametrize("size", [300_000])
def test_a_flood_is_bounded_in_the_transcript_and_whole_in_the_exec(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, size: int
) -> None:
    agent = playing({"calls": [call(f"head -c {size} /dev/zero | tr '\\0' x")]}, {"text": "done"})
    session_id = start(alice, workspace, agent, "go")
    ended(alice, session_id)
    outputs = [event.data for event in events_of(session_id) if event.kind == "tool_output"]
    assert sum(len(data.get("text", "")) for data in outputs) == 200_000
    assert [data["gap"] for data in outputs if "gap" in data] == [[200_000, size]]
    (result,) = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert (result["bytes"], result["truncated"]) == (size, True)
    assert len(result["text"]) < 20_000
    assert Exec.objects.get(slug=result["exec_id"]).stdout_bytes == size


def test_a_secret_of_the_workspace_never_enters_the_transcript(
    process: Process, template: WorkspaceTemplate, playing: Playing, owner: User, alice: Api
) -> None:
    workspace = make_workspace(owner, template, env={"KEY": {"secret": "hunter2-swordfish"}})
    script = 'printf hunter2-; sleep 0.2; echo swordfish; printf %s "$KEY" | base64; echo $KEY'
    agent = playing({"calls": [call(script)]}, {"text": "done"})
    session_id = start(alice, workspace, agent, "go")
    assert ended(alice, session_id)["ended_reason"] == "completed"
    told = "".join(str(event.data) for event in events_of(session_id) if event.kind != "tool_call")
    assert "swordfish" not in told
    assert "aHVudGVyMi1zd29yZGZpc2g" not in told
    output = "".join(event.data.get("text", "") for event in events_of(session_id) if event.kind == "tool_output")
    assert output.count("[secret]") == 3


def test_thoughts_and_a_broken_stream_are_in_the_transcript(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"thinking": "let me see", "text": "the answer is 42", "break_after": 6, "times": 1})
    session_id = start(alice, workspace, agent, "go")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["answer"]) == ("completed", "the answer is 42")
    events = events_of(session_id)
    (warning,) = [event.data for event in events if event.kind == "warning"]
    assert (warning["code"], warning["attempt"]) == ("llm_unavailable", 2)
    assert warning["retry_in_s"] > 0
    texts = {
        kind: "".join(e.data["text"] for e in events if e.kind == kind) for kind in ("thinking_delta", "text_delta")
    }
    assert texts == {"thinking_delta": "let me see" * 2, "text_delta": "the an" + "the answer is 42"}
    assert [event.data["text"] for event in events if event.kind == "assistant_message"] == ["the answer is 42"]


def test_many_sessions_at_once_all_end(process: Process, workspace: Workspace, playing: Playing, alice: Api) -> None:
    agent = playing({"text": "done"})
    sessions = [start(alice, workspace, agent, "go") for _ in range(20)]
    assert {ended(alice, one, within=60)["ended_reason"] for one in sessions} == {"completed"}
