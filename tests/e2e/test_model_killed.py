"""kill -9 of the server while a model's command runs: nothing runs twice, and the model takes the mended history back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.recipe import Api
from tests.eventually import eventually
from tests.live import LiveServer
from tests.llm.conftest import STUBS, endpoint_config
from tests.llm.stub_http import KEY, Says, StubServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(params=["anthropic", "openai"])
def stub(request: pytest.FixtureRequest) -> Iterator[StubServer]:
    calls = (
        ("workspace__exec", '{"command": "echo x >> count; sleep 600", "timeout_s": 600}'),
        ("workspace__exec", '{"command": "echo never >> count"}'),
    )
    made = STUBS[request.param](Says("Working.", "Hm.", calls), Says("I see."))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    directory = tmp_path_factory.mktemp("killed")
    for folder in (directory, *list(directory.parents)[:3]):  # the sandboxes' own user must reach them
        folder.chmod(folder.stat().st_mode | 0o055)
    server = LiveServer(directory / "server")
    yield server
    server.destroy()


def test_killed_between_a_call_and_its_result(live: LiveServer, stub: StubServer) -> None:
    settings = {"PRIMER_ALLOW_LOCAL": "1", "PRIMER_LLM_HOSTS": stub.host}
    live.start(**settings)
    api = Api(live.url, live.token)
    kind = next(name for name, made in STUBS.items() if isinstance(stub, made))
    here = {"kind": "local", "root_path": str(live.directory / "sandboxes")}
    api.ok("POST", "workspace_providers", {"id": "here", "provider": "local", "config": here}, status=201)
    api.ok("POST", "workspace_templates", {"id": "t", "provider_id": "here", "backend": {"kind": "local"}}, status=201)
    config = endpoint_config(stub, kind, api_key=KEY)
    api.ok("POST", "llm_providers", {"id": "m", "provider": kind, "config": config}, status=201)
    api.ok("POST", "agents", {"id": "a", "model": {"provider_id": "m"}}, status=201)
    workspace = api.ok("POST", "workspaces", {"template_id": "t"}, status=201)["id"]
    body = {"agent_id": "a", "workspace_id": workspace, "initial_instructions": "go"}
    session = api.ok("POST", "sessions", body, status=201)["id"]
    counted = f"workspaces/{workspace}/files/read?path=count"
    eventually(lambda: api.call("GET", counted).status_code == 200, within=60)
    live.kill9()
    live.restart(**settings)
    _ended(api, session, "interrupted")
    api.ok("POST", f"sessions/{session}/messages", {"text": "what happened?"})
    assert _ended(api, session, "completed")["answer"] == "I see."
    assert api.ok("GET", counted)["content"] == "x\n"
    assert not stub.refusals
    runs = api.ok("GET", f"workspaces/{workspace}/exec")["items"]
    assert [run["ended_by"] for run in runs] == ["cancelled"], "the program did not outlive its run"
    assert KEY not in live.log()
    api.close()


def _ended(api: Api, session: str, reason: str) -> dict[str, Any]:
    def check() -> Any:
        item = api.ok("GET", f"sessions/{session}")
        assert (item["status"], item["ended_reason"]) == ("ended", reason), item
        return item

    return dict(eventually(check, within=90))
