"""Standard output that takes nothing: a sentence on a full disk, silence where nobody reads, never a lost exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from cli.main import run
from cli.output import Console
from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import SESS, WS, Answer, Primer, recipe_events

FULL = "error: the output could not be written: no space left on device\n"
AGAIN = "hint: what arrived of the output is not all of it: make room and run this again\n"
TOKEN = "6f1d2c3b-4a5e-6978-8a9b-0c1d2e3f4a5b"
FORMATS = ("table", "wide", "yaml", "name", "jsonpath={.items[*].id}")
LINES = [
    *(["get", "workspaces", "-o", form] for form in FORMATS),
    ["get", "workspace", WS, "-w"],
    ["describe", "workspace", WS],
    ["explain", "agent"],
    ["api-resources"],
    ["workspace", "files", "get", WS, "out.txt", "--content"],
    ["workspace", "files", "get", WS, "out.txt", "-O", "-"],
    ["workspace", "files", "ls", WS],
    ["cp", f"{WS}:out.txt", "-"],
    ["session", "events", SESS],
    ["api", "GET", "/v1/workspaces"],
    ["config", "view"],
    ["whoami"],
    ["completion", "bash"],
    ["version", "--client"],
    ["help", "exit-codes"],
    ["--help"],
    [],
]


@pytest.fixture(autouse=True)
def there(primer: Primer) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.store["agents"]["code-runner"] = {"id": "code-runner"}
    primer.store["sessions"][SESS] = {"id": SESS, "status": "ended", "last_seq": 10, "ended_reason": "completed"}
    primer.files["out.txt"] = b"42"
    primer.events = recipe_events()
    primer.exec_output = {"stdout": b"42\n", "stderr": b""}
    primer.exec_result = {"id": "x1", "ended_by": "exit", "exit_code": 0, "stdout_bytes": 3, "stderr_bytes": 0}
    primer.exec_lines = [{"id": "x1"}, {"result": primer.exec_result}]
    primer.on("GET", "/v1/me", Answer(200, {"username": "alice", "role": "member"}))


def on_full_disk(cli: Cli, *argv: str) -> tuple[int, str]:
    """Exit code and stderr of a call whose standard output has no room."""
    err = io.BytesIO()
    with open("/dev/full", "wb", buffering=0) as out:
        code = run(argv, Console(out, err, io.BytesIO(), env=cli.env), sleep=cli.clock.sleep, clock=cli.clock)
    return code, err.getvalue().decode()


@pytest.mark.parametrize("argv", LINES, ids=" ".join)
def test_a_full_disk_is_one_sentence_whatever_was_to_be_printed(cli: Cli, argv: list[str]) -> None:
    code, err = on_full_disk(cli, *argv)
    lines = [line for line in err.splitlines(keepends=True) if not line.startswith("warning")]
    assert (code, "".join(lines)) == (1, FULL + AGAIN)


@pytest.mark.parametrize("argv", [["get", "workspaces", "-o", "json"], ["session", "events", SESS, "-o", "jsonl"]])
def test_with_o_json_the_failure_is_an_object(cli: Cli, argv: list[str]) -> None:
    code, err = on_full_disk(cli, *argv)
    assert (code, json.loads(err)["error"]["code"]) == (1, "output_failed")


def test_a_program_whose_output_finds_no_room_is_125_and_its_output_is_kept(cli: Cli) -> None:
    hint = f"hint: the program goes on: primectl workspace output {WS} x1\n"
    assert on_full_disk(cli, "workspace", "exec", WS, "--", "x") == (125, FULL + hint)


def test_run_removes_its_workspace_all_the_same(cli: Cli, primer: Primer) -> None:
    hint = "hint: the program had begun and its workspace is removed: make room, and know that a repeat runs it again\n"
    assert on_full_disk(cli, "run", "-c", "x") == (125, FULL + hint)
    assert WS not in primer.store["workspaces"]


@pytest.mark.parametrize("form", [[], ["-o", "json"]])
def test_a_token_that_nobody_saw_is_revoked(cli: Cli, primer: Primer, form: list[str]) -> None:
    primer.on("POST", "/v1/tokens", Answer(201, {"id": TOKEN, "name": "ci", "scope": "write", "token": "prt_x"}))
    primer.on("DELETE", f"/v1/tokens/{TOKEN}", Answer(204))
    code, err = on_full_disk(cli, "token", "create", "--name", "ci", *form)
    assert code == 1
    assert "nobody saw the token, so it was revoked" in err
    assert len(primer.sent("DELETE", f"/v1/tokens/{TOKEN}")) == 1


def test_a_token_that_cannot_be_revoked_either_is_named(cli: Cli, primer: Primer) -> None:
    primer.on("POST", "/v1/tokens", Answer(201, {"id": TOKEN, "name": "ci", "scope": "write", "token": "prt_x"}))
    primer.on("DELETE", f"/v1/tokens/{TOKEN}", Answer(403, {}))
    code, err = on_full_disk(cli, "token", "create", "--name", "ci")
    assert (code, err) == (1, FULL + f"hint: nobody saw the token; revoke it: primectl token revoke {TOKEN}\n")


def test_a_session_is_not_lost_with_the_output_about_it(cli: Cli) -> None:
    code, err = on_full_disk(cli, "session", "run", WS, "--agent", "code-runner", "-i", "x", "-q")
    assert (code, err) == (1, FULL + f"hint: it is all kept; see it with: primectl session attach {SESS}\n")


def test_a_file_that_finds_no_room_leaves_nothing_of_it(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    real = os.fdopen  # a file that lands here is bytes; what is noted elsewhere is text

    def fdopen(handle: int, mode: str, **text: Any) -> Any:
        return real(handle, mode, **text) if text else Full()

    monkeypatch.setattr("cli.landing.os.fdopen", fdopen)
    before = sorted(folder.iterdir())
    result = cli("workspace", "files", "get", WS, "out.txt")
    assert (result.code, result.err) == (1, "error: ./out.txt: no space left on device\n")
    assert sorted(folder.iterdir()) == before


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    _, err = process.communicate(timeout=20)
    return process.returncode, err


def test_the_process_says_it_once_and_flushes_nothing_more(spawn: Spawn) -> None:
    with open("/dev/full", "wb") as full:
        assert _ended(spawn("get", "workspaces", stdout=full)) == (1, (FULL + AGAIN).encode())


def test_where_nothing_can_be_said_the_exit_code_still_holds(spawn: Spawn) -> None:
    with open("/dev/full", "wb") as full:
        assert spawn("get", "workspaces", stdout=full, stderr=full).wait(20) == 1
        assert spawn("get", "workspace", "ws-0000000000000000", stderr=full).wait(20) == 3


@pytest.mark.parametrize("argv", [["get", "workspaces"], ["get", "workspaces", "-o", "json"], ["--help"]])
def test_a_reader_that_went_away_is_141_in_silence(spawn: Spawn, argv: list[str]) -> None:
    process = spawn(*argv)
    closed: IO[bytes] | None = process.stdout
    assert closed is not None
    closed.close()
    process.stdout = None
    assert _ended(process) == (141, b"")
