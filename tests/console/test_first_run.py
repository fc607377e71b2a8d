"""The first-run checklist: every step leads somewhere that is there, for whoever can take it."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.utils import timezone

from accounts.models import Role, User
from agents.models import Agent
from sessions_app.models import AgentSession, SessionEvent
from sessions_app.pages.sessions import SAMPLES
from tests.console.filling import filled_in
from tests.console.site import browser, no_manifest
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_llm_provider, make_session
from workspaces.models import Workspace

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db


def steps(user: User) -> dict[str, tuple[str, str]]:
    """The open steps: label -> (URL, command line)."""
    page = unescape(browser(user).get("/").content.decode())
    part = re.search(r'<section class="first-run">(.*?)</section>', page, re.S)
    found = {}
    for item in re.findall(r"<li>(.*?)</li>", part[1], re.S) if part else []:
        label = re.search(r'class="label">(.*?)</span>', item)
        url, cli = re.search(r'href="([^"]+)"', item), re.search(r'class="cli-line">(.*?)</code>', item)
        found[label[1] if label else ""] = (url[1] if url else "", cli[1] if cli else "")
    return found


def ran(user: User, **session: object) -> AgentSession:
    """A completed run without a verdict, so that the last step stays open."""
    row = make_session(user, Agent.objects.get(), make_workspace(user))
    ended = {"status": "ended", "ended_reason": "completed", "ended_at": timezone.now()}
    AgentSession.objects.filter(pk=row.pk).update(**ended, **session)
    Workspace.objects.update(phase="running", ref={"id": "x"})
    return row


@pytest.fixture
def bob() -> User:
    bob = make_admin()
    make_provider(), make_template(), make_llm_provider()
    make_agent(bob, "default-runner")
    return bob


def test_the_sample_is_run_by_an_agent_that_exists_in_a_sandbox_that_can_be_made(bob: User) -> None:
    url, cli = steps(bob)["Run the sample"]
    assert cli == 'primectl session run --template plain --agent default-runner -i "Run this code: print(6 * 7)"'
    form = browser(bob).get(url).content.decode()
    assert '<option value="default-runner" selected>' in form
    assert '<option value="template:plain" selected>' in form
    workspace = make_workspace(bob)
    Workspace.objects.update(phase="running", ref={"id": "x"})
    url, cli = steps(bob)["Run the sample"]
    assert f"session run {workspace.slug} --agent default-runner" in cli
    assert f'<option value="{workspace.slug}" selected>' in browser(bob).get(url).content.decode()


def test_the_last_step_leads_nowhere_before_a_run_and_to_its_file_after(bob: User) -> None:
    assert steps(bob)["Read out.txt and the confinement report"] == ("", "")
    run = ran(bob)
    assert steps(bob)["Read the confinement report"][0] == f"/workspaces/{run.workspace.slug}/confinement/"
    files = [{"path": "out.txt", "change": "created"}]
    SessionEvent.objects.create(session=run, seq=90, kind="tool_result", data={"files": files})
    url, cli = steps(bob)["Read out.txt and the confinement report"]
    assert url == f"/files/{run.workspace.slug}/out.txt"
    assert cli == f"primectl workspace files get {run.workspace.slug} out.txt --content"


def test_the_last_step_after_a_throw_away_run_leads_to_its_transcript(bob: User) -> None:
    run = ran(bob, throwaway=True)
    Workspace.objects.update(phase="deleting", desired="gone", deleted_at=timezone.now())
    url, cli = steps(bob)["Read what the run printed, and its verdict"]
    assert (url, cli) == (f"/sessions/{run.slug}/", f"primectl describe session {run.slug}")
    assert browser(bob).get(url).status_code == 200


def test_a_throw_away_run_with_a_verdict_ends_the_list(bob: User) -> None:
    ran(bob, throwaway=True, tool_calls=2, confinement="proven")
    assert "Read what the run printed, and its verdict" not in steps(bob)


def test_a_member_is_offered_only_what_a_member_can_do(bob: User) -> None:
    found = steps(make_user("alice"))
    assert list(found) == ["Run the sample", "Read out.txt and the confinement report"]
    for url, _ in found.values():
        assert not url or browser(make_user("alice")).get(url).status_code == 200
    assert steps(make_user("victor", Role.VIEWER)) == {}
    Agent.objects.update(deleted_at=timezone.now())
    url, _ = steps(make_user("alice"))["A model and an agent"]
    assert browser(make_user("alice")).get(url).status_code == 200
    assert len(steps(bob)) > len(found)


def test_a_sample_that_is_chosen_last_keeps_what_was_chosen_before(bob: User) -> None:
    make_agent(bob, "another-runner")
    client = browser(bob)
    page = client.get("/sessions/new/").content.decode()
    offered = re.findall(r'name="_redraw" value="(sample \d)" formnovalidate>([^<]+)<', page)
    assert [label for _, label in offered] == [label for label, _ in SAMPLES]
    chosen = {"agent_id": "another-runner", "workspace_id": "template:plain", "limits.max_turns": "7"}
    for value, label in offered:
        form = client.post("/sessions/new/", {**filled_in(page, chosen), "_redraw": value})
        again = filled_in(form.content.decode(), {})
        assert {name: again[name] for name in chosen} == {name: [value] for name, value in chosen.items()}
        assert again["initial_instructions"] == [dict(SAMPLES)[label]]
    assert not AgentSession.objects.exists()
    for nonsense in ("sample 99", "sample -1", "sample x", "sample \u00b2", "sample " + "9" * 5000):
        answer = client.post("/sessions/new/", {**filled_in(page, chosen), "_redraw": nonsense})
        assert answer.status_code == 200
