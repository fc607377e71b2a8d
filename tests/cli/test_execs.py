"""workspace execs and output: what ran, and its kept bytes, exact and also after the workspace is gone."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import NOW, WS, Answer, Primer, Request, not_found

EXEC = "exec-0f1e2d3c4b5a6978"
ROWS: list[dict[str, Any]] = [
    {
        "id": "exec-00000000000000aa",
        "state": "running",
        "argv": ["sleep", "600"],
        "started_at": NOW,
        "ended_by": None,
        "exit_code": None,
        "duration_ms": None,
        "stdout_bytes": 3,
        "stderr_bytes": 2,
        "survivors": [],
    },
    {
        "id": EXEC,
        "state": "ended",
        "argv": ["sh", "-c", "echo hi\x1b[2J\nrm"],
        "started_at": NOW,
        "ended_by": "exit",
        "exit_code": 3,
        "duration_ms": 32.5,
        "stdout_bytes": 1000,
        "stderr_bytes": 24,
        "survivors": [{"pid": 7, "command": "x"}],
        "session_id": None,
        "cwd": "src",
    },
]


@pytest.fixture(autouse=True)
def execs(primer: Primer) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}

    def listed(request: Request) -> Answer:
        wanted = request.query.get("state")
        items = [row for row in ROWS if not wanted or row["state"] == wanted[0]]
        return Answer(200, {"items": items, "next_cursor": None, "total": len(items)})

    primer.on("GET", f"/v1/workspaces/{WS}/exec", listed)


def test_execs_shows_how_each_ended_what_it_printed_and_left(cli: Cli) -> None:
    header, running, ended = cli("workspace", "execs", WS).text.splitlines()
    assert header.split() == ["ID", "COMMAND", "ENDED", "EXIT", "TOOK", "BYTES", "SURVIVORS"]
    assert running.split()[:4] == ["exec-00000000000000aa", "sleep", "600", "running"]
    assert running.split()[-3:] == ["5", "B", "-"], "what it has printed so far; what it leaves behind nobody knows yet"
    assert ended.split()[-6:] == ["3", "0.03", "s", "1", "KiB", "1"]
    assert "\\x1b[2J\\nrm" in ended


def test_execs_takes_the_formats_of_lists(cli: Cli) -> None:
    assert cli("workspace", "execs", WS, "-o", "name").text == f"exec-00000000000000aa\n{EXEC}\n"
    assert cli("workspace", "execs", "ws-1a2b", "--running", "-q").text == "exec-00000000000000aa\n"
    assert len(json.loads(cli("workspace", "execs", WS, "-o", "json").out)["items"]) == 2
    assert "STARTED" in cli("workspace", "execs", WS, "-o", "wide").text
    assert cli("workspace", "execs", WS, "--limit", "1").err == "more exist: --limit 0 for all\n"


def test_execs_of_nothing_and_of_nowhere(cli: Cli, primer: Primer) -> None:
    primer.on("GET", f"/v1/workspaces/{WS}/exec", Answer(200, {"items": [], "next_cursor": None}))
    assert cli("workspace", "execs", WS).err == "No execs found.\n"
    primer.on("GET", f"/v1/workspaces/{WS}/exec", not_found())
    result = cli("workspace", "execs", WS)
    assert (result.code, result.err.splitlines()[0]) == (3, f"error: workspace {WS} not found")


def kept(primer: Primer, stdout: bytes, stderr: bytes = b"", gap: list[int] | None = None) -> None:
    """An exec whose output is served in pages of 5 bytes; the gap lies in stdout."""
    row = {**ROWS[1], "stdout_bytes": len(stdout), "stderr_bytes": len(stderr)}
    path = f"/v1/workspaces/{WS}/exec/{EXEC}"

    def page(request: Request) -> Answer:
        stream, offset = request.query["stream"][0], int(request.query["offset"][0])
        data = stdout if stream == "stdout" else stderr
        if gap and stream == "stdout" and gap[0] <= offset < gap[1]:
            return Answer(200, {"data": "", "encoding": "base64", "offset": offset, "next_offset": gap[1], "gap": gap})
        end = min(offset + 5, gap[0]) if gap and offset < gap[0] else offset + 5
        piece = data[offset:end]
        body = {"data": base64.b64encode(piece).decode(), "encoding": "base64", "offset": offset}
        return Answer(200, {**body, "next_offset": offset + len(piece), "gap": None})

    primer.on("GET", path, Answer(200, row))
    primer.on("GET", f"{path}/output", page)


def test_output_prints_the_bytes_of_one_stream_and_nothing_else(cli: Cli, primer: Primer) -> None:
    kept(primer, bytes(range(256)), b"the other")
    assert cli("workspace", "output", WS, EXEC).out == bytes(range(256))
    result = cli("workspace", "output", WS, EXEC, "--stream", "stderr")
    assert (result.code, result.out, result.err) == (0, b"the other", "")


def test_output_begins_where_it_is_told_to(cli: Cli, primer: Primer) -> None:
    kept(primer, b"0123456789abc")
    assert cli("workspace", "output", WS, EXEC, "--offset", "7").out == b"789abc"
    assert cli("workspace", "output", WS, EXEC, "--offset", "99").out == b""


def test_output_says_what_was_not_kept(cli: Cli, primer: Primer) -> None:
    kept(primer, b"a" * 4096 + b"b" * 4096, gap=[1024, 7168])
    result = cli("workspace", "output", WS, EXEC)
    assert result.out == b"a" * 1024 + b"b" * 1024
    assert result.err == "primectl: 2 KiB of 8 KiB of stdout kept\n"


def test_output_counts_what_came_behind_the_end_of_what_is_kept(cli: Cli, primer: Primer) -> None:
    kept(primer, b"a" * 1024)
    primer.on("GET", f"/v1/workspaces/{WS}/exec/{EXEC}", Answer(200, {**ROWS[1], "stdout_bytes": 4096}))
    result = cli("workspace", "output", WS, EXEC)
    assert (result.out, result.err) == (b"a" * 1024, "primectl: 1 KiB of 4 KiB of stdout kept\n")


def test_output_is_inert_on_a_terminal_unless_raw(cli: Cli, primer: Primer) -> None:
    kept(primer, b"a\x1b]0;owned\x07b")
    assert cli("workspace", "output", WS, EXEC, out_tty=True).out == b"a\\x1b]0;owned\\x07b\n"
    assert cli("workspace", "output", WS, EXEC, "--raw", out_tty=True).out == b"a\x1b]0;owned\x07b\n"


def test_output_works_after_the_workspace_is_gone(cli: Cli, primer: Primer) -> None:
    kept(primer, b"still here")
    primer.store["workspaces"].clear()
    assert cli("workspace", "output", WS, EXEC).out == b"still here"


def test_output_of_an_exec_that_is_not_there_is_3(cli: Cli, primer: Primer) -> None:
    primer.on("GET", f"/v1/workspaces/{WS}/exec/{EXEC}", not_found())
    result = cli("workspace", "output", WS, EXEC)
    assert (result.code, result.out) == (3, b"")
    assert result.err.startswith(f"error: exec {EXEC} of {WS} not found\nhint: primectl workspace execs {WS}\n")


def test_kill_ends_what_runs_and_waits_until_it_has_ended(cli: Cli, primer: Primer) -> None:
    row, looks = dict(ROWS[0]), []
    path = f"/v1/workspaces/{WS}/exec/{row['id']}"

    def state(_: Request) -> Answer:
        looks.append(1)
        ended = {"state": "ended", "ended_by": "cancelled"} if len(looks) > 2 else {}
        return Answer(200, {**row, **ended})

    primer.on("GET", path, state)
    primer.on("DELETE", path, Answer(202, None))
    result = cli("workspace", "kill", "ws-1a2b", row["id"])
    assert (result.code, result.text) == (0, f"{row['id']} cancelled\n")
    assert len(primer.sent("DELETE", path)) == 1
    assert len(looks) == 3


def test_kill_ends_what_an_ended_command_left(cli: Cli, primer: Primer) -> None:
    path = f"/v1/workspaces/{WS}/exec/{EXEC}"
    primer.on("GET", path, Answer(200, ROWS[1]))
    primer.on("DELETE", path, Answer(204, None))
    result = cli("workspace", "kill", WS, EXEC)
    assert (result.code, result.text) == (0, f"{EXEC} had ended; nothing it left runs any more\n")
    assert len(primer.sent("DELETE", path)) == 1
    assert cli("workspace", "kill", WS, EXEC, "-q").text == ""


def test_kill_of_what_does_not_end_is_7(cli: Cli, primer: Primer) -> None:
    path = f"/v1/workspaces/{WS}/exec/{ROWS[0]['id']}"
    primer.on("GET", path, Answer(200, ROWS[0]))
    primer.on("DELETE", path, Answer(202, None))
    result = cli("workspace", "kill", WS, ROWS[0]["id"], "--timeout", "5s")
    assert (result.code, result.err) == (7, f"error: {ROWS[0]['id']} of {WS} still runs after 5s\n")


@pytest.mark.parametrize(("name", "code"), [("pid-7", 2), (EXEC, 3)])
def test_kill_of_what_is_no_exec_ends_nothing(cli: Cli, primer: Primer, name: str, code: int) -> None:
    primer.on("GET", f"/v1/workspaces/{WS}/exec/{EXEC}", not_found())
    result = cli("workspace", "kill", WS, name)
    assert (result.code, result.out) == (code, b"")
    assert f"hint: primectl workspace execs {WS}\n" in result.err
    assert not [one for one in primer.requests if one.method == "DELETE"]
