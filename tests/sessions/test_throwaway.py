"""A throw-away workspace goes with its session, whatever the ending is; the transcript stays readable in every form."""

from __future__ import annotations

from typing import Any

import pytest

from agents.models import Agent
from tests.engine import DockerView, docker_view, runtime_image  # noqa: F401
from tests.eventually import eventually
from tests.factories import CONTAINER_BACKEND, CONTAINER_CONFIG, Api, make_template
from tests.live import LiveServer
from tests.sessions.cast import call, ended, events_of, until_event
from tests.sessions.conftest import Playing, Process
from workspaces.models import WorkspaceTemplate

SLEEP = {"calls": [call("echo begun; sleep 600")]}


def begin(person: Api, agent: Agent, template: WorkspaceTemplate, text: str = "go", **body: Any) -> tuple[str, str]:
    """(session, its workspace) of a new session with a workspace of its own."""
    body = {"agent_id": agent.slug, "template_id": template.slug, "initial_instructions": text, **body}
    answer = person.post("sessions", body)
    assert answer.status_code == 201, answer.content
    return answer.json()["id"], answer.json()["workspace_id"]


def assert_gone_and_readable(person: Api, session_id: str, workspace: str, reason: str) -> None:
    assert ended(person, session_id)["ended_reason"] == reason
    eventually(lambda: person.get(f"workspaces/{workspace}").status_code == 404, within=30)
    assert workspace not in [one["id"] for one in person.get("workspaces").json()["items"]]
    stored = [event.seq for event in events_of(session_id)]
    assert [one["seq"] for one in person.get(f"sessions/{session_id}/events").json()["items"]] == stored
    for form in ("md", "jsonl", "html"):
        assert person.get(f"sessions/{session_id}/transcript", format=form).status_code == 200
    again = person.post(f"sessions/{session_id}/messages", {"text": "again"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_it_goes_when_the_session_completes_and_a_rerun_gets_a_fresh_one(
    process: Process, template: WorkspaceTemplate, agent: Agent, alice: Api
) -> None:
    session_id, workspace = begin(alice, agent, template, "Run this code: print(6 * 7)")
    assert_gone_and_readable(alice, session_id, workspace, "completed")
    exec_id = next(event.data["exec_id"] for event in events_of(session_id) if event.kind == "tool_output")
    output = alice.get(f"workspaces/{workspace}/exec/{exec_id}/output").json()
    assert (output["data"], output["ended"]) == ("42\n", True)
    again = alice.post(f"sessions/{session_id}/rerun").json()
    assert again["workspace_id"] != workspace
    assert_gone_and_readable(alice, again["id"], again["workspace_id"], "completed")


def test_it_goes_when_the_run_is_cancelled_and_its_command_is_dead(
    process: Process, template: WorkspaceTemplate, playing: Playing, alice: Api
) -> None:
    session_id, workspace = begin(alice, playing(SLEEP), template)
    until_event(session_id, "tool_output")
    assert alice.post(f"sessions/{session_id}/cancel").status_code in (200, 202)
    assert_gone_and_readable(alice, session_id, workspace, "cancelled")


def test_it_goes_when_the_session_is_cancelled_before_it_began(
    process: Process, template: WorkspaceTemplate, agent: Agent, alice: Api
) -> None:
    process.stop()
    session_id, workspace = begin(alice, agent, template)
    assert alice.post(f"sessions/{session_id}/cancel").json()["ended_reason"] == "cancelled"
    process.start()
    assert_gone_and_readable(alice, session_id, workspace, "cancelled")


@pytest.mark.parametrize(
    ("turns", "limits", "reason"),
    [
        ([SLEEP], {"timeout_s": 1}, "timed_out"),
        ([{"calls": [call("echo 1")]}, {"calls": [call("echo 2")]}], {"max_turns": 1}, "limit"),
        ([{"calls": [call("echo 1"), call("echo 2")]}], {"max_tool_calls": 1}, "limit"),
    ],
)
def test_it_goes_when_a_limit_of_the_session_ends_it(
    turns: Any, limits: Any, reason: str, process: Process, template: WorkspaceTemplate, playing: Playing, alice: Api
) -> None:
    session_id, workspace = begin(alice, playing(*turns), template, limits=limits)
    assert_gone_and_readable(alice, session_id, workspace, reason)


def test_it_goes_when_it_never_came_up(process: Process, template: WorkspaceTemplate, agent: Agent, alice: Api) -> None:
    broken = make_template("broken", provider=template.provider, init_commands=["exit 3"])
    session_id, workspace = begin(alice, agent, broken)
    assert_gone_and_readable(alice, session_id, workspace, "failed")
    assert ended(alice, session_id)["ended_detail"]["message"]


def test_it_goes_when_the_server_stops_in_the_middle(
    process: Process, template: WorkspaceTemplate, playing: Playing, alice: Api
) -> None:
    session_id, workspace = begin(alice, playing(SLEEP), template)
    until_event(session_id, "tool_output")
    process.stop()
    assert ended(alice, session_id)["ended_reason"] == "interrupted"
    process.start()
    assert_gone_and_readable(alice, session_id, workspace, "interrupted")


def test_a_session_is_deleted_with_its_transcript_after_its_workspace_went(
    process: Process, template: WorkspaceTemplate, agent: Agent, alice: Api
) -> None:
    session_id, workspace = begin(alice, agent, template, "Run this code: print(1)")
    assert_gone_and_readable(alice, session_id, workspace, "completed")
    assert alice.delete(f"sessions/{session_id}").status_code == 204
    assert alice.get(f"sessions/{session_id}/transcript", format="html").status_code == 404


# -- on a real engine, with a server that dies


SCRIPT = {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
AGENT = {"id": "runner", "model": {"provider_id": "scripted", "model_name": "scripted"}}
LONG = "Run this code:\n```python\nimport time\nprint('begun', flush=True)\ntime.sleep(600)\n```"


@pytest.fixture
def live(own_server: LiveServer, runtime_image: str) -> LiveServer:  # noqa: F811
    own_server.start()
    backend = {**CONTAINER_BACKEND, "image": runtime_image}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("llm_providers", SCRIPT), ("agents", AGENT), ("workspace_providers", {"id": "docker", "provider": "container", "config": CONTAINER_CONFIG}),
        ("workspace_templates", {"id": "box", "provider_id": "docker", "backend": backend}),
    ]  # fmt: skip
    for path, body in bodies:
        answer = own_server.request("POST", f"/v1/{path}", json=body)
        assert answer.status_code == 201, answer.text
    return own_server


def left_on_the_engine(view: DockerView, workspace: str) -> list[str]:
    filters = {"label": f"primer.workspace={workspace}"}
    found = [f"container {one['Names'][0]}" for one in view.client.containers(all=True, filters=filters)]
    return found + [f"volume {one['Name']}" for one in view.client.volumes(filters=filters)["Volumes"] or []]


@pytest.mark.docker
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["while it runs", "while its workspace starts"])
def test_it_goes_when_the_server_is_killed_in_between_and_nothing_runs_twice(
    phase: str,
    live: LiveServer,
    docker_view: DockerView,  # noqa: F811
) -> None:
    body = {"agent_id": "runner", "template_id": "box", "initial_instructions": LONG}
    made = live.request("POST", "/v1/sessions", json=body).json()
    session, workspace = f"/v1/sessions/{made['id']}", made["workspace_id"]

    def kinds() -> list[str]:
        return [one["kind"] for one in live.request("GET", f"{session}/events").json()["items"]]

    wanted = "tool_output" if phase == "while it runs" else "workspace_phase"
    eventually(lambda: wanted in kinds(), within=60)
    live.kill9()
    live.restart()
    found = eventually(lambda: (item := live.request("GET", session).json())["status"] == "ended" and item, within=60)
    assert found["ended_reason"] == "interrupted"
    eventually(lambda: live.request("GET", f"/v1/workspaces/{workspace}").status_code == 404, within=60)
    assert left_on_the_engine(docker_view, workspace) == []
    assert kinds().count("tool_call") <= 2  # the snippet's write and its start, each once at most
    answer = live.request("GET", f"{session}/transcript?format=html")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.text.rstrip().endswith("</html>")
