"""Lists: what each can be filtered and sorted by, with counts that are true, all of it in the URL; the actions of a row."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import AuditEntry, Role
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_session
from workspaces.models import Workspace, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
LISTS = {
    "/workspaces/": {"phase", "template_id", "provider_id", "confinement", "owner", "created"},
    "/workspaces/templates/": {"provider_id", "kind", "egress"},
    "/workspaces/providers/": {"provider", "health"},
    "/sessions/": {"status", "ended_reason", "agent_id", "workspace_id", "owner", "time"},
    "/compute/agents/": {"provider_id", "model_name"},
    "/compute/llm-providers/": {"provider", "health"},
    "/admin/audit/": {"actor", "action", "object_kind", "actor_kind", "within"},
}


FAILED = {"verdict": "failed", "checked_at": "2026-01-31T12:00:00Z", "checks": []}


def ids(client: Client, path: str) -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content
    return re.findall(r'<tr id="row-([^"]+)"', answer.content.decode())


def offered(client: Client, path: str, name: str) -> dict[str, str]:
    """Value and label of what a filter offers."""
    page = client.get(path).content.decode()
    part = re.search(rf'<select name="{name}">(.*?)</select>', page, re.S)
    return dict(re.findall(r'<option value="([^"]+)"[^>]*>([^<]+)', part[1])) if part else {}


def with_egress(name: str) -> WorkspaceTemplate:
    made = make_template(name)
    backend = {
        "kind": "container", "image": "x:1", "cpu_cores": 1, "memory_bytes": 2**29, "pids_limit": 256, "disk_bytes": 2**30,
        "disk_medium": "volume", "network": {"egress": "allow_all"},
    }  # fmt: skip
    WorkspaceTemplate.objects.filter(pk=made.pk).update(backend=backend)
    return made


@pytest.mark.parametrize("path", LISTS)
def test_each_list_has_its_filters(path: str, world: dict[str, str]) -> None:
    AgentSession.objects.update(status="ended", ended_reason="completed", ended_at=timezone.now())
    with_egress("open")
    client = browser(make_admin())
    assert {name for name in LISTS[path] if offered(client, path, name)} == LISTS[path]
    assert client.get(path).content.decode().count('type="search"') == 1


def test_workspaces_are_filtered_by_what_their_chip_says(world: dict[str, str], settings: Any) -> None:
    settings.PRIMER_ALLOW_LOCAL = True
    alice = make_user("alice")
    host = make_template("bare", make_provider("host", "local", {"root_path": "/srv/primer"}))
    bare = make_workspace(alice, host)
    bad = make_workspace(alice)
    Workspace.objects.filter(pk__in=[bad.pk, bare.pk]).update(confinement=FAILED)
    client = browser(alice)
    assert ids(client, "/workspaces/?confinement=failed") == [bad.slug]
    assert ids(client, "/workspaces/?confinement=not_isolated") == [bare.slug]
    assert ids(client, "/workspaces/?confinement=unknown") == [world["workspace"]]
    assert ids(client, "/workspaces/?confinement=unknown'--") == []
    counts = offered(client, "/workspaces/", "confinement")
    assert counts == {"failed": "Failed (1)", "not_isolated": "Not isolated (1)", "unknown": "Unknown (1)"}


def test_what_began_before_a_stretch_of_time_is_not_in_it(world: dict[str, str]) -> None:
    alice = make_user("alice")
    old = make_workspace(alice)
    Workspace.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=3))
    AgentSession.objects.update(created_at=timezone.now() - timedelta(hours=5))
    client = browser(alice)
    assert ids(client, "/workspaces/?created=24h") == [world["workspace"]]
    assert set(ids(client, "/workspaces/?created=7d")) == {world["workspace"], old.slug}
    assert ids(client, "/sessions/?time=1h") == []
    assert ids(client, "/sessions/?time=24h") == [world["session"]]
    assert offered(client, "/workspaces/", "created")["1h"] == "last hour (1)"
    assert offered(client, "/sessions/", "time") == {
        "1h": "last hour (0)", "24h": "last 24 hours (1)", "7d": "last 7 days (1)", "30d": "last 30 days (1)",
    }  # fmt: skip
    for odd in ("1y", "%00", "' OR 1=1"):
        assert client.get(f"/workspaces/?created={odd}").status_code == 422, odd


def test_templates_are_filtered_by_kind_and_egress(world: dict[str, str]) -> None:
    open_one = make_template("open")
    WorkspaceTemplate.objects.filter(pk=open_one.pk).update(
        backend={**open_one.backend, "network": {"egress": "allow_all"}}
    )
    client = browser(make_user("alice"))
    kind = open_one.provider.provider
    assert ids(client, "/workspaces/templates/?egress=allow_all") == ["open"]
    assert set(ids(client, f"/workspaces/templates/?kind={kind}")) == {"open", "plain"}
    assert ids(client, "/workspaces/templates/?kind=kubernetes") == []
    assert offered(client, "/workspaces/templates/", "egress")["allow_all"] == "allow_all (1)"


def test_the_audit_log_is_filtered_by_time_and_by_who_acted(world: dict[str, str]) -> None:
    AuditEntry.objects.all().delete()
    old = AuditEntry.objects.create(actor_name="long-ago", action="x.y", kind="x", object_id="1", actor_kind="server")
    AuditEntry.objects.filter(pk=old.pk).update(at=timezone.now() - timedelta(days=2))
    AuditEntry.objects.create(actor_name="just-now", action="x.y", kind="x", object_id="2")
    client = browser(make_admin())

    def rows(query: str) -> list[str]:
        page = client.get(f"/admin/audit/?{query}").content.decode()
        return re.findall(r'data-label="Actor"><bdi>([^<]+)', page)

    assert rows("within=24h") == ["just-now"]
    assert rows("actor_kind=server") == ["long-ago"]
    assert "long-ago" not in client.get("/admin/audit/?within=24h&format=csv").content.decode()
    assert "50</a>" in client.get("/admin/audit/").content.decode(), "no choice of how many a page"


def test_a_member_is_not_offered_whose_the_rows_are(world: dict[str, str]) -> None:
    make_workspace(make_user("charlie"))
    client = browser(make_user("alice"))
    assert offered(client, "/workspaces/", "owner") == {}
    assert ids(client, "/workspaces/?owner=charlie") == [world["workspace"]]
    counts = offered(client, "/workspaces/", "phase")
    assert counts == {"pending": "Pending (1)"}, "a count tells of somebody else's workspace"


@pytest.mark.parametrize("path", [path for path in LISTS if path != "/admin/audit/"])
def test_every_header_that_sorts_does_both_ways(path: str, world: dict[str, str]) -> None:
    make_workspace(make_user("charlie"), name="zebra")
    make_agent(make_user("charlie"), "another"), make_template("another"), make_provider("another")
    make_session(make_user("charlie"), make_agent(make_user("charlie"), "third"), Workspace.objects.get(name="zebra"))
    client = browser(make_admin())
    names = set(re.findall(r'<th scope="col"[^>]*><a href="\?[^"]*sort=-?([a-z_]+)', client.get(path).content.decode()))
    assert len(names) >= 2, names
    for name in names:
        up, down = client.get(f"{path}?sort={name}"), client.get(f"{path}?sort=-{name}")
        assert 'aria-sort="ascending"' in up.content.decode(), name
        assert 'aria-sort="descending"' in down.content.decode(), name
        assert ids(client, f"{path}?sort={name}") == ids(client, f"{path}?sort=-{name}")[::-1], name


def test_a_row_offers_what_its_page_offers_to_those_who_may(world: dict[str, str]) -> None:
    admin, member = browser(make_admin()), browser(make_user("alice"))
    assert 'action="/workspaces/providers/fake/check/"' in admin.get("/workspaces/providers/").content.decode()
    assert "/check/" not in member.get("/workspaces/providers/").content.decode()
    assert 'href="/workspaces/new/?template_id=plain"' in member.get("/workspaces/templates/").content.decode()
    viewer = browser(make_user("victor", Role.VIEWER)).get("/workspaces/templates/").content.decode()
    assert "template_id=plain" not in viewer
    assert "Actions</span>" not in viewer


@pytest.mark.parametrize("path", ["/workspaces/?confinement=unknown&created=7d&sort=owner", "/sessions/?time=7d&sort=agent_id",
                                  "/workspaces/templates/?kind=container&sort=provider_id"])  # fmt: skip
def test_the_filters_cost_the_same_for_many_rows(path: str, world: dict[str, str]) -> None:
    client = browser(make_admin())
    client.get(path)
    with CaptureQueriesContext(connection) as few:
        assert client.get(path).status_code == 200
    for number in range(20):
        workspace = make_workspace(make_user(f"user-{number % 3}"))
        make_session(make_user(f"user-{number % 3}"), make_agent(make_user(), f"agent-{number}"), workspace)
        make_template(f"template-{number}")
    with CaptureQueriesContext(connection) as many:
        assert client.get(path).status_code == 200
    assert len(many) == len(few) <= 25
