"""What providers tell of their engines: measured without being asked, moved to no other engine, no address to members."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from tests.eventually import eventually
from tests.factories import Api, make_provider, make_template, make_user
from tests.workspaces.conftest import Process, create, until
from tests.workspaces.doubles import GatedProvider
from workspaces import providers
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

NOBODY = {"connection": {"kind": "tcp", "url": "tcp://127.0.0.1:9"}}  # the port of `discard`: nobody listens there
TCP = {"kind": "tcp", "url": "tcp://engine.example:2376"}


def health(person: Api, provider: str = "fake") -> Any:
    return person.get(f"workspace_providers/{provider}").json()["status"]


def test_a_new_provider_is_measured_without_being_asked(process: Process, provider: Any, alice: Api) -> None:
    eventually(lambda: health(alice)["health"] == "healthy", within=20)
    found = health(alice)
    assert found["enforces"]["disk"] == "soft"
    assert found["checked_at"].endswith("Z")


def test_an_engine_that_goes_and_comes_back_is_seen_without_being_asked(
    process: Process, provider: Any, root_path: str, alice: Api
) -> None:
    eventually(lambda: health(alice)["health"] == "healthy", within=20)
    create_template_and_workspace(provider, alice)
    provider.write_spec({"config": {"kind": "fake", "fault": "refuses", "root_path": root_path}})
    eventually(lambda: health(alice)["health"] == "unreachable", within=20)
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    eventually(lambda: health(alice)["health"] == "healthy", within=20)


def create_template_and_workspace(provider: Any, alice: Api) -> None:
    make_template(provider=provider)
    until(alice, create(alice), "running")


def test_other_settings_make_a_measurement_worthless(bob: Api) -> None:
    row = make_provider("docker", "container", config={"connection": TCP})
    WorkspaceProvider.objects.filter(pk=row.pk).update(health="healthy", engine={"name": "docker"}, reasons=["r"])
    body = bob.get("workspace_providers/docker").json()
    body["config"]["connection"]["url"] = "tcp://other.example:2376"
    answer = bob.put("workspace_providers/docker", body)
    assert answer.status_code == 200, answer.content
    status = answer.json()["status"]
    assert (status["health"], status["engine"], status["reasons"]) == ("unknown", {}, [])


def test_a_provider_with_workspaces_does_not_move_to_another_engine(owner: Any, bob: Api, alice: Api) -> None:
    row = make_provider("docker", "container", config={"connection": TCP})
    make_template("box", provider=row)
    workspace = create(alice, "box")
    body = bob.get("workspace_providers/docker").json()
    moved = {**body, "config": {**body["config"], "connection": {"kind": "tcp", "url": "tcp://other.example:2376"}}}
    refused = bob.put("workspace_providers/docker", moved)
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert workspace in refused.json()["detail"]
    row.refresh_from_db()
    assert row.config["connection"]["url"] == "tcp://engine.example:2376"
    assert bob.put("workspace_providers/docker", {**body, "description": "same engine"}).status_code == 200
    Workspace.objects.filter(slug=workspace).update(phase="deleting", deleted_at="2026-01-01T00:00:00Z")
    assert bob.put("workspace_providers/docker", moved).status_code == 200


def test_members_are_told_that_an_engine_is_down_and_not_where_it_is(process: Process, alice: Api, bob: Api) -> None:
    make_template(provider=make_provider("docker", "container", config=NOBODY))
    workspace = create(alice)
    found = eventually(lambda: (row := alice.get(f"workspaces/{workspace}").json())["unknown_since"] and row, within=20)
    assert found["phase_detail"] == "No container engine answers."
    eventually(lambda: health(alice, "docker")["health"] == "unreachable", within=20)
    assert "127.0.0.1" not in alice.get("workspace_providers/docker").content.decode()
    assert "127.0.0.1:9" in health(bob, "docker")["reasons"][0]
    assert alice.delete(f"workspaces/{workspace}").status_code == 202
    Workspace.objects.filter(slug=workspace).update(deleted_at="2026-01-01T00:00:00Z")  # nobody will ever answer there


@pytest.mark.parametrize(("kind", "isolates"), [("container", True), ("local", False), ("fake", False)])
def test_every_object_says_whether_it_isolates(kind: str, isolates: bool, alice: Api, owner: Any) -> None:
    make_template("t", provider=make_provider("p", kind))
    workspace = create(alice, "t")
    for path in ("workspace_providers/p", "workspace_templates/t", f"workspaces/{workspace}"):
        assert alice.get(path).json()["isolates"] is isolates, path


def test_isolates_may_be_sent_back_and_decides_nothing(alice: Api, bob: Api, owner: Any) -> None:
    make_template("t", provider=make_provider("p", "local", config={"root_path": "/srv/x"}))
    workspace = create(alice, "t")
    body = alice.get(f"workspaces/{workspace}").json()
    answer = alice.put(f"workspaces/{workspace}", {**body, "name": "new"})
    assert (answer.status_code, answer.json()["isolates"]) == (200, False)
    refused = alice.post("workspaces", {"template_id": "t", "isolates": True})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "isolates")


@pytest.mark.parametrize("config", [{}, {"root_path": ""}, {"root_path": "relative"}, {"root_path": None}])
def test_a_local_provider_needs_a_directory(config: Any, bob: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PRIMER_ALLOW_LOCAL", True)
    answer = bob.post("workspace_providers", {"id": "x", "provider": "local", "config": {"kind": "local", **config}})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "config.root_path")


def test_times_are_written_in_one_form(owner: Any, template: Any, alice: Api) -> None:
    found = alice.get(f"workspaces/{create(alice)}").json()
    for at in (found["phases"][0]["at"], found["created_at"], found["last_activity_at"]):
        assert at.endswith("Z"), at


# -- actions


@pytest.mark.parametrize("verb", ["start", "stop", "verify"])
@pytest.mark.parametrize("body", [{"force": True}, ["force"], "force"])
def test_an_action_refuses_a_body_with_anything_in_it(
    verb: str, body: Any, owner: Any, template: Any, alice: Api
) -> None:
    workspace = create(alice)
    answer = alice.post(f"workspaces/{workspace}/{verb}", body)
    assert answer.status_code == 422, answer.content
    assert Workspace.objects.get(slug=workspace).desired == "running"


@pytest.mark.parametrize("path", ["workspace_providers/fake/check", "workspace_templates/plain/check"])
def test_a_check_refuses_fields_that_it_does_not_know(path: str, template: Any, bob: Api) -> None:
    answer = bob.post(path, {"force": True})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "force")


def test_a_dry_run_of_an_action_changes_nothing(running: str, alice: Api, bob: Api) -> None:
    before = Workspace.objects.get(slug=running)
    stopped = alice.post(f"workspaces/{running}/stop", dry_run="true")
    assert stopped.status_code == 202
    verified = alice.post(f"workspaces/{running}/verify", dry_run="true")
    assert verified.status_code == 204
    after = Workspace.objects.get(slug=running)
    assert (after.desired, after.phase, after.confinement) == ("running", "running", before.confinement)
    alice.post(f"workspaces/{running}/stop")
    until(alice, running, "stopped")
    assert alice.post(f"workspaces/{running}/start", dry_run="true").status_code == 202
    assert Workspace.objects.get(slug=running).phase == "stopped"
    assert alice.post(f"workspaces/{running}/verify", dry_run="true").status_code == 409
    assert alice.post(f"workspaces/{running}/stop", dry_run="maybe").status_code == 422


def test_a_dry_check_asks_no_engine(root_path: str, bob: Api) -> None:
    row = make_provider(config={"root_path": root_path})
    make_template(provider=row)
    for path in ("workspace_providers/fake/check", "workspace_templates/plain/check"):
        assert bob.post(path, dry_run="true").status_code == 204
    row.refresh_from_db()
    assert row.health == "unknown"


def test_a_key_makes_a_repeated_stop_the_same_stop(running: str, alice: Api) -> None:
    key = {"Idempotency-Key": "stop-1"}
    first = alice.post(f"workspaces/{running}/stop", headers=key)
    until(alice, running, "stopped")
    alice.post(f"workspaces/{running}/start")
    until(alice, running, "running")
    again = alice.post(f"workspaces/{running}/stop", headers=key)
    assert (again.status_code, again.json()) == (202, first.json())
    assert Workspace.objects.get(slug=running).desired == "running"


# -- the write lock


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[GatedProvider]]:
    monkeypatch.setitem(providers.KINDS, "local", ("Gated", "tests.workspaces.doubles.GatedProvider"))
    GatedProvider.reset("check_image")
    yield GatedProvider
    GatedProvider.go.set()


@pytest.mark.parametrize("query", [{}, {"dry_run": "true"}])
@pytest.mark.parametrize("verb", ["POST", "PUT"])
def test_nobody_waits_for_an_engine_while_holding_the_database(
    verb: str, query: dict[str, str], gate: type[GatedProvider], process: Process, root_path: str, bob: Api
) -> None:
    provider = make_provider("here", "local", config={"root_path": root_path})
    body = {"id": "strict", "provider_id": "here", "backend": {"kind": "local"}, "require": "enforced"}
    path = "workspace_templates"
    if verb == "PUT":
        make_template("strict", provider=provider)
        path = "workspace_templates/strict"
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(bob.call(verb, path, body, None, **query)))
    asking.start()
    assert gate.entered.wait(10), answers
    make_user("dora")  # waits for the write lock, and then fails, if the request holds it
    gate.go.set()
    asking.join(20)
    assert answers[0].status_code == 422, answers[0].content  # it enforces nothing
    assert answers[0].json()["errors"][0]["field"] == "require"
    assert not WorkspaceTemplate.objects.filter(require="enforced").exists()
