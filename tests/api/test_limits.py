"""How much one user may have at once; what an error tells; and what headers of a request can and cannot do."""

from __future__ import annotations

import errno
import json
import sqlite3
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from primer_site.errors import Unavailable
from sessions_app.models import AgentSession
from tests.api.conftest import World
from tests.api.table import operations, path_of, writes
from tests.api.together import at_once
from tests.factories import Api
from workspaces.models import Workspace

TRACES = ("Traceback", 'File "', "/usr/", ".py", "sqlite", "SELECT", "OperationalError", "no such table")


def refused(answer: Any, setting: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (429, "rate_limited"), problem
    assert setting in problem["detail"]
    assert problem["hint"]


def test_a_user_has_no_more_workspaces_than_allowed(world: World, alice: Api, bob: Api, settings: Any) -> None:
    settings.PRIMER_MAX_WORKSPACES = 2
    assert alice.post("workspaces", {"template_id": "plain"}).status_code == 201
    refused(alice.post("workspaces", {"template_id": "plain"}), "PRIMER_MAX_WORKSPACES")
    body = {"agent_id": "free", "template_id": "plain", "initial_instructions": "x"}
    refused(alice.post("sessions", body), "PRIMER_MAX_WORKSPACES")  # a throw-away one counts as well
    assert Workspace.objects.live().filter(owner=world.alice).count() == 2
    assert bob.post("workspaces", {"template_id": "plain"}).status_code == 201
    settings.PRIMER_MAX_WORKSPACES = 0
    assert alice.post("workspaces", {"template_id": "plain"}).status_code == 201


def test_a_user_has_no_more_waiting_sessions_than_allowed(world: World, alice: Api, settings: Any) -> None:
    settings.PRIMER_MAX_SESSIONS = 1
    body = {"agent_id": "free", "workspace_id": world.workspace.slug, "initial_instructions": "x"}
    assert alice.post("sessions", body).status_code == 201
    refused(alice.post("sessions", body), "PRIMER_MAX_SESSIONS")
    refused(alice.post(f"sessions/{world.session.slug}/messages", {"text": "x"}), "PRIMER_MAX_SESSIONS")
    refused(alice.post(f"sessions/{world.session.slug}/rerun"), "PRIMER_MAX_SESSIONS")
    assert AgentSession.objects.active().count() == 1


def test_the_last_place_goes_to_one_of_two(world: World, settings: Any) -> None:
    settings.PRIMER_MAX_WORKSPACES = 2
    clients = [world.client("alice") for _ in range(2)]
    answers = at_once(*[lambda one=one: one.post("workspaces", {"template_id": "plain"}) for one in clients])
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [201, 429]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError("/root/secret-path with sk-123"), 500),
        (OperationalError("no such table: accounts_user at /root/primer.sqlite3"), 503),
        (Unavailable(log="dial unix /var/run/docker.sock: permission denied"), 503),
    ],
)
def test_an_error_tells_its_id_and_nothing_of_the_inside(
    error: Exception, status: int, world: World, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.api import AgentViewSet

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(AgentViewSet, "base_queryset", fails)
    answer = alice.get("agents", {"X-Request-ID": "request-1234"})
    text = answer.content.decode()
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"] == "request-1234"
    assert not [trace for trace in (*TRACES, "secret-path", "sk-123", "docker.sock") if trace in text]
    assert ("Retry-After" in answer.headers) == (status == 503)


@pytest.mark.parametrize(
    "given", ["x", "a" * 65, "a\nb", "<script>alert(1)</script>", "\u00e4\u00f6\u00fc-long-enough", ""]
)
def test_a_request_id_that_is_none_is_replaced(given: str, world: World, alice: Api) -> None:
    answer = alice.get("me", {"X-Request-ID": given.replace("\n", " ")})
    assert answer.headers["X-Request-ID"] != given
    assert len(answer.headers["X-Request-ID"]) == 16


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "localhost:80@evil.example", "", "a" * 300])
def test_a_host_that_is_not_served_is_refused(host: str, world: World, alice: Api) -> None:
    answer = alice.get("me", {"Host": host})
    assert answer.status_code == 400
    assert not host or host not in answer.content.decode()


def test_forwarded_headers_are_not_believed(world: World, alice: Api, bob: Api) -> None:
    told = {
        "X-Forwarded-For": "6.6.6.6", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https",
        "X-Real-IP": "6.6.6.6", "Forwarded": "for=6.6.6.6", "X-Forwarded-Prefix": "/evil",
    }  # fmt: skip
    assert alice.patch("agents/free", {"description": "x"}, told).status_code == 200
    answer = bob.get("audit", told, action="agent.update")
    assert [item["address"] for item in answer.json()["items"]] == ["127.0.0.1"]
    assert "evil" not in answer.content.decode() + json.dumps(dict(answer.headers))


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_a_method_is_not_overridden(header: str, world: World, alice: Api) -> None:
    assert alice.get("agents/free", {header: "DELETE"}).status_code == 200
    assert alice.post("agents", {"_method": "DELETE"}, {header: "DELETE"}).status_code == 422
    assert alice.get("agents/free").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "//v1/me", "/v1//me", "/v1/me/", "/v1/%6de", "/v1/agents%2ffree", "/v1/agents/..%2fusers", "/V1/me", "/v1/../v1/me",
        "/v1/agents/free%00", "/v1/agents/free/", "/v1/agents/%2e%2e", "/v1/me;x=1", "/v1/me%3fx", "/v1/agents/%ff",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_goes_around_the_door(path: str, world: World, alice: Api) -> None:
    assert Client().get(path).status_code in (401, 404)
    answer = Client().get(path, headers=alice.headers)
    assert answer.status_code in (200, 404)
    if answer.status_code == 404:
        assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("name", [name for name in operations() if writes(name)])
def test_the_cookie_alone_writes_nothing(name: str, world: World) -> None:
    """What a page of somebody else can make a browser send: the cookie, any body as plain text, no token of ours."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.bob)
    path = f"/v1/{path_of(name, world.ids)}"
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        answer = client.generic(
            name.split(" ", 1)[0], path, b"{}", content_type=kind, headers={"Origin": "https://evil.example"}
        )
        # Signing in reads no cookie at all.
        assert answer.status_code == 403 or name.endswith("/auth/login"), (kind, answer.content)


def test_the_sign_in_cookie_is_out_of_reach_of_scripts_and_other_sites(settings: Any) -> None:
    assert settings.SESSION_COOKIE_HTTPONLY
    assert settings.SESSION_COOKIE_SAMESITE in ("Lax", "Strict")


def test_no_other_origin_is_let_in(world: World, alice: Api) -> None:
    answer = alice.get("me", {"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


def full_database() -> OperationalError:
    """What Django raises of a disk with no room: SQLite's own error is the cause, and its number says what it is."""
    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode = sqlite3.SQLITE_FULL
    error = OperationalError(*cause.args)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [full_database(), OSError(errno.ENOSPC, "No space left", "/root/x"), OSError(errno.EDQUOT, "quota")]
)
def test_a_full_disk_is_said_to_be_one(error: Exception, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("agents.api.AgentViewSet.base_queryset", fails)
    answer = world.client("alice").get("agents")
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert "nothing was stored" in answer.json()["detail"]
    assert "Retry-After" not in answer.headers
    assert "/root" not in answer.content.decode()


def test_a_database_that_may_not_grow_is_a_full_disk(world: World, alice: Api) -> None:
    """The real error, of a real database at its last page."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        pages = cursor.fetchone()[0]
        cursor.execute("PRAGMA max_page_count")
        most = cursor.fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {pages}")
    try:
        answers = [
            alice.patch("agents/free", {"description": letter * 4000, "system_prompt": [letter * 99_000]})
            for letter in "abc"
        ]
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA max_page_count = {most}")
    assert (answers[-1].status_code, answers[-1].json()["code"]) == (507, "disk_full"), answers[-1].content
