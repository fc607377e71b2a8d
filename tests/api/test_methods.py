"""Methods that a route does not have, and keys of no form: refused as what they are, whatever else is sent."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.api.conftest import World
from tests.api.table import ROUTES, operations, path_of

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"}


def declared() -> dict[str, set[str]]:
    """Path -> the methods that the document has for it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in operations():
        method, path = name.split(" ", 1)
        found[path].add(method)
    return found


def test_a_method_that_a_route_does_not_have_is_a_405_that_names_those_it_has(world: World) -> None:
    bob = world.client("bob")
    bob.headers |= {"Idempotency-Key": "k"}
    for path, methods in declared().items():
        below = path_of(f"{min(methods)} {path}", world.ids).partition("?")[0]
        for method in METHODS - methods:
            queries: tuple[dict[str, Any], ...] = ({}, {"dry_run": "true", "limit": "nonsense"})
            for query in queries:
                answer = bob.call(method, below, None, **query)
                assert answer.status_code == 405, (method, path, answer.content)
                assert answer.json()["code"] == "method_not_allowed"
                allowed = {one.strip() for one in answer.headers["Allow"].split(",")}
                assert allowed - {"HEAD", "OPTIONS"} == methods, (method, path, allowed)


def test_a_key_of_no_form_is_refused_by_name_also_in_a_dry_run(inhabited: World) -> None:
    people = {name: inhabited.client(name) for name in ("alice", "bob")}
    for name in [name for name in ROUTES if name.startswith("POST ")]:
        who = "bob" if ROUTES[name].rule.startswith("admin") else "alice"
        for query in ({}, {"dry_run": "true"}):
            headers = {"Idempotency-Key": "two words"}
            answer = people[who].call("POST", path_of(name, inhabited.ids), ROUTES[name].body, headers, **query)
            assert answer.status_code == 422, (name, query, answer.content)
            assert [error["field"] for error in answer.json()["errors"]] == ["Idempotency-Key"], (name, query)


def test_a_parameter_that_a_route_does_not_know_or_that_stands_twice_is_refused_by_name(world: World) -> None:
    """One that is accepted and ignored is a lie: `dryrun=true` would be a deed."""
    bob = world.client("bob")
    for name in ROUTES:
        method, path = name.split(" ", 1)[0], path_of(name, world.ids)
        answer = bob.call(method, f"{path}{'&' if '?' in path else '?'}nope=1", ROUTES[name].body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "nope"), (name, answer.content)
    twice = bob.client.delete("/v1/agents/free?dry_run=true&dry_run=false", headers=bob.headers)
    assert (twice.status_code, twice.json()["errors"][0]["field"]) == (422, "dry_run")
    for path in ("agents", "me", "workspaces"):
        form = bob.get(path, format="api")
        assert (form.status_code, form.json()["errors"][0]["field"]) == (422, "format")
