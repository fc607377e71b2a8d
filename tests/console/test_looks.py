"""Every page and state as people see it: axe finds nothing, light and dark; nothing scrolls sideways at 360 px; pictures to look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Visit, Visitor, axe_source
from tests.console.test_live import call, running_workspace, start
from tests.e2e.recipe import Api
from tests.eventually import eventually

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.browser]
PROGRAM = """Run this code:
```python
import sys
print('\\x1b[1;32mgreen\\x1b[0m and \\x1b[38;5;208morange\\x1b[0m')
print('x' * 20000)
print('to stderr', file=sys.stderr)
open('/workspace/out.txt', 'w').write('42')
open('/workspace/table.csv', 'w').write('name,count\\napples,3\\npears,5\\n')
open('/workspace/notes.md', 'w').write('# Notes\\n\\nSome *text* and a [link](https://example.org).\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n')
open('/workspace/blob.bin', 'wb').write(bytes(range(256)))
sys.exit(3)
```"""
# path: name of its picture. {ws}, {stopped}, {session}, {failed}: ids of the world below.
PAGES = {
    "/": "overview",
    "/workspaces/": "workspaces",
    "/workspaces/?q=nothing-has-this-name": "workspaces-no-match",
    "/workspaces/new/": "workspace-new",
    "/workspaces/{ws}/": "workspace",
    "/workspaces/{ws}/confinement/": "workspace-confinement",
    "/workspaces/{ws}/sessions/": "workspace-sessions",
    "/workspaces/{ws}/exec/": "workspace-exec",
    "/workspaces/{ws}/activity/": "workspace-activity",
    "/workspaces/{ws}/yaml/": "workspace-yaml",
    "/workspaces/{ws}/edit/": "workspace-edit",
    "/workspaces/{ws}/delete/": "workspace-delete",
    "/workspaces/{stopped}/": "workspace-stopped",
    "/workspaces/{failed}/": "workspace-failed",
    "/files/{stopped}/": "files-stopped",
    "/workspaces/templates/": "templates",
    "/workspaces/templates/new/": "template-new",
    "/workspaces/templates/new/?as=yaml": "template-new-yaml",
    "/workspaces/templates/code-sandbox/": "template",
    "/workspaces/templates/code-sandbox/history/": "template-history",
    "/workspaces/templates/code-sandbox/edit/": "template-edit",
    "/workspaces/templates/code-sandbox/delete/": "template-delete",
    "/workspaces/providers/": "providers",
    "/workspaces/providers/new/": "provider-new",
    "/workspaces/providers/docker-local/": "provider",
    "/workspaces/providers/docker-local/templates/": "provider-templates",
    "/workspaces/providers/docker-local/edit/": "provider-edit",
    "/sessions/": "sessions",
    "/sessions/new/": "session-new",
    "/sessions/{session}/": "session",
    "/sessions/{session}/files/": "session-files",
    "/sessions/{session}/timeline/": "session-timeline",
    "/sessions/{session}/?find=green": "session-find",
    "/sessions/{session}/raw/": "session-raw",
    "/sessions/{session}/delete/": "session-delete",
    "/compute/agents/": "agents",
    "/compute/agents/new/": "agent-new",
    "/compute/agents/code-runner/": "agent",
    "/compute/agents/code-runner/edit/": "agent-edit",
    "/compute/llm-providers/": "llm-providers",
    "/compute/llm-providers/new/": "llm-provider-new",
    "/compute/llm-providers/scripted/": "llm-provider",
    "/files/": "files",
    "/files/{ws}/": "files-directory",
    "/files/{ws}/snippet.py": "files-text",
    "/files/{ws}/snippet.py?edit=1": "files-edit",
    "/files/{ws}/table.csv?view=table": "files-table",
    "/files/{ws}/notes.md?view=rendered": "files-markdown",
    "/files/{ws}/blob.bin": "files-binary",
    "/files/{ws}/nothing-here": "files-gone",
    "/admin/users/": "admin-users",
    "/admin/tokens/": "admin-tokens",
    "/admin/audit/": "admin-audit",
    "/admin/system/": "admin-system",
    "/account/": "account",
    "/account/keys/": "keyboard",
    "/account/password/": "password",
    "/search/?q=code&here=/workspaces/{ws}/": "search",
    "/search/?here=/workspaces/{ws}/": "search-here",
    "/nowhere/": "not-found",
}
GONE = {"/nowhere/", "/files/{ws}/nothing-here"}
DRAWN_BY_ACE = ".ace-box"  # the editor's own markup


@pytest.fixture(scope="module")
def world(runtime_image: str, api: Api) -> Iterator[dict[str, str]]:
    """A running, a stopped and a failed workspace, and a session whose program failed."""
    ws, stopped = running_workspace(api), running_workspace(api)
    call(api, "POST", f"workspaces/{stopped}/stop")
    template = call(api, "GET", "workspace_templates/code-sandbox")
    if api.call("GET", "workspace_templates/without-image").status_code == 404:
        backend = {**template["backend"], "image": "primer/there-is-no-such-image:1"}
        call(
            api,
            "POST",
            "workspace_templates",
            {"id": "without-image", "provider_id": "docker-local", "backend": backend},
        )
    failed = str(call(api, "POST", "workspaces", {"template_id": "without-image"})["id"])
    session = start(api, ws, PROGRAM)
    call(api, "POST", f"workspaces/{ws}/exec", {"command": "echo hello; echo oops >&2; exit 2"})
    eventually(lambda: call(api, "GET", f"sessions/{session}")["status"] == "ended", within=60)
    for name, phase in ((stopped, "stopped"), (failed, "failed")):
        eventually(partial(reached, api, name, phase), within=120)
    yield {"ws": ws, "stopped": stopped, "failed": failed, "session": session}
    for name in (ws, stopped, failed):
        api.call("DELETE", f"workspaces/{name}")
        eventually(partial(gone, api, name), within=60)
    api.call("DELETE", "workspace_templates/without-image")


def reached(api: Api, workspace: str, phase: str) -> bool:
    return bool(call(api, "GET", f"workspaces/{workspace}")["phase"] == phase)


def gone(api: Api, workspace: str) -> bool:
    return api.call("GET", f"workspaces/{workspace}").status_code == 404


def violations(page: Page) -> list[str]:
    """What axe finds; details are opened first, since what is folded is not looked at."""
    page.evaluate("document.querySelectorAll('details:not(.menu):not(.drawer)').forEach(one => { one.open = true; })")
    found = page.evaluate(
        """async skip => (await axe.run({exclude: skip}, {resultTypes: ['violations']})).violations.flatMap(
             one => one.nodes.slice(0, 4).map(node => one.id + ': ' + node.target.join(' ') + ' ' + (node.any[0]?.message || one.help)))""",
        [[DRAWN_BY_ACE]] if page.locator(DRAWN_BY_ACE).count() else [],
    )
    return [str(one) for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(visit: Visit, world: dict[str, str], scheme: str) -> None:
    # A policy that forbids inline scripts also keeps axe out; the pages themselves are checked under it everywhere else.
    with visit("admin", color_scheme=scheme, bypass_csp=True) as visitor:
        visitor.context.add_init_script(axe_source())
        found: dict[str, list[str]] = {}
        for path, name in PAGES.items():
            code = visitor.go(path.format(**world))
            assert code == (404 if path in GONE else 200), path
            visitor.page.wait_for_load_state("load")
            visitor.shot(f"{scheme}-{name}")
            if wrong := violations(visitor.page):
                found[path] = wrong
        assert not found, json.dumps(found, indent=1)


def test_axe_finds_nothing_on_the_page_to_sign_in(visit: Visit) -> None:
    for scheme in ("light", "dark"):
        with visit("", color_scheme=scheme, bypass_csp=True) as visitor:
            visitor.context.add_init_script(axe_source())
            visitor.go("/login/")
            visitor.shot(f"{scheme}-sign-in")
            assert not violations(visitor.page)


def sideways(visitor: Visitor) -> Any:
    return visitor.page.evaluate(
        """() => document.documentElement.scrollWidth > document.documentElement.clientWidth
             ? [...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
               .slice(0, 5).map(one => one.tagName + '.' + one.className) : []"""
    )


def test_nothing_scrolls_sideways_on_a_phone(visit: Visit, world: dict[str, str]) -> None:
    with visit("admin") as visitor:
        visitor.page.set_viewport_size({"width": 360, "height": 740})
        wide: dict[str, Any] = {}
        for path, name in PAGES.items():
            visitor.go(path.format(**world))
            if found := sideways(visitor):
                wide[path] = found
            if name in ("overview", "workspace", "session", "template-new", "files-text", "workspaces"):
                visitor.shot(f"phone-{name}")
        assert not wide, json.dumps(wide, indent=1)
        visitor.page.get_by_label("Navigation").click()
        visitor.page.get_by_role("navigation", name="Drawer").get_by_role("link", name="Sessions").click()
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Sessions")


def test_every_page_says_the_same_without_scripts(visit: Visit, world: dict[str, str]) -> None:
    """Nothing is only there with scripts but what streams, edits and drops."""
    with visit("admin", scripts=False) as visitor:
        for path in PAGES:
            code = visitor.go(path.format(**world))
            assert code == (404 if path in GONE else 200), path
            assert visitor.page.locator("h1").count() == 1, path
        visitor.go(f"/files/{world['ws']}/snippet.py?edit=1")
        expect(visitor.page.locator("textarea[name=content]")).to_be_visible()


def test_the_keyboard_alone_reaches_the_content_and_comes_back_from_a_dialog(
    visit: Visit, world: dict[str, str]
) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/workspaces/{world['stopped']}/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        opener = page.locator("#main").get_by_role("link", name="Delete", exact=True)
        opener.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        visitor.shot("dialog-delete")
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()
