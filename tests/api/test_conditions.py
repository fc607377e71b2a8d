"""ETags: what was read and is still so is a 304, what somebody else changed since is a 412, and nothing is lost between two writers."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import User
from tests.api.conftest import World
from tests.api.table import ROUTES, operations, path_of, takes
from tests.api.together import at_once
from tests.factories import Api

READS = [
    name for name in operations() if takes(name, "If-None-Match") and name.startswith("GET ") and "/files/" not in name
]
CHANGES = [name for name in operations() if takes(name, "If-Match") and not name.endswith("/files")]


def test_every_object_has_its_etag() -> None:
    one = [name for name in operations() if name.startswith("GET ") and name.endswith(("/{id}", "/{exec_id}"))]
    assert sorted(READS) == sorted(one)
    assert {f"GET {name.split(' ')[1]}" for name in CHANGES} == set(READS)


@pytest.mark.parametrize("name", READS)
def test_what_is_known_is_a_304_without_a_body(name: str, world: World, bob: Api) -> None:
    path = path_of(name, world.ids)
    etag = bob.get(path).headers["ETag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*", etag.strip('"')):
        answer = bob.get(path, {"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", etag)
    for stale in ('"0.0"', "nonsense", '"' + etag.strip('"').split(".")[0] + '.x"', "\u00e4"):
        assert bob.get(path, {"If-None-Match": stale}).status_code == 200


@pytest.mark.parametrize("name", CHANGES)
def test_a_stale_etag_changes_nothing(name: str, world: World, bob: Api) -> None:
    path, route = path_of(name, world.ids), ROUTES[name]
    before = bob.get(path)
    for stale in ('"0.1"', '"nonsense"', '""', "0", ","):
        answer = bob.call(name.split(" ", 1)[0], path, route.body, {"If-Match": stale})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed"), stale
    after = bob.get(path)
    assert (after.headers["ETag"], after.json()) == (before.headers["ETag"], before.json())


@pytest.mark.parametrize("name", [name for name in CHANGES if "/exec/" not in name])
def test_the_etag_that_was_read_lets_a_change_through(name: str, world: World, bob: Api) -> None:
    path, route = path_of(name, world.ids), ROUTES[name]
    etag = bob.get(path).headers["ETag"]
    answer = bob.call(name.split(" ", 1)[0], path, route.body, {"If-Match": f'"other", {etag}'})
    assert 200 <= answer.status_code < 300, answer.content
    if not name.startswith("DELETE"):
        assert answer.headers["ETag"].split(".")[0] != etag.split(".")[0]
        assert bob.get(path).headers["ETag"] == answer.headers["ETag"]


def test_a_phase_that_moves_is_seen_and_spoils_no_edit(world: World, alice: Api) -> None:
    path = f"workspaces/{world.workspace.slug}"
    etag = alice.get(path).headers["ETag"]
    assert alice.post(f"{path}/stop").status_code == 202
    assert alice.get(path, {"If-None-Match": etag}).status_code == 200
    assert alice.patch(path, {"name": "mine"}, {"If-Match": etag}).status_code == 200


@pytest.mark.parametrize("name", [name for name in CHANGES if name.startswith(("PATCH", "PUT"))])
def test_of_two_writers_who_read_the_same_one_wins(name: str, world: World, bob: Api) -> None:
    path, route = path_of(name, world.ids), ROUTES[name]
    etag = bob.get(path).headers["ETag"]
    clients = [world.client("bob") for _ in range(2)]
    method = name.split(" ", 1)[0]
    answers = at_once(*[lambda one=one: one.call(method, path, route.body, {"If-Match": etag}) for one in clients])
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [200, 412]


def test_two_partial_changes_at_once_both_stay(world: World, bob: Api) -> None:
    """Each of them merges into the limits that are there, and not into those that it read first."""
    clients = {key: world.client("bob") for key in ("max_turns", "max_tool_calls")}
    answers = at_once(
        *[lambda key=key, one=one: one.patch("agents/free", {"limits": {key: 7}}) for key, one in clients.items()]
    )
    codes = [answer.status_code for answer in answers]
    limits = bob.get("agents/free").json()["limits"]
    assert codes == [200, 200]
    assert (limits["max_turns"], limits["max_tool_calls"]) == (7, 7)


def test_the_last_admin_stays_also_when_two_leave_at_once(world: World, bob: Api) -> None:
    assert bob.patch("users/alice", {"role": "admin"}).status_code == 200
    clients = {name: world.client("bob") for name in ("alice", "bob")}
    answers = at_once(
        *[lambda name=name, one=one: one.patch(f"users/{name}", {"role": "member"}) for name, one in clients.items()]
    )
    codes = [answer.status_code for answer in answers]
    assert 200 in codes
    assert User.objects.filter(role="admin", is_active=True).count() == 1


@pytest.mark.parametrize(
    ("path", "users"),
    [
        ("workspace_providers/here", {"plain", "unused", "ws-"}), ("workspace_templates/plain", {"ws-"}),
        ("llm_providers/scripted", {"code-runner", "free"}), ("agents/code-runner", {"sess-"}),
    ],
)  # fmt: skip
def test_what_is_in_use_stays_and_names_its_users(path: str, users: set[str], world: World, bob: Api) -> None:
    if path.startswith("agents"):
        assert bob.post(f"sessions/{world.session.slug}/messages", {"text": "x"}).status_code == 200
    answer = bob.delete(path)
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "in_use")
    assert any(user in problem["detail"] for user in users), problem
    assert problem["hint"]
    assert bob.get(path).status_code == 200
