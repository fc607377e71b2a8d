"""Exit codes are a contract: one table for the API's errors, one for the endings of sessions, one for those of execs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.commands.following import exit_of
from cli.errors import MEANING, Exit, exit_for
from cli.verdict import MOST_SURVIVORS, how_many, verdict
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, problem
from workspaces.runtime import protocol

API = [
    (400, "invalid", 2),
    (401, "unauthenticated", 4),
    (403, "forbidden", 4),
    (404, "not_found", 3),
    (409, "conflict", 5),
    (409, "in_use", 5),
    (409, "workspace_not_running", 5),
    (409, "workspace_lost", 1),
    (412, "precondition_failed", 5),
    (413, "too_large", 2),
    (415, "invalid", 2),
    (422, "invalid", 2),
    (422, "not_text", 2),
    (424, "llm_config", 1),
    (429, "rate_limited", 6),
    (500, "internal", 6),
    (502, "llm_unavailable", 1),
    (502, "", 6),
    (503, "engine_unavailable", 6),
    (504, "timeout", 6),
    (507, "disk_full", 1),
]


@pytest.mark.parametrize(("status", "code", "expected"), API)
def test_each_code_of_the_api_has_its_exit_code(
    cli: Cli, primer: Primer, status: int, code: str, expected: int
) -> None:
    assert exit_for(status, code) == expected
    primer.on("GET", "/v1/agents", problem(status, code, "What happened.", request_id="7f3a9c12"))
    result = cli("get", "agents")
    assert (result.code, result.out) == (expected, b"")
    assert "error: " in result.err
    assert "(request id 7f3a9c12)" in result.err


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("completed", 0),
        ("failed", 10),
        ("cancelled", 11),
        ("timed_out", 12),
        ("limit", 12),
        ("interrupted", 13),
        ("something new", 10),
    ],
)
def test_each_ending_of_a_session_has_its_exit_code(reason: str, expected: int) -> None:
    assert exit_of(reason) == expected


EXECS: list[tuple[dict[str, Any], int, list[str]]] = [
    ({"ended_by": "exit", "exit_code": 0}, 0, []),
    ({"ended_by": "exit", "exit_code": 3}, 3, []),
    ({"ended_by": "signal", "signal": 9}, 137, ["primectl: ended by signal 9"]),
    ({"ended_by": "signal", "signal": 15}, 143, ["primectl: ended by signal 15"]),
    (
        {"ended_by": "oom", "signal": 9, "evidence": {"limit": 536870912}},
        137,
        ["primectl: ended by oom: memory limit 512 MiB"],
    ),
    (
        {"ended_by": "timeout", "signal": 15, "evidence": {"limit": 60}, "stdout_bytes": 1200, "stderr_bytes": 4},
        124,
        ["primectl: ended by timeout after 60 s; output kept: 1 204 bytes"],
    ),
    ({"ended_by": "pids", "exit_code": 0, "evidence": {"limit": 256}}, 1, ["primectl: ended by pids: limit 256"]),
    ({"ended_by": "pids", "exit_code": 2}, 2, ["primectl: ended by pids"]),
    ({"ended_by": "disk", "signal": 25, "exit_code": None}, 153, ["primectl: ended by disk: no space left"]),
    (
        {"ended_by": "output_cap", "signal": 9, "evidence": {"limit": 268435456}},
        137,
        ["primectl: ended by output_cap: a stream passed 256 MiB"],
    ),
    (
        {
            "ended_by": "output_cap",
            "signal": 9,
            "evidence": {"limit": 268435456},
            "stdout_bytes": 268500000,
            "stdout_gap": [786432, 268237856],
        },
        137,
        ["primectl: ended by output_cap: stdout passed 256 MiB, 1 MiB kept"],
    ),
    ({"ended_by": "cancelled", "evidence": {"cancelled_by": "alice"}}, 130, ["primectl: ended by cancelled: by alice"]),
    ({"ended_by": "lost"}, 125, ["primectl: lost: no reason given"]),
    (
        {"ended_by": "not_started", "error": {"detail": "There is no program x."}},
        125,
        ["primectl: not started: There is no program x"],
    ),
    ({}, 125, ["primectl: lost: no reason given"]),
    (
        {"ended_by": "exit", "exit_code": 0, "survivors": [{"pid": 7, "command": "x"}, {"pid": 8, "command": "y"}]},
        0,
        [f"primectl: 2 processes still run: primectl workspace execs {WS}"],
    ),
]


@pytest.mark.parametrize(("result", "code", "lines"), EXECS)
def test_each_verdict_of_an_exec_has_its_exit_code_and_line(
    result: dict[str, Any], code: int, lines: list[str]
) -> None:
    assert verdict(result, {"stdout": 0, "stderr": 0}, WS) == (code, lines)


def test_output_that_was_not_kept_is_said() -> None:
    result = {"ended_by": "exit", "exit_code": 0, "stdout_bytes": 87 * 1024**2}
    lost = {"stdout": 86 * 1024**2, "stderr": 0}
    assert verdict(result, lost, WS) == (0, ["primectl: 1 MiB of 87 MiB of stdout kept"])


def test_a_few_missing_bytes_do_not_read_as_if_nothing_were_missing() -> None:
    result = {"ended_by": "exit", "exit_code": 0, "stdout_bytes": 268_600_000}
    lines = ["primectl: all but 1 204 bytes of 256.2 MiB of stdout kept"]
    assert verdict(result, {"stdout": 1204, "stderr": 0}, WS) == (0, lines)


def test_what_is_missing_of_shown_output_is_not_said_to_be_missing_of_what_is_kept() -> None:
    """A flood: all that came was shown, 1 MiB of it is kept, and 64 KiB that came behind its end are nowhere."""
    head, discarded, total = 786_432, 65_536, 268_566_528
    result = {"ended_by": "output_cap", "signal": 9, "evidence": {"limit": 268_435_456}, "stdout_bytes": total}
    result["stdout_gap"] = [head, total - discarded - 262_144]
    lines = [
        "primectl: all but 65 536 bytes of 256.1 MiB of stdout shown",
        "primectl: ended by output_cap: stdout passed 256 MiB, 1 MiB kept",
    ]
    missing = {"stdout": discarded}
    assert verdict(result, missing, WS, shown=True, unkept=missing) == (137, lines)


def test_a_list_of_survivors_as_long_as_one_can_be_says_that_there_may_be_more() -> None:
    assert MOST_SURVIVORS == protocol.MAX_SURVIVORS
    left = [{"pid": pid, "command": "x"} for pid in range(1, MOST_SURVIVORS + 1)]
    result = {"ended_by": "exit", "exit_code": 0, "survivors": left}
    line = f"primectl: 64 or more processes still run: primectl workspace execs {WS}"
    assert verdict(result, {}, WS) == (0, [line])
    assert how_many(left[1:]) == "63"


def test_what_still_runs_in_a_workspace_that_goes_away_is_not_told() -> None:
    result = {"ended_by": "exit", "exit_code": 0, "survivors": [{"pid": 7, "command": "x"}]}
    assert verdict(result, {"stdout": 0, "stderr": 0}) == (0, [])


def test_the_help_tells_the_cap_and_what_137_is(cli: Cli) -> None:
    assert "256 MiB" in cli("workspace", "exec", "--help").text
    line = next(line for line in cli("help", "exit-codes").text.splitlines() if line.startswith("137"))
    assert "128 + n" in line
    assert "oom" in line
    assert "output_cap" in line


def test_a_failure_is_one_json_object_with_o_json(cli: Cli, primer: Primer) -> None:
    errors = [{"field": "backend.memory_bytes", "message": "must be at least 67108864"}]
    primer.on("GET", "/v1/agents", problem(422, "invalid", "No.", errors=errors, request_id="7f3a9c12", hint="less"))
    result = cli("get", "agents", "-o", "json")
    assert (result.code, result.out) == (2, b"")
    assert json.loads(result.err) == {
        "error": {
            "code": "invalid",
            "message": "backend.memory_bytes: must be at least 67108864",
            "errors": errors,
            "hint": "less",
            "request_id": "7f3a9c12",
        }
    }


def test_every_field_that_is_wrong_gets_its_line(cli: Cli, primer: Primer) -> None:
    errors = [{"field": "name", "message": "is too long"}, {"field": "ttl_s", "message": "must be at least 1"}]
    primer.on("POST", "/v1/workspaces", problem(422, "invalid", errors=errors))
    result = cli("create", "workspace", "--set", "template_id=x")
    assert (result.code, result.err) == (2, "error: name: is too long\nerror: ttl_s: must be at least 1\n")


def test_a_template_that_does_not_exist_gets_the_nearest_name(cli: Cli, primer: Primer) -> None:
    primer.store["workspace_templates"]["code-sandbox"] = {"id": "code-sandbox"}
    errors = [{"field": "template_id", "message": "not found"}]
    primer.on("POST", "/v1/workspaces", problem(422, "invalid", errors=errors))
    result = cli("create", "workspace", "--set", "template_id=code-sandbx")
    assert result.code == 2
    assert result.err == (
        'error: template_id: no workspace_template "code-sandbx"\nhint: did you mean "code-sandbox"?\n'
    )


def test_creating_what_is_there_says_how_to_change_it(cli: Cli, primer: Primer, folder: object) -> None:
    primer.store["workspace_templates"]["code-sandbox"] = {"id": "code-sandbox"}
    result = cli("create", "-f", "code-sandbox.yaml")
    assert result.code == 5
    assert result.err == (
        "error: workspace_template code-sandbox already exists\n"
        "hint: change it with: primectl apply -f code-sandbox.yaml\n"
    )


def test_an_engine_that_is_away_says_when_to_come_again(cli: Cli, primer: Primer) -> None:
    answer = problem(503, "engine_unavailable", "The engine does not answer.")
    answer.headers["Retry-After"] = "5"
    primer.on("GET", "/v1/agents", answer)
    result = cli("get", "agents")
    assert result.code == 6
    assert result.err == "error: The engine does not answer.\nhint: (try again in 5 s)\n"


def test_an_unreachable_loopback_server_says_how_to_start_it(cli: Cli) -> None:
    result = cli("get", "agents", PRIMECTL_SERVER="http://127.0.0.1:1")
    assert result.code == 6
    assert result.err == (
        "error: cannot reach http://127.0.0.1:1: connection refused\nhint: start it with: primer up\n"
    )


def test_without_a_token_the_login_line_is_printed(cli: Cli, url: str) -> None:
    result = cli("get", "agents", PRIMECTL_TOKEN="")
    assert result.code == 4
    assert result.err == f"error: not logged in to {url}\nhint: primectl login {url}\n"


def test_hostile_error_text_cannot_forge_a_line(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", problem(409, "conflict", "x\nended: completed\x1b[2J"))
    assert cli("get", "agents").err == "error: x\\nended: completed\\x1b[2J\n"


def test_help_exit_codes_prints_the_whole_table(cli: Cli) -> None:
    lines = cli("help", "exit-codes").text.splitlines()
    assert [int(line.split()[0]) for line in lines[1:]] == [int(code) for code in Exit]
    assert set(MEANING) == set(Exit)


@pytest.mark.parametrize(
    "argv",
    [
        ["gett"],
        ["get"],
        ["get", "agnts"],
        ["get", "agents", "--nope"],
        ["get", "workspace/x", "agent/y"],
        ["get", "workspace", "session/sess-4be0c1d2e3f40516"],
        ["get", "workspace", "ws-zz"],
        ["get", "workspace", "ws-1a2"],
        ["get", "agents", "-o", "jsno"],
        ["create"],
        ["create", "workspace", "--set", "templat_id=x"],
        ["create", "workspace", "-f", "x.yaml"],
        ["create", "-f", "no-such-file.yaml"],
        ["create", "-f", "http://example.com/x.yaml"],
        ["delete", "workspace"],
        ["delete", "workspace", "ws-1a2b"],
        ["wait", "workspace/ws-1a2b3c4d5e6f7081", "--for=phse=running"],
        ["wait", "workspace/ws-1a2b3c4d5e6f7081", "--for=phase=running", "--timeout", "soon"],
        ["session", "run", "--agent", "a", "-i", "x"],
        ["session", "run", WS, "--agent", "a", "-i", " "],
        ["workspace", "exec", WS],
        ["workspace", "exec", WS, "-it", "--", "sh"],
        ["workspace", "output", WS, "5"],
        ["session", "rerun", "sess-4be0"[:8]],
        ["session", "transcript", "sess-4be0c1d2e3f40516", "--format", "pdf"],
        ["token", "create"],
        ["token", "create", "--name", "x", "--expires", "soon"],
        ["audit", "--since", "yesterday"],
        ["api", "FETCH", "/v1/me"],
        ["api", "GET", "http://elsewhere.example/v1/me"],
        ["api", "GET", "//elsewhere.example/v1/me"],
        ["api", "POST", "/v1/agents", "-f", "a=1", "--input", "-"],
        ["api", "GET", "/v1/me", "-H", "Authorization: Bearer x"],
        ["explain", "agnt"],
        ["explain", "agent.modl"],
        ["diff"],
        ["edit", "agent"],
        ["get", "agents", "-o", "jsonpath={.a"],
        ["get", "agents", "-w", "-o", "yaml"],
        ["create", "workspace", "--set", "template_id=x", "--wait", "--dry-run=client"],
        ["run"],
        ["run", "no-such-file.py"],
        ["run", "README"],
        ["--server", "ftp://x", "get", "agents"],
        ["--server", "http://user:pw@x", "get", "agents"],
        ["get", "agents", "--request-timeout", "x"],
    ],
)
def test_wrong_usage_is_2_before_anything_is_sent(cli: Cli, primer: Primer, argv: list[str]) -> None:
    result = cli(*argv)
    assert (result.code, result.out) == (2, b"")
    assert result.err.startswith("error: ")
    assert [r.method for r in primer.requests if r.method != "GET"] == []


def test_an_unknown_command_names_the_nearest(cli: Cli) -> None:
    assert cli("sesion").err == 'error: primectl has no command "sesion"\nhint: did you mean primectl session?\n'


def test_an_unexpected_answer_is_not_a_traceback(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/agents", Answer(200, ["not", "an", "object"]))
    result = cli("get", "agents")
    assert (result.code, result.err) == (6, "error: this is not a Primer API: an object was due\n")
