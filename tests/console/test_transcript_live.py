"""A transcript of ten thousand events in a real browser: search, links, calls, kinds; and the deep check, which needs no script."""

from __future__ import annotations

import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Visit
from tests.e2e.recipe import Api, sample
from tests.eventually import eventually
from tests.live import ROOT, LiveServer

pytestmark = [pytest.mark.e2e, pytest.mark.browser]
ROUNDS = 3333  # of a call, its output and its result
FILL = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "primer_site.settings"
django.setup()
from django.db import transaction
from django.utils import timezone
from accounts.models import User
from agents.models import Agent
from agents.serializers import agent_shown
from sessions_app.models import AgentSession, SessionEvent
from workspaces.models import Workspace, WorkspaceTemplate
from workspaces.snapshot import channel, snapshot
user = User.objects.get(username="admin")
template, agent = WorkspaceTemplate.objects.live().get(slug="code-sandbox"), Agent.objects.live().get(slug="code-runner")
with transaction.atomic():
    box = Workspace.objects.create(owner=user, template=template, provider=template.provider, spec=snapshot(template),
        channel=channel(None), phase="stopped", desired="stopped")
    session = AgentSession.objects.create(owner=user, agent=agent, workspace=box, agent_spec=agent_shown(agent),
        initial_instructions="count", status="ended", ended_reason="completed", started_at=timezone.now(), ended_at=timezone.now())
    events = [("user_message", {"text": "count"})]
    for n in range(ROUNDS):
        call = {"call_id": f"c{n}"}
        text = f"line {n}" + (" needle" if n in (10, 1700, 3320) else "")
        events += [("tool_call", {**call, "name": "workspace__exec", "arguments": {"command": f"echo {n}"}}),
                   ("tool_output", {**call, "exec_id": f"e{n}", "stream": "stdout", "offset": 0, "text": text + "\\n"}),
                   ("tool_result", {**call, "ok": True, "text": "", "ended_by": "exit", "exit_code": 0, "duration_ms": 5.0, "files": []})]
    SessionEvent.objects.bulk_create(SessionEvent(session=session, seq=1 + n, kind=kind, data=data) for n, (kind, data) in enumerate(events))
    AgentSession.objects.filter(pk=session.pk).update(last_seq=len(events))
print(session.slug)
"""


@pytest.fixture(scope="module")
def long(server: LiveServer, api: Api) -> str:
    """The id of a session with 10,000 events, made in the server's own database."""
    kinds = {
        "workspace_provider": "workspace_providers",
        "workspace_template": "workspace_templates",
        "agent": "agents",
    }
    for name in ("docker-provider.yaml", "code-sandbox.yaml", "code-runner.yaml"):
        document = sample(name)
        plural = kinds[document["kind"]]
        if api.call("GET", f"{plural}/{document['spec']['id']}").status_code == 404:
            api.ok("POST", plural, document["spec"])
    command = [sys.executable, "-c", FILL.replace("ROUNDS", str(ROUNDS))]
    done = subprocess.run(command, cwd=ROOT, env=server.env(), check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


def marked(page: Page) -> int:
    return int(page.evaluate("CSS.highlights.has('find') ? CSS.highlights.get('find').size : 0"))


def test_search_goes_through_ten_thousand_events_by_the_keys_and_back(visit: Visit, long: str) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{long}/")
        assert page.locator("#transcript [data-seq]").count() == 200
        page.keyboard.press("/")
        expect(page.get_by_label("Search the transcript")).to_be_focused()
        page.keyboard.type("NEEDLE")
        page.keyboard.press("Enter")
        place = page.locator("[data-place]")
        expect(place).to_have_text("1 of 3 events")
        expect(page.locator("#e33")).to_be_in_viewport()
        assert marked(page) == 1
        page.locator("#main").focus()
        page.keyboard.press("n")
        expect(place).to_have_text("2 of 3 events")
        expect(page.locator("#e5103")).to_be_in_viewport()
        page.keyboard.press("Shift+N")
        expect(place).to_have_text("1 of 3 events")
        page.keyboard.press("Shift+N")
        expect(place).to_have_text("3 of 3 events")
        expect(page.locator("#e9963")).to_be_in_viewport()
        visitor.shot("session-search")


def test_older_events_come_when_somebody_scrolls_up_to_them_and_nothing_jumps(visit: Visit, long: str) -> None:
    first = "Math.min(...[...document.querySelectorAll('#transcript [data-seq]')].map(one => Number(one.dataset.seq)))"
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{long}/")
        expect(page.locator("[data-older]")).to_have_count(1)
        before = int(page.evaluate(first))
        assert before > 9000
        page.locator("#transcript").hover()
        page.mouse.wheel(0, -300_000)
        eventually(lambda: int(page.evaluate(first)) < before, within=15, message="older events come")
        now = int(page.evaluate(first))
        assert before - now >= 100
        # What was read stays in view: the new part is above the window.
        assert page.evaluate("window.scrollY") > 1000
        assert page.locator(f"#transcript [data-seq='{before}']").count() == 1


def test_a_link_to_an_old_event_leads_there_and_calls_are_stepped_through(visit: Visit, long: str) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{long}/#e302")
        page.wait_for_url("**/?at=302#e302")
        card = page.locator("#e302")
        expect(card).to_be_in_viewport()
        expect(card).to_contain_text("echo 100")
        page.keyboard.press("]")
        expect(page.locator("#e305 .at").first).to_be_focused()
        page.keyboard.press("[")
        expect(page.locator("#e302 .at").first).to_be_focused()
        older = page.locator("[data-older]")
        for _ in range(2):
            first = page.locator("#transcript [data-seq]").first.get_attribute("data-seq")
            older.click()
            expect(page.locator("#transcript > [data-seq]").first).not_to_have_attribute("data-seq", str(first))
        assert page.locator("#e2").count() == 1
        page.get_by_role("link", name="To the end").click()
        page.wait_for_url(f"**/sessions/{long}/#end")
        expect(page.locator("#e9998")).to_be_attached()


def test_details_wrapping_times_and_kinds_follow_their_switches(visit: Visit, long: str) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/sessions/{long}/")
        closed = page.locator("#transcript details:not([open])")
        page.keyboard.press("e")
        expect(closed).to_have_count(0)
        page.get_by_role("button", name="Collapse all").click()
        assert closed.count() > 50
        out = page.locator("#transcript .out").first
        expect(out).to_have_css("white-space", "pre-wrap")
        page.get_by_label("Wrap").uncheck()
        expect(out).to_have_css("white-space", "pre")
        page.get_by_label("Times").uncheck()
        expect(page.locator("#e9998 > .at")).to_be_hidden()
        page.get_by_label("Kinds of events").select_option("messages")
        page.wait_for_url("**show=messages")
        assert page.locator("#transcript [data-seq]").count() == 1


@pytest.mark.docker
def test_a_deep_check_tells_its_lines_without_scripts(visit: Visit, runtime_image: str) -> None:
    with visit("admin", scripts=False) as visitor:
        page = visitor.page
        visitor.go("/admin/system/")
        page.set_default_timeout(120_000)
        page.get_by_role("button", name="Deep check").click()
        expect(page.get_by_role("heading", name="Deep check", level=1)).to_be_visible()
        expect(page.get_by_text("print(6 * 7) says 42")).to_be_visible()
        expect(page.get_by_text("deleted: no container and no volume is left")).to_be_visible()
        expect(page.get_by_role("status").last).not_to_be_empty()
        visitor.shot("system-deep-check")
        page.get_by_role("link", name="System", exact=True).last.click()
        expect(page.get_by_text("print(6 * 7) says 42")).to_be_visible()
