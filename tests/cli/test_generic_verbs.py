"""get, describe, delete, wait over every kind; grammar; doctor."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from cli.kinds import KINDS, Kind
from tests.cli.conftest import Cli
from tests.cli.fake import NOW, SESS, WS, Answer, Primer, problem

ITEMS: dict[str, dict[str, Any]] = {
    "workspace_provider": {
        "id": "docker-local",
        "provider": "container",
        "config": {
            "kind": "container",
            "runtime": "docker",
            "connection": {"kind": "socket", "socket_path": "/run/docker.sock"},
        },
        "status": {
            "health": "healthy",
            "checked_at": NOW,
            "engine": {"version": "20.10.24"},
            "enforces": {"cpu": "enforced"},
        },
    },
    "workspace_template": {
        "id": "code-sandbox",
        "provider_id": "docker-local",
        "backend": {
            "kind": "container",
            "image": "primer/workspace-runtime:1.0",
            "cpu_cores": 1,
            "memory_bytes": 536870912,
        },
    },
    "workspace": {
        "id": WS,
        "template_id": "code-sandbox",
        "phase": "failed",
        "phase_reason": "image_not_found",
        "phase_detail": "image not found.",
        "spec": {"backend": {"image": "primer/workspace-runtime:1.0"}},
        "boot_lines": ["last words"],
        "phases": [{"phase": "pending", "at": NOW}, {"phase": "failed", "at": "2026-02-01T10:00:02Z"}],
        "applied": {"egress": "deny_all", "limits": {"memory": {"asked": 1, "applied": 1, "enforced": "enforced"}}},
        "confinement": {
            "verdict": "failed",
            "checks": [{"name": "socket", "expected": "no", "observed": "yes", "ok": False}],
        },
        "owner": "alice",
    },
    "session": {
        "id": SESS,
        "agent_id": "code-runner",
        "workspace_id": WS,
        "initial_instructions": "x",
        "status": "ended",
        "ended_reason": "failed",
        "ended_detail": {"message": "no model"},
        "turns": 2,
        "usage": {"input_tokens": 5},
        "started_at": NOW,
        "ended_at": "2026-02-01T10:00:03Z",
    },
    "agent": {"id": "code-runner", "model": {"provider_id": "scripted", "model_name": "m"}, "tools": []},
    "llm_provider": {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}},
}


@pytest.fixture(autouse=True)
def everything(primer: Primer) -> Primer:
    for kind in KINDS:
        item = {**deepcopy(ITEMS[kind.name]), "created_at": NOW, "labels": {"team": "red"}}
        primer.store[kind.plural] = {item["id"]: item}
    return primer


every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_every_way_to_name_a_kind_lists_it(cli: Cli, kind: Kind) -> None:
    for word in (*kind.words, kind.name.replace("_", "-"), kind.plural.upper()):
        result = cli("get", word, "-o", "name")
        assert (result.code, result.text) == (0, f"{kind.name}/{ITEMS[kind.name]['id']}\n")


@every_kind
def test_get_prints_a_table_json_yaml_and_wide(cli: Cli, kind: Kind) -> None:
    name = ITEMS[kind.name]["id"]
    header, row = cli("get", kind.plural).text.splitlines()
    assert header.split()[0] == "ID"
    assert header == header.upper()
    assert row.split()[0] == name
    assert len(cli("get", kind.plural, "-o", "wide").text.splitlines()[0].split()) > len(header.split())
    listed = json.loads(cli("get", kind.plural, "-o", "json").out)
    assert (listed["kind"], listed["items"][0]["kind"], listed["items"][0]["id"]) == ("list", kind.name, name)
    one = json.loads(cli("get", kind.short, name, "-o", "json").out)
    assert next(iter(one)) == "kind"
    note = f"# apply makes a new {kind.name} of this: the server gives the ids\n" if kind.prefix else ""
    assert cli("get", f"{kind.name}/{name}", "-o", "yaml").text.startswith(f"{note}kind: {kind.name}\nspec:\n")


@every_kind
def test_describe_has_its_sections_and_two_next_steps(cli: Cli, kind: Kind) -> None:
    result = cli("describe", kind.name, ITEMS[kind.name]["id"])
    lines = result.text.splitlines()
    assert result.code == 0
    assert {"Spec", "Status", "Next steps"} <= set(lines)
    steps = lines[lines.index("Next steps") + 1 :]
    assert len(steps) == 2
    assert all(step.startswith("  primectl ") for step in steps)


def test_describe_workspace_shows_asked_applied_proven_and_why(cli: Cli) -> None:
    text = cli("describe", f"workspace/{WS}").text
    for part in (
        "Confinement",
        "verdict: failed",
        "CONTRADICTED",
        "pending  2 s",
        "reason: image not found",
        "boot: last words",
    ):
        assert part in text


@every_kind
def test_delete_says_deleted_and_a_missing_one_is_3(cli: Cli, kind: Kind) -> None:
    name = ITEMS[kind.name]["id"]
    assert cli("delete", kind.name, name).text == f"{kind.name}/{name} deleted\n"
    result = cli("delete", kind.name, name)
    assert (result.code, result.out) == (3, b"")
    assert result.err.startswith(f"error: {kind.name} {name} not found\n")
    assert cli("delete", kind.name, name, "--ignore-not-found").code == 0


@every_kind
def test_a_missing_id_is_3_after_those_that_are_there(cli: Cli, kind: Kind) -> None:
    missing = f"{kind.prefix}{'0' * 16}" if kind.prefix else "nobody"
    result = cli("get", kind.name, ITEMS[kind.name]["id"], missing, "-o", "name")
    assert (result.code, result.text) == (3, f"{kind.name}/{ITEMS[kind.name]['id']}\n")
    assert f"error: {kind.name} {missing} not found\n" in result.err


@every_kind
def test_an_empty_list_is_no_failure(cli: Cli, primer: Primer, kind: Kind) -> None:
    primer.store[kind.plural].clear()
    result = cli("get", kind.name)
    assert (result.code, result.out, result.err) == (0, b"", f"No {kind.plural.replace('_', ' ')} found.\n")
    assert json.loads(cli("get", kind.name, "-o", "json").out) == {"kind": "list", "items": []}


def test_a_cut_id_that_fits_two_is_2_with_both(cli: Cli, primer: Primer) -> None:
    other = "ws-1a2b000000000000"
    primer.store["workspaces"][other] = {"id": other}
    result = cli("get", "ws", "ws-1a2b")
    assert (result.code, result.err) == (2, f'error: "ws-1a2b" is ambiguous: {WS}, {other}\n')
    assert cli("get", "ws", "ws-1a2b3", "-o", "name").text == f"workspace/{WS}\n"


def test_lists_follow_cursors_and_say_when_they_are_cut(cli: Cli, primer: Primer) -> None:
    primer.store["agents"] = {f"a{n}": {"id": f"a{n}"} for n in range(250)}
    assert len(cli("get", "agents", "-o", "name").text.splitlines()) == 250
    result = cli("get", "agents", "-o", "name", "--limit", "7")
    assert (len(result.text.splitlines()), result.err) == (7, "more exist: --limit 0 for all\n")


def test_filters_go_to_the_server_and_labels_are_compared(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"]["ws-0000000000000000"] = {"id": "ws-0000000000000000", "labels": {"team": "blue"}}
    result = cli(
        "get", "ws", "--field", "phase=failed", "--search", "x", "--sort", "-id", "-l", "team=red", "-o", "name"
    )
    assert result.text == f"workspace/{WS}\n"
    query = primer.sent("GET", "/v1/workspaces")[0].query
    assert (query["phase"], query["q"], query["sort"]) == (["failed"], ["x"], ["-id"])


def test_tables_are_cut_on_a_terminal_and_whole_on_a_pipe(cli: Cli, primer: Primer) -> None:
    long = "registry.example/" + "x" * 100
    primer.store["workspace_templates"]["code-sandbox"]["backend"]["image"] = long
    assert long in cli("get", "templates").text
    shown = cli("get", "templates", out_tty=True).text
    assert long not in shown
    assert "…" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "..." in cli("get", "templates", out_tty=True, LANG="C").text


def test_hostile_cells_forge_no_row(cli: Cli, primer: Primer) -> None:
    primer.store["agents"]["code-runner"]["model"]["model_name"] = "m\nadmin  x\x1b[2J\u202e"
    lines = cli("get", "agents").text.splitlines()
    assert len(lines) == 2
    assert "m\\nadmin  x\\x1b[2J\\u202e" in lines[1]


def test_delete_of_several_tries_all_and_fails_as_the_first(cli: Cli, primer: Primer) -> None:
    primer.store["agents"]["second"] = {"id": "second"}
    in_use = problem(409, "in_use", "Two sessions use it.", errors=[{"field": "sessions", "message": SESS}])
    primer.on("DELETE", "/v1/agents/code-runner", in_use)
    result = cli("delete", "agent", "nobody", "code-runner", "second")
    assert (result.code, result.text) == (3, "agent/second deleted\n")
    assert "error: agent nobody not found" in result.err
    assert f"error: Two sessions use it.\nerror: used by {SESS}\n" in result.err


def test_delete_of_all_needs_y_without_a_terminal(cli: Cli, primer: Primer) -> None:
    assert cli("delete", "agents", "--all").code == 2
    assert "code-runner" in primer.store["agents"]
    assert cli("delete", "agents", "-l", "team=blue", "-y").out == b""
    assert cli("delete", "agents", "-l", "team=red", "-y").text == "agent/code-runner deleted\n"


@pytest.mark.parametrize(("answer", "code"), [(b"\n", 1), (b"y\n", 0)])
def test_delete_of_a_workspace_with_files_asks_on_a_terminal(
    cli: Cli, primer: Primer, answer: bytes, code: int
) -> None:
    primer.files = {"out.txt": b""}
    primer.store["workspaces"][WS]["phase"] = "running"
    result = cli("delete", "workspace", WS, stdin=answer, in_tty=True, err_tty=True)
    assert result.code == code
    assert "[y/N]" in result.err
    assert (WS in primer.store["workspaces"]) is (code == 1)


def test_delete_that_does_not_end_is_7(cli: Cli, primer: Primer) -> None:
    primer.gone_after = 10**6
    result = cli("delete", "agent", "code-runner", "--timeout", "2s")
    assert (result.code, result.out, result.err) == (7, b"", "error: agent/code-runner is still there after 2s\n")


def test_wait_returns_when_all_are_there(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"][WS] |= {"phase": "pending", "looks": 0}
    primer.boots_after = 5
    result = cli("wait", f"workspace/{WS}", "--for=phase=running")
    assert (result.code, result.text) == (0, f"workspace/{WS} running\n")
    assert cli("wait", f"session/{SESS}", "--for=status=ended").code == 0
    assert cli("wait", "provider/docker-local", "--for=health=healthy").code == 0
    assert cli("wait", f"session/{SESS}", "--for=jsonpath={.usage.input_tokens}=5").code == 0


def test_wait_fails_at_once_when_the_goal_is_out_of_reach(cli: Cli) -> None:
    result = cli("wait", f"workspace/{WS}", "--for=phase=running")
    assert result.code == 1
    assert result.err.startswith(
        f"error: workspace {WS} failed: image not found\nerror: boot: last words\nhint: build it"
    )


def test_wait_that_takes_too_long_is_7_and_names_the_state(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"][WS] |= {"phase": "pulling"}
    result = cli("wait", f"workspace/{WS}", "--for=phase=running", "--timeout=5s")
    assert (result.code, result.err) == (7, f'error: workspace/{WS} is "pulling" after 5s, not "running"\n')


def test_wait_for_delete_of_what_is_not_there_is_success(cli: Cli) -> None:
    assert cli("wait", "agent/nobody", "--for=delete").text == "agent/nobody deleted\n"


def test_create_with_wait_returns_when_it_runs(cli: Cli, primer: Primer) -> None:
    primer.boots_after = 3
    result = cli("create", "workspace", "--set", "template_id=code-sandbox", "--wait")
    assert (result.code, result.text) == (0, f"workspace/{WS}\n")
    assert primer.store["workspaces"][WS]["phase"] == "running"


def test_get_w_prints_a_line_for_each_change(cli: Cli, primer: Primer) -> None:
    seen: list[int] = []
    items = primer.store["agents"]

    def sleep(seconds: float) -> None:
        seen.append(1)
        if len(seen) == 1:
            items["second"] = {"id": "second"}
        elif len(seen) == 2:
            del items["code-runner"]
        elif len(seen) == 3:
            raise KeyboardInterrupt

    cli.clock.sleep = sleep  # type: ignore[method-assign]
    result = cli("get", "agents", "-w", "-o", "name")
    assert (result.code, result.text) == (130, "agent/code-runner\nagent/second\nagent/code-runner gone\n")


def test_checks(cli: Cli, primer: Primer) -> None:
    result = cli("provider", "check", "docker-local")
    assert (result.code, result.text.splitlines()[0]) == (0, "docker-local: healthy (engine 20.10.24)")
    result = cli("template", "check", "code-sandbox")
    assert (result.code, result.text.splitlines()[0]) == (1, "code-sandbox: image missing")
    primer.on("POST", "/v1/llm_providers/scripted/test", Answer(200, {"ok": True, "duration_ms": 812, "model": "m"}))
    assert cli("llm-provider", "test", "scripted").text == "ok 812 ms m\n"
    primer.on("POST", "/v1/llm_providers/scripted/test", Answer(200, {"ok": False, "message": "the key is wrong"}))
    result = cli("llm-provider", "test", "scripted")
    assert (result.code, result.err) == (1, "error: the key is wrong\n")


def test_doctor_names_what_is_wrong_and_how_to_mend_it(cli: Cli) -> None:
    result = cli("doctor")
    assert result.code == 1
    assert "fail  image" in result.text
    assert "fix: build it on the server: primer image build" in result.text
    items = json.loads(cli("doctor", "-o", "json").out)["items"]
    assert {item["result"] for item in items} <= {"ok", "warn", "fail", "skip"}
    assert cli("doctor", PRIMECTL_SERVER="http://127.0.0.1:1").code == 1


def found_by_doctor(cli: Cli, **settings: Any) -> dict[str, tuple[str, str]]:
    items = json.loads(cli("doctor", "-o", "json", **settings).out)["items"]
    return {item["name"]: (item["result"], item["text"]) for item in items}


def test_doctor_judges_what_it_could_look_at_and_nothing_else(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/healthz", Answer(200, {"status": "ok"}, {"Date": "not a date"}))
    primer.on("GET", "/v1/capabilities", problem(404, "not_found"))
    check = "/v1/workspace_templates/code-sandbox/check"
    primer.on("POST", check, Answer(200, {"image_present": None}))
    found = found_by_doctor(cli)
    assert [found[name][0] for name in ("tls", "clock", "versions", "image")] == ["skip"] * 4
    primer.on("POST", check, problem(503, "engine_unavailable", "The engine does not answer."))
    assert found_by_doctor(cli)["image"] == ("skip", "code-sandbox: not checked: The engine does not answer.")


def test_doctor_blames_a_bad_token_once(cli: Cli, primer: Primer) -> None:
    for path in ("/readyz", "/v1/me"):
        primer.on("GET", path, problem(401, "unauthenticated"))
    found = found_by_doctor(cli)
    assert (found["ready"][0], found["token"][0]) == ("skip", "fail")


@pytest.mark.parametrize(
    ("body", "result"), [({"version": "0.9.0", "api": "v1"}, "ok"), ({"version": "0.9.0", "api": "v2"}, "warn")]
)
def test_doctor_compares_versions_with_what_the_server_tells(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], result: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.0")
    primer.on("GET", "/v1/capabilities", Answer(200, body))
    assert found_by_doctor(cli)["versions"][0] == result


def test_an_image_of_somebody_else_is_not_built_here(cli: Cli, primer: Primer) -> None:
    primer.store["workspace_templates"]["code-sandbox"]["backend"]["image"] = "python:3.12"
    primer.store["workspaces"][WS]["spec"]["backend"]["image"] = "python:3.12"
    for argv in (["doctor"], ["template", "check", "code-sandbox"], ["wait", WS, "--for=phase=running"]):
        result = cli(*argv)
        said = result.text + result.err
        assert result.code == 1
        assert "primer image build" not in said
        assert "put the image on the engine" in said


def test_an_id_with_a_prefix_needs_no_kind(cli: Cli) -> None:
    assert cli("get", WS, SESS, "-o", "name").code == 2  # two kinds, as for KIND/ID
    assert cli("get", WS, "-o", "name").text == f"workspace/{WS}\n"
    assert cli("get", "ws-1a2b", "-o", "name").text == f"workspace/{WS}\n"
    assert cli("describe", SESS).text.startswith(f"session/{SESS}\n")
    assert cli("wait", SESS, f"session/{SESS}", "--for=status=ended").code == 0
    assert cli("delete", "ws-1a2b").code == 2
    assert cli("delete", WS, SESS).text == f"workspace/{WS} deleted\nsession/{SESS} deleted\n"


def test_version_and_whoami(cli: Cli) -> None:
    assert cli("version").text.splitlines()[1] == "server 0.1.0"
    assert len(cli("version", "--client").text.splitlines()) == 1
    assert cli("whoami").text.splitlines()[1] == "token cli, scope write, expires never"
