"""Bad bodies of every kind, at every field of every route: a 4xx that names the field, and never a 500."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import PASSWORD, World
from tests.api.table import ROUTES, operations, path_of, takes, writes
from tests.factories import Api

WITH_BODY = [name for name in ROUTES if writes(name) and "requestBody" in operations()[name]]
WITHOUT_FIELDS = [name for name in ROUTES if name.startswith("POST ") and "requestBody" not in operations()[name]]
STORABLE: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**30, "", "x" * 70_000, "../../etc/passwd", "a\nb", "\u202e", [], {}, [[]], [None],
    {"a": 1}, {"kind": "ghost"},
)  # fmt: skip
NEVER: tuple[Any, ...] = ("\x00", "a\x00b", "\ud83d", "\udc00x", ["\x00"], {"k": "\ud83d"}, {"\x00": 1})


@pytest.fixture
def people(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Api]:
    # The throttle is not what this is about.
    from accounts.api import AddressThrottle, NameThrottle, OldPasswordThrottle

    for throttle in (AddressThrottle, NameThrottle, OldPasswordThrottle):
        monkeypatch.setattr(throttle, "THROTTLE_RATES", {"login": "100000/min", "login_address": "100000/min"})
    return {name: world.client(name) for name in ("alice", "bob", "nobody")}


def who(name: str) -> str:
    rule = ROUTES[name].rule
    return "bob" if rule.startswith("admin") else "nobody" if rule == "open" else "alice"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field of a body, inner ones and those that hold them."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    body = copy.deepcopy(body)
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return body


def send(people: dict[str, Api], world: World, name: str, raw: bytes, kind: str = "application/json") -> Any:
    person = people[who(name)]
    path = f"/v1/{path_of(name, world.ids)}"
    if takes(name, "dry_run"):
        path += f"{'&' if '?' in path else '?'}dry_run=true"
    return person.client.generic(name.split(" ", 1)[0], path, raw, content_type=kind, headers=person.headers)


def refused(answer: Any, about: Any, field: str = "") -> None:
    assert 400 <= answer.status_code < 500, (about, answer.status_code, answer.content)
    assert answer.headers["Content-Type"] == "application/problem+json"
    if field:
        errors = answer.json()["errors"]
        named = any(re.split(r"[.\[]", error["field"])[0] == field or field in error["message"] for error in errors)
        assert named, (about, answer.content)


@pytest.mark.parametrize("name", WITH_BODY)
def test_no_value_at_any_field_is_more_than_a_4xx(name: str, world: World, people: dict[str, Api]) -> None:
    body = ROUTES[name].body
    for path in leaves(body):
        for value in STORABLE:
            answer = send(people, world, name, json.dumps(replaced(body, path, value)).encode())
            about = (path, value if len(str(value)) < 100 else "long")
            assert answer.status_code < 500, (about, answer.content)
            if answer.status_code == 422:
                refused(answer, about, str(path[0]))
            elif answer.status_code == 204 and name.endswith("/password"):
                world.alice.set_password(PASSWORD)  # it was good enough, and is the new one
                world.alice.save()


@pytest.mark.parametrize("name", WITH_BODY)
def test_text_that_cannot_be_stored_is_422_at_any_field(name: str, world: World, people: dict[str, Api]) -> None:
    body = ROUTES[name].body
    for path in leaves(body):
        for value in NEVER:
            answer = send(people, world, name, json.dumps(replaced(body, path, value)).encode())
            assert answer.status_code == 422, (path, value, answer.content)
            refused(answer, (path, value), str(path[0]))


@pytest.mark.parametrize("name", WITH_BODY)
def test_an_unknown_field_is_named_at_any_depth(name: str, world: World, people: dict[str, Api]) -> None:
    body = ROUTES[name].body
    assert body is not None
    places = [()] + [path for path in leaves(body) if isinstance(at(body, path), dict)]
    for path in places:
        if path and path[0] in ("labels", "env"):
            continue  # its keys are the caller's
        answer = send(people, world, name, json.dumps(replaced(body, (*path, "no_such_field"), 1)).encode())
        assert answer.status_code == 422, (path, answer.content)
        assert any("no_such_field" in error["field"] for error in answer.json()["errors"]), answer.content


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("agents", {"id": "Not A Slug", "modle": {}, "model": {"provider_id": 5, "nam": "x"}}, {"id", "modle", "model.nam"}),
        ("workspaces", {"phase": "running", "tmplate": "x", "labels": []}, {"phase", "tmplate", "labels", "template_id"}),
        ("tokens", {"scope": "all", "expires": 5}, {"name", "scope", "expires"}),
        (
            "sessions", {"agent": "x", "limits": {"max_turns": "x", "turns": 1}},
            {"agent", "agent_id", "initial_instructions", "limits.max_turns", "limits.turns"},
        ),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_named_at_once(
    path: str, body: dict[str, Any], fields: set[str], world: World, alice: Api
) -> None:
    answer = alice.post(path, body)
    assert answer.status_code == 422
    assert fields <= {error["field"] for error in answer.json()["errors"]}, answer.content


def test_endless_unknown_fields_make_no_endless_answer(world: World, alice: Api) -> None:
    answer = alice.post("tokens", {f"field-{number}": 1 for number in range(20_000)})
    assert answer.status_code == 422
    assert len(answer.content) < 10_000


def at(body: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        body = body[key]
    return body


RAW = (
    b"[1, 2]", b"null", b'"text"', b"1", b"{", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a": NaN}', b'{"a": 1e999}',
    b'{"a": 1, "a": 2}', b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 100 + b"1" + b"}" * 100,
    b'{"a": ' + b"9" * 5000 + b"}",
)  # fmt: skip


@pytest.mark.parametrize("name", [*WITH_BODY, *WITHOUT_FIELDS])
def test_what_is_no_acceptable_json_is_refused(name: str, world: World, people: dict[str, Api]) -> None:
    for raw in RAW:
        refused(send(people, world, name, raw), raw[:40])
    for kind in (
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    ):
        answer = send(people, world, name, b"a=b", kind)
        assert answer.status_code == 415, (kind, answer.content)


@pytest.mark.parametrize("name", WITHOUT_FIELDS)
def test_an_action_without_fields_refuses_them_by_name(name: str, world: World, people: dict[str, Api]) -> None:
    refused(send(people, world, name, b'{"force": true}'), name, "force")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("agents", {"id": "big", "model": {"provider_id": "scripted"}, "description": "x" * 10_000_000}),
        ("agents", {"id": "big", "model": {"provider_id": "scripted"}, "system_prompt": ["x" * 10_000_000]}),
        ("agents", {"id": "big", "model": {"provider_id": "scripted"}, "tools": ["t"] * 1000}),
        ("sessions", {"agent_id": "free", "template_id": "plain", "initial_instructions": "x" * 10_000_000}),
        ("workspaces", {"template_id": "plain", "env": {"A": "x" * 10_000_000}}),
        ("tokens", {"name": "x" * 10_000_000}),
    ],
)
def test_what_is_too_long_is_refused_with_its_field(path: str, body: dict[str, Any], world: World, alice: Api) -> None:
    answer = alice.post(path, body)
    assert answer.status_code == 422, answer.content[:300]
    long = max(body, key=lambda key: len(json.dumps(body[key])))
    assert {error["field"].split("[")[0].split(".")[0] for error in answer.json()["errors"]} == {long}
    assert len(answer.content) < 10_000


def test_a_compressed_body_is_not_unpacked(world: World, alice: Api) -> None:
    import gzip

    bomb = gzip.compress(b'{"name": "' + b"x" * 5_000_000 + b'"}')
    headers = {**alice.headers, "Content-Encoding": "gzip"}
    answer = alice.client.generic("POST", "/v1/tokens", bomb, content_type="application/json", headers=headers)
    assert answer.status_code in (400, 415)


READ_ONLY: dict[str, Any] = {
    "owner": "bob", "created_at": "2000-01-01T00:00:00Z", "updated_at": "2000-01-01T00:00:00Z", "phase": "running",
    "status": "running", "container_id": "c", "container_name": "c", "runtime_token": "t", "is_admin": True,
    "exit_code": 0, "output": "x", "spec_rev": 99, "state_rev": 99, "secrets": "x", "deleted_at": None, "pk": 1,
    "generation": 9, "lease_holder": "me", "desired": "gone", "is_superuser": True, "usage": {}, "answer": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_BODY)
def test_a_read_only_field_is_never_stored(name: str, world: World, people: dict[str, Api]) -> None:
    """It is refused by name, or, where a body that was read may be put back, ignored."""
    body = ROUTES[name].body
    assert body is not None
    for field in set(READ_ONLY) - set(body):
        answer = send(people, world, name, json.dumps({**body, field: READ_ONLY[field]}).encode())
        if answer.status_code == 422:
            refused(answer, field, field)
        elif answer.status_code != 204:  # a dry check of settings says nothing
            assert answer.status_code in (200, 201), (field, answer.content)
            assert answer.json().get(field) != READ_ONLY[field]
