"""The first page, and the states that every page can be in: what needs attention, what is true by facts, who may what."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import AuditEntry, Role, User
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_session
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db


def attention(user: User) -> dict[str, str]:
    """What needs attention: text and where it leads."""
    page = browser(user).get("/").content.decode()
    part = re.search(r'<ul class="attention">(.*?)</ul>', page, re.S)
    return {text: url for url, text in re.findall(r'<a href="([^"]+)"><bdi>(.*?)</bdi>', part[1])} if part else {}


def cards(user: User) -> dict[str, tuple[str, str]]:
    page = browser(user).get("/").content.decode()
    found = re.findall(r'<li><a href="([^"]+)"><b>([^<]+)</b><span>([^<]+)</span>', page)
    return {label: (value, url.replace("&amp;", "&")) for url, value, label in found}


def test_everything_that_went_wrong_is_there_and_leads_to_where_it_can_be_mended(world: dict[str, str]) -> None:
    alice = make_user("alice")
    lost, bad, without = (make_workspace(alice) for _ in range(3))
    Workspace.objects.filter(pk=lost.pk).update(phase="lost", phase_reason="container_gone")
    Workspace.objects.filter(pk=bad.pk).update(
        confinement={"verdict": "failed", "checked_at": "2026-01-31T12:00:00Z", "checks": []}
    )
    Workspace.objects.filter(pk=without.pk).update(
        phase="failed", phase_reason="image_not_found", phase_detail="The image x is not there."
    )
    WorkspaceProvider.objects.update(health="unreachable")
    found = attention(alice)
    assert found[f"{lost.slug} lost: container gone"] == f"/workspaces/{lost.slug}/"
    assert found[f"{bad.slug}: the probes contradict what was asked"] == f"/workspaces/{bad.slug}/confinement/"
    assert found["Template plain: its image was not on the engine"] == "/workspaces/templates/plain/"
    assert found["Provider fake is unreachable"] == "/workspaces/providers/fake/"


def test_nobody_is_told_of_somebody_elses_trouble(world: dict[str, str]) -> None:
    Workspace.objects.update(phase="failed", phase_reason="image_not_found")
    assert attention(make_user("charlie")) == {}
    assert len(attention(make_user("alice"))) == 2
    assert {value for value, _ in cards(make_user("charlie")).values()} <= {"0", "0 / 1", "1 / 1", "0 → 0"}


def test_the_numbers_of_the_cards_are_those_of_the_lists_they_lead_to(world: dict[str, str]) -> None:
    alice = make_user("alice")
    ended = {"status": "ended", "ended_reason": "failed", "ended_at": timezone.now()}
    usage = {**AgentSession.objects.get().usage, "input_tokens": 1200, "output_tokens": 34}
    AgentSession.objects.update(**ended, usage=usage)
    Workspace.objects.update(phase="running", ref={"id": "x"})
    shown = cards(alice)
    assert shown["Workspaces running"] == ("1", "/workspaces/?phase=running")
    assert shown["Failures, 24 h"] == ("1", "/sessions/?ended_reason=failed&time=24h")
    assert shown["Tokens in → out, 24 h"][0] == "1,200 → 34"
    for _, url in shown.values():
        assert browser(alice).get(url).status_code == 200
    assert world["session"] in browser(alice).get(shown["Failures, 24 h"][1]).content.decode()


def test_a_step_of_the_first_run_is_done_by_facts_and_not_by_clicks() -> None:
    bob = make_admin()
    assert browser(bob).get("/").content.decode().count('class="done"') == 0
    make_provider(), make_template()
    WorkspaceProvider.objects.update(health="healthy")
    page = browser(bob).get("/").content.decode()
    assert page.count('class="done"') == 1
    assert 'href="/workspaces/templates/plain/">Check its image' in page
    workspace = make_workspace(bob)
    Workspace.objects.filter(pk=workspace.pk).update(image_digest="sha256:0")
    assert browser(bob).get("/").content.decode().count('class="done"') == 2
    WorkspaceTemplate.objects.update(deleted_at=timezone.now())
    assert browser(bob).get("/").content.decode().count('class="done"') == 1
    client = browser(bob)
    client.post("/dismiss/")
    assert "First run" not in client.get("/").content.decode()


def test_the_first_run_leads_an_admin_into_nobody_elses_sandbox() -> None:
    make_provider(), make_template()
    theirs = make_workspace(make_user("alice"))
    Workspace.objects.filter(pk=theirs.pk).update(
        phase="running", ref={"kind": "fake", "workspace_id": "ws-00000000000000aa", "generation": 1}
    )
    make_agent(theirs.owner)
    client = browser(make_admin())
    assert theirs.slug not in client.get("/").content.decode().split("First run")[1].split("</section>")[0]
    assert AgentSession.objects.count() == 0


def test_a_page_that_asks_by_itself_opens_nothing(world: dict[str, str]) -> None:
    Workspace.objects.update(
        phase="running", ref={"kind": "fake", "workspace_id": "ws-00000000000000aa", "generation": 1}, desired="running"
    )
    client = browser(make_admin())
    page = f"/workspaces/{world['workspace']}/"
    opened = AuditEntry.objects.filter(action="workspace.open")
    assert client.get(f"{page}live/?tab=").status_code == 200
    assert not opened.exists()
    assert client.get(page).status_code == 200
    assert opened.count() == 1
    assert browser(make_user("charlie")).get(f"{page}live/?tab=").status_code == 404


def test_the_first_page_asks_as_often_for_many_as_for_few(world: dict[str, str]) -> None:
    client = browser(make_admin())
    client.get("/")
    with CaptureQueriesContext(connection) as few:
        client.get("/")
    for number in range(15):
        workspace = make_workspace(make_user("alice"))
        make_session(make_user("alice"), make_agent(make_user("alice"), f"agent-{number}"), workspace)
    Workspace.objects.update(phase="failed", phase_reason="image_not_found")
    with CaptureQueriesContext(connection) as many:
        client.get("/")
    assert len(many) <= len(few) + 1


@pytest.mark.parametrize(("path", "kind", "slug"), [
    ("/workspaces/providers/fake/", "workspace_provider", "fake"), ("/workspaces/templates/plain/", "workspace_template", "plain"),
    ("/compute/agents/{agent}/", "agent", "{agent}"), ("/compute/llm-providers/scripted/", "llm_provider", "scripted"),
    ("/workspaces/{workspace}/", "workspace", "{workspace}"),
])  # fmt: skip
def test_the_activity_of_an_object_is_its_own_and_tells_no_values(
    world: dict[str, str], path: str, kind: str, slug: str
) -> None:
    slug, path = slug.format(**world), path.format(**world)
    AuditEntry.objects.all().delete()
    make: dict[str, Any] = {"kind": kind, "object_id": slug, "actor_name": "bob", "address": "192.0.2.7"}
    AuditEntry.objects.create(
        **make, action=f"{kind}.update", before={"id": 1, "labels": {"a": "old-value"}}, after={"id": 1, "labels": {}}
    )
    earlier = AuditEntry.objects.create(**make, action=f"{kind}.delete")
    AuditEntry.objects.filter(pk=earlier.pk).update(
        at="2020-01-01T00:00:00Z"
    )  # of another one, which had the name before
    AuditEntry.objects.create(**{**make, "object_id": "another"}, action=f"{kind}.create")
    client = browser(make_user("alice"))
    assert f'href="{path}activity/"' in client.get(path).content.decode()
    page = client.get(f"{path}activity/").content.decode()
    assert f"{kind}.update" in page
    assert "by bob: labels" in page
    for absent in ("old-value", "192.0.2.7", f"{kind}.delete", f"{kind}.create"):
        assert absent not in page, absent


def test_what_one_may_not_do_names_ones_role_and_who_gives_another() -> None:
    for role in (Role.VIEWER, Role.MEMBER):
        page = browser(make_user("someone", role)).get("/workspaces/templates/new/").content.decode()
        assert "Not allowed" in page
        assert f"Your role here is {role.value}. An admin of this server can give you another one." in page
        User.objects.all().delete()
    client = browser(make_admin())
    client.handler.enforce_csrf_checks = True
    refused = client.post("/account/keys/", {})
    assert refused.status_code == 403
    assert "Your role" not in refused.content.decode(), "a form that is too old has nothing to do with roles"


def test_every_page_carries_the_notice_that_updates_are_paused_hidden(world: dict[str, str]) -> None:
    for path in ("/", f"/workspaces/{world['workspace']}/", "/admin/audit/", "/nowhere/"):
        page = browser(make_admin()).get(path).content.decode()
        assert re.search(r'<div id="stale"[^>]* hidden>.*?Live updates paused', page, re.S), path
