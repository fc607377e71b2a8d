"""Every list of the schema: pages, cursors, filters, sorts and totals, and the same number of queries whatever its length."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import services as accounts
from accounts.models import AuditEntry, Scope, User
from agents.models import Agent, LLMProvider
from sessions_app.models import AgentSession
from tests.api.conftest import World
from tests.api.table import operations, path_of, takes
from tests.factories import Api
from workspaces.models import Exec, TemplateVersion, Workspace, WorkspaceProvider, WorkspaceTemplate

LISTS = [name for name in operations() if takes(name, "cursor") and not name.endswith("/files")]
MODELS: dict[str, Any] = {
    "agents": Agent, "audit": AuditEntry, "llm_providers": LLMProvider, "sessions": AgentSession, "users": User,
    "workspace_providers": WorkspaceProvider, "workspace_templates": WorkspaceTemplate, "workspaces": Workspace,
    "versions": TemplateVersion, "exec": Exec,
}  # fmt: skip
HOSTILE = ("", "x", "..", "0", "\x00", "\ud83d", "a" * 10_000, "9" * 400, "' or 1=1 --", "%00", "null", "[]", "💥")


def more(world: World, name: str, count: int) -> None:
    """Adds rows that a list shows: copies of the newest one, under names of their own."""
    kind = name.rsplit("/", 1)[1]
    if kind == "tokens":
        for number in range(count):
            accounts.token_create(user=world.bob, name=f"t{number}", scope=Scope.READ, expires_in_s=None)
        return
    model = MODELS[kind]
    row = {"versions": TemplateVersion.objects.filter(template__slug="unused")}.get(kind, model.objects).latest("pk")
    for number in range(count):
        row.pk = None
        row._state.adding = True
        for column, value in {"slug": f"copy-{number}", "username": f"copy-{number}", "number": 100 + number}.items():
            if any(field.name == column for field in model._meta.fields):
                setattr(row, column, value)
        row.save(force_insert=True)


def walk(client: Api, path: str, **query: Any) -> list[dict[str, Any]]:
    """All items of a list, read page by page, and checked against its total."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = client.get(path, limit=2, **query, **cursor)
        assert answer.status_code == 200, answer.content
        page = answer.json()
        assert set(page) == {"items", "next_cursor", "total"}
        found += page["items"]
        if page["next_cursor"] is None:
            assert len(found) == page["total"]
            return found
        assert len(page["items"]) == 2
        cursor = {"cursor": page["next_cursor"]}


def sorts(name: str) -> list[str]:
    (found,) = [one for one in operations()[name]["parameters"] if one["name"] == "sort"]
    return list(found["schema"]["enum"])


@pytest.mark.parametrize("name", LISTS)
def test_each_sort_walks_all_rows_once_in_both_directions(name: str, world: World, bob: Api) -> None:
    more(world, name, 5)  # all of the same moment: the cursor has to tell equal rows apart
    path = path_of(name, world.ids)
    whole = bob.get(path, limit=500).json()
    assert len(whole["items"]) == whole["total"] >= 6
    for sort in sorts(name):
        items = [json.dumps(item, sort_keys=True) for item in walk(bob, path, sort=sort)]
        assert len(items) == len(set(items)) == whole["total"]
        if sort.startswith("-"):
            assert items == list(reversed([json.dumps(one, sort_keys=True) for one in walk(bob, path, sort=sort[1:])]))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_costs_the_same_queries_whatever_its_length(name: str, world: World, bob: Api) -> None:
    path = path_of(name, world.ids)
    more(world, name, 1)
    bob.get(path)  # stamps the token's use once a minute
    counts = []
    for rows in (0, 8):
        more(world, name, 0) if rows == 0 else _more_from(world, name, rows)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert bob.get(path, limit=500).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 5, counts


def _more_from(world: World, name: str, count: int) -> None:
    kind = name.rsplit("/", 1)[1]
    model = MODELS.get(kind)
    if model is not None and any(field.name in ("slug", "username") for field in model._meta.fields):
        column = "username" if kind == "users" else "slug"
        model.objects.filter(**{f"{column}": "copy-0"}).update(**{column: "copied"})
    if kind == "versions":
        TemplateVersion.objects.filter(number=100).update(number=99)
    more(world, name, count)


@pytest.mark.parametrize("name", LISTS)
def test_what_a_list_does_not_know_is_refused_by_name(name: str, world: World, bob: Api) -> None:
    path = path_of(name, world.ids)
    wrong: list[tuple[str, Any]] = [
        ("nope", "1"), ("limit", "0"), ("limit", "501"), ("limit", "x"), ("sort", "password"), ("cursor", "x"),
    ]  # fmt: skip
    for query in (dict([one]) for one in wrong):
        answer = bob.get(path, **query)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), (query, answer.content)
        assert [error["field"] for error in answer.json()["errors"]] == list(query)
    for text, field in (("limit=1&limit=2", "limit"), ("limit=1&sort=%ff", "sort"), ("q=%ed%a0%80", "q")):
        answer = bob.client.get(f"/v1/{path}?{text}", headers=bob.headers)
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field]), text


@pytest.mark.parametrize("name", LISTS)
def test_no_value_of_any_parameter_is_more_than_a_4xx(name: str, world: World, bob: Api) -> None:
    path = path_of(name, world.ids)
    for parameter in operations()[name]["parameters"]:
        if parameter["in"] != "query":
            continue
        for value in HOSTILE:
            query: dict[str, Any] = {parameter["name"]: value.encode("utf-8", "surrogatepass").decode("latin-1")}
            for text in (query, {parameter["name"]: value} if "\ud83d" not in value else query):
                answer = bob.get(path, **text)
                assert answer.status_code in (200, 422), (text, answer.content)
                if answer.status_code == 422:
                    assert [error["field"] for error in answer.json()["errors"]] == [parameter["name"]]


def forged(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        forged("created_at", "2026-01-01T00:00:00Z", 10**30), forged("created_at", 7, 1), forged("created_at", None, 1),
        forged("created_at", "0000-00-00", 1), forged("created_at", "2026-01-01T00:00:00", 1), forged("slug", "x", 1),
        forged("created_at", "9999-12-31T23:59:59-23:59", 1), forged("created_at"), forged(), forged("owner", "x", 1),
        forged("created_at", "2026-01-01T00:00:00Z", "x"), forged("created_at", ["x"], 1), "!!!", "é", "[" * 5000,
        base64.urlsafe_b64encode(b"[" * 100_000).decode(), base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    ],
)  # fmt: skip
def test_a_forged_cursor_is_refused(cursor: str, world: World, bob: Api) -> None:
    answer = bob.get("agents", cursor=cursor)
    assert answer.status_code == 422, answer.content
    assert [error["field"] for error in answer.json()["errors"]] == ["cursor"]


def test_no_cursor_tells_the_hash_of_a_token(world: World, bob: Api) -> None:
    more(world, "GET /v1/tokens", 3)
    cursor = bob.get("tokens", limit=1).json()["next_cursor"]
    text = base64.urlsafe_b64decode(cursor + "==").decode()
    assert not any(token.digest in text or token.token_key in text for token in world.bob.auth_token_set.all())


def test_a_page_goes_on_where_it_was_whatever_comes_and_goes(world: World, bob: Api) -> None:
    more(world, "GET /v1/agents", 4)
    first = bob.get("agents", limit=3, sort="id").json()
    Agent.objects.filter(slug=first["items"][-1]["id"]).delete()  # the very row that the cursor stands at
    rest = bob.get("agents", sort="id", cursor=first["next_cursor"]).json()
    seen = [item["id"] for item in first["items"] + rest["items"]]
    assert seen == sorted(set(seen))
    assert rest["total"] == first["total"] - 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"label": "team=red"}, ["one", "two"]),
        ({"label": "team"}, ["one", "three", "two"]),
        ({"label": "a.b/c=1"}, ["two"]),
        ({"label": "7=seven"}, ["three"]),
        ({"label": ["team=red", "a.b/c=1"]}, ["two"]),
        ({"label": "team=green"}, []),
        ({"label": "nope"}, []),
        ({"q": "ONE"}, ["one"]),
        ({"q": "100%"}, ["three"]),
        ({"q": "_"}, []),
        ({"provider_id": "scripted"}, ["code-runner", "free", "one", "three", "two"]),
        ({"provider_id": "nope"}, []),
    ],
)
def test_filters_labels_and_search(query: dict[str, Any], found: list[str], world: World, alice: Api) -> None:
    make = {"one": {"team": "red"}, "two": {"team": "red", "a.b/c": "1"}, "three": {"team": "blue", "7": "seven"}}
    for slug, labels in make.items():
        body = {"id": slug, "labels": labels, "model": {"provider_id": "scripted"}}
        assert alice.post("agents", {**body, "description": "100% sure" if slug == "three" else ""}).status_code == 201
    page = alice.get("agents", sort="id", **query).json()
    assert [item["id"] for item in page["items"]] == found
    assert page["total"] == len(found)


@pytest.mark.parametrize("label", ["=x", "a b=c", "-x=1", '"=1', "$=1", "x" * 64 + "=1"])
def test_a_label_that_cannot_be_is_refused(label: str, world: World, alice: Api) -> None:
    answer = alice.get("agents", label=label)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "label")


def test_an_admin_narrows_by_owner_and_others_see_their_own_all_the_same(world: World, bob: Api, alice: Api) -> None:
    assert [item["owner"] for item in bob.get("workspaces", owner="alice").json()["items"]] == ["alice"]
    assert bob.get("workspaces", owner="charlie").json()["total"] == 0
    assert [item["owner"] for item in alice.get("workspaces", owner="bob").json()["items"]] == ["alice"]


def test_everybodys_tokens_are_an_admins_to_list(world: World, bob: Api, alice: Api) -> None:
    assert {item["user"] for item in bob.get("tokens", all="true").json()["items"]} == {"alice", "bob"}
    assert {item["user"] for item in bob.get("tokens").json()["items"]} == {"bob"}
    assert {item["user"] for item in alice.get("tokens", all="true").json()["items"]} == {"alice"}
    assert bob.get("tokens", all="yes").status_code == 422
