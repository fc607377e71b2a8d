"""A server that means harm, against every reading command: no escape reaches a terminal, no line is forged, nothing hangs."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest

from cli.kinds import KINDS
from tests.cli.conftest import Cli
from tests.cli.fake import NOW, SESS, WS, Answer, Primer, Request, event, problem

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\x00\rerror: forged\nended: completed\n\ud800"
COMMANDS = [
    ["get", "{kind}"],
    ["get", "{kind}", "-o", "wide"],
    ["get", "{kind}", "-o", "json"],
    ["get", "{kind}", "-o", "yaml"],
    ["get", "{kind}", "-o", "name"],
    ["get", "{kind}", "-o", "jsonpath={.items[*]}"],
    ["get", "{kind}", "{id}"],
    ["describe", "{kind}", "{id}"],
    ["wait", "{ref}", "--for=jsonpath={.note}=x", "--timeout=1s"],
    ["delete", "{ref}", "--timeout=1s"],
]
OTHERS = [
    ["whoami"],
    ["version"],
    ["doctor"],
    ["token", "list"],
    ["audit"],
    ["audit", "-o", "wide"],
    ["api", "GET", "/v1/agents"],
    ["provider", "check", "evil"],
    ["template", "check", "evil"],
    ["llm-provider", "test", "evil"],
    ["llm-provider", "models", "evil"],
    ["workspace", "verify", WS],
    ["workspace", "execs", WS],
    ["workspace", "files", "ls", WS],
    ["session", "events", SESS],
    ["session", "attach", SESS],
    ["session", "transcript", SESS],
    ["explain", "agent"],
    ["create", "workspace", "--set", "template_id=x"],
]


def poisoned(**known: Any) -> dict[str, Any]:
    """An object whose every text is hostile, and whose keys are too."""
    nested = {"reason": EVIL, "reasons": [EVIL], "version": EVIL, EVIL: EVIL}
    return {
        "note": EVIL,
        "name": EVIL,
        "owner": EVIL,
        "description": EVIL,
        "phase": EVIL,
        "phase_detail": EVIL,
        "boot_lines": [EVIL],
        "answer": EVIL,
        "ended_detail": {"message": EVIL, "hint": EVIL},
        "labels": {EVIL: EVIL},
        "config": {"kind": EVIL, "runtime": EVIL, "api_key": {"set": True, "last4": EVIL}},
        "status": {"health": EVIL, "engine": nested, "enforces": nested, "reasons": [EVIL]},
        "confinement": {"verdict": EVIL, "checks": [{"name": EVIL, "expected": EVIL, "observed": EVIL, "ok": True}]},
        "applied": {"egress": EVIL, "limits": {EVIL: {"asked": EVIL, "applied": EVIL, "enforced": EVIL}}},
        "phases": [{"phase": EVIL, "at": EVIL}],
        "tools": [EVIL],
        "model": {"provider_id": EVIL, "model_name": EVIL},
        "created_at": EVIL,
        EVIL: EVIL,
        **known,
    }


def raw(value: Any, status: int = 200) -> Answer:
    """JSON with its characters as they are: half a character too, which `\\u` escapes carry."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", "Retry-After": "\x1b[2J"})


@pytest.fixture
def evil(primer: Primer) -> Primer:
    for kind in KINDS:
        name = {"workspace": WS, "session": SESS}.get(kind.name, "evil")
        item = poisoned(id=name)
        if kind.name == "session":
            item |= {"status": "ended", "ended_reason": EVIL, "last_seq": 3}
        primer.store[kind.plural] = {name: item}
        primer.on("GET", f"/v1/{kind.plural}/{name}", raw(item))
        primer.on("GET", f"/v1/{kind.plural}", raw({"items": [item], "next_cursor": None, "total": 1}))
    row = poisoned(id=EVIL, argv=[EVIL], ended_by=EVIL, path=EVIL, kind=EVIL, at=EVIL, actor=EVIL, before={EVIL: EVIL})
    for path in ("tokens", "audit", f"workspaces/{WS}/exec", f"workspaces/{WS}/files"):
        primer.on("GET", f"/v1/{path}", raw({"items": [row], "next_cursor": None}))
    told = poisoned(username=EVIL, role=EVIL, version=EVIL, api=EVIL, detail=EVIL, message=EVIL, items=[EVIL], ok=False)
    for path in ("/v1/me", "/v1/capabilities", "/v1/llm_providers/evil/models"):
        primer.on("GET", path, raw(told))
    for path in (
        "workspace_providers/evil/check",
        "workspace_templates/evil/check",
        "llm_providers/evil/test",
        f"workspaces/{WS}/verify",
    ):
        primer.on("POST", f"/v1/{path}", raw(told))
    primer.on("POST", "/v1/workspaces", raw(poisoned(id=EVIL), 201))
    events = [
        event(1, "tool_call", call_id="a", name=EVIL, arguments={"path": EVIL, "command": EVIL}),
        event(2, "tool_output", call_id="a", text=EVIL),
        event(3, EVIL, text=EVIL),
    ]
    primer.on("GET", f"/v1/sessions/{SESS}/events", lambda request: raw(_after(request, events)))
    primer.on("GET", f"/v1/sessions/{SESS}/transcript", Answer(200, EVIL.encode("utf-8", "surrogatepass")))
    return primer


def _after(request: Request, events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": [e for e in events if e["seq"] > int(request.query["after"][0])], "last_seq": 3}


def dangerous(text: str) -> list[str]:
    without_colour = re.sub(r"\x1b\[[0-9;:]*m", "", text)
    bidi = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
    return [c for c in without_colour if (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t") or c in bidi]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_objects_that_mean_harm_are_only_text(cli: Cli, evil: Primer, kind: Any, argv: list[str]) -> None:
    name = {"workspace": WS, "session": SESS}.get(kind.name, "evil")
    words = [word.format(kind=kind.name, id=name, ref=f"{kind.name}/{name}") if "{kind" in word or "{id" in word or "{ref" in word else word for word in argv]  # fmt: skip
    result = cli(*words, out_tty=True, err_tty=True)
    harmless(result.text, result.err)


@pytest.mark.parametrize("argv", OTHERS, ids=" ".join)
def test_answers_that_mean_harm_are_only_text(cli: Cli, evil: Primer, argv: list[str]) -> None:
    result = cli(*argv, out_tty=True, err_tty=True)
    harmless(result.text, result.err)


def harmless(out: str, err: str) -> None:
    assert "Traceback" not in err
    assert "error of its own" not in err
    assert dangerous(out) == []
    assert dangerous(err) == []
    assert "error: forged" not in [line.strip() for line in err.splitlines()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_on_a_pipe_has_one_line_for_each_object(cli: Cli, evil: Primer, kind: Any) -> None:
    for style in ((), ("-o", "wide"), ("-o", "name")):
        lines = cli("get", kind.name, *style).text.splitlines()
        assert len(lines) == (1 if style == ("-o", "name") else 2)


def test_an_ending_that_says_completed_is_none(cli: Cli, evil: Primer) -> None:
    result = cli("session", "attach", SESS)
    assert result.code == 10
    assert result.text.splitlines()[-1].startswith("ended: \\x1b]0;owned")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
def test_a_refusal_that_means_harm_is_a_few_lines_of_text(cli: Cli, primer: Primer, status: int) -> None:
    errors = [{"field": EVIL, "message": EVIL}, 5, {"field": None}]
    body = problem(status, EVIL, EVIL, errors=errors, hint=EVIL, request_id=EVIL).body
    primer.on("GET", "/v1/agents", Answer(status, body, {"Content-Type": "application/problem+json"}))
    result = cli("get", "agents", err_tty=True, out_tty=True)
    assert result.out == b""
    harmless("", result.err)
    assert all(line.startswith(("error: ", "hint: ", "(request id ")) for line in result.err.splitlines())


@pytest.mark.parametrize(
    "argv", [["get", "agents"], ["whoami"], ["apply", "-f", "-"], ["session", "run", WS, "--agent", "a", "-i", "x"]]
)
@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"<html>", {"Content-Type": "text/html"}),
        Answer(302, None, {"Location": "http://127.0.0.1:1/"}),
        Answer(302, None, {"Location": "http://["}),
        Answer(302, None),
        Answer(200, b"[" * 200_000, {"Content-Type": "application/json"}),
        Answer(200, b"", {"Content-Type": "application/json"}),
        Answer(200, [1, 2], {}),
        Answer(200, b"\xff\xfe{}", {"Content-Type": "application/json"}),
        Answer(599, None),
        Answer(200, b"{}", {"Content-Type": "application/json", "Content-Length": "9999"}, cut=True),
    ],
    ids=["html", "away", "bad address", "nowhere", "deep", "empty", "list", "bytes", "599", "cut"],
)
def test_an_answer_that_is_none_is_6_and_never_a_traceback(
    cli: Cli, primer: Primer, argv: list[str], answer: Answer
) -> None:
    manifest = b"kind: agent\nspec: {id: a, model: {provider_id: p}}\n"
    for method, path in (
        ("GET", "agents"),
        ("GET", "me"),
        ("GET", "agents/a"),
        ("PUT", "agents/a"),
        ("POST", "sessions"),
    ):
        primer.on(method, f"/v1/{path}", answer)
    result = cli(*argv, stdin=manifest)
    assert result.code == 6
    assert result.out == b""
    harmless("", result.err)


def test_an_endless_stream_of_output_is_not_collected(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.execution.MAX_JSON", 256 * 1024)
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    pieces = [b'{"id": "exec-1"}\n', *[b"x" * 65536] * 16]
    primer.on("POST", f"/v1/workspaces/{WS}/exec", Answer(200, None, {"Content-Type": "application/x-ndjson"}, pieces))
    result = cli("workspace", "exec", WS, "--", "true")
    assert (result.code, result.err) == (
        6,
        "error: this is not a Primer API: a line of the output is larger than 64 MiB\n",
    )


def test_the_fake_of_these_tests_really_is_hostile(cli: Cli, evil: Primer) -> None:
    assert dangerous(EVIL) != []
    assert "\x1b" in cli("get", "agents", "-o", "jsonpath={.items[*].note}").text  # a pipe gets what there is
    assert NOW
