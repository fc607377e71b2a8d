"""token, audit and api: the value of a token once, times that mean ago, any route with the same rules."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import NOW, TOKEN, Answer, Primer, Request, not_found, problem

IDS = ["6f1d2c3b-4a5e-6978-8a9b-0c1d2e3f4a5b", "6f1d2c3b-0000-6978-8a9b-0c1d2e3f4a5b"]
VALUE = "a-very-secret-value"


@pytest.fixture
def tokens(primer: Primer) -> list[dict[str, Any]]:
    items = [
        {
            "id": key,
            "name": name,
            "scope": "write",
            "user": "alice",
            "created_at": NOW,
            "expires_at": NOW,
            "last_used": None,
        }
        for key, name in zip(IDS, ("ci", "laptop"), strict=True)
    ]
    primer.on("GET", "/v1/tokens", lambda request: Answer(200, {"items": items, "next_cursor": None}))
    for item in list(items):
        primer.on("DELETE", f"/v1/tokens/{item['id']}", _Revoke(items, item))
    return items


class _Revoke:
    """Takes a token from the list, once."""

    def __init__(self, items: list[dict[str, Any]], item: dict[str, Any]) -> None:
        self.items, self.item = items, item

    def __call__(self, request: Request) -> Answer:
        if self.item not in self.items:
            return not_found()
        self.items.remove(self.item)
        return Answer(204)


def test_the_value_of_a_token_is_the_only_thing_on_stdout(cli: Cli, primer: Primer) -> None:
    made = {"id": IDS[0], "name": "ci", "scope": "write", "expires_at": NOW, "token": VALUE}
    primer.on("POST", "/v1/tokens", Answer(201, made))
    result = cli("token", "create", "--name", "ci", "--scope", "write", "--expires", "30d")
    assert (result.code, result.text, result.err) == (0, f"{VALUE}\n", "")
    request = primer.sent("POST", "/v1/tokens")[0]
    assert request.json == {"name": "ci", "scope": "write", "expires_in_s": 30 * 86400}
    assert "idempotency-key" not in request.headers


@pytest.mark.parametrize("flag", ["-v", "-vv"])
def test_the_trace_does_not_show_the_value(cli: Cli, primer: Primer, flag: str) -> None:
    primer.on("POST", "/v1/tokens", Answer(201, {"id": IDS[0], "name": "ci", "token": VALUE}))
    result = cli(flag, "token", "create", "--name", "ci")
    assert VALUE in result.text
    assert VALUE not in result.err


def test_a_token_is_asked_for_once_however_the_server_fails(cli: Cli, primer: Primer) -> None:
    primer.on("POST", "/v1/tokens", problem(503, "engine_unavailable"))
    assert cli("token", "create", "--name", "ci").code == 6
    assert len(primer.sent("POST", "/v1/tokens")) == 1


def test_a_token_whose_answer_is_lost_may_be_there(cli: Cli, primer: Primer) -> None:
    lost = Answer(201, None, {"Content-Type": "application/json"}, pieces=[b"{"], cut=True)
    primer.on("POST", "/v1/tokens", lost)
    result = cli("token", "create", "--name", "ci")
    assert (result.code, len(primer.sent("POST", "/v1/tokens"))) == (6, 1)
    assert result.err.endswith("it may have been created all the same, and nobody has its value: primectl token list\n")
    nobody = cli("token", "create", "--name", "ci", PRIMECTL_SERVER="http://127.0.0.1:1")
    assert "may have been created" not in nobody.err


def test_a_refused_field_is_named_by_its_flag(cli: Cli, primer: Primer) -> None:
    errors = [{"field": "expires_in_s", "message": "must be at least 60"}]
    primer.on("POST", "/v1/tokens", problem(422, "invalid", errors=errors))
    result = cli("token", "create", "--name", "ci", "--expires", "1s")
    assert (result.code, result.err) == (2, "error: --expires: must be at least 60\n")


def test_token_list_shows_no_value(cli: Cli, primer: Primer, tokens: list[dict[str, Any]]) -> None:
    header, row, _ = cli("token", "list").text.splitlines()
    assert header.split() == ["ID", "NAME", "SCOPE", "USER", "AGE", "USED", "EXPIRES"]
    assert row.split()[:4] == [IDS[0], "ci", "write", "alice"]
    assert "never" in row
    assert cli("token", "list", "-o", "name").text == f"{IDS[0]}\n{IDS[1]}\n"
    cli("token", "list", "--all")
    assert primer.requests[-1].query["all"] == ["true"]


@pytest.mark.parametrize("name", [IDS[0], "ci", "6f1d2c3b-4", f"token/{IDS[0]}"])
def test_a_token_is_revoked_by_id_by_its_beginning_or_by_name(
    cli: Cli, tokens: list[dict[str, Any]], name: str
) -> None:
    result = cli("token", "revoke", name)
    assert (result.code, result.text) == (0, f"token/{IDS[0]} revoked\n")
    assert [item["name"] for item in tokens] == ["laptop"]


def test_a_revoked_token_is_shown_with_those_that_go_with_it(cli: Cli, tokens: list[dict[str, Any]]) -> None:
    tokens[1]["made_by"] = IDS[0]
    result = cli("token", "revoke", "ci", "laptop")
    assert (result.code, result.text) == (0, f"token/{IDS[0]} revoked\ntoken/{IDS[1]} revoked\n")


def test_revoke_never_guesses(cli: Cli, tokens: list[dict[str, Any]]) -> None:
    both = cli("token", "revoke", "6f1d2c3b")
    assert (both.code, both.err) == (2, f'error: "6f1d2c3b" is ambiguous: {", ".join(IDS)}\n')
    missing = cli("token", "revoke", "lptop", "ci")
    assert (missing.code, missing.text) == (3, f"token/{IDS[0]} revoked\n")
    assert missing.err == "error: token lptop not found\nhint: did you mean laptop?\n"
    assert cli("token", "revoke", IDS[0]).code == 3


# -- audit

ENTRY = {
    "id": 1,
    "at": NOW,
    "actor": "alice",
    "actor_kind": "user",
    "token": "ci",
    "action": "agent.update",
    "object_kind": "agent",
    "object_id": "a",
    "address": "10.0.0.1",
    "request_id": "7f3a",
    "before": {"description": "one", "same": 1},
    "after": {"description": "two", "same": 1},
}


@pytest.fixture
def entries(primer: Primer) -> list[dict[str, Any]]:
    items = [dict(ENTRY)]
    primer.on("GET", "/v1/audit", Answer(200, {"items": items, "next_cursor": None}))
    return items


def test_audit_says_who_did_what_to_what_from_where(cli: Cli, entries: list[dict[str, Any]]) -> None:
    header, row = cli("audit").text.splitlines()
    assert header.split() == ["AT", "ACTOR", "ACTION", "OBJECT", "ADDRESS"]
    assert row.split()[1:] == ["alice", "agent.update", "agent/a", "10.0.0.1"]
    wide = cli("audit", "-o", "wide", "--utc").text
    assert "2026-02-01 10:00:00+00:00" in wide
    assert wide.rstrip().endswith('description: "one" -> "two"')
    assert json.loads(cli("audit", "-o", "json").out)["items"] == [ENTRY]
    assert json.loads(cli("audit", "-o", "jsonl").out) == ENTRY


def test_since_is_a_moment_or_how_long_ago(cli: Cli, primer: Primer, entries: list[dict[str, Any]]) -> None:
    cli("audit", "--since", "2026-02-01T10:00:00+01:00", "--field", "actor=alice")
    assert primer.requests[-1].query["since"] == ["2026-02-01T09:00:00Z"]
    assert primer.requests[-1].query["actor"] == ["alice"]
    cli("audit", "--since", "2h", "--until", "1m")
    since, until = (datetime.fromisoformat(primer.requests[-1].query[name][0]) for name in ("since", "until"))
    assert abs(until - since - timedelta(minutes=119)) < timedelta(seconds=1)
    assert timedelta(0) <= datetime.now(UTC) - since - timedelta(hours=2) < timedelta(minutes=1)


def test_audit_is_for_admins_and_forges_no_row(cli: Cli, primer: Primer, entries: list[dict[str, Any]]) -> None:
    entries[0]["object_id"] = "a\nbob  agent.delete"
    assert len(cli("audit").text.splitlines()) == 2
    primer.on("GET", "/v1/audit", problem(403, "forbidden", "That needs the role admin."))
    assert cli("audit").err == "error: That needs the role admin.\n"


# -- api


def test_api_prints_the_body_as_it_came(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/odd", Answer(200, b'{"a":  1}\n', {"Content-Type": "application/json"}))
    assert cli("api", "GET", "/v1/odd").out == b'{"a":  1}\n'
    assert cli("api", "get", "v1/odd", out_tty=True).text == '{\n  "a": 1\n}\n'
    primer.on("GET", "/v1/bytes", Answer(200, bytes(range(256)), {"Content-Type": "application/octet-stream"}))
    assert cli("api", "GET", "/v1/bytes").out == bytes(range(256))
    assert b"\x1b" not in cli("api", "GET", "/v1/bytes", out_tty=True).out


def test_fields_go_into_the_query_of_a_get_and_the_body_of_a_post(cli: Cli, primer: Primer) -> None:
    cli("api", "GET", "/v1/agents?limit=5", "-f", "q=x y")
    assert primer.requests[-1].query == {"limit": ["5"], "q": ["x y"]}
    fields = ("template_id=a", "ttl_s=90", "labels.team=red", "name='5'", "env={}")
    result = cli("api", "POST", "/v1/workspaces", *(word for field in fields for word in ("-f", field)))
    assert result.code == 0
    request = primer.sent("POST", "/v1/workspaces")[0]
    assert request.json == {"template_id": "a", "ttl_s": 90, "labels": {"team": "red"}, "name": "'5'", "env": "{}"}
    assert len(request.headers["idempotency-key"]) == 32


def test_input_is_the_body_as_it_is(cli: Cli, primer: Primer, tmp_path: Path) -> None:
    raw = b'{"id": "z",  "model": {"provider_id": "scripted"}}'
    assert cli("api", "POST", "/v1/agents", "--input", "-", stdin=raw).code == 0
    request = primer.sent("POST", "/v1/agents")[0]
    assert (request.body, request.headers["content-type"]) == (raw, "application/json")
    (tmp_path / "body").write_bytes(b"\0\1")
    cli("api", "PUT", "/v1/x", "--input", str(tmp_path / "body"), "-H", "Content-Type: application/octet-stream")
    request = primer.sent("PUT", "/v1/x")[0]
    assert (request.body, request.headers["content-type"]) == (b"\0\1", "application/octet-stream")


def test_paginate_follows_the_cursors_into_one_list(cli: Cli, primer: Primer) -> None:
    primer.store["agents"] = {f"a{n}": {"id": f"a{n}"} for n in range(250)}
    body = json.loads(cli("api", "GET", "/v1/agents", "--paginate").out)
    assert (len(body["items"]), body["total"], body["next_cursor"]) == (250, 250, None)
    assert cli("api", "GET", "/v1/me", "--paginate").code == 6
    assert cli("api", "POST", "/v1/agents", "--paginate").code == 2


def test_api_fails_as_every_command_does(cli: Cli, primer: Primer) -> None:
    assert cli("api", "GET", "/v1/agents/nobody").code == 3
    primer.on("GET", "/v1/x", problem(403, "forbidden", "No.", request_id="7f3a9c12"))
    result = cli("api", "GET", "/v1/x")
    assert (result.code, result.out, result.err) == (4, b"", "error: No.\n(request id 7f3a9c12)\n")
    assert json.loads(cli("api", "GET", "/v1/x", "-o", "json").err)["error"]["code"] == "forbidden"


def test_a_patch_is_sent_once_and_what_is_safe_again(cli: Cli, primer: Primer) -> None:
    for method, count in (("PATCH", 1), ("PUT", 4), ("POST", 4)):
        primer.on(method, "/v1/x", problem(503, "engine_unavailable"))
        assert cli("api", method, "/v1/x", "-f", "a=1").code == 6
        assert len(primer.sent(method, "/v1/x")) == count


def test_the_token_goes_where_it_always_goes(cli: Cli, primer: Primer) -> None:
    seen: list[Request] = []
    primer.on("GET", "/v1/x", lambda request: seen.append(request) or Answer(204))  # type: ignore[func-returns-value]
    assert cli("api", "GET", "/v1/x").code == 0
    assert seen[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert cli("api", "GET", "@evil.example/v1/x").code in (3, 6)
    assert all(request.headers["host"].startswith("127.0.0.1") for request in primer.requests)
