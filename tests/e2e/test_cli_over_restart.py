"""primectl while its server is killed and started again: what it follows goes on, each thing once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.recipe import SCRIPTED, Api, sample
from tests.eventually import eventually
from tests.live import ROOT, LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]
SLOW = "Run this code:\n```python\nimport time\nprint('began', flush=True)\ntime.sleep(300)\n```"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def api(runtime_image: str, own_server: LiveServer) -> Iterator[Api]:
    own_server.start()
    client = Api(own_server.url, own_server.token)
    client.ok("POST", "llm_providers", SCRIPTED, status=201)
    client.ok("POST", "workspace_providers", sample("docker-provider.yaml")["spec"], status=201)
    client.ok("POST", "workspace_templates", sample("code-sandbox.yaml")["spec"], status=201)
    client.ok("POST", "agents", sample("code-runner.yaml")["spec"], status=201)
    yield client
    client.close()


@pytest.fixture
def workspace(api: Api) -> str:
    name: str = api.ok("POST", "workspaces", {"template_id": "code-sandbox"}, status=201)["id"]
    eventually(lambda: api.ok("GET", f"workspaces/{name}")["phase"] == "running", within=60)
    return name


@pytest.fixture
def primectl(own_server: LiveServer, tmp_path: Path) -> Iterator[Start]:
    """Starts `primectl` with its streams in the files `out` and `err`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        env = own_server.env(PRIMECTL_SERVER=own_server.url, PRIMECTL_TOKEN=own_server.token)
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", *argv],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def printed(place: Path, name: str = "out") -> str:
    return (place / name).read_text(errors="replace")


def events(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(place).splitlines(keepends=True) if line.endswith("\n")]


def test_a_followed_session_is_told_to_its_end_each_event_once(
    api: Api, own_server: LiveServer, workspace: str, primectl: Start, tmp_path: Path
) -> None:
    process = primectl("session", "run", workspace, "--agent", "code-runner", "-i", SLOW, "-o", "jsonl")
    eventually(lambda: any(event["kind"] == "tool_call" for event in events(tmp_path)), within=60)
    eventually(lambda: "began" in printed(tmp_path), within=60)
    own_server.kill9()
    own_server.restart()
    assert process.wait(120) == 13, printed(tmp_path, "err")
    session = printed(tmp_path, "err").split("session/")[1].split()[0]
    told = events(tmp_path)
    assert [event["seq"] for event in told] == sorted({event["seq"] for event in told})
    assert told[-1]["kind"] == "session_ended"
    stored = api.ok("GET", f"sessions/{session}/events?after=0&limit=500")["items"]
    text = lambda items, kind: "".join(e["data"].get("text", "") for e in items if e["kind"] == kind)  # noqa: E731
    for kind in ("tool_output", "text_delta", "assistant_message"):
        assert text(told, kind) == text(stored, kind)
    assert "Traceback" not in printed(tmp_path, "err")


def test_output_of_a_command_arrives_whole_and_it_runs_once(
    own_server: LiveServer, workspace: str, primectl: Start, tmp_path: Path
) -> None:
    line = "echo started >> starts; for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 1; done; exit 7"
    process = primectl("workspace", "exec", workspace, "-c", line, "--timeout", "100s")
    eventually(lambda: "2\n" in printed(tmp_path), within=60)
    own_server.kill9()
    own_server.restart()
    assert process.wait(120) == 7, printed(tmp_path, "err")
    assert printed(tmp_path) == "".join(f"{number}\n" for number in range(1, 11))
    again = primectl("workspace", "exec", workspace, "-c", "cat starts")
    assert again.wait(60) == 0
    assert printed(tmp_path) == "started\n"


def test_a_watch_goes_on_and_ctrl_c_ends_it(
    api: Api, own_server: LiveServer, workspace: str, primectl: Start, tmp_path: Path
) -> None:
    process = primectl("get", "workspaces", "-w", "-o", "name")
    eventually(lambda: f"workspace/{workspace}\n" in printed(tmp_path), within=60)
    own_server.kill9()
    eventually(lambda: "still trying" in printed(tmp_path, "err"), within=60)
    own_server.restart()
    api.ok("PATCH", f"workspaces/{workspace}", {"labels": {"seen": "again"}})
    eventually(lambda: printed(tmp_path).count(f"workspace/{workspace}\n") >= 2, within=60)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert printed(tmp_path, "err").count("still trying") == 1
