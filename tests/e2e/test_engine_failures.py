"""What users see when the engine stops, crashes and comes back while code runs on it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import unusable
from tests.e2e.private_engine import PrivateEngine
from tests.e2e.recipe import Api
from tests.eventually import eventually
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]
TICKING = "i=0; while [ $i -lt 600 ]; do echo tick $i; i=$((i+1)); sleep 0.1; done"


@pytest.fixture
def engine(runtime_image: str) -> Iterator[PrivateEngine]:
    if shutil.which("dockerd") is None:
        unusable("docker", "dockerd is not installed here, so no engine can be stopped")
    private = PrivateEngine()
    try:
        private.start()
        private.take_image(runtime_image)
        yield private
    finally:
        private.destroy()


@pytest.fixture
def api(engine: PrivateEngine, own_server: LiveServer) -> Iterator[Api]:
    own_server.start(PRIMER_SOCKET_DIRS=str(engine.directory))
    client = Api(own_server.url, own_server.token)
    config = {
        "kind": "container",
        "runtime": "docker",
        "connection": {"kind": "socket", "socket_path": str(engine.socket)},
    }
    client.ok("POST", "workspace_providers", {"id": "private", "provider": "container", "config": config}, status=201)
    backend = {"kind": "container", "image": "primer/workspace-runtime:1.0"}
    client.ok("POST", "workspace_templates", {"id": "t", "provider_id": "private", "backend": backend}, status=201)
    yield client
    client.close()


def running_workspace(api: Api) -> str:
    workspace: str = api.ok("POST", "workspaces", {"template_id": "t"}, status=201)["id"]
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "running", within=60)
    return workspace


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stops", "crashes"])
def test_output_is_kept_and_files_survive_when_the_engine(number: int, engine: PrivateEngine, api: Api) -> None:
    workspace = running_workspace(api)
    api.ok("PUT", f"workspaces/{workspace}/files?path=kept", {"content": "still here"}, status=204)
    started = api.ok("POST", f"workspaces/{workspace}/exec", {"command": TICKING, "timeout_s": 90, "background": True})
    exec_path = f"workspaces/{workspace}/exec/{started['id']}"
    eventually(lambda: "tick 2" in api.ok("GET", f"{exec_path}/output?stream=stdout&offset=0")["data"], within=20)

    engine.end(number)
    refused = eventually(lambda: _refusal(api, workspace), within=30)
    assert refused == ("engine_unavailable", True)
    assert api.ok("GET", f"workspaces/{workspace}")["phase"] == "running"  # the last thing known, never a guess

    engine.start()
    ended = eventually(lambda: (found := api.ok("GET", exec_path)).get("ended_by") and found, within=60)
    assert ended["ended_by"] == "lost"
    assert "tick 2" in api.ok("GET", f"{exec_path}/output?stream=stdout&offset=0")["data"]
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "stopped", within=60)

    again = api.ok("POST", f"workspaces/{workspace}/exec", {"argv": ["cat", "kept"]})
    assert (again["stdout"], again["exit_code"]) == ("still here", 0)
    api.ok("DELETE", f"workspaces/{workspace}")
    eventually(lambda: api.call("GET", f"workspaces/{workspace}").status_code == 404, within=60)


def _refusal(api: Api, workspace: str) -> tuple[str, bool] | None:
    answer = api.call("POST", f"workspaces/{workspace}/exec", json={"argv": ["true"], "timeout_s": 5})
    if answer.status_code != 503:
        return None
    return answer.json()["code"], "Retry-After" in answer.headers


def test_deleting_while_the_engine_is_away_finishes_when_it_is_back(engine: PrivateEngine, api: Api) -> None:
    workspace = running_workspace(api)
    engine.end()
    api.ok("DELETE", f"workspaces/{workspace}", status=202)
    assert api.ok("GET", f"workspaces/{workspace}")["phase"] == "deleting"
    engine.start()
    eventually(lambda: api.call("GET", f"workspaces/{workspace}").status_code == 404, within=60)
    assert engine.docker("ps", "-aq").stdout == b""
    assert engine.docker("volume", "ls", "-q", "--filter", f"name={workspace}").stdout == b""
