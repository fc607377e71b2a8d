"""A server that is killed at any named point and started again: no orphan, nothing stuck, nothing done twice."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.recipe import SCRIPTED, Api, sample
from tests.eventually import eventually
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]

STARTING = ("after-row", "after-volume", "after-create", "after-start", "after-handshake")
PREPARING = ("init-command",)
RUNNING = ("exec-start", "tool-result")
DELETING = ("delete-row", "delete-container", "delete-volume", "delete-network")
POINTS = (*STARTING, *PREPARING, *RUNNING, *DELETING)
SETTLED = {"running", "stopped", "failed", "lost"}
# Appends, so that a second run would show.
COUNTING = "Run this code:\n```python\nopen('/workspace/count', 'a').write('x')\nprint('counted')\n```"


@pytest.fixture
def crashing(tmp_path: Path, runtime_image: str) -> Iterator[Callable[[str], tuple[LiveServer, Api]]]:
    """Starts a server that will kill itself at the point given, with the recipe's provider, template and agent."""
    after = ExitStack()

    def start(point: str) -> tuple[LiveServer, Api]:
        live = LiveServer(tmp_path / "server")
        after.callback(live.destroy)
        live.start(PRIMER_CRASH_AT=point)
        api = Api(live.url, live.token)
        after.callback(api.close)
        api.ok("POST", "llm_providers", SCRIPTED, status=201)
        api.ok("POST", "workspace_providers", sample("docker-provider.yaml")["spec"], status=201)
        api.ok("POST", "workspace_templates", sample("code-sandbox.yaml")["spec"], status=201)
        api.ok("POST", "agents", sample("code-runner.yaml")["spec"], status=201)
        return live, api

    with after:
        yield start


def ignoring_the_crash(call: Callable[[], Any]) -> Any:
    """The answer of a call, or None when the server died under it."""
    try:
        return call()
    except requests.RequestException:
        return None


def killed(live: LiveServer) -> None:
    assert live.process is not None
    assert live.process.wait(90) == -signal.SIGKILL


def objects_of(live: LiveServer) -> set[str]:
    """Names of the containers, volumes and networks of this install; what it shares between workspaces is left out."""
    import docker

    client = docker.from_env()
    try:
        label: dict[str, Any] = {"label": f"primer.instance={live.instance_id}"}
        found = {str(c.name) for c in client.containers.list(all=True, filters=label, ignore_removed=True)}
        found |= {str(v.name) for v in client.volumes.list(filters=label)}
        found |= {str(n.name) for n in client.networks.list(filters=label)}
        return {name for name in found if not name.startswith("primer-runtime-")}
    finally:
        client.close()


def everything_settled(live: LiveServer, api: Api) -> bool:
    workspaces = api.ok("GET", "workspaces?limit=500")["items"]
    sessions = api.ok("GET", "sessions?limit=500")["items"]
    phases = {item["id"]: item["phase"] for item in workspaces}
    assert set(phases.values()) <= SETTLED, phases
    assert {item["status"] for item in sessions} <= {"ended"}, sessions
    orphans = {name for name in objects_of(live) if not any(name.startswith(known) for known in phases)}
    assert not orphans
    return True


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(point: str, crashing: Callable[[str], tuple[LiveServer, Api]]) -> None:
    live, api = crashing(point)
    if point in STARTING:
        while_a_workspace_starts(live, api)
    elif point in PREPARING:
        while_a_command_of_the_template_runs(live, api)
    elif point in RUNNING:
        while_a_session_runs(live, api)
    else:
        while_a_workspace_is_deleted(live, api)


def while_a_workspace_starts(live: LiveServer, api: Api) -> None:
    def create() -> requests.Response:
        headers = {"Idempotency-Key": "one-workspace"}
        return api.call("POST", "workspaces", json={"template_id": "code-sandbox"}, headers=headers)

    ignoring_the_crash(create)
    killed(live)
    live.restart()
    again = create()  # what a client does that never got its answer
    assert again.status_code == 201, again.text
    eventually(lambda: everything_settled(live, api), within=60)
    (workspace,) = api.ok("GET", "workspaces")["items"]
    assert (workspace["phase"], workspace["id"]) == ("running", again.json()["id"])
    result = api.ok("POST", f"workspaces/{workspace['id']}/exec", {"argv": ["echo", "alive"]})
    assert (result["stdout"], result["ended_by"]) == ("alive\n", "exit")
    api.ok("DELETE", f"workspaces/{workspace['id']}")
    eventually(lambda: not objects_of(live), within=60)


def while_a_command_of_the_template_runs(live: LiveServer, api: Api) -> None:
    commands = ["echo x >> count; sleep 5; echo y >> count", "echo z >> count"]
    template = sample("code-sandbox.yaml")["spec"] | {"id": "counting", "init_commands": commands}
    api.ok("POST", "workspace_templates", template, status=201)
    workspace = api.ok("POST", "workspaces", {"template_id": "counting"}, status=201)["id"]
    killed(live)
    live.restart()
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "running", within=60)
    counted = api.ok("GET", f"workspaces/{workspace}/files/read?path=count")
    assert counted["content"] == "x\ny\nz\n"


def while_a_session_runs(live: LiveServer, api: Api) -> None:
    workspace = api.ok("POST", "workspaces", {"template_id": "code-sandbox"}, status=201)["id"]
    body = {"agent_id": "code-runner", "workspace_id": workspace, "initial_instructions": COUNTING}
    ignoring_the_crash(lambda: api.call("POST", "sessions", json=body))
    killed(live)
    live.restart()
    eventually(lambda: everything_settled(live, api), within=60)
    (session,) = api.ok("GET", "sessions")["items"]
    assert session["ended_reason"] == "interrupted", session
    events = api.ok("GET", f"sessions/{session['id']}/events?after=0&limit=500")["items"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    calls = {e["data"]["call_id"] for e in events if e["kind"] == "tool_call"}
    results = {e["data"]["call_id"] for e in events if e["kind"] == "tool_result"}
    assert calls == results  # the history is whole: a call without a result got one that says so
    counted = api.call("GET", f"workspaces/{workspace}/files/read?path=count")
    assert counted.status_code == 404 or counted.json()["content"] == "x"
    left = api.ok("POST", f"workspaces/{workspace}/exec", {"argv": ["pgrep", "-c", "-f", "snippet.py"]})
    assert left["stdout"] == "0\n"  # no process of the run lives on


def while_a_workspace_is_deleted(live: LiveServer, api: Api) -> None:
    """One with a network of its own: the kind that has most to remove."""
    template = sample("code-sandbox.yaml")["spec"] | {"id": "networked"}
    backend = template["backend"] | {"network": {"egress": "deny_all", "mode": "internal"}}
    api.ok("POST", "workspace_templates", template | {"backend": backend}, status=201)
    workspace = api.ok("POST", "workspaces", {"template_id": "networked"}, status=201)["id"]
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "running", within=60)
    ignoring_the_crash(lambda: api.call("DELETE", f"workspaces/{workspace}"))
    killed(live)
    live.restart()
    eventually(lambda: api.call("GET", f"workspaces/{workspace}").status_code == 404, within=60)
    assert not objects_of(live)
