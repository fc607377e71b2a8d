"""The recipe's lines, character for character, on a pipe and on a terminal."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import SESS, WS, Primer, problem, recipe_events

INSTRUCTION = "Run this code: print(6 * 7)"


@pytest.fixture
def ready(primer: Primer) -> Primer:
    """What the earlier lines of the recipe have made."""
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running", "template_id": "code-sandbox", "created_at": ""}
    primer.store["agents"]["code-runner"] = {"id": "code-runner"}
    primer.events = recipe_events()
    primer.frames = lambda after: [e for e in primer.events if e["seq"] > after]
    return primer


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("docker-provider.yaml", "workspace_provider/docker-local created\n"),
        ("code-sandbox.yaml", "workspace_template/code-sandbox created\n"),
    ],
)
def test_create_from_a_file_prints_kind_and_id(cli: Cli, folder: Path, file: str, line: str) -> None:
    result = cli("create", "-f", file)
    assert (result.code, result.text, result.err) == (0, line, "")


def test_create_of_a_provider_tells_a_terminal_what_the_engine_is(cli: Cli, folder: Path) -> None:
    result = cli("create", "-f", "docker-provider.yaml", out_tty=True, err_tty=True)
    assert result.text == "workspace_provider/docker-local created\n"
    assert result.err == "docker-local: healthy (engine 20.10.24)\n"


def test_create_of_a_provider_tells_a_terminal_why_the_engine_is_not_there(
    cli: Cli, primer: Primer, folder: Path
) -> None:
    status = {"health": "unreachable", "reasons": ["permission denied on /var/run/docker.sock"]}
    from tests.cli.fake import Answer

    primer.on(
        "POST", "/v1/workspace_providers/docker-local/check", Answer(200, {"id": "docker-local", "status": status})
    )
    result = cli("create", "-f", "docker-provider.yaml", err_tty=True)
    assert result.code == 0
    assert result.err == "docker-local: unreachable: permission denied on /var/run/docker.sock\n"


def test_create_of_a_template_warns_a_terminal_that_the_image_is_missing(cli: Cli, folder: Path) -> None:
    result = cli("create", "-f", "code-sandbox.yaml", err_tty=True)
    assert "primer/workspace-runtime:1.0 is not on the engine" in result.err
    assert "primer image build" in result.err


def test_create_of_the_agent_as_printed_names_the_placeholder_and_what_there_is(cli: Cli, folder: Path) -> None:
    result = cli("create", "-f", "code-runner.yaml")
    assert (result.code, result.text) == (2, "")
    assert result.err == (
        'error: code-runner.yaml:6: spec.model.provider_id: no llm_provider "<llm>"\n'
        "hint: there are: scripted; samples/code-runner.yaml uses scripted\n"
    )


def test_create_of_the_agent_prints_kind_and_id(cli: Cli, folder: Path) -> None:
    text = Path("code-runner.yaml").read_text().replace("<llm>", "scripted").replace("<model>", "code-runner")
    Path("code-runner.yaml").write_text(text)
    result = cli("create", "-f", "code-runner.yaml")
    assert (result.code, result.text, result.err) == (0, "agent/code-runner created\n", "")


def test_create_workspace_prints_the_reference_alone_on_a_pipe(cli: Cli, primer: Primer) -> None:
    result = cli("create", "workspace", "--set", "template_id=code-sandbox")
    assert (result.code, result.text, result.err) == (0, f"workspace/{WS}\n", "")
    assert primer.sent("POST", "/v1/workspaces")[0].json == {"template_id": "code-sandbox"}


def test_create_workspace_tells_a_terminal_how_to_wait(cli: Cli) -> None:
    result = cli("create", "workspace", "--set", "template_id=code-sandbox", out_tty=True, err_tty=True)
    assert result.text == f"workspace/{WS} created\n"
    assert result.err == f"booting; wait with: primectl wait workspace/{WS} --for=phase=running\n"


def test_session_run_prints_the_answer_and_the_ending_on_a_pipe(cli: Cli, ready: Primer) -> None:
    result = cli("session", "run", WS, "--agent", "code-runner", "-i", INSTRUCTION)
    assert (result.code, result.text) == (0, "The snippet printed 42.\nended: completed\n")
    assert result.err == f"session/{SESS} started on {WS} with code-runner\n"
    assert ready.sent("POST", "/v1/sessions")[0].json == {
        "agent_id": "code-runner",
        "workspace_id": WS,
        "initial_instructions": INSTRUCTION,
    }


LIVE = f"""\
session/{SESS} started on {WS} with code-runner
  write snippet.py  13 B
  $ python snippet.py
  | 42
  exit 0 · 0.01 s
The snippet printed 42.
ended: completed
"""


def test_session_run_shows_calls_and_output_live_on_a_terminal(ready: Primer, spawn: Spawn) -> None:
    code, screen = on_terminal(spawn, "session", "run", WS, "--agent", "code-runner", "-i", INSTRUCTION)
    assert (code, screen) == (0, LIVE)


def test_session_run_uses_ascii_ornaments_without_a_utf8_locale(ready: Primer, cli: Cli) -> None:
    result = cli("session", "run", WS, "--agent", "code-runner", "-i", INSTRUCTION, err_tty=True, LANG="C")
    assert "  exit 0 - 0.01 s\n" in result.err


@pytest.mark.parametrize("name", [f"workspace/{WS}", "ws-1a2b", "WS/WS-1A2B3C"])
def test_session_run_takes_every_way_to_write_a_workspace(cli: Cli, ready: Primer, name: str) -> None:
    result = cli("session", "run", name, "--agent", "agent/code-runner", "-i", "x")
    assert result.code == 0
    assert ready.sent("POST", "/v1/sessions")[0].json["workspace_id"] == WS


def test_files_get_content_prints_the_bytes_and_no_newline_on_a_pipe(cli: Cli, ready: Primer) -> None:
    ready.files["out.txt"] = b"42"
    result = cli("workspace", "files", "get", WS, "out.txt", "--content")
    assert (result.code, result.out, result.err) == (0, b"42", "")


def test_files_get_content_ends_the_line_on_a_terminal(cli: Cli, ready: Primer) -> None:
    ready.files["out.txt"] = b"42"
    assert cli("workspace", "files", "get", WS, "out.txt", "--content", out_tty=True).out == b"42\n"


def test_files_get_of_a_file_that_is_not_there_is_3(cli: Cli, ready: Primer) -> None:
    result = cli("workspace", "files", "get", WS, "out.txt", "--content")
    assert (result.code, result.out) == (3, b"")
    assert result.err.startswith(f"error: {WS}:out.txt not found\n")


@pytest.mark.parametrize("gone_after", [1, 4])
def test_delete_workspace_says_deleted_once_the_server_answers_404(cli: Cli, ready: Primer, gone_after: int) -> None:
    ready.gone_after = gone_after
    result = cli("delete", "workspace", WS)
    assert (result.code, result.text, result.err) == (0, f"workspace/{WS} deleted\n", "")
    assert WS not in ready.store["workspaces"]
    assert len(ready.sent("GET", f"/v1/workspaces/{WS}")) == gone_after


def test_delete_workspace_tells_a_terminal_that_it_takes_its_time(cli: Cli, ready: Primer) -> None:
    ready.gone_after = 12
    result = cli("delete", "workspace", WS, err_tty=True)
    assert (result.code, result.text, result.err) == (0, f"workspace/{WS} deleted\n", "deleting…\n")


def test_get_workspace_afterwards_prints_nothing_and_is_3(cli: Cli) -> None:
    result = cli("get", "workspace", WS)
    assert (result.code, result.text) == (3, "")
    assert result.err == f"error: workspace {WS} not found\n(request id 7f3a9c12)\n"


def test_session_run_names_the_nearest_agent(cli: Cli, ready: Primer) -> None:
    ready.on("POST", "/v1/sessions", problem(422, "invalid", errors=[{"field": "agent_id", "message": "no agent"}]))
    result = cli("session", "run", WS, "--agent", "code-runer", "-i", "x")
    assert result.code == 3
    assert result.err == "error: agent code-runer not found\nhint: did you mean code-runner?\n"


def on_terminal(spawn: Spawn, *argv: str) -> tuple[int, str]:
    """Exit code and screen of the program on a terminal of 80 columns, with \\r\\n as \\n."""
    ours, theirs = os.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "24"], stdin=theirs, check=True)
    process = spawn(*argv, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 20
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        seen += piece
    os.close(ours)
    return process.wait(timeout=10), seen.decode().replace("\r\n", "\n")
