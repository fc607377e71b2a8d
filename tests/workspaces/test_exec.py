"""Programs over the API: results, failures, output, cancel, repeats, restarts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from primer_site import loop
from tests.eventually import eventually
from tests.factories import Api, make_workspace
from tests.workspaces.conftest import Process, create, sandbox_pid, until
from workspaces import access, execs
from workspaces.models import Exec, ExecOutput
from workspaces.sandbox_errors import exec_error


def run(person: Api, workspace: str, *argv: str, **body: Any) -> dict[str, Any]:
    answer = person.post(f"workspaces/{workspace}/exec", {"argv": list(argv), **body})
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def python(person: Api, workspace: str, code: str, **body: Any) -> dict[str, Any]:
    return run(person, workspace, "python3", "-c", code, **body)


def lines_of(response: Any) -> list[dict[str, Any]]:
    async def collect() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    return [json.loads(line) for line in asyncio.run(collect()).splitlines()]


def stream(person: Api, workspace: str, *argv: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
    headers = {"Accept": "application/x-ndjson", **(headers or {})}
    return person.post(f"workspaces/{workspace}/exec", {"argv": list(argv), **body}, headers=headers)


# -- what is refused


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "argv"), ({"argv": []}, "argv"), ({"argv": [""]}, "argv"), ({"argv": ["true"], "command": "true"}, "argv"),
        ({"argv": "true"}, "argv"), ({"command": ""}, "command"), ({"argv": ["a\x00b"]}, "argv[0]"),
        ({"argv": ["\ud83d"]}, "argv[0]"), ({"argv": ["true"], "timeout_s": 0}, "timeout_s"),
        ({"argv": ["true"], "timeout_s": 10**9}, "timeout_s"), ({"argv": ["true"], "max_output_bytes": -1}, "max_output_bytes"),
        ({"argv": ["true"], "max_output_bytes": 2**40}, "max_output_bytes"), ({"argv": ["true"], "user": "root"}, "user"),
        ({"argv": ["true"], "env": {"A": {"secret": "x"}}}, "env.A"), ({"argv": ["true"], "stdin_base64": "*"}, "stdin_base64"),
        ({"argv": ["true"], "stdin": "a", "stdin_base64": "YQ=="}, "stdin"),
    ],
)  # fmt: skip
def test_a_bad_request_names_its_field(body: Any, field: str, template: Any, owner: Any, alice: Api) -> None:
    answer = alice.post(f"workspaces/{make_workspace(owner).slug}/exec", body)
    assert answer.status_code == 422, answer.content
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("argv", "cwd", "sentence", "hint"),
    [
        (["nosuchcmd"], "", "Cannot start the program nosuchcmd: there is no such file.", "argv"),
        (["echo hello"], "", "Cannot start the program echo hello: there is no such file.", "command"),
        (["a\x1b[31m\nb"], "", "Cannot start the program a\\x1b[31m\\nb: there is no such file.", "argv"),
        (["true"], "nope", "Cannot start in the working directory nope: there is no such file.", "cwd"),
        (["/tmp"], "", "Cannot start the program /tmp: it is", ""),
        (["echo", "x" * 200_000], "", "Cannot start the program echo: an argument", "stdin"),
    ],
)
def test_a_program_that_cannot_start_is_named_with_what_to_do_and_is_not_output(
    argv: list[str], cwd: str, sentence: str, hint: str, running: str, alice: Api
) -> None:
    answer = alice.post(f"workspaces/{running}/exec", {"argv": argv, "cwd": cwd})
    assert (answer.status_code, answer.json()["code"]) == (422, "cannot_start")
    assert answer.json()["detail"].startswith(sentence)
    assert hint in answer.json()["hint"]
    assert [error["field"] for error in answer.json()["errors"]] == ["cwd" if cwd else "argv[0]"]
    kept = alice.get(f"workspaces/{running}/exec").json()["items"][0]
    assert (kept["state"], kept["ended_by"], kept["error"]["code"]) == ("ended", "not_started", "cannot_start")


@pytest.mark.parametrize("reason", ["no_process", "no_memory"])
def test_a_workspace_that_is_full_names_the_commands_that_end_its_other_programs(
    reason: str, template: Any, owner: Any, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise exec_error("cannot_start", "", {"part": "argv0", "reason": reason}, program="true")

    monkeypatch.setattr("workspaces.exec_api._run", full)
    workspace = make_workspace(owner).slug
    hint = alice.post(f"workspaces/{workspace}/exec", {"argv": ["true"]}).json()["hint"]
    how = f"(primectl workspace execs {workspace}, primectl workspace kill {workspace} EXEC)"
    assert hint.startswith(f"End other programs of this workspace {how}, or use a template with ")


def test_a_shell_line_that_cannot_start_is_named_as_the_line(running: str, alice: Api) -> None:
    answer = alice.post(f"workspaces/{running}/exec", {"command": "x" * 200_000})
    assert (answer.status_code, answer.json()["code"]) == (422, "cannot_start")
    assert [error["field"] for error in answer.json()["errors"]] == ["command"]


@pytest.mark.parametrize("body", [{"argv": ["nosuchcmd"]}, {"argv": ["true"], "cwd": "nope"}])
def test_the_repeat_of_a_key_whose_program_could_not_start_gets_the_same_answer(
    body: dict[str, Any], running: str, alice: Api
) -> None:
    key = {"Idempotency-Key": "the-same"}
    first, repeat = (alice.post(f"workspaces/{running}/exec", body, key) for _ in range(2))
    assert first.json() | {"request_id": ""} == repeat.json() | {"request_id": ""}
    assert (first.status_code, repeat.status_code) == (422, 422)


def test_variables_that_steer_a_loader_reach_the_program_and_never_the_runtime(
    process: Process, template: Any, alice: Api
) -> None:
    """A runtime that read them could not even start."""
    steering = {"PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere", "LD_PRELOAD": "/nowhere.so"}
    workspace = create(alice, env=steering)
    until(alice, workspace, "running")
    done = run(alice, workspace, "sh", "-c", "echo $PYTHONHOME $PYTHONPATH $LD_PRELOAD")
    assert done["stdout"] == "/nowhere /nowhere /nowhere.so\n"
    assert run(alice, workspace, "python3", "-c", "1")["exit_code"] == 1  # without its own library
    assert alice.get(f"workspaces/{workspace}").json()["phase"] == "running"


# -- what comes back


def test_a_failing_program_is_200_with_its_exit_code(running: str, alice: Api) -> None:
    done = run(alice, running, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done["exit_code"], done["ended_by"], done["signal"]) == (3, "exit", None)
    assert (done["stdout"], done["stderr"], done["truncated"]) == ("out\n", "err\n", False)
    assert done["usage"].keys() == {"cpu_ms", "max_rss_bytes"}


def test_stdin_is_sent_and_without_it_there_is_an_end_at_once(running: str, alice: Api) -> None:
    assert run(alice, running, "cat", stdin="hello")["stdout"] == "hello"
    assert run(alice, running, "cat", stdin_base64=base64.b64encode(b"\x00\xff").decode())["encoding"] == "base64"
    assert run(alice, running, "cat")["stdout"] == ""


def test_a_timeout_keeps_what_was_printed(running: str, alice: Api) -> None:
    done = run(alice, running, "sh", "-c", "echo before; sleep 60", timeout_s=0.5)
    assert (done["ended_by"], done["stdout"]) == ("timeout", "before\n")


def test_output_that_is_not_utf8_comes_as_base64(running: str, alice: Api) -> None:
    done = python(alice, running, r"import sys; sys.stdout.buffer.write(b'\xff\x00a')")
    assert (done["encoding"], base64.b64decode(done["stdout"])) == ("base64", b"\xff\x00a")


def test_characters_are_not_cut_at_the_borders_of_frames(running: str, alice: Api) -> None:
    done = python(alice, running, "print('a' + '€' * 100000, end='')")
    assert (len(done["stdout"]), done["stdout"].count("€"), done["stdout"].count("\ufffd")) == (100001, 100000, 0)


def test_long_output_keeps_head_and_tail_and_says_what_is_missing(running: str, alice: Api) -> None:
    done = python(alice, running, "for i in range(100000): print('%09d' % i)", max_output_bytes=4000)
    assert (done["truncated"], done["stdout_bytes"], done["stdout_gap"]) == (True, 1_000_000, [3000, 999_000])
    assert done["stdout"].startswith("000000000\n")
    assert done["stdout"].endswith("000099999\n")
    assert len(done["stdout"]) == 4000


def test_kept_output_is_read_in_pages_and_the_gap_is_named_once(running: str, alice: Api) -> None:
    done = python(alice, running, "for i in range(100000): print('%09d' % i)", max_output_bytes=4000)
    path, offset, parts, gaps = f"workspaces/{running}/exec/{done['id']}/output", 0, [], []
    while True:
        page = alice.get(path, offset=offset, limit=700).json()
        if not page["data"]:
            break
        parts.append(page["data"])
        gaps += [page["gap"]] if page["gap"] else []
        offset = page["next_offset"]
    assert ("".join(parts), gaps, offset) == (done["stdout"], [[3000, 999_000]], 1_000_000)
    assert page["ended"] is True


def test_a_page_never_cuts_a_character(running: str, alice: Api) -> None:
    done = python(alice, running, "print('€' * 1000, end='')")
    page = alice.get(f"workspaces/{running}/exec/{done['id']}/output", limit=1000).json()
    assert (page["data"], page["next_offset"], page["encoding"]) == ("€" * 333, 999, "utf-8")


def test_output_outlives_the_workspace(running: str, alice: Api) -> None:
    done = run(alice, running, "echo", "kept")
    alice.delete(f"workspaces/{running}")
    until(alice, running, "404")
    assert alice.get(f"workspaces/{running}/exec/{done['id']}").json()["exit_code"] == 0
    assert alice.get(f"workspaces/{running}/exec/{done['id']}/output").json()["data"] == "kept\n"
    assert alice.get(f"workspaces/{running}/exec").status_code == 404


# -- live


def test_a_stream_tells_the_id_then_output_then_the_result(running: str, alice: Api) -> None:
    answer = stream(alice, running, "sh", "-c", "echo one; echo two >&2; exit 4")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    first, *middle, last = lines_of(answer)
    assert set(first) == {"id"}
    assert {(line["stream"], line["data"]) for line in middle} == {("stdout", "one\n"), ("stderr", "two\n")}
    assert (last["result"]["exit_code"], last["result"]["id"]) == (4, first["id"])


def test_a_stream_gives_every_byte_even_of_what_is_not_kept(running: str, alice: Api) -> None:
    answer = stream(alice, running, "sh", "-c", "yes 0123456789abcde | head -c 4000000", max_output_bytes=1000)
    lines = lines_of(answer)
    data = "".join(line["data"] for line in lines if "data" in line)
    assert len(data) == 4_000_000
    assert data == "0123456789abcde\n" * 250_000
    assert lines[-1]["result"]["truncated"] is True


def test_what_cannot_start_is_an_ordinary_error_before_the_stream(running: str, alice: Api) -> None:
    answer = stream(alice, running, "nosuchcmd")
    assert (answer.status_code, answer.json()["code"]) == (422, "cannot_start")


def test_a_reader_that_goes_away_does_not_end_the_program(running: str, alice: Api) -> None:
    answer = stream(alice, running, "sh", "-c", "echo one; sleep 1; echo two")
    answer.close()
    row = Exec.objects.get()
    eventually(lambda: Exec.objects.get(pk=row.pk).ended_by == "exit")
    assert alice.get(f"workspaces/{running}/exec/{row.slug}/output").json()["data"] == "one\ntwo\n"


def test_the_output_of_a_running_program_can_be_read(running: str, alice: Api) -> None:
    answer = alice.post(f"workspaces/{running}/exec", {"command": "echo early; sleep 60", "background": True})
    assert (answer.status_code, answer.json()["state"]) == (202, "running")
    path = f"workspaces/{running}/exec/{answer.json()['id']}"
    page = eventually(lambda: (p := alice.get(f"{path}/output").json())["data"] and p)
    assert (page["data"], page["ended"]) == ("early\n", False)
    seen = alice.get(path)
    assert (seen.json()["state"], seen.json()["stdout_bytes"]) == ("running", 6)
    (listed,) = alice.get(f"workspaces/{running}/exec", state="running").json()["items"]
    assert (listed["stdout_bytes"], listed["stderr_bytes"]) == (6, 0)
    assert alice.get(path, headers={"If-None-Match": seen.headers["ETag"]}).status_code == 304
    assert alice.get(path, headers={"If-None-Match": seen.headers["ETag"].replace(".6", ".0")}).status_code == 200
    assert alice.delete(path).status_code == 204


# -- the end


def test_delete_ends_a_program_and_says_who_did_it(running: str, alice: Api) -> None:
    started = alice.post(f"workspaces/{running}/exec", {"argv": ["sleep", "600"], "background": True}).json()
    path = f"workspaces/{running}/exec/{started['id']}"
    assert alice.delete(path).status_code == 204
    ended = alice.get(path).json()
    assert (ended["ended_by"], ended["evidence"]["cancelled_by"]) == ("cancelled", "alice")
    assert alice.delete(path).status_code == 204  # again is success


def test_what_a_program_left_behind_is_not_called_ended_while_its_engine_is_away(
    running: str, provider: Any, root_path: str, alice: Api
) -> None:
    done = run(alice, running, "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started")
    [left] = done["survivors"]
    path = f"workspaces/{running}/exec/{done['id']}"
    provider.write_spec({"config": {"kind": "fake", "fault": "refuses", "root_path": root_path}})
    loop.run(access.close_all(), 10)  # the channel that is open still serves
    answer = alice.delete(path)
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_unavailable"), answer.content
    assert Path(f"/proc/{left['pid']}").exists()
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    eventually(lambda: alice.delete(path).status_code == 204, within=20)
    eventually(lambda: not Path(f"/proc/{left['pid']}").exists())


def test_what_a_program_left_behind_went_with_its_sandbox(running: str, alice: Api) -> None:
    done = run(alice, running, "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started")
    assert done["survivors"]
    alice.post(f"workspaces/{running}/stop")
    until(alice, running, "stopped")
    assert alice.delete(f"workspaces/{running}/exec/{done['id']}").status_code == 204


def test_deleting_an_unknown_program_is_404(running: str, alice: Api) -> None:
    assert alice.delete(f"workspaces/{running}/exec/exec-0000000000000000").status_code == 404


# -- repeats


def test_one_key_runs_once_and_answers_the_same(running: str, alice: Api) -> None:
    body = {"command": "echo $$ >> marks; cat marks"}
    answers = [
        alice.post(f"workspaces/{running}/exec", body, headers={"Idempotency-Key": "once"}).json() for _ in range(3)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert run(alice, running, "wc", "-l", "marks")["stdout"].split()[0] == "1"


def test_one_key_at_once_runs_once(running: str, alice: Api) -> None:
    body, answers = {"command": "echo x >> marks; sleep 0.5; cat marks"}, []

    def send() -> None:
        answers.append(alice.post(f"workspaces/{running}/exec", body, headers={"Idempotency-Key": "k"}).json())

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer["stdout"] for answer in answers] == ["x\n"] * 4


def test_one_key_for_another_program_is_409(running: str, alice: Api) -> None:
    headers = {"Idempotency-Key": "k"}
    alice.post(f"workspaces/{running}/exec", {"argv": ["echo", "1"]}, headers=headers)
    answer = alice.post(f"workspaces/{running}/exec", {"argv": ["echo", "2"]}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_repeated_stream_begins_at_the_beginning(running: str, alice: Api) -> None:
    first, second = (
        lines_of(stream(alice, running, "sh", "-c", "echo one; sleep 0.2; echo two", headers={"Idempotency-Key": "s"}))
        for _ in range(2)
    )
    texts = ["".join(line.get("data", "") for line in lines) for lines in (first, second)]
    assert texts == ["one\ntwo\n"] * 2
    assert first[0] == second[0]
    assert first[-1] == second[-1]


# -- restarts


def test_a_program_goes_on_over_a_restart_and_loses_no_byte(process: Process, running: str, alice: Api) -> None:
    code = "import time\nfor i in range(40):\n print('%04d' % i, flush=True); time.sleep(0.05)"
    started = alice.post(f"workspaces/{running}/exec", {"argv": ["python3", "-c", code], "background": True}).json()
    path = f"workspaces/{running}/exec/{started['id']}"
    eventually(lambda: alice.get(f"{path}/output").json()["data"])
    process.stop()
    assert alice.get(path).json()["state"] == "running"
    process.start()
    ended = eventually(lambda: (state := alice.get(path).json())["ended_by"] and state, within=20)
    assert (ended["ended_by"], ended["exit_code"]) == ("exit", 0)
    data = alice.get(f"{path}/output").json()["data"]
    assert data == "".join(f"{i:04d}\n" for i in range(40))


def test_a_program_of_a_session_is_ended_by_a_restart(process: Process, running: str, alice: Api) -> None:
    started = alice.post(f"workspaces/{running}/exec", {"argv": ["sleep", "600"], "background": True}).json()
    process.stop()
    Exec.objects.update(session_id="sess-0000000000000000")
    process.start()
    path = f"workspaces/{running}/exec/{started['id']}"
    ended = eventually(lambda: (state := alice.get(path).json())["ended_by"] and state, within=20)
    assert (ended["ended_by"], ended["evidence"]["cancelled_by"]) == ("cancelled", "restart")


def test_a_program_whose_sandbox_is_gone_after_a_restart_is_lost(process: Process, running: str, alice: Api) -> None:
    started = alice.post(f"workspaces/{running}/exec", {"argv": ["sleep", "600"], "background": True}).json()
    process.stop()
    os.kill(sandbox_pid(running), signal.SIGKILL)
    process.start()
    path = f"workspaces/{running}/exec/{started['id']}"
    ended = eventually(lambda: (state := alice.get(path).json())["ended_by"] and state, within=40)
    assert (ended["ended_by"], ended["exit_code"]) == ("lost", None)


def test_a_drain_takes_nothing_new_and_lets_the_running_end(running: str, alice: Api) -> None:
    started = alice.post(f"workspaces/{running}/exec", {"command": "sleep 1; echo end", "background": True}).json()
    loop.run(execs.drain(10), 15)
    refused = alice.post(f"workspaces/{running}/exec", {"argv": ["true"]})
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    execs.reopen()
    assert alice.get(f"workspaces/{running}/exec/{started['id']}").json()["ended_by"] == "exit"


def test_a_quick_program_costs_one_row_and_one_piece_of_output(running: str, alice: Api) -> None:
    run(alice, running, "echo", "hi")
    assert (Exec.objects.count(), ExecOutput.objects.count()) == (1, 1)


def test_the_list_filters_by_what_it_declares_and_nothing_else(running: str, alice: Api) -> None:
    run(alice, running, "true")
    assert alice.get(f"workspaces/{running}/exec", state="ended").json()["total"] == 1
    assert alice.get(f"workspaces/{running}/exec", state="running").json()["total"] == 0
    assert alice.get(f"workspaces/{running}/exec", owner="alice").status_code == 422
