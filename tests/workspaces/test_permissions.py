"""Who may do what: every route as its owner, as somebody else, as an admin, as a viewer, and as nobody."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEntry, Role, Scope
from tests.factories import Api, api, make_provider, make_template, make_user, make_workspace
from tests.workspaces.test_exec import run
from workspaces.models import Exec, Workspace

EXEC = "exec-0000000000000001"
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "", None), ("PATCH", "", {"name": "x"}), ("PUT", "", {"name": "x"}), ("DELETE", "", None),
    ("POST", "/start", None), ("POST", "/stop", None), ("POST", "/verify", None),
    ("GET", "/exec", None), ("POST", "/exec", {"argv": ["true"]}), ("GET", f"/exec/{EXEC}", None),
    ("DELETE", f"/exec/{EXEC}", None), ("GET", f"/exec/{EXEC}/output", None),
    ("GET", "/files", None), ("PUT", "/files?path=a", {"content": "x"}), ("DELETE", "/files?path=a", None),
    ("GET", "/files/read?path=a", None), ("GET", "/files/download?path=a", None),
    ("POST", "/files/dir", {"path": "d"}), ("POST", "/files/move", {"source": "a", "target": "b"}),
]  # fmt: skip


@pytest.fixture
def hers(template: Any, owner: Any) -> Workspace:
    """A workspace of alice's with one ended run; nothing brings it up."""
    row = make_workspace(owner)
    Exec.objects.create(
        slug=EXEC, workspace=row, state="ended", ended_by="exit", exit_code=0, ended_at=row.created_at,
        request={"argv": ["true"], "cwd": "", "timeout_s": 60, "background": False},
    )  # fmt: skip
    return row


@pytest.mark.parametrize(("method", "route", "body"), ROUTES)
def test_charlie_gets_404_for_everything_of_alices(
    method: str, route: str, body: Any, hers: Workspace, charlie: Api
) -> None:
    answer = charlie.call(method, f"workspaces/{hers.slug}{route}", body)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    hers.refresh_from_db()
    assert (hers.phase, hers.name, hers.desired) == ("pending", "", "running")


@pytest.mark.parametrize(("method", "route", "body"), ROUTES)
def test_nobody_gets_401_and_learns_nothing(method: str, route: str, body: Any, hers: Workspace) -> None:
    there = api().call(method, f"workspaces/{hers.slug}{route}", body)
    absent = api().call(method, f"workspaces/ws-0000000000000000{route}", body)
    assert there.status_code == absent.status_code == 401
    assert there.json()["detail"] == absent.json()["detail"]


@pytest.mark.parametrize(("method", "route", "body"), [route for route in ROUTES if route[0] != "GET"])
def test_a_viewer_changes_nothing_of_their_own(
    method: str, route: str, body: Any, hers: Workspace, owner: Any, alice: Api
) -> None:
    owner.role = Role.VIEWER
    owner.save()
    answer = alice.call(method, f"workspaces/{hers.slug}{route}", body)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "viewer" in answer.json()["detail"]


def test_a_read_token_reads_and_does_not_write(hers: Workspace, owner: Any) -> None:
    reader = api(owner, Scope.READ)
    assert reader.get(f"workspaces/{hers.slug}").status_code == 200
    assert reader.post(f"workspaces/{hers.slug}/exec", {"argv": ["true"]}).status_code == 403


def test_lists_hold_ones_own_and_an_admins_hold_everybodys(hers: Workspace, alice: Api, bob: Api, charlie: Api) -> None:
    make_workspace(make_user("charlie"))
    assert [item["owner"] for item in alice.get("workspaces").json()["items"]] == ["alice"]
    assert {item["owner"] for item in bob.get("workspaces").json()["items"]} == {"alice", "charlie"}
    assert [item["owner"] for item in bob.get("workspaces", owner="alice").json()["items"]] == ["alice"]
    assert [item["owner"] for item in charlie.get("workspaces", owner="alice").json()["items"]] == ["charlie"]


def test_an_admin_who_opens_somebody_elses_leaves_one_line(
    transactional_db: Any, hers: Workspace, bob: Api, alice: Api
) -> None:
    for _ in range(3):
        assert bob.get(f"workspaces/{hers.slug}").status_code == 200
    assert bob.get(f"workspaces/{hers.slug}/exec/{EXEC}/output").status_code == 200
    alice.get(f"workspaces/{hers.slug}")
    lines = AuditEntry.objects.filter(action__endswith=".open").values_list("actor_name", "action", "object_id")
    assert sorted(lines) == [("bob", "exec.open", EXEC), ("bob", "workspace.open", hers.slug)]


def test_a_run_is_found_only_below_its_own_workspace(hers: Workspace, owner: Any, alice: Api) -> None:
    other = make_workspace(owner)
    assert alice.get(f"workspaces/{hers.slug}/exec/{EXEC}").status_code == 200
    assert alice.get(f"workspaces/{other.slug}/exec/{EXEC}").status_code == 404


def test_the_key_of_one_user_is_not_the_key_of_another(running: str, alice: Api, bob: Api) -> None:
    headers = {"Idempotency-Key": "same"}
    path = f"workspaces/{running}/exec"
    first = alice.post(path, {"argv": ["echo", "alice"]}, headers=headers).json()
    second = bob.post(path, {"argv": ["echo", "bob"]}, headers=headers).json()
    assert (first["stdout"], second["stdout"]) == ("alice\n", "bob\n")
    assert run(alice, running, "true")["exit_code"] == 0


@pytest.mark.parametrize("odd", ["ws-%00", "ws-%ed%a0%bd", "..", "ws-" + "f" * 500, "%2e%2e%2f"])
def test_odd_ids_are_404(odd: str, template: Any, alice: Api) -> None:
    answer = alice.client.get(f"/v1/workspaces/{odd}", headers=alice.headers)
    assert answer.status_code == 404


@pytest.mark.parametrize("kind", ["workspaces", "workspace_templates", "workspace_providers"])
def test_a_list_costs_the_same_queries_whatever_its_length(
    kind: str, hers: Workspace, owner: Any, alice: Api, django_assert_max_num_queries: Any
) -> None:
    alice.get(kind)
    for number in range(5):
        template = make_template(f"t{number}", provider=make_provider(f"p{number}"))
        make_workspace(owner, template)
    with django_assert_max_num_queries(5):
        assert alice.get(kind).json()["total"] == 6
