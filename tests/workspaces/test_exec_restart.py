"""Runs over restarts and failures of the server itself: no byte that was acknowledged is lost, and no run is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError

from primer_site import loop
from tests.eventually import eventually
from tests.factories import Api, make_provider, make_template
from tests.workspaces.conftest import Process, create
from workspaces import exec_pump, exec_rows, execs
from workspaces.execution import ExecRequest
from workspaces.models import Exec, ExecOutput, Workspace
from workspaces.output import Keeper
from workspaces.runs import Run

LINES = "import sys, time\nfor i in range({count}):\n print('%07d' % i)\n if i % 500 == 499: sys.stdout.flush(); time.sleep({pause})"


def background(person: Api, workspace: str, *argv: str, **body: Any) -> str:
    """The path of a program that was started and answered with 202."""
    answer = person.post(f"workspaces/{workspace}/exec", {"argv": list(argv), "background": True, **body})
    assert answer.status_code == 202, answer.content
    return f"workspaces/{workspace}/exec/{answer.json()['id']}"


def printer(person: Api, workspace: str, count: int, pause: float, **body: Any) -> str:
    """8 bytes a line, 4000 bytes at once."""
    return background(person, workspace, "python3", "-c", LINES.format(count=count, pause=pause), **body)


def ended(person: Api, path: str, within: float = 30) -> dict[str, Any]:
    return dict(eventually(lambda: (state := person.get(path).json())["ended_by"] and state, within=within))


def whole_output(person: Api, path: str) -> str:
    data, offset = "", 0
    while (page := person.get(f"{path}/output", offset=offset, limit=1 << 20).json())["data"]:
        data, offset = data + page["data"], page["next_offset"]
    return data


@pytest.fixture
def killed(process: Process, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ends the process like SIGKILL, after `ready` holds while nothing more is stored: that is lost with its memory."""

    def kill(ready: Callable[[], bool] = lambda: True) -> None:
        async def nothing(run: Run) -> bool:
            return False

        with monkeypatch.context() as patch:
            patch.setattr(Run, "flush", nothing)
            patch.setattr(Run, "suspend", nothing)
            eventually(ready, within=20)
            process.stop()
        process.start()

    return kill


def seen() -> int:
    """Bytes that this process has seen of the only run's output."""
    run = execs.live(Exec.objects.get().pk)
    return run.totals["stdout"] if run else 0


def stored() -> int:
    return sum(len(row.data) for row in ExecOutput.objects.all())


def test_a_fast_program_loses_no_byte_when_the_server_is_killed(killed: Any, running: str, alice: Api) -> None:
    path = printer(alice, running, count=200_000, pause=0.005, max_output_bytes=16 << 20)
    eventually(lambda: stored() >= 100_000, within=20)
    killed(lambda: seen() > stored() + 400_000)
    state = ended(alice, path)
    assert (state["ended_by"], state["stdout_bytes"], state["stdout_gap"]) == ("exit", 1_600_000, None)
    assert whole_output(alice, path) == "".join(f"{i:07d}\n" for i in range(200_000))


def test_behind_a_full_head_a_killed_server_costs_an_honest_gap(killed: Any, running: str, alice: Api) -> None:
    path = printer(alice, running, count=100_000, pause=0.02, max_output_bytes=200_000)
    eventually(lambda: stored() >= 150_000, within=20)
    killed()
    state = ended(alice, path)
    start, end = state["stdout_gap"]
    assert (state["ended_by"], state["stdout_bytes"], start) == ("exit", 800_000, 150_000)
    text = "".join(f"{i:07d}\n" for i in range(100_000))
    assert whole_output(alice, path) == text[:start] + text[end:]


def test_a_restart_never_keeps_more_than_was_asked_for(process: Process, running: str, alice: Api) -> None:
    code = "import time; print('x' * 99_999, flush=True); time.sleep(2); print('y' * 99_999)"
    path = background(alice, running, "python3", "-c", code, max_output_bytes=100_000)
    eventually(lambda: seen() == 100_000)
    process.stop()
    process.start()
    state = ended(alice, path)
    assert (state["stdout_bytes"], state["stdout_gap"]) == (200_000, [75_000, 175_000])
    assert whole_output(alice, path) == "x" * 75_000 + "y" * 24_999 + "\n"


async def test_the_source_may_forget_only_what_is_stored_until_the_head_is_full() -> None:
    keeper = Keeper(100)
    keeper.take(0, b"a" * 50)
    assert keeper.settled == 0
    keeper.mark_stored(40)
    assert keeper.settled == 40
    keeper.take(50, b"b" * 60)
    assert keeper.settled == 40
    keeper.mark_stored(35)
    assert keeper.settled == 110


# -- what never starts


def test_a_run_that_was_answered_202_and_never_starts_is_found_with_its_reason(
    process: Process, root_path: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workspaces.exec_api.STARTED_WAIT_S", 0.1)
    provider = make_provider(config={"root_path": root_path})
    make_template(provider=provider, init_commands=[["sh", "-c", "sleep 1; exit 3"]])
    workspace = create(alice)
    path = background(alice, workspace, "true")
    state = ended(alice, path)
    assert (state["state"], state["ended_by"], state["exit_code"]) == ("ended", "not_started", None)
    assert state["error"]["code"] == "workspace_not_running"
    assert workspace in state["error"]["detail"]
    assert alice.get(f"{path}/output").json()["ended"] is True


def test_a_run_that_never_started_does_not_use_its_key_up(running: str, alice: Api) -> None:
    headers = {"Idempotency-Key": "k"}
    first = alice.post(f"workspaces/{running}/exec", {"command": "echo 1"}, headers=headers).json()
    Exec.objects.update(
        ended_by="not_started", exit_code=None, error={"code": "workspace_not_running", "detail": "It failed."}
    )
    again = alice.post(f"workspaces/{running}/exec", {"command": "echo 2"}, headers=headers)
    assert (again.status_code, again.json()["stdout"]) == (200, "2\n")
    assert again.json()["id"] != first["id"]
    assert alice.get(f"workspaces/{running}/exec/{first['id']}").json()["error"]["detail"] == "It failed."


def test_a_key_of_a_run_that_was_refused_before_it_was_stored_is_free(running: str, alice: Api) -> None:
    headers, body = {"Idempotency-Key": "k"}, {"command": "echo 1"}
    loop.run(execs.drain(5), 10)
    assert alice.post(f"workspaces/{running}/exec", body, headers=headers).status_code == 503
    execs.reopen()
    other = alice.post(f"workspaces/{running}/exec", {"command": "echo 2"}, headers=headers)
    assert (other.status_code, other.json()["stdout"]) == (200, "2\n")


# -- pumps that fail


def test_a_pump_that_fails_unexpectedly_goes_on_without_losing_a_byte(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, faults = Run.take, [RuntimeError("a bug"), MemoryError()]

    async def fails_twice(run: Run, chunk: Any) -> None:
        if faults:
            raise faults.pop()
        await take(run, chunk)

    monkeypatch.setattr(Run, "take", fails_twice)
    path = background(alice, running, "sh", "-c", "echo one; sleep 1; echo two")
    state = ended(alice, path)
    assert (state["ended_by"], state["exit_code"], state["error"]) == ("exit", 0, None)
    assert whole_output(alice, path) == "one\ntwo\n"


def test_a_pump_that_fails_every_time_ends_the_run_as_lost_and_says_so(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(run: Run, chunk: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(exec_pump, "AGAIN_PAUSE_S", (0.01, 0.01))
    monkeypatch.setattr(Run, "take", fails)
    path = background(alice, running, "sh", "-c", "echo one; sleep 600")
    state = ended(alice, path)
    assert (state["state"], state["ended_by"], state["exit_code"]) == ("ended", "lost", None)
    assert "gave it up" in state["error"]["detail"]
    assert alice.delete(path).status_code == 204


def test_an_end_that_the_database_never_takes_as_it_is_becomes_lost(
    running: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = exec_rows.finish

    def refuses_output(pk: int, outcome: Any, gaps: Any, parts: Any, trouble: str = "") -> bool:
        if any(data for _, _, data in parts):
            raise IntegrityError("a row is there already")
        return finish(pk, outcome, gaps, parts, trouble)

    monkeypatch.setattr(exec_rows, "finish", refuses_output)
    state = ended(alice, background(alice, running, "echo", "one"))
    assert (state["ended_by"], state["stdout_gap"]) == ("lost", [0, 4])
    assert "could not store" in state["error"]["detail"]


def test_a_run_that_nobody_pumps_is_taken_up(running: str, alice: Api) -> None:
    workspace = Workspace.objects.get(slug=running)
    request = ExecRequest(id="exec-00000000000000aa", argv=("true",))

    async def insert_and_be_cancelled() -> None:
        await loop.write(
            exec_rows.insert, workspace.pk, request, keep_bytes=1000, started_by=None, session_id=None, background=True,
            request_hash="",
        )  # fmt: skip

    loop.run(insert_and_be_cancelled(), 10)
    path = f"workspaces/{running}/exec/{request.id}"
    loop.run(exec_pump.take_up(3600), 10)
    assert alice.get(path).json()["state"] == "running", "it may just be starting"
    loop.run(exec_pump.take_up(0), 10)
    assert ended(alice, path)["ended_by"] == "lost"
