"""`?dry_run=true` on every route that writes: every check is run, and nothing is stored, ended or made."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.apps import apps

from accounts.models import IdempotencyKey, User
from tests.api.conftest import PASSWORD, World
from tests.api.table import ROUTES, path_of, takes, writes
from tests.factories import Api
from workspaces.models import Exec, Workspace

WRITES = [name for name in ROUTES if writes(name)]
# Columns that move by themselves: who asks, and the reconciler that looks after the workspaces.
MOVES = {"last_used", "last_used_address", "lease_until", "checked_at", "last_login", "state_rev"}
OURS = ("accounts", "agents", "sessions_app", "workspaces")


def stored() -> dict[str, list[Any]]:
    """Every row of every table of ours, but for what moves by itself."""
    found = {}
    for model in [model for app in OURS for model in apps.get_app_config(app).get_models()]:
        if model.__name__ != "Lease":
            columns = [field.attname for field in model._meta.concrete_fields if field.name not in MOVES]
            found[model.__name__] = list(model._default_manager.order_by("pk").values_list(*columns))
    return found


def inside(alice: Api, world: World) -> tuple[Any, ...]:
    """What is in the workspace: its files, their content and ETags, and what runs."""
    path = f"workspaces/{world.workspace.slug}"
    files = alice.get(f"{path}/files", recursive="true").json()["items"]
    read = alice.get(f"{path}/files/read", path="a").json()
    return files, read["content"], read["etag"], alice.get(f"{path}/exec/{world.ids['exec']}").json()["state"]


def who(name: str) -> str:
    return "bob" if ROUTES[name].rule.startswith("admin") else "alice"


def test_every_route_that_writes_takes_the_flag() -> None:
    assert [name for name in WRITES if not takes(name, "dry_run")] == []


def test_a_dry_run_of_any_route_succeeds_like_the_deed_and_changes_nothing(inhabited: World) -> None:
    people = {name: inhabited.client(name) for name in ("alice", "bob")}
    before, seen = stored(), inside(people["alice"], inhabited)
    etags = etags_of(people["bob"], inhabited)
    Workspace.objects.update(last_activity_at="2020-01-01T00:00:00Z")  # a touch would be due
    before = stored()
    for name in WRITES:
        path, method = path_of(name, inhabited.ids), name.split(" ", 1)[0]
        headers = {"Idempotency-Key": "dry"} if method == "POST" else None
        answer = people[who(name)].call(method, path, ROUTES[name].body, headers, dry_run="true")
        assert 200 <= answer.status_code < 300, (name, answer.content)
        assert stored() == before, name
    assert not IdempotencyKey.objects.exists()
    assert inside(people["alice"], inhabited) == seen
    assert etags_of(people["bob"], inhabited) == etags
    assert Exec.objects.get(slug=inhabited.ids["exec"]).state == "running"


def etags_of(bob: Api, world: World) -> dict[str, str]:
    names = [name for name in ROUTES if name.startswith("GET ") and takes(name, "If-None-Match")]
    return {name: bob.get(path_of(name, world.ids)).headers["ETag"] for name in names}


@pytest.mark.parametrize("name", WRITES)
def test_a_flag_that_is_neither_true_nor_false_does_nothing(name: str, world: World) -> None:
    client = world.client(who(name))
    before = stored()
    answer = client.call(name.split(" ", 1)[0], path_of(name, world.ids), ROUTES[name].body, dry_run="yes")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "dry_run")
    assert stored() == before


def test_a_dry_run_tells_no_id_that_nothing_will_have(inhabited: World) -> None:
    alice = inhabited.client("alice")
    for name in ("POST /v1/workspaces", "POST /v1/sessions", "POST /v1/sessions/{id}/rerun", "POST /v1/tokens"):
        answer = alice.post(path_of(name, inhabited.ids), ROUTES[name].body, dry_run="true")
        assert answer.status_code == 201, answer.content
        assert not answer.json()["id"]
        for text in re.findall(r"ws-[0-9a-f]{16}", answer.content.decode()):
            assert Workspace.objects.filter(slug=text).exists()
        assert not re.search(r"sess-[0-9a-f]{16}", answer.content.decode())
    body = {**(ROUTES["POST /v1/sessions"].body or {}), "workspace_id": inhabited.workspace.slug, "template_id": None}
    assert alice.post("sessions", body, dry_run="true").json()["workspace_id"] == inhabited.workspace.slug


# -- files: a trial is refused as the deed would be


def routes(world: World) -> str:
    return f"workspaces/{world.workspace.slug}/files"


@pytest.fixture
def tree(inhabited: World) -> World:
    """`a`, `full/x`, `empty/`, a link to `a`, a link to a directory, a pipe."""
    code = (
        "import os\nos.makedirs('full'); open('full/x', 'w').close(); os.mkdir('empty')\n"
        "os.symlink('a', 'link'); os.symlink('full', 'linked'); os.mkfifo('pipe')"
    )
    alice = inhabited.client("alice")
    body = {"argv": ["python3", "-c", code]}
    assert alice.post(f"workspaces/{inhabited.workspace.slug}/exec", body).json()["exit_code"] == 0
    return inhabited


PUTS: list[tuple[str, dict[str, str]]] = [
    ("a", {}), ("new", {}), ("not/there/yet", {}), ("link", {}), ("linked/x", {}), ("a/below", {}), ("full", {}), ("pipe", {}),
    ("../out", {}), ("/etc/passwd", {}), ("n" * 256, {}), ("a", {"If-None-Match": "*"}), ("new", {"If-None-Match": "*"}),
    ("a", {"If-Match": "*"}), ("new", {"If-Match": "*"}), ("a", {"If-Match": '"other"'}), ("new", {"If-Match": '"other"'}),
    ("a", {"If-None-Match": '"x"'}), ("linked", {"If-Match": "*"}),
]  # fmt: skip
DELETES: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("a", {}, {}), ("gone", {}, {}), ("link", {}, {}), ("full", {}, {}), ("empty", {}, {}), ("full", {}, {"recursive": "true"}),
    ("linked/x", {}, {}), ("a/below", {}, {}), ("pipe", {}, {}), ("a", {"If-Match": '"other"'}, {}), ("a", {"If-Match": "*"}, {}),
    ("gone", {"If-Match": "*"}, {}), ("empty", {"If-Match": '"x"'}, {}), ("link", {"If-Match": '"x"'}, {}),
    ("pipe", {"If-Match": '"x"'}, {}), ("empty", {"If-Match": "*"}, {}),
]  # fmt: skip
DIRS: list[dict[str, Any]] = [
    {"path": "new"}, {"path": "x/y"}, {"path": "x/y", "parents": False}, {"path": "new", "parents": False},
    {"path": "a", "parents": False}, {"path": "a"}, {"path": "full"}, {"path": "full", "parents": False}, {"path": "link"},
    {"path": "linked"}, {"path": "linked/x"}, {"path": "a/b"}, {"path": "pipe"},
]  # fmt: skip
MOVES_OF: list[dict[str, Any]] = [
    {"source": source, "target": target, "overwrite": overwrite}
    for overwrite in (False, True)
    for source, target in [
        ("a", "b"), ("gone", "b"), ("a", "full/x"), ("a", "x/y"), ("a", "full"), ("full", "a"), ("full", "full/in"),
        ("full", "empty"), ("empty", "full"), ("link", "b"), ("a", "linked/b"), ("a", "a"), ("full", "full"), ("a", "a/b"),
        ("full", "./full/in"),
    ]
]  # fmt: skip
CASES: list[tuple[str, str, Any, dict[str, str], dict[str, str]]] = [
    *[("PUT", "", {"content": "new"}, headers, {"path": path}) for path, headers in PUTS],
    *[("DELETE", "", None, headers, {"path": path, **query}) for path, headers, query in DELETES],
    *[("POST", "/dir", body, {}, {}) for body in DIRS],
    *[("POST", "/move", body, {}, {}) for body in MOVES_OF],
]


@pytest.mark.parametrize("part", range(4))
def test_a_trial_of_a_change_of_files_meets_what_the_change_meets(part: int, tree: World) -> None:
    """Each is tried and then done, in a copy of the tree that only the deed has changed."""
    alice, path = tree.client("alice"), f"workspaces/{tree.workspace.slug}"
    for method, route, body, headers, query in CASES[part::4]:
        dry = alice.call(method, f"{path}/files{route}", body, headers, **query, dry_run="true")
        deed = alice.call(method, f"{path}/files{route}", body, headers, **query)
        about = (method, route, body, headers, query, dry.content, deed.content)
        if deed.status_code < 300:
            assert (dry.status_code, dry.content) == (204, b""), about
            restore(alice, path)
        else:
            assert (dry.status_code, dry.json()["code"]) == (deed.status_code, deed.json()["code"]), about


def restore(alice: Api, path: str) -> None:
    code = (
        "import os, shutil\nfor e in os.scandir('.'):\n"
        "  shutil.rmtree(e.path) if e.is_dir(follow_symlinks=False) else os.unlink(e.path)\n"
        "open('a', 'w').write('old'); os.makedirs('full'); open('full/x', 'w').close(); os.mkdir('empty')\n"
        "os.symlink('a', 'link'); os.symlink('full', 'linked'); os.mkfifo('pipe')"
    )
    assert alice.post(f"{path}/exec", {"argv": ["python3", "-c", code]}).json()["exit_code"] == 0


@pytest.mark.parametrize("size", [101, 3 * 1024 * 1024])
def test_a_file_larger_than_the_disk_of_its_workspace_is_told_so(size: int, inhabited: World) -> None:
    alice, row = inhabited.client("alice"), inhabited.workspace
    row.refresh_from_db()
    row.spec["backend"]["disk_bytes"] = size - 1
    row.save(update_fields=["spec"])
    answer = alice.put(routes(inhabited), b"x" * size, path="large", dry_run="true")
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert str(size) in answer.json()["detail"]
    row.spec["backend"]["disk_bytes"] = size
    row.save(update_fields=["spec"])
    assert alice.put(routes(inhabited), b"x" * size, path="large", dry_run="true").status_code == 204


def test_files_of_a_workspace_that_does_not_run_cannot_be_tried(inhabited: World) -> None:
    alice = inhabited.client("alice")
    assert alice.post(f"workspaces/{inhabited.workspace.slug}/stop").status_code == 202
    answer = alice.put(routes(inhabited), {"content": "x"}, path="a", dry_run="true")
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_not_running")


def test_a_dry_sign_in_checks_the_password_and_gives_no_token(world: World) -> None:
    nobody = world.client("nobody")
    right = nobody.post("auth/login", {"username": "alice", "password": PASSWORD}, dry_run="true")
    assert (right.status_code, right.json()["token"]) == (200, "")
    wrong = nobody.post("auth/login", {"username": "alice", "password": "wrong"}, dry_run="true")
    assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")


def test_a_dry_change_of_the_password_judges_both(world: World) -> None:
    alice = world.client("alice")
    for old, new, field in (("wrong", "a staple that nobody expects", "old"), (PASSWORD, "short", "new")):
        answer = alice.post("auth/password", {"old": old, "new": new}, dry_run="true")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    fine = {"old": PASSWORD, "new": "a staple that nobody expects"}
    assert alice.post("auth/password", fine, dry_run="true").status_code == 204
    assert User.objects.get(username="alice").check_password(PASSWORD)
