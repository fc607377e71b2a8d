"""An exec whose sandbox goes away: what became of the workspace is said, and nothing that nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, problem

EXEC = f"/v1/workspaces/{WS}/exec"
UNKNOWN = problem(404, "not_found", "There is no exec x1 in workspace ws.")


@pytest.fixture(autouse=True)
def broken(primer: Primer) -> Primer:
    """A stream that breaks after the id, and an exec that the server knows no more."""
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.exec_lines, primer.cut_exec = [{"id": "x1"}], True
    primer.on("GET", f"{EXEC}/x1", UNKNOWN)
    return primer


@pytest.mark.parametrize(
    ("phase", "more", "line"),
    [
        ("lost", {"phase_detail": "its container is gone."}, f"workspace {WS} is lost: its container is gone"),
        ("failed", {"phase_reason": "oom"}, f"workspace {WS} is failed: oom"),
        ("stopped", {}, f"workspace {WS} is stopped"),
        ("deleting", {}, f"workspace {WS} is deleting"),
        ("running", {}, f"workspace {WS} is running and has no x1 any more; how it ended is not known"),
    ],
)
def test_the_state_of_the_workspace_is_told(
    cli: Cli, primer: Primer, phase: str, more: dict[str, Any], line: str
) -> None:
    primer.store["workspaces"][WS] |= {"phase": phase, **more}
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.out, result.err) == (125, b"", f"error: {line}\n")


def test_a_loss_that_the_server_notices_late_is_waited_for(cli: Cli, primer: Primer) -> None:
    item = primer.store["workspaces"][WS]
    before = cli.clock.sleep

    def sleep(seconds: float) -> None:
        before(seconds)
        item.update(phase="lost", phase_detail="its container is gone.")

    cli.clock.sleep = sleep  # type: ignore[method-assign]
    assert f"workspace {WS} is lost: its container is gone\n" in cli("workspace", "exec", WS, "--", "x").err


def test_a_workspace_that_was_deleted_meanwhile_is_named(cli: Cli, primer: Primer) -> None:
    primer.on("GET", f"/v1/workspaces/{WS}", problem(404, "not_found"))
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.err) == (125, f"error: workspace {WS} was deleted\n")


@pytest.mark.parametrize("code", ["workspace_lost", "not_found"])
def test_a_loss_told_in_the_stream_is_no_missing_workspace(cli: Cli, primer: Primer, code: str) -> None:
    primer.store["workspaces"][WS] |= {"phase": "lost", "phase_detail": "its container is gone."}
    status = 404 if code == "not_found" else 409
    primer.exec_lines.append({"error": {"status": status, "code": code, "detail": "Gone."}})
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.err) == (125, f"error: workspace {WS} is lost: its container is gone\n")


def test_a_server_that_is_away_leaves_it_open_whether_the_program_runs(cli: Cli, primer: Primer) -> None:
    primer.on("GET", f"{EXEC}/x1", problem(403, "forbidden", "The token has no such scope."))
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.err) == (
        125,
        f"error: The token has no such scope; x1 in {WS} may still run\n",
    )


def test_an_exec_that_ended_as_lost_tells_what_became_of_its_workspace(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"][WS] |= {"phase": "lost", "phase_detail": "its container is gone."}
    primer.exec_lines.append({"result": {"id": "x1", "ended_by": "lost"}})
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.err) == (125, f"primectl: lost: workspace {WS} is lost: its container is gone\n")


@pytest.mark.parametrize("code", ["workspace_lost", "workspace_not_running"])
def test_the_servers_command_line_gets_the_id(cli: Cli, primer: Primer, code: str) -> None:
    answer = problem(409, code, "No.", hint="Start it: primectl workspace start ID")
    primer.on("POST", EXEC, answer)
    primer.on("GET", f"/v1/workspaces/{WS}/files", answer)
    hint = f"hint: Start it: primectl workspace start {WS}\n"
    assert hint in cli("workspace", "exec", WS, "--", "x").err
    assert hint in cli("workspace", "files", "ls", WS).err
    primer.on("POST", "/v1/sessions", answer)
    assert hint in cli("session", "run", WS, "--agent", "a", "-i", "x").err
    values = ("agent_id=a", f"workspace_id={WS}", "initial_instructions=x")
    assert hint in cli("create", "session", *(part for value in values for part in ("--set", value))).err


def test_a_refused_part_is_named_as_its_flag(cli: Cli, primer: Primer) -> None:
    errors = [{"field": "timeout_s", "message": "must be at most 86400"}, {"field": "x", "message": "is not known"}]
    primer.on("POST", EXEC, problem(422, "invalid", errors=errors))
    result = cli("workspace", "exec", WS, "--timeout", "9d", "--", "x")
    assert (result.code, result.err) == (2, "error: --timeout: must be at most 86400\nerror: x: is not known\n")


@pytest.mark.parametrize(("keep", "hinted"), [([], False), (["--keep"], True)])
def test_run_names_what_still_runs_only_in_a_workspace_that_stays(
    cli: Cli, primer: Primer, keep: list[str], hinted: bool
) -> None:
    result: dict[str, Any] = {"id": "x1", "ended_by": "exit", "exit_code": 0, "survivors": [{"pid": 7, "command": "x"}]}
    primer.exec_lines, primer.cut_exec = [{"id": "x1"}, {"result": result}], False
    shown = cli("run", "-c", "x", *keep)
    assert shown.code == 0
    assert ("still run" in shown.err) is hinted


@pytest.mark.parametrize(("keep", "hinted"), [([], False), (["--keep"], True)])
def test_run_hints_at_a_workspace_only_if_it_stays(cli: Cli, primer: Primer, keep: list[str], hinted: bool) -> None:
    failed = {"id": WS, "phase": "failed", "phase_detail": "an init command failed.", "boot_lines": ["no such file"]}
    primer.on("GET", f"/v1/workspaces/{WS}", Answer(200, failed))
    primer.on("DELETE", f"/v1/workspaces/{WS}", problem(404, "not_found"))
    result = cli("run", "-c", "x", *keep)
    lines = f"error: workspace {WS} failed: an init command failed\nerror: boot: no such file\n"
    assert lines in result.err
    assert ("hint: primectl describe" in result.err) is hinted
