"""A viewer sees what a member in their place would see, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEntry
from tests.api.conftest import World
from tests.api.table import ROUTES, path_of, writes
from tests.factories import Api

READS = [name for name in ROUTES if not writes(name)]
SAYS_WHO = ("GET /v1/me", "GET /v1/tokens")  # that it is a viewer, and their own token


def seen(person: Api, world: World) -> dict[str, tuple[int, Any]]:
    """Status and body of every route that reads, but for what differs with each request."""
    found = {}
    for name in READS:
        if name in SAYS_WHO:
            continue
        answer = person.get(path_of(name, world.ids))
        body = answer.json() if answer.headers.get("Content-Type") == "application/json" else None
        found[name] = (answer.status_code, body)
    return found


def test_a_new_viewer_sees_what_a_new_member_sees(world: World) -> None:
    viewer, member = seen(world.client("vera"), world), seen(world.client("charlie"), world)
    assert viewer == member
    shared = [name for name in READS if ROUTES[name].rule == "shared" and name not in SAYS_WHO]
    assert [name for name in shared if viewer[name][0] != 200] == []
    for kind in ("agents", "workspace_providers", "workspace_templates", "llm_providers"):
        assert viewer[f"GET /v1/{kind}"][1]["total"] > 0, kind


def test_who_becomes_a_viewer_goes_on_seeing_what_is_theirs_and_changes_nothing_of_it(inhabited: World) -> None:
    alice, bob = inhabited.client("alice"), inhabited.client("bob")
    before = seen(alice, inhabited)
    assert before["GET /v1/workspaces/{id}/files/read"][0] == 200
    assert before["GET /v1/sessions"][1]["total"] == 1
    assert bob.patch("users/alice", {"role": "viewer"}).status_code == 200
    after = seen(alice, inhabited)
    for name in before:
        if name not in ("GET /v1/workspaces", "GET /v1/workspaces/{id}"):  # last_activity_at moves with the looks
            assert after[name] == before[name], name
        assert after[name][0] == before[name][0], name
    lines = AuditEntry.objects.count()
    for name in [name for name in ROUTES if writes(name)]:
        if "/auth/" in name or "/tokens" in name:
            continue
        answer = alice.call(name.split(" ", 1)[0], path_of(name, inhabited.ids), ROUTES[name].body)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), name
        assert "viewer" in answer.json()["detail"] or "admin" in answer.json()["detail"], name
    assert AuditEntry.objects.count() == lines


@pytest.mark.parametrize("path", ["workspaces", "sessions", "agents"])
def test_a_viewer_narrows_nothing_by_an_owner(path: str, world: World) -> None:
    vera = world.client("vera")
    assert vera.get(path, owner="alice").json() == vera.get(path).json()
