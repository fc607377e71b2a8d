"""From the wish to a running sandbox, and every way in which that can fail."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEntry
from tests.eventually import eventually
from tests.factories import Api, make_provider, make_template
from tests.workspaces.conftest import Process, create, until
from workspaces import services
from workspaces.models import Workspace, WorkspaceTemplate


def test_an_unknown_template_is_named(alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "nope"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"field": "template_id", "message": "there is no workspace template nope"}]


@pytest.mark.parametrize("field", ["phase", "owner", "id", "confinement", "created_at"])
def test_what_the_server_says_cannot_be_said_by_the_caller(field: str, template: Any, alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "plain", field: "running"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_unknown_fields_are_refused_by_name(template: Any, alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "plain", "privileged": True})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "privileged")


@pytest.mark.parametrize(
    "env",
    [
        {"A=B": "x"}, {"": "x"}, {"1A": "x"}, {"A": "x" * 70_000}, {f"N{i}": "x" for i in range(300)},
        {"A": 1}, {"A": None}, {"A": {"secret": 1}}, {"A": {"secret": "x", "more": 1}}, {"A": {"set": True}}, [],
    ],
)  # fmt: skip
def test_bad_environments_are_422(env: Any, template: Any, alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "plain", "env": env})
    assert answer.status_code == 422, answer.content
    assert answer.json()["errors"][0]["field"].startswith("env")


def test_a_dry_run_stores_nothing(template: Any, alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "plain"}, dry_run="true")
    assert answer.status_code == 201
    assert Workspace.objects.count() == 0


def test_one_key_makes_one_workspace(process: Process, template: Any, alice: Api) -> None:
    first, second = (
        alice.post("workspaces", {"template_id": "plain"}, headers={"Idempotency-Key": "k1"}) for _ in range(2)
    )
    assert first.json()["id"] == second.json()["id"]
    assert Workspace.objects.count() == 1


def test_a_new_workspace_is_pending_at_once_and_then_runs(process: Process, template: Any, alice: Api) -> None:
    answer = alice.post("workspaces", {"template_id": "plain", "name": "one"})
    assert answer.status_code == 201, answer.content
    assert answer.json()["phase"] == "pending"
    found = until(alice, answer.json()["id"], "running")
    assert [entry["phase"] for entry in found["phases"]] == ["pending", "starting", "running"]
    assert (found["owner"], found["name"]) == ("alice", "one")
    assert found["confinement"]["verdict"] in ("failed", "degraded", "unknown")  # the fake engine isolates nothing
    assert found["applied"]["limits"]["memory"] == {
        "asked": 536870912, "applied": None, "enforced": "unavailable",
    }  # fmt: skip


def test_files_and_commands_of_the_template_are_there_before_it_runs(
    process: Process, provider: Any, alice: Api
) -> None:
    make_template(
        "made",
        files=[{"path": "in/a.txt", "content_base64": "aGVsbG8=", "mode": 0o600}],
        init_commands=[["sh", "-c", "cat in/a.txt > b.txt"]],
    )
    workspace = create(alice, "made")
    until(alice, workspace, "running")
    assert alice.get(f"workspaces/{workspace}/files/read", path="b.txt").json()["content"] == "hello"


def test_a_failing_command_of_the_template_fails_the_workspace_with_its_output(
    process: Process, provider: Any, alice: Api
) -> None:
    make_template("broken", init_commands=[["sh", "-c", "echo no such luck; exit 3"]])
    workspace = create(alice, "broken")
    found = until(alice, workspace, "failed")
    assert (found["phase_reason"], found["boot_lines"]) == ("init_failed", ["no such luck"])
    assert "exit code 3" in found["phase_detail"]


def test_a_start_that_fails_says_why_and_can_be_tried_again(process: Process, root_path: str, alice: Api) -> None:
    provider = make_provider(config={"fault": "lies", "lie": "greeting", "root_path": root_path})
    make_template(provider=provider)
    workspace = create(alice)
    found = until(alice, workspace, "failed", within=60)
    assert found["phase_detail"].endswith(".")
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    assert alice.post(f"workspaces/{workspace}/start").status_code == 202
    assert until(alice, workspace, "running")["boot_lines"] == []


def test_an_engine_that_is_down_leaves_it_pending_and_says_since_when(
    process: Process, root_path: str, alice: Api
) -> None:
    provider = make_provider(config={"fault": "refuses", "root_path": root_path})
    make_template(provider=provider)
    workspace = create(alice)

    def unknown() -> Any:
        found = alice.get(f"workspaces/{workspace}").json()
        return found["unknown_since"] and found

    found = eventually(unknown)
    assert found["phase"] in ("pending", "starting")
    assert "engine" in found["phase_detail"]
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    assert until(alice, workspace, "running")["unknown_since"] is None


def test_an_engine_that_stays_down_fails_it_at_the_deadline_and_is_cleaned_up_when_it_is_back(
    process: Process, root_path: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workspaces.reconcile.START_DEADLINE_S", 0.5)
    provider = make_provider(config={"fault": "refuses", "root_path": root_path})
    make_template(provider=provider)
    workspace = create(alice)
    found = until(alice, workspace, "failed")
    assert found["phase_reason"] == "engine_unavailable"
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    eventually(lambda: alice.get(f"workspaces/{workspace}").json()["unknown_since"] is None, within=30)
    assert alice.post(f"workspaces/{workspace}/start").status_code == 202
    until(alice, workspace, "running")


def test_a_change_leaves_its_line_in_the_audit_log(process: Process, template: Any, alice: Api) -> None:
    workspace = create(alice)
    entry = AuditEntry.objects.get(object_id=workspace)
    assert (entry.actor_name, entry.action) == ("alice", "workspace.create")


def test_secrets_of_the_environment_reach_programs_and_nobody_else(process: Process, template: Any, alice: Api) -> None:
    workspace = create(alice, env={"KEY": {"secret": "s3cr3t-value-1234"}, "PLAIN": "yes"})
    found = until(alice, workspace, "running")
    assert found["env"] == {"KEY": {"set": True, "last4": "1234"}, "PLAIN": "yes"}
    answer = alice.post(f"workspaces/{workspace}/exec", {"command": "echo $KEY $PLAIN $OWN", "env": {"OWN": "mine"}})
    assert answer.json()["stdout"] == "s3cr3t-value-1234 yes mine\n"
    row = Workspace.objects.get(slug=workspace)
    assert "s3cr3t" not in repr([row.env, row.secrets, row.spec])


def test_a_sandbox_of_another_kind_is_not_started_even_if_it_was_stored(
    process: Process, template: Any, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    WorkspaceTemplate.objects.filter(pk=template.pk).update(backend={"kind": "container"})
    monkeypatch.setattr(services, "refuse_mismatched", lambda _: None)
    found = until(alice, create(alice), "failed")
    assert found["phase_reason"] == "start_failed"
    assert found["phase_detail"] == "The workspace was made for a container provider, and this one is of the kind fake."
