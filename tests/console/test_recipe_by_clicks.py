"""The recipe's console steps, by its labels, in a real browser on a real engine: as it is, without sockets, without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Visit, Visitor
from tests.e2e.recipe import SNIPPET, WORKSPACE_ID, Api, assert_confined, left_on_the_engine
from tests.eventually import eventually

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.browser]
PROMPT = (
    "You run untrusted user code in the sandbox. Write the snippet to snippet.py, run `python snippet.py`, and report its "
    "stdout. Never run anything outside the workspace."
)
SLOW = 60_000  # ms


@dataclass(frozen=True)
class Manner:
    """How the browser is handicapped."""

    name: str
    scripts: bool = True
    sockets: bool = True


MANNERS = [Manner("as-is"), Manner("no-socket", sockets=False), Manner("no-script", scripts=False)]


@pytest.fixture(autouse=True)
def nothing_left(api: Api, runtime_image: str) -> Iterator[None]:
    """The recipe's names are free before and after."""
    _remove(api)
    yield
    _remove(api)


def _remove(api: Api) -> None:
    for item in api.ok("GET", "workspaces?limit=500")["items"]:
        api.call("DELETE", f"workspaces/{item['id']}")
    eventually(lambda: not api.ok("GET", "workspaces")["items"], within=60)
    for kind, name in (
        ("agents", "code-runner"),
        ("workspace_templates", "code-sandbox"),
        ("workspace_providers", "docker-local"),
    ):
        api.call("DELETE", f"{kind}/{name}")


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: manner.name)
def test_the_recipe_by_clicks(visit: Visit, api: Api, manner: Manner) -> None:
    with visit("admin", scripts=manner.scripts) as visitor:
        if not manner.sockets:
            visitor.context.route_web_socket("**/*", lambda socket: socket.close(code=4000))
        _register_the_provider(visitor)
        _define_the_template(visitor)
        _create_the_agent(visitor)
        workspace = _materialise(visitor, manner)
        assert WORKSPACE_ID.fullmatch(workspace)
        _run_the_code(visitor, workspace, manner)
        files = {name: _read(visitor, workspace, name) for name in ("out.txt", "sandbox_host.txt", "host_sock.txt")}
        assert_confined(files)
        assert files["sandbox_host.txt"] == workspace
        _tear_down(visitor, api, workspace)
    assert left_on_the_engine(workspace) == []


def _open(visitor: Visitor, section: str, button: str) -> Page:
    """By the navigation, as a person would."""
    page = visitor.page
    page.get_by_role("navigation", name="Sections").get_by_role("link", name=section, exact=True).click()
    page.locator("#main").get_by_role("link", name=button, exact=True).first.click()
    return page


def _create(page: Page) -> None:
    page.get_by_role("button", name="Create", exact=True).click()


def _register_the_provider(visitor: Visitor) -> None:
    page = _open(visitor, "Providers", "New provider")
    page.get_by_label("ID", exact=False).first.fill("docker-local")
    page.get_by_role("group", name="Provider").get_by_label("Container").check()
    page.get_by_label("Runtime").select_option("docker")
    page.get_by_role("group", name="Connection").get_by_label("Socket").first.check()
    page.get_by_label("Socket path").fill("/var/run/docker.sock")
    page.get_by_role("group", name="Reachability").get_by_label("Host port").check()
    page.get_by_label("Bind host").fill("127.0.0.1")
    _create(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("docker-local")


def _define_the_template(visitor: Visitor) -> None:
    page = _open(visitor, "Templates", "New template")
    page.get_by_label("ID", exact=False).first.fill("code-sandbox")
    page.get_by_label("Description").fill("Isolated sandbox for untrusted code.")
    page.get_by_label("Provider", exact=False).first.select_option("docker-local")
    page.wait_for_load_state()
    page.get_by_label("Kind", exact=True).select_option("container")
    page.get_by_label("Image").fill("primer/workspace-runtime:1.0")
    page.get_by_label("CPU", exact=True).fill("1")
    page.get_by_label("Memory", exact=True).fill("512")
    expect(page.get_by_role("heading", name="Network")).to_be_visible()
    page.get_by_role("group", name="Egress").get_by_label("deny_all").check()
    _create(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("code-sandbox")


def _create_the_agent(visitor: Visitor) -> None:
    page = _open(visitor, "Agents", "New agent")
    page.get_by_label("ID", exact=False).first.fill("code-runner")
    page.get_by_label("LLM provider", exact=False).first.select_option("scripted")
    page.get_by_label("Model", exact=True).fill("scripted")
    expect(page.get_by_label("Tools", exact=True)).to_have_value("")
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("System prompt, row 1").fill(PROMPT)
    _create(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("code-runner")


def _materialise(visitor: Visitor, manner: Manner) -> str:
    page = _open(visitor, "Workspaces", "New workspace")
    page.get_by_label("Template", exact=False).first.select_option("code-sandbox")
    page.wait_for_load_state()
    _create(page)
    workspace = page.get_by_role("heading", level=1).inner_text().strip()
    _until(visitor, manner, page.locator(".head .chip", has_text="running"))
    return workspace


def _until(visitor: Visitor, manner: Manner, wanted: Any) -> None:
    """The page moves by itself; without scripts it asks its browser to load it again, which Chromium does for us here."""
    if manner.scripts:
        expect(wanted.first).to_be_visible(timeout=SLOW)
        return

    def there() -> bool:
        visitor.page.reload()
        return bool(wanted.first.is_visible())

    eventually(there, within=60)


def _run_the_code(visitor: Visitor, workspace: str, manner: Manner) -> None:
    page = visitor.page
    page.locator("#main").get_by_role("link", name="New session").click()
    page.get_by_label("Agent", exact=False).first.select_option("code-runner")
    page.get_by_label("Workspace", exact=False).first.select_option(workspace)
    page.wait_for_load_state()
    page.get_by_label("Initial instructions").fill(f"Run this code:\n```python\n{SNIPPET}```")
    _create(page)
    _until(visitor, manner, page.locator("#session-head .chip", has_text="completed"))
    transcript = page.get_by_role("log", name="Transcript")
    expect(transcript.get_by_text("$ python snippet.py").first).to_be_visible()
    expect(transcript.locator(".out", has_text="RESULT 42").first).to_be_visible()
    expect(transcript.locator(".chip", has_text="exit 0").first).to_be_visible()
    seqs = [
        int(text or 0)
        for text in transcript.locator("[data-seq]").evaluate_all("all => all.map(one => one.dataset.seq)")
    ]
    assert seqs == sorted(set(seqs)), "an event stands twice, or out of order"


def _read(visitor: Visitor, workspace: str, name: str) -> str:
    page = visitor.page
    visitor.go(f"/workspaces/{workspace}/")
    page.get_by_role("navigation", name=f"Tabs of {workspace}").get_by_role("link", name="Files").click()
    page.get_by_role("region", name="Directory").get_by_role("link", name=name, exact=True).click()
    return page.get_by_role("region", name=f"Content of {name}").inner_text().strip()


def _tear_down(visitor: Visitor, api: Api, workspace: str) -> None:
    page = visitor.page
    visitor.go(f"/workspaces/{workspace}/")
    page.locator("#main").get_by_role("link", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text(re.compile("is being deleted")).first).to_be_visible()
    eventually(lambda: api.call("GET", f"workspaces/{workspace}").status_code == 404, within=60)
    assert visitor.go(f"/workspaces/{workspace}/") == 404
    assert "Not found" in page.inner_text("h1")
