"""The live page in a real browser: text and output as they come, a dropped socket, a restarted server, two people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Visit
from tests.e2e.recipe import SCRIPTED, Api, sample
from tests.eventually import eventually
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.browser]
TICKS = "Run this code:\n```python\nimport time\nfor i in range({count}):\n    print('tick', i, flush=True)\n    time.sleep({pause})\n```"


def call(api: Api, method: str, path: str, body: Any = None) -> Any:
    return api.ok(method, path, body)


def running_workspace(api: Api, token: str = "") -> str:
    """A running sandbox of the recipe's template, made with the given token or the admin's."""
    for name in ("docker-provider.yaml", "code-sandbox.yaml", "code-runner.yaml"):
        document = sample(name)
        plural = {
            "workspace_provider": "workspace_providers",
            "workspace_template": "workspace_templates",
            "agent": "agents",
        }[document["kind"]]
        if api.call("GET", f"{plural}/{document['spec']['id']}").status_code == 404:
            call(api, "POST", plural, document["spec"])
    person = Api(api.url, token) if token else api
    workspace = str(call(person, "POST", "workspaces", {"template_id": "code-sandbox"})["id"])
    eventually(lambda: call(person, "GET", f"workspaces/{workspace}")["phase"] == "running", within=60)
    return workspace


@pytest.fixture(scope="module")
def workspace(runtime_image: str, api: Api) -> Iterator[str]:
    made = running_workspace(api)
    yield made
    api.call("DELETE", f"workspaces/{made}")
    eventually(lambda: api.call("GET", f"workspaces/{made}").status_code == 404, within=60)


def start(api: Api, workspace: str, text: str) -> str:
    body = {"agent_id": "code-runner", "workspace_id": workspace, "initial_instructions": text}
    return str(call(api, "POST", "sessions", body)["id"])


def seqs(page: Page) -> list[int]:
    """Every event on the page; those inside a card stand in the order of the card."""
    return sorted(
        int(n)
        for n in page.locator("#transcript [data-seq]").evaluate_all("all => all.map(one => Number(one.dataset.seq))")
    )


def ticks(page: Page) -> list[str]:
    """The lines that the program printed, as the page shows them."""
    text = "".join(page.locator("#transcript .ev-tool_call .out").all_inner_texts())
    return [line for line in text.split("\n") if line.startswith("tick")]


def ended(page: Page, within_ms: int = 60_000) -> None:
    expect(page.locator("#session-head .chip").first).to_have_text("completed", timeout=within_ms)


def test_output_is_on_the_page_before_its_program_ends(visit: Visit, api: Api, workspace: str) -> None:
    session = start(api, workspace, TICKS.format(count=200, pause=0.1))
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{session}/")
        expect(page.locator("#transcript .out", has_text="tick 3")).to_be_visible()
        assert call(api, "GET", f"sessions/{session}")["status"] == "running"
        expect(page.locator("#stream-state")).to_have_text("Live")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#session-head .chip").first).to_have_text("cancelled")
        assert call(api, "GET", f"sessions/{session}")["ended_reason"] == "cancelled"
        page.get_by_label("Follow up").fill("Run this code: print('again')")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#transcript .out", has_text="again")).to_be_visible()
        ended(page)
        visitor.shot("session-follow-up")


def test_who_reads_further_up_is_not_moved_and_sees_how_much_is_new(visit: Visit, api: Api, workspace: str) -> None:
    session = start(api, workspace, TICKS.format(count=60, pause=0.1))
    with visit("admin") as visitor:
        page = visitor.page
        page.set_viewport_size({"width": 1280, "height": 320})
        visitor.go(f"/sessions/{session}/")
        expect(page.locator("#transcript .out", has_text="tick 2")).to_be_visible()
        expect(page.locator("#session-head [data-since]")).to_have_text(re.compile(r"\d+ s"))
        page.evaluate("window.scrollTo(0, 0)")
        pill = page.locator("#new-pill")
        expect(pill).to_have_text(re.compile(r"\d+ new"))
        assert page.evaluate("window.scrollY") == 0
        output = page.locator("#transcript .out").first
        expect(output).to_contain_text("tick 25", timeout=20_000)
        output.evaluate("one => { one.scrollTop = 10; }")
        expect(output).to_contain_text("tick 35", timeout=20_000)
        assert output.evaluate("one => one.scrollTop") == 10, "who reads further up in the output stays there, too"
        page.locator("#main").focus()
        page.keyboard.press("f")
        expect(pill).to_be_hidden()
        ended(page)
        end = "window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80"
        eventually(lambda: page.evaluate(end), within=10, message="the page follows again")


def test_a_dropped_socket_resumes_without_gap_or_repeat(visit: Visit, api: Api, workspace: str) -> None:
    session = start(api, workspace, TICKS.format(count=80, pause=0.1))
    sockets: list[Any] = []
    with visit("admin") as visitor:

        def relay(socket: Any) -> None:
            sockets.append(socket)
            socket.connect_to_server()

        visitor.context.route_web_socket("**/ws/**", relay)
        page = visitor.page
        visitor.go(f"/sessions/{session}/")
        expect(page.locator("#transcript .out", has_text="tick 5")).to_be_visible()
        sockets[-1].close(code=4408, reason="too slow")
        # Asking the page lets the relay's events through.
        eventually(lambda: page.evaluate("1") and len(sockets) >= 2, within=30, message="the page opens another socket")
        expect(page.locator("#transcript .out", has_text="tick 79")).to_be_visible(timeout=30_000)
        ended(page)
        assert ticks(page) == [f"tick {number}" for number in range(80)]
        assert len(seqs(page)) == len(set(seqs(page)))


def test_a_restarted_server_is_found_again_and_says_what_it_interrupted(
    own_server: LiveServer, chromium: Any, runtime_image: str
) -> None:
    own_server.start()
    api = Api(own_server.url, own_server.token)
    call(api, "POST", "llm_providers", SCRIPTED)
    workspace = running_workspace(api)
    session = start(api, workspace, TICKS.format(count=600, pause=0.1))
    context = chromium.new_context()
    try:
        from tests.console.conftest import Visitor

        visitor = Visitor(context, own_server.url)
        visitor.sign_in("admin", own_server.password)
        page = visitor.page
        visitor.go(f"/sessions/{session}/")
        expect(page.locator("#transcript .out", has_text="tick 3")).to_be_visible()
        own_server.stop()
        expect(page.locator("#stale")).to_be_in_viewport(timeout=20_000)
        own_server.restart()
        expect(page.locator("#session-head .chip").first).to_have_text("interrupted", timeout=60_000)
        expect(page.locator("#stream-state")).to_have_text("Live", timeout=30_000)
        shown = ticks(page)
        assert shown == [f"tick {number}" for number in range(len(shown))], "a line was lost or stands twice"
        visitor.shot("session-interrupted")
    finally:
        context.close()
        api.close()


def test_a_page_whose_server_is_away_says_so_and_sends_nothing(visit: Visit, workspace: str) -> None:
    with visit("admin") as visitor:
        page, away = visitor.page, visitor.page.locator("#stale")
        visitor.go(f"/workspaces/{workspace}/exec/")
        page.get_by_label("Command").fill("echo begun; sleep 600")
        page.get_by_role("button", name="Run", exact=True).click()
        run = page.locator("article.run").last
        expect(run.locator(".out")).to_have_text("begun\n")
        expect(away).to_be_hidden()
        visitor.context.route("**/*", lambda route: route.abort())
        expect(away).to_be_visible()
        run.locator("button", has_text="Stop").click()
        expect(page.locator("#toasts")).to_contain_text("nothing was sent")
        assert "begun" in page.content(), "the page stays"
        visitor.context.unroute_all()
        expect(away).to_be_hidden()
        page.locator("article.run").last.locator("button", has_text="Stop").click()
        expect(page.locator("article.run").last.locator(".chip")).to_have_text("cancelled by admin", timeout=30_000)
        visitor.noise = [one for one in visitor.noise if "htmx:" not in one]  # it says on the console what failed, too


def test_a_page_without_sockets_polls(visit: Visit, api: Api, workspace: str) -> None:
    session = start(api, workspace, TICKS.format(count=60, pause=0.1))
    with visit("admin") as visitor:
        visitor.context.route_web_socket("**/*", lambda socket: socket.close(code=4000))
        page = visitor.page
        visitor.go(f"/sessions/{session}/")
        expect(page.locator("#stream-state")).to_have_text("Live by polling", timeout=30_000)
        ended(page)
        assert ticks(page) == [f"tick {number}" for number in range(60)]


def test_a_session_is_run_again_and_downloaded_in_each_form(visit: Visit, api: Api, workspace: str) -> None:
    session = start(api, workspace, "Run this code: print(6 * 7)")
    eventually(lambda: call(api, "GET", f"sessions/{session}")["status"] == "ended", within=60)
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{session}/")
        for label, begins in (("Markdown", "#"), ("JSON lines", "{"), ("HTML", "<!doctype html>")):
            page.locator("#session-head summary", has_text="Download").click()
            with page.expect_download() as started:
                page.locator("#session-head").get_by_role("link", name=label).click()
            text = Path(started.value.path()).read_text()
            assert text.lower().startswith(begins), label
            assert "42" in text, label
            page.keyboard.press("Escape")
        page.locator("#session-head").get_by_role("button", name="Re-run").click()
        page.wait_for_url(lambda url: "/sessions/sess-" in url and session not in url)
        ended(page)
        expect(page.locator("#transcript .out", has_text="42").first).to_be_visible()


def test_history_is_read_without_the_workspace(visit: Visit, api: Api, workspace: str) -> None:
    other = running_workspace(api)
    session = start(api, other, "Run this code: print(6 * 7)")
    eventually(lambda: call(api, "GET", f"sessions/{session}")["status"] == "ended", within=60)
    call(api, "DELETE", f"workspaces/{other}")
    eventually(lambda: api.call("GET", f"workspaces/{other}").status_code == 404, within=60)
    with visit("admin") as visitor:
        visitor.go(f"/sessions/{session}/")
        page = visitor.page
        expect(page.locator("#transcript .out", has_text="42").first).to_be_visible()
        expect(page.locator("#session-head s")).to_have_text(other)
        expect(page.get_by_text("The workspace of this session is deleted")).to_be_visible()
        visitor.shot("session-workspace-deleted")


def test_two_people_see_nothing_of_each_other(
    visit: Visit, server: LiveServer, api: Api, passwords: dict[str, str]
) -> None:
    tokens = {}
    for name in ("alice", "charlie"):
        body = {"username": name, "password": passwords[name]}
        tokens[name] = server.request("POST", "/v1/auth/login", token="", json=body).json()["token"]
    hers = running_workspace(api, tokens["alice"])
    alice = Api(server.url, tokens["alice"])
    session = start(alice, hers, "Run this code: print('a secret of alice')")
    eventually(lambda: call(alice, "GET", f"sessions/{session}")["status"] == "ended", within=60)
    try:
        with visit("charlie") as charlie:
            for path in (f"/workspaces/{hers}/", f"/sessions/{session}/", f"/files/{hers}/", f"/files/{hers}/snippet.py", f"/sessions/{session}/events/?after=0",
                         f"/sessions/{session}/head/", f"/workspaces/{hers}/exec/"):  # fmt: skip
                assert charlie.go(path) == 404, path
            for path in ("/", "/workspaces/", "/sessions/", "/files/"):
                assert charlie.go(path) == 200
                assert hers not in charlie.page.content()
                assert session not in charlie.page.content()
            code = charlie.page.evaluate(
                """path => new Promise(resolve => { const socket = new WebSocket(location.origin.replace(/^http/, 'ws') + path, 'primer.v1.html');
                   socket.onmessage = event => resolve(event.data); socket.onclose = event => resolve(event.code); })""",
                f"/ws/v1/sessions/{session}/events/?after=0",
            )
            assert code == 4404
            charlie.go("/compute/agents/")
            assert "code-runner" in charlie.page.content()
        with visit("alice") as visitor:
            assert visitor.go(f"/sessions/{session}/") == 200
            assert "a secret of alice" in visitor.page.content()
    finally:
        alice.call("DELETE", f"workspaces/{hers}")
        eventually(lambda: alice.call("GET", f"workspaces/{hers}").status_code == 404, within=60)
        alice.close()
