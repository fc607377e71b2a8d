"""Every route and method of the schema as nobody, viewer, another member, the owner, and an admin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import World
from tests.api.table import ROUTES, operations, path_of, takes, writes

ROLES = ("nobody", "vera", "charlie", "alice", "bob")
OK = range(200, 300)


def test_the_table_has_each_route_of_the_schema_and_no_other() -> None:
    assert set(ROUTES) == set(operations())


def expected(name: str) -> dict[str, int]:
    """The refusal that each role gets; who is missing may."""
    rule, changes = ROUTES[name].rule, writes(name)
    nobody = {"nobody": 401}
    match rule:
        case "open":
            return {}
        case "self" | "shared":
            return nobody
        case "admin":
            return nobody | dict.fromkeys(("vera", "charlie", "alice"), 403)
        case "admin-write":
            return nobody | (dict.fromkeys(("vera", "charlie", "alice"), 403) if changes else {})
        case "make":
            return nobody | {"vera": 403}
        case "owner":
            return nobody | dict.fromkeys(("vera", "charlie"), 403)
        case "private":
            # A viewer writes nothing but their own tokens, and is told so before anything is looked up.
            own = name.endswith("/tokens/{id}")
            return nobody | {"vera": 403 if changes and not own else 404, "charlie": 404}


@pytest.mark.parametrize("name", ROUTES)
def test_each_role_gets_what_it_may(name: str, world: World) -> None:
    route, refusals = ROUTES[name], expected(name)
    method, path = name.split(" ", 1)[0], path_of(name, world.ids)
    query: dict[str, Any] = (
        {"dry_run": "true"} if takes(name, "dry_run") else {}
    )  # so that the next role finds the same world
    for role in ROLES:
        answer = world.client(role).call(method, path, route.body, **query)
        code = answer.status_code
        if role in refusals:
            assert code == refusals[role], (role, answer.content)
            kinds = {401: "unauthenticated", 403: "forbidden", 404: "not_found"}
            assert answer.json()["code"] == kinds[code]
        elif name.endswith("/auth/password") and role in ("alice", "bob"):
            assert code in OK or code == 422, (role, answer.content)
        else:
            assert code in OK or code in route.also, (role, answer.content)


def test_a_viewer_may_change_nothing_but_tokens_and_password() -> None:
    allowed = {name for name in ROUTES if writes(name) and "vera" not in expected(name)}
    assert allowed == {"POST /v1/auth/login", "POST /v1/auth/logout", "POST /v1/auth/password", "POST /v1/tokens"}


@pytest.mark.parametrize("name", [name for name in ROUTES if writes(name) and ROUTES[name].rule != "open"])
def test_a_read_token_writes_nothing_whoever_holds_it(name: str, world: World) -> None:
    answer = world.client("bob", "read").call(name.split(" ", 1)[0], path_of(name, world.ids), ROUTES[name].body)  # type: ignore[arg-type]
    if name.endswith("/logout"):  # a token may always put an end to itself
        assert answer.status_code == 204
        return
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "scope" in answer.json()["detail"]


@pytest.mark.parametrize("name", [name for name in ROUTES if ROUTES[name].rule.startswith("admin") and writes(name)])
def test_an_admins_write_token_is_no_admins_token(name: str, world: World) -> None:
    answer = world.client("bob", "write").call(name.split(" ", 1)[0], path_of(name, world.ids), ROUTES[name].body)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "admin" in answer.json()["detail"]


def test_an_admins_write_token_revokes_nobody_elses_token(world: World) -> None:
    path = path_of("DELETE /v1/tokens/{id}", world.ids)
    assert world.client("bob", "write").delete(path).status_code == 403  # type: ignore[arg-type]
    assert world.client("bob").delete(path).status_code == 204
