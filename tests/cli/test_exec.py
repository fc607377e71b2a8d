"""`workspace exec` and `run`: output byte for byte, never started twice, nothing left behind."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.client import Client
from cli.errors import ClosedPipe
from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import WS, Answer, Primer, problem

EXEC = f"/v1/workspaces/{WS}/exec"


def ended(primer: Primer, stdout: bytes = b"", stderr: bytes = b"", **result: Any) -> None:
    """The exec of the fake server: what it prints and how it ends."""
    primer.exec_output = {"stdout": stdout, "stderr": stderr}
    whole = {"id": "x1", "ended_by": "exit", "exit_code": 0, "stdout_bytes": len(stdout), "stderr_bytes": len(stderr)}
    primer.exec_result = {**whole, **result}
    chunks: list[dict[str, Any]] = [{"id": "x1"}]
    for name, data in primer.exec_output.items():
        if data:
            chunks.append({"stream": name, "offset": 0, "data": base64.b64encode(data).decode(), "encoding": "base64"})
    primer.exec_lines = [*chunks, {"result": primer.exec_result}]


@pytest.fixture(autouse=True)
def ready(primer: Primer) -> Primer:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running", "confinement": {"verdict": "proven"}}
    ended(primer, b"42\n")
    return primer


def test_exec_prints_what_the_program_prints_and_nothing_else(cli: Cli, primer: Primer) -> None:
    ended(primer, b"\x00\xff out \x1b[31m\r\n", b"err\n", exit_code=3)
    result = cli("workspace", "exec", WS, "--", "python3", "-c", "x", "--flag")
    assert (result.code, result.out, result.err) == (3, b"\x00\xff out \x1b[31m\r\n", "err\n")
    request = primer.sent("POST", EXEC)[0]
    assert request.json == {"argv": ["python3", "-c", "x", "--flag"]}
    assert "application/x-ndjson" in request.headers["accept"]


def test_exec_takes_a_shell_line_and_its_surroundings(cli: Cli, primer: Primer) -> None:
    cli("workspace", "exec", WS, "-c", "ls | wc", "--cwd", "d", "--env", "A=b=c", "--timeout", "1500ms")
    assert primer.sent("POST", EXEC)[0].json == {
        "command": "ls | wc",
        "cwd": "d",
        "env": {"A": "b=c"},
        "timeout_s": 1.5,
    }


def test_output_is_inert_on_a_terminal_but_for_its_colours(cli: Cli, primer: Primer) -> None:
    ended(primer, b"\x1b[31mred\x1b]0;title\x07")
    shown = cli("workspace", "exec", WS, "--", "x", out_tty=True).out
    assert shown == b"\x1b[31mred\\x1b]0;title\\x07\x1b[0m\n"
    assert cli("workspace", "exec", WS, "--raw", "--", "x", out_tty=True).out == b"\x1b[31mred\x1b]0;title\x07\n"
    assert b"\x1b" not in cli("workspace", "exec", WS, "--", "x", out_tty=True, NO_COLOR="1").out


@pytest.mark.parametrize("lines", [1, 2])
def test_a_stream_that_breaks_is_resumed_by_id_and_offset(cli: Cli, primer: Primer, lines: int) -> None:
    data = bytes(range(256)) * 4000
    ended(primer, data)
    first: dict[str, Any] = {
        "stream": "stdout",
        "offset": 0,
        "data": base64.b64encode(data[:1000]).decode(),
        "encoding": "base64",
    }
    whole: list[dict[str, Any]] = [{"id": "x1"}, first]
    primer.exec_lines = whole[:lines]
    primer.cut_exec = True
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.out == data) == (0, True)
    assert len(primer.sent("POST", EXEC)) == 1


def test_a_stream_that_breaks_before_the_id_is_asked_for_again_under_the_same_key(cli: Cli, primer: Primer) -> None:
    lines = primer.exec_lines
    broken = [True, False]

    def shaky(request: Any) -> Answer:
        primer.exec_lines = [] if broken.pop(0) else lines
        primer.cut_exec = not primer.exec_lines
        return primer._exec(request)

    primer.on("POST", EXEC, shaky)
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.out) == (0, b"42\n")
    keys = {r.headers["idempotency-key"] for r in primer.sent("POST", EXEC)}
    assert (len(primer.sent("POST", EXEC)), len(keys)) == (2, 1)


def test_a_running_exec_whose_stream_broke_is_streamed_again_and_asked_for_now_and_then_meanwhile(
    cli: Cli, primer: Primer
) -> None:
    ended(primer, b"one two three")
    lines, result = primer.exec_lines, primer.exec_result
    primer.exec_result, primer.exec_output = {"id": "x1", "state": "running"}, {"stdout": b"one ", "stderr": b""}
    starts = 0

    def shaky(request: Any) -> Answer:
        nonlocal starts
        starts += 1
        primer.cut_exec = starts < 10
        primer.exec_lines = [{"id": "x1"}] if primer.cut_exec else lines
        return primer._exec(request)

    primer.on("POST", EXEC, shaky)
    began = cli.clock.now
    done = cli("workspace", "exec", WS, "--", "x")
    assert (done.code, done.out) == (0, b"one two three")
    assert len({r.headers["idempotency-key"] for r in primer.sent("POST", EXEC)}) == 1
    took = cli.clock.now - began  # nine breaks, at 0.5, 1, 2, 2, … seconds
    assert 14 < took < 18
    assert len(primer.sent("GET", f"{EXEC}/x1")) < took
    assert result["stdout_bytes"] == len(done.out)


def test_an_answer_that_says_it_still_runs_is_followed(cli: Cli, primer: Primer) -> None:
    primer.on("POST", EXEC, Answer(202, {"id": "x1", "state": "running"}))
    assert cli("workspace", "exec", WS, "--", "x").out == b"42\n"


def test_what_the_live_stream_left_out_is_read_from_what_is_kept(cli: Cli, primer: Primer) -> None:
    ended(primer, b"0123456789")
    primer.exec_lines[1:2] = [
        {"stream": "stdout", "offset": 0, "data": "01", "encoding": "utf-8"},
        {"stream": "stdout", "gap": [2, 7]},
        {"stream": "stdout", "offset": 6, "data": "6789", "encoding": "utf-8"},
    ]
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.out, result.err) == (b"0123456789", "")


def test_what_is_not_kept_is_said_and_not_invented(cli: Cli, primer: Primer) -> None:
    ended(primer, b"01")
    primer.exec_result["stdout_bytes"] = 1024 * 1024 + 2
    primer.exec_lines.insert(2, {"stream": "stdout", "gap": [2, 1024 * 1024 + 2]})
    result = cli("workspace", "exec", WS, "--", "x")
    assert (result.code, result.out) == (0, b"01")
    assert result.err == "primectl: 2 B of 1 MiB of stdout shown\n"


def test_exec_with_o_json_prints_the_result_with_its_output(cli: Cli, primer: Primer) -> None:
    ended(primer, b"42\n", b"\xff", exit_code=0)
    value = json.loads(cli("workspace", "exec", WS, "-o", "json", "--", "x").out)
    assert value["ended_by"] == "exit"
    assert value["encoding"] == "base64"
    assert base64.b64decode(value["stderr"]) == b"\xff"


def test_background_prints_the_id(cli: Cli, primer: Primer) -> None:
    primer.on("POST", EXEC, Answer(202, {"id": "x1", "state": "running"}))
    assert cli("workspace", "exec", WS, "--background", "--", "x").text == "x1\n"
    assert primer.sent("POST", EXEC)[0].json["background"] is True


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "workspace_lost", 125),
        (503, "engine_unavailable", 125),
        (422, "cannot_start", 125),
        (422, "invalid", 2),
        (404, "not_found", 3),
    ],
)
def test_an_exec_that_could_not_begin_says_so(cli: Cli, primer: Primer, status: int, code: str, expected: int) -> None:
    primer.on("POST", EXEC, problem(status, code, "No."))
    assert cli("workspace", "exec", WS, "--", "x").code == expected


def test_a_program_that_is_not_there_is_named(cli: Cli, primer: Primer) -> None:
    errors = [{"field": "argv[0]", "message": "there is no such file"}]
    detail, hint = "Cannot start the program x: there is no such file.", "Arguments are items of argv."
    primer.on("POST", EXEC, problem(422, "cannot_start", detail, errors=errors, hint=hint))
    result = cli("workspace", "exec", WS, "--", "x")
    hint = "hint: check the name; a shell line goes into -c"
    assert (result.code, result.err) == (125, f"error: {detail.removesuffix('.')}\n{hint}\n")


def test_piped_input_is_sent_whole(primer: Primer, spawn: Spawn) -> None:
    process = spawn("workspace", "exec", WS, "--", "cat", stdin=subprocess.PIPE)
    process.communicate(b"\x00\xffabc", timeout=10)
    assert process.returncode == 0
    assert base64.b64decode(primer.sent("POST", EXEC)[0].json["stdin_base64"]) == b"\x00\xffabc"


def test_more_than_8_mib_of_input_is_refused(primer: Primer, spawn: Spawn, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * (8 * 1024 * 1024 + 1))
    with big.open("rb") as file:
        process = spawn("workspace", "exec", WS, "--", "cat", stdin=file)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert err.startswith(b"error: standard input is larger than 8 MiB\n")
    assert primer.sent("POST", EXEC) == []


def test_ctrl_c_ends_the_program_and_is_130(primer: Primer, spawn: Spawn) -> None:
    primer.exec_lines, primer.cut_exec = [{"id": "x1"}], True
    primer.exec_result = {"id": "x1", "state": "running"}
    primer.exec_output["stdout"] = b"partial\n"

    def cancel(request: Any) -> Answer:
        primer.exec_result |= {"ended_by": "cancelled"}
        return Answer(204)

    primer.on("DELETE", f"{EXEC}/x1", cancel)
    process = spawn("workspace", "exec", WS, "--", "sleep", "100")
    assert process.stdout is not None
    assert process.stdout.readline() == b"partial\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert len(primer.sent("DELETE", f"{EXEC}/x1")) == 1


@pytest.mark.parametrize("status", [204, 404, 409])
def test_a_reader_that_went_away_ends_the_program_and_is_141_in_silence(
    primer: Primer, spawn: Spawn, status: int
) -> None:
    ended(primer, b"y\n" * 100_000)
    primer.on("DELETE", f"{EXEC}/x1", problem(status, "") if status > 399 else Answer(204))
    process = spawn("workspace", "exec", WS, "--", "yes")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=10) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert len(primer.sent("DELETE", f"{EXEC}/x1")) == 1


def test_a_reader_that_went_away_waits_for_no_server_that_restarts(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait would be one in silence, of a line that nobody reads any more."""
    import requests

    ended(primer, b"y\n")
    exchange, tries = Client._exchange, []

    def away(client: Client, method: str, *args: Any, **settings: Any) -> Any:
        if method == "DELETE":
            tries.append(method)
            raise requests.ConnectionError("Connection refused")
        return exchange(client, method, *args, **settings)

    def closed(*_: Any) -> None:
        raise ClosedPipe

    monkeypatch.setattr(Client, "_exchange", away)
    monkeypatch.setattr("cli.execution.Screen.write", closed)
    before = cli.clock.now
    assert cli("workspace", "exec", WS, "--", "yes").code == 141
    assert (cli.clock.now - before, tries) == (0, ["DELETE"])


def test_start_stop_and_verify(cli: Cli, primer: Primer) -> None:
    assert cli("workspace", "stop", WS).text == f"workspace/{WS} stopped\n"
    assert cli("workspace", "start", WS).text == f"workspace/{WS} running\n"
    result = cli("workspace", "verify", WS)
    assert result.code == 1
    assert result.text.startswith("verdict: degraded\n")


# run


def test_run_prints_the_output_and_leaves_nothing(cli: Cli, primer: Primer) -> None:
    result = cli("run", "-c", "print(6*7)", "--", "a", "b")
    assert (result.code, result.out, result.err) == (0, b"42\n", "")
    assert primer.sent("POST", "/v1/workspaces")[0].json == {"template_id": "default", "ttl_s": 360}
    assert primer.sent("POST", EXEC)[0].json == {"argv": ["python", "-c", "print(6*7)", "a", "b"], "timeout_s": 60.0}
    assert WS not in primer.store["workspaces"]


def test_run_sends_the_file_and_what_goes_with_it(cli: Cli, primer: Primer, folder: Path) -> None:
    Path("job.py").write_text("print(1)")
    Path("data").mkdir()
    Path("data/a.txt").write_text("A")
    Path("data/link").symlink_to("/etc/passwd")
    result = cli("run", "job.py", "--upload", "data", "-t", "code-sandbox", "--timeout", "10s", "--keep")
    assert result.code == 0
    assert primer.files == {"data/a.txt": b"A", "job.py": b"print(1)"}
    assert primer.sent("POST", "/v1/workspaces")[0].json == {"template_id": "code-sandbox"}
    assert primer.sent("POST", EXEC)[0].json["argv"] == ["python", "job.py"]
    assert "skipped data/link: not a regular file" in result.err
    assert f"kept workspace/{WS}" in result.err
    assert WS in primer.store["workspaces"]


def test_run_takes_code_from_standard_input(cli: Cli, primer: Primer) -> None:
    cli("run", "-", stdin=b"print(1)")
    assert primer.sent("POST", EXEC)[0].json["argv"] == ["python", "-c", "print(1)"]


def test_run_sends_code_that_is_too_long_for_an_argument_as_a_file(cli: Cli, primer: Primer) -> None:
    code = b"#" * 100_000
    cli("run", "-", stdin=code)
    assert primer.sent("POST", EXEC)[0].json["argv"] == ["python", "snippet.py"]
    assert primer.files == {"snippet.py": code}


@pytest.mark.parametrize(
    ("path", "answer", "code"),
    [
        (EXEC, problem(503, "engine_unavailable", "Gone."), 125),
        (EXEC, Answer(200, b"<html>", {"Content-Type": "text/html"}), 6),
    ],
)
def test_run_removes_the_workspace_when_it_fails(
    cli: Cli, primer: Primer, path: str, answer: Answer, code: int
) -> None:
    primer.on("POST", path, answer)
    assert cli("run", "-c", "x").code == code
    assert WS not in primer.store["workspaces"]


def test_run_removes_a_workspace_that_does_not_boot_and_says_why(cli: Cli, primer: Primer) -> None:
    reason = "image primer/workspace-runtime:1.0 not found"
    failed = {"id": WS, "phase": "failed", "phase_reason": "image_not_found", "phase_detail": f"{reason}."}
    primer.on("GET", f"/v1/workspaces/{WS}", Answer(200, failed))
    result = cli("run", "-c", "x")
    assert result.code == 125
    assert f"error: workspace {WS} failed: {reason}\nhint: build it on the server: primer image build\n" in result.err
    assert len(primer.sent("DELETE", f"/v1/workspaces/{WS}")) == 1


def test_run_names_the_workspace_it_could_not_remove_and_keeps_the_exit_code(cli: Cli, primer: Primer) -> None:
    ended(primer, b"42\n", exit_code=7)
    primer.on("DELETE", f"/v1/workspaces/{WS}", problem(409, "conflict", "Not now."))
    result = cli("run", "-c", "x")
    assert (result.code, result.out) == (7, b"42\n")
    assert f"workspace/{WS} may be left: Not now; remove it: primectl delete workspace/{WS}" in result.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_removes_the_workspace_when_it_is_stopped(primer: Primer, spawn: Spawn, number: int, code: int) -> None:
    primer.exec_lines, primer.cut_exec = [{"id": "x1"}], True
    primer.exec_result = {"id": "x1", "state": "running"}
    primer.exec_output["stdout"] = b"partial\n"
    primer.on("DELETE", f"{EXEC}/x1", problem(404, "not_found"))
    process = spawn("run", "-c", "x")
    assert process.stdout is not None
    assert process.stdout.readline() == b"partial\n"
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == code
    assert WS not in primer.store["workspaces"]


def test_run_fetches_files_before_it_removes(cli: Cli, primer: Primer, folder: Path) -> None:
    primer.files["out.txt"] = b"42"
    result = cli("run", "-c", "x", "--fetch", "out.txt")
    assert (result.code, Path("out.txt").read_bytes()) == (0, b"42")
    assert cli("run", "-c", "x", "--fetch", "nothing.txt").code == 1


def test_run_with_o_json_holds_result_and_confinement(cli: Cli, primer: Primer) -> None:
    value = json.loads(cli("run", "-c", "x", "-o", "json").out)
    assert (value["confinement"], value["ended_by"], value["stdout"]) == ("proven", "exit", "42\n")


def test_run_names_the_nearest_template(cli: Cli, primer: Primer) -> None:
    primer.store["workspace_templates"]["default"] = {"id": "default"}
    primer.on("POST", "/v1/workspaces", problem(422, "invalid", errors=[{"field": "template_id", "message": "no"}]))
    result = cli("run", "-t", "defualt", "-c", "x")
    assert result.code == 2
    assert result.err.endswith('hint: did you mean "default"?\n')


def test_o_json_holds_what_is_kept_and_says_that_it_is_not_all(cli: Cli, primer: Primer) -> None:
    ended(primer, b"head-tail", stdout_gap=[5, 1_000_005], stdout_bytes=1_000_009)

    def output(request: Any) -> Answer:
        offset = int(request.query["offset"][0])
        pages = {0: ("head-", 1_000_005, [5, 1_000_005]), 1_000_005: ("tail", 1_000_009, None)}
        if request.query["stream"][0] == "stderr" or offset not in pages:
            return Answer(200, {"data": "", "encoding": "utf-8", "offset": offset, "next_offset": offset, "gap": None})
        data, following, gap = pages[offset]
        return Answer(200, {"data": data, "encoding": "utf-8", "offset": offset, "next_offset": following, "gap": gap})

    primer.on("GET", f"{EXEC}/x1/output", output)
    result = cli("workspace", "exec", WS, "-o", "json", "--", "x")
    assert json.loads(result.out)["stdout"] == "head-tail"
    assert result.err == "primectl: 9 B of 976.6 KiB of stdout kept\n"
