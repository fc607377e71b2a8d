"""Audit: every change leaves a line that says who, what, when, from where, before and after; nothing else leaves one."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import AuditEntry
from tests.api.conftest import PASSWORD, World
from tests.api.table import MEASURES, ROUTES, path_of, writes
from tests.factories import Api

WRITES = [name for name in ROUTES if writes(name)]
AUDITED = [name for name in WRITES if ROUTES[name].audited]
INSIDE = [name for name in AUDITED if "/exec" in name or "/files" in name]  # of a workspace that runs
OUTSIDE = [name for name in AUDITED if name not in INSIDE]
FIELDS = {
    "id", "at", "actor", "actor_kind", "token", "action", "object_kind", "object_id", "address", "request_id",
    "before", "after",
}  # fmt: skip


def who(name: str) -> str:
    return "bob" if ROUTES[name].rule.startswith("admin") else "alice"


def send(world: World, name: str, **query: Any) -> Any:
    """Sends a route's request as somebody who may; returns the answer."""
    if name.endswith("/stop") or name.endswith("/cancel"):
        prepare(world, name)
    method, path = name.split(" ", 1)[0], path_of(name, world.ids)
    return world.client(who(name)).call(method, path, ROUTES[name].body, {"X-Request-ID": "request-of-test"}, **query)


def prepare(world: World, name: str) -> None:
    """A session that waits can be cancelled; the world's has ended."""
    if name.endswith("/cancel"):
        path = path_of("POST /v1/sessions/{id}/messages", world.ids)
        assert world.client("alice").post(path, {"text": "more"}).status_code == 200


def settle(world: World, name: str) -> None:
    """A start is only a change where the workspace is at rest."""
    if name.endswith("/start"):
        world.workspace.phase, world.workspace.desired = "stopped", "stopped"
        world.workspace.save()


def test_every_route_that_writes_is_audited_or_only_measures() -> None:
    assert {ROUTES[name].why for name in WRITES if not ROUTES[name].audited} == {MEASURES}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_change_leaves_its_line(name: str, world: World) -> None:
    settle(world, name)
    leaves_its_line(name, world)


@pytest.mark.parametrize("name", INSIDE)
def test_a_change_inside_a_workspace_leaves_its_line(name: str, inhabited: World) -> None:
    leaves_its_line(name, inhabited)


def leaves_its_line(name: str, world: World) -> None:
    before = AuditEntry.objects.count()
    answer = send(world, name)
    assert 200 <= answer.status_code < 300, answer.content
    lines = AuditEntry.objects.filter(request_id="request-of-test", actor_name=who(name))
    assert AuditEntry.objects.count() > before
    assert lines, list(AuditEntry.objects.values_list("action", "request_id"))
    for line in lines:
        assert line.address == "127.0.0.1"
        assert line.token == ("" if name.endswith("/login") else "test")
        assert line.actor_kind == "user"
        assert timezone.now() - line.at < timedelta(minutes=1)
        assert line.action.startswith(f"{line.kind}.")
        assert line.object_id


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_dry_run_changes_nothing_and_leaves_no_line(name: str, world: World) -> None:
    settle(world, name)
    prepare(world, name)
    before, changed = AuditEntry.objects.count(), states(world)
    method, path = name.split(" ", 1)[0], path_of(name, world.ids)
    answer = world.client(who(name)).call(method, path, ROUTES[name].body, dry_run="true")
    assert 200 <= answer.status_code < 300, answer.content
    # The client's own token is one line.
    assert AuditEntry.objects.count() == before + 1
    assert states(world) == changed


def states(world: World) -> list[Any]:
    """What lists of an admin show of everything, tokens apart: each client has its own."""
    from accounts.models import User
    from agents.models import Agent, LLMProvider
    from sessions_app.models import AgentSession
    from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

    found = [
        sorted(model.objects.values_list("pk", "spec_rev", "state_rev"))
        for model in (Agent, LLMProvider, AgentSession, Workspace, WorkspaceProvider, WorkspaceTemplate)
    ]
    return [*found, sorted(User.objects.values_list("username", "role", "is_active"))]


UNCHANGED = [name for name in OUTSIDE if name.startswith(("PUT ", "PATCH "))]


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_change_that_changes_nothing_leaves_no_line_and_the_same_etag(name: str, world: World) -> None:
    method, path = name.split(" ", 1)[0], path_of(name, world.ids)
    client = world.client(who(name))
    assert client.call(method, path, ROUTES[name].body).status_code == 200
    first = client.get(path)
    before = AuditEntry.objects.count()
    again = client.call(method, path, ROUTES[name].body)
    assert again.status_code == 200
    assert AuditEntry.objects.count() == before
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.json().get("updated_at") == first.json().get("updated_at")


def test_what_was_read_can_be_put_back_and_changes_nothing(world: World) -> None:
    for name in [name for name in UNCHANGED if name.startswith("PUT ")]:
        if name.startswith("PUT /v1/workspaces/"):
            continue  # most of what it shows was fixed at creation
        client, path = world.client(who(name)), path_of(name, world.ids)
        shown = client.get(path)
        before = AuditEntry.objects.count()
        put = client.put(path, shown.json(), {"If-Match": shown.headers["ETag"]})
        assert put.status_code == 200, (name, put.content)
        line = AuditEntry.objects.latest("at")
        assert put.headers["ETag"] == shown.headers["ETag"], (name, line.before, line.after)
        assert AuditEntry.objects.count() == before


@pytest.mark.parametrize("name", AUDITED)
def test_a_refused_change_leaves_no_line(name: str, world: World) -> None:
    client = world.client("nobody")
    before = AuditEntry.objects.count()
    if name.endswith("/login"):
        assert client.post("auth/login", {"username": "alice", "password": "wrong"}).status_code == 401
    else:
        assert client.call(name.split(" ", 1)[0], path_of(name, world.ids), ROUTES[name].body).status_code == 401
    assert AuditEntry.objects.count() == before


def test_no_secret_stands_in_any_line(world: World, bob: Api, alice: Api) -> None:
    secret = "sentinel-of-the-audit-1234567890"
    env = {"KEY": {"secret": secret}}
    body = {"id": "secretive", "provider_id": "here", "backend": {"kind": "local"}, "env": env}
    assert bob.post("workspace_templates", body).status_code == 201
    assert bob.patch("workspace_templates/secretive", {"description": "x"}).status_code == 200
    assert (
        alice.post("workspaces", {"template_id": "secretive", "env": {"OTHER": {"secret": secret}}}).status_code == 201
    )
    assert bob.post("users", {"username": "eve", "password": secret}).status_code == 201
    assert alice.post("auth/password", {"old": PASSWORD, "new": secret}).status_code == 204
    assert bob.delete("workspace_templates/secretive").status_code == 409
    text = json.dumps(list(AuditEntry.objects.values("before", "after", "object_id", "action")))
    assert "secretive" in text
    assert secret not in text


def test_the_log_says_who_what_from_where_before_and_after(world: World, bob: Api) -> None:
    bob.patch("agents/free", {"description": "better"}, {"X-Request-ID": "request-1234"})
    (line,) = bob.get("audit", action="agent.update").json()["items"]
    assert set(line) == FIELDS
    assert (line["actor"], line["actor_kind"], line["token"], line["address"]) == ("bob", "user", "test", "127.0.0.1")
    assert (line["object_kind"], line["object_id"], line["request_id"]) == ("agent", "free", "request-1234")
    assert (line["before"]["description"], line["after"]["description"]) == ("", "better")


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ({"actor": "alice", "object_kind": "agent"}, {"agent.create"}),
        ({"object_kind": "session", "action": "session.create"}, {"session.create"}),
        ({"object_id": "here"}, {"workspace_provider.create"}),
        ({"q": "LLM_prov"}, {"llm_provider.create"}),
        ({"actor": "nobody-like-that"}, set()),
        ({"actor_kind": "server"}, {"user.create", "token.create"}),
    ],
)
def test_the_log_can_be_narrowed(query: dict[str, Any], actions: set[str], world: World, bob: Api) -> None:
    items = bob.get("audit", **query).json()["items"]
    assert {item["action"] for item in items} == actions


def test_the_log_can_be_narrowed_to_a_time(world: World, bob: Api) -> None:
    bob.patch("agents/free", {"description": "better"})
    last = AuditEntry.objects.latest("at")
    total = bob.get("audit").json()["total"]
    since = bob.get("audit", since=last.at.isoformat().replace("+00:00", "Z")).json()
    until = bob.get("audit", until=last.at.isoformat()).json()
    assert [item["action"] for item in since["items"]] == ["agent.update"]
    assert since["total"] + until["total"] == total


def test_the_log_is_read_page_by_page_without_gap_or_repeat(world: World, bob: Api) -> None:
    seen: list[int] = []
    cursor = ""
    while True:
        query: dict[str, Any] = {"cursor": cursor} if cursor else {}
        page = bob.get("audit", limit=3, **query).json()
        seen += [item["id"] for item in page["items"]]
        if not (cursor := page["next_cursor"]):
            break
    assert len(seen) == len(set(seen)) == page["total"] > 10
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(("name", "value"), [("since", "yesterday"), ("until", "9" * 40), ("actor_kind", "ghost")])
def test_a_filter_that_means_nothing_is_named(name: str, value: str, world: World, bob: Api) -> None:
    query: dict[str, Any] = {name: value}
    answer = bob.get("audit", **query)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [name]


def test_nothing_in_the_log_can_be_changed(world: World, bob: Api) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert bob.call(method, "audit", {}).status_code == 405


def test_a_sign_in_is_noted_with_time_and_address(world: World, bob: Api) -> None:
    answer = world.client("nobody").post("auth/login", {"username": "alice", "password": PASSWORD})
    assert answer.status_code == 200
    user = bob.get("users/alice").json()
    assert user["last_login"]
    assert user["last_login_address"] == "127.0.0.1"
    line = AuditEntry.objects.filter(action="token.create", actor_name="alice").latest("at")
    assert (line.address, (line.after or {})["user"]) == ("127.0.0.1", "alice")


def test_the_last_use_of_a_token_is_noted_with_its_address(world: World, alice: Api) -> None:
    alice.get("me")
    shown = {item["name"]: item for item in alice.get("tokens").json()["items"]}
    assert shown["test"]["last_used"]
    assert shown["test"]["last_used_address"] == "127.0.0.1"
    assert shown["spare"]["last_used"] is None


def line_of(action: str) -> tuple[dict[str, Any], dict[str, Any]]:
    line = AuditEntry.objects.filter(action=action).latest("pk")
    return line.before or {}, line.after or {}


def test_a_workspace_leaves_what_it_was_made_with_and_what_went_with_it(world: World, alice: Api) -> None:
    env = {"PLAIN": "value-of-plain", "KEY": {"secret": "value-of-key"}}
    asked = {"template_id": "plain", "name": "one", "labels": {"a": "b"}, "env": env, "ttl_s": 600}
    slug = alice.post("workspaces", asked).json()["id"]
    assert line_of("workspace.create") == (
        {},
        {
            "template_id": "plain", "provider_id": "here", "name": "one", "labels": {"a": "b"},
            "env": ["KEY", "PLAIN"], "ttl_s": 600,
        },
    )  # fmt: skip
    assert "value-of" not in json.dumps(line_of("workspace.create"))
    assert alice.delete(f"workspaces/{slug}").status_code == 202
    summary = {"template_id": "plain", "owner": "alice", "name": "one", "phase": "pending", "labels": {"a": "b"}}
    assert line_of("workspace.delete") == (summary, {"reason": "asked"})


def test_a_stop_and_a_start_leave_what_was_wanted_before_and_after(world: World, alice: Api) -> None:
    path = f"workspaces/{world.workspace.slug}"
    assert alice.post(f"{path}/stop").status_code == 202
    wanted = {"desired": "running", "phase": "pending"}
    assert line_of("workspace.stop") == (wanted, {"desired": "stopped", "phase": "pending", "reason": "asked"})
    assert alice.post(f"{path}/start").status_code == 202
    assert line_of("workspace.start") == ({"desired": "stopped", "phase": "pending"}, wanted)
    settle(world, "/start")
    assert alice.post(f"{path}/start").status_code == 202
    assert line_of("workspace.start") == ({"desired": "stopped", "phase": "stopped"}, wanted)
    before = AuditEntry.objects.count()
    assert alice.post(f"{path}/start").status_code == 202  # already wanted
    assert AuditEntry.objects.count() == before


def test_a_session_leaves_its_status_before_and_after(world: World, alice: Api) -> None:
    path = f"sessions/{world.session.slug}"
    ended, queued = {"status": "ended", "ended_reason": "completed"}, {"status": "queued", "ended_reason": ""}
    assert alice.post(f"{path}/messages", {"text": "words-of-mine"}).status_code == 200
    assert line_of("session.message") == (ended, queued)
    assert alice.post(f"{path}/cancel").status_code == 200
    cancelled = {"status": "ended", "ended_reason": "cancelled"}
    assert line_of("session.cancel") == (queued, cancelled | {"cancel_requested": True})
    assert alice.post(f"{path}/rerun").status_code == 201
    _, after = line_of("session.create")
    assert after["rerun_of"] == world.session.slug
    assert (after["agent_id"], after["workspace_id"]) == ("code-runner", world.workspace.slug)
    assert {name: after[name] for name in queued} == queued
    assert alice.delete(path).status_code == 204
    before, _ = line_of("session.delete")
    assert {name: before[name] for name in cancelled} == cancelled


def test_a_changed_file_and_a_changed_secret_of_a_template_show_and_their_content_does_not(
    world: World, bob: Api
) -> None:
    path = "workspace_templates/unused"

    def put(content: str, secret: str) -> None:
        files = [{"path": "a.txt", "content": content}, {"path": "b.txt", "content": "same"}]
        body = {"files": files, "env": {"KEY": {"secret": secret}}}
        assert bob.patch(path, body).status_code == 200

    put("first-content", "first-secret-1111")
    put("second-content", "second-secret-2222")
    before, after = line_of("workspace_template.update")
    assert [item["path"] for item in after["files"]] == ["a.txt", "b.txt"]
    assert before["files"][0]["digest"] != after["files"][0]["digest"]
    assert before["files"][1] == after["files"][1]
    assert before["env"] != after["env"]
    text = json.dumps([before, after])
    assert "-content" not in text
    assert "-secret" not in text


def test_a_password_that_was_set_leaves_a_mark(world: World, bob: Api, alice: Api) -> None:
    alice.get("me")
    ended = world.alice.auth_token_set.count()
    assert bob.patch("users/alice", {"reset_password": True}).status_code == 200
    assert line_of("user.reset_password") == ({}, {"password": "reset", "tokens_ended": ended})
    assert ended > 0
