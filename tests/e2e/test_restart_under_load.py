"""A graceful stop with work under way: nothing in flight is cut, nothing is lost, clients are told to come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import websocket

from tests.e2e.recipe import SCRIPTED, Api, sample
from tests.eventually import eventually
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]
SLOW = "Run this code:\n```python\nimport time\nprint('began', flush=True)\ntime.sleep(300)\n```"


@pytest.fixture
def api(runtime_image: str, own_server: LiveServer) -> Iterator[Api]:
    own_server.start(PRIMER_DRAIN_S="4")
    client = Api(own_server.url, own_server.token)
    client.ok("POST", "llm_providers", SCRIPTED, status=201)
    client.ok("POST", "workspace_providers", sample("docker-provider.yaml")["spec"], status=201)
    client.ok("POST", "workspace_templates", sample("code-sandbox.yaml")["spec"], status=201)
    client.ok("POST", "agents", sample("code-runner.yaml")["spec"], status=201)
    yield client
    client.close()


def running_workspace(api: Api) -> str:
    workspace: str = api.ok("POST", "workspaces", {"template_id": "code-sandbox"}, status=201)["id"]
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "running", within=60)
    return workspace


def test_a_request_in_flight_is_answered_and_the_exit_code_is_zero(api: Api, own_server: LiveServer) -> None:
    workspace = running_workspace(api)
    answers: list[Any] = []

    def call() -> None:
        answers.append(api.ok("POST", f"workspaces/{workspace}/exec", {"command": "sleep 1.5; echo answered"}))

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: own_server.request("GET", f"/v1/workspaces/{workspace}/exec").json()["total"] == 1)
    assert own_server.stop() == 0
    caller.join(10)
    assert [answer["stdout"] for answer in answers] == ["answered\n"]


def test_a_command_longer_than_the_drain_is_taken_up_again_after_the_restart(api: Api, own_server: LiveServer) -> None:
    workspace = running_workspace(api)
    body = {"command": "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 1; done", "background": True}
    started = api.ok("POST", f"workspaces/{workspace}/exec", body)
    assert own_server.stop() == 0
    own_server.restart()
    path = f"workspaces/{workspace}/exec/{started['id']}"
    ended = eventually(lambda: (found := api.ok("GET", path)).get("ended_by") and found, within=60)
    assert (ended["ended_by"], ended["exit_code"]) == ("exit", 0)
    output = api.ok("GET", f"{path}/output?stream=stdout&offset=0")
    assert output["data"] == "".join(f"{i}\n" for i in range(1, 13))


def test_three_running_sessions_end_as_interrupted_and_their_sockets_close_with_4012(
    api: Api, own_server: LiveServer
) -> None:
    workspace = running_workspace(api)
    body = {"agent_id": "code-runner", "workspace_id": workspace, "initial_instructions": SLOW}
    sessions = [api.ok("POST", "sessions", body, status=201)["id"] for _ in range(3)]
    for session in sessions:
        eventually(partial(_has_begun, api, session), within=30)
    socket = websocket.create_connection(
        f"{own_server.url.replace('http', 'ws')}/ws/v1/sessions/{sessions[0]}/events/?after=0",
        header=[f"Authorization: Bearer {own_server.token}"],
        subprotocols=["primer.v1.json"],
        timeout=30,
    )
    seen: list[int] = []
    closed: list[int] = []
    reader = threading.Thread(target=_read, args=(socket, seen, closed))
    reader.start()
    assert own_server.stop() == 0
    reader.join(30)
    socket.shutdown()  # closes; `close` does nothing once the peer has said goodbye
    assert closed == [4012]
    own_server.restart()
    for session in sessions:
        eventually(partial(_has_ended, api, session), within=60)
        assert api.ok("GET", f"sessions/{session}")["ended_reason"] == "interrupted"
    rest = api.ok("GET", f"sessions/{sessions[0]}/events?after={max(seen)}&limit=500")["items"]
    assert seen + [event["seq"] for event in rest] == list(range(1, len(seen) + len(rest) + 1))
    left = api.ok("POST", f"workspaces/{workspace}/exec", {"argv": ["pgrep", "-c", "-f", "snippet.py"]})
    assert left["stdout"] == "0\n"


def _has_begun(api: Api, session: str) -> bool:
    events = api.ok("GET", f"sessions/{session}/events?after=0&limit=500")["items"]
    return any(e["kind"] == "tool_output" and "began" in e["data"]["text"] for e in events)


def _has_ended(api: Api, session: str) -> bool:
    return bool(api.ok("GET", f"sessions/{session}")["status"] == "ended")


def _read(socket: websocket.WebSocket, seen: list[int], closed: list[int]) -> None:
    while True:
        opcode, data = socket.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            closed.append(int.from_bytes(data[:2], "big"))
            return
        if opcode == websocket.ABNF.OPCODE_TEXT:
            message = json.loads(data)
            seen += [m["seq"] for m in (message if isinstance(message, list) else [message])]
