"""Each agent of samples/ does its work, from its file to its last word."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.recipe import SAMPLES, Api, remove_everything
from tests.engine import DockerView
from tests.eventually import eventually
from tests.live import LiveServer
from workspaces import image

pytestmark = pytest.mark.e2e
DATA_IMAGE, DATA_PACKAGES = "primer/data-runtime:1.0", ("python3-matplotlib", "python3-pandas")
PLURALS = {"llm_provider": "llm_providers", "agent": "agents", "workspace_template": "workspace_templates"}
BROKEN = "def add(a, b):\n    return a - b\n"
TEST = """\
import unittest
from calculator import add

class Adding(unittest.TestCase):
    def test_two_and_three(self):
        self.assertEqual(add(2, 3), 5)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server whose sandboxes are directories of this machine, with the template `code-sandbox` on top of them."""
    directory = tmp_path_factory.mktemp("samples")
    for folder in (directory, *list(directory.parents)[:3]):  # the sandboxes' own user must reach them
        folder.chmod(folder.stat().st_mode | 0o055)
    live = LiveServer(directory / "server")
    live.start(PRIMER_ALLOW_LOCAL="1")
    api = Api(live.url, live.token)
    config = {"kind": "local", "root_path": str(directory / "sandboxes")}
    api.ok("POST", "workspace_providers", {"id": "here", "provider": "local", "config": config}, status=201)
    template = {"id": "code-sandbox", "provider_id": "here", "backend": {"kind": "local"}}
    api.ok("POST", "workspace_templates", template, status=201)
    yield api
    api.close()
    live.destroy()


def create(api: Api, name: str) -> list[dict[str, Any]]:
    """Makes what a sample file describes, in its order."""
    documents = list(yaml.safe_load_all((SAMPLES / name).read_text()))
    return [api.ok("POST", PLURALS[document["kind"]], document["spec"], status=201) for document in documents]


def work(api: Api, agent: str, template: str, text: str, files: dict[str, str], within: float = 120) -> dict[str, Any]:
    """One session of the agent over the given files; returns it at its end."""
    workspace = api.ok("POST", "workspaces", {"template_id": template}, status=201)["id"]
    eventually(lambda: api.ok("GET", f"workspaces/{workspace}")["phase"] == "running", within=within)
    for path, content in files.items():
        api.ok("PUT", f"workspaces/{workspace}/files?path={path}", {"content": content})
    body = {"agent_id": agent, "workspace_id": workspace, "initial_instructions": text}
    session = api.ok("POST", "sessions", body, status=201)["id"]

    def ended() -> Any:
        item = api.ok("GET", f"sessions/{session}")
        assert item["status"] == "ended", item
        return item

    return dict(eventually(ended, within=within, message=f"{agent} ends"))


def results(api: Api, session: dict[str, Any]) -> list[dict[str, Any]]:
    events = api.ok("GET", f"sessions/{session['id']}/events?limit=500")["items"]
    return [event["data"] for event in events if event["kind"] == "tool_result"]


def content(api: Api, session: dict[str, Any], path: str) -> str:
    return str(api.ok("GET", f"workspaces/{session['workspace_id']}/files/read?path={path}")["content"])


def test_the_code_runner_runs_the_code(here: Api) -> None:
    create(here, "scripted-model.yaml")
    create(here, "code-runner.yaml")
    session = work(here, "code-runner", "code-sandbox", "Run this code: print(6 * 7)", {})
    assert (session["ended_reason"], session["answer"]) == ("completed", "The snippet printed:\n42"), session


def test_the_test_fixer_makes_the_tests_pass(here: Api) -> None:
    create(here, "test-fixer.yaml")
    files = {"calculator.py": BROKEN, "test_calculator.py": TEST}
    session = work(here, "test-fixer", "code-sandbox", "Make the tests pass.", files)
    assert session["ended_reason"] == "completed", session
    first, *_, last = results(here, session)
    assert (first["exit_code"], last["exit_code"]) == (1, 0)
    assert "FAILED" in first["text"]
    assert content(here, session, "calculator.py") == BROKEN.replace("-", "+")
    assert content(here, session, "test_calculator.py") == TEST


@pytest.mark.docker
@pytest.mark.slow
def test_the_data_analyst_turns_a_table_into_a_picture(api: Api, docker_view: DockerView) -> None:
    for _ in image.build(tag=DATA_IMAGE, packages=DATA_PACKAGES, engine_url=f"unix://{docker_view.socket_path}"):
        pass
    try:
        provider = yaml.safe_load((SAMPLES / "docker-provider.yaml").read_text())["spec"]
        api.ok("POST", "workspace_providers", provider, status=201)
        create(api, "data-analyst.yaml")
        table = "day,visits,errors\n" + "".join(f"{day},{100 + 7 * day},{day % 3}\n" for day in range(30))
        session = work(api, "data-analyst", "data-sandbox", "What does data.csv show?", {"data.csv": table}, within=240)
        assert session["ended_reason"] == "completed", session
        assert [result["exit_code"] for result in results(api, session)] == [0, None, 0], results(api, session)
        assert "visits" in results(api, session)[-1]["text"]
        path = f"workspaces/{session['workspace_id']}/files/download?path=plot.png"
        picture = api.call("GET", path).content
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", picture[16:24])) >= 300, "a picture of some size"
    finally:
        remove_everything(api)
        eventually(lambda: api.ok("GET", "workspaces")["total"] == 0, within=60)
        for path in ("agents/data-analyst", "workspace_templates/data-sandbox", "workspace_providers/docker-local"):
            assert api.call("DELETE", path).status_code in (204, 404)
