"""Ending programs: everything a run started goes, whatever it does against it, and the count proves it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.eventually import eventually_async
from tests.runtime.conftest import Run, Runtime, request
from workspaces.runtime import linux
from workspaces.sandbox import Sandbox


def programs(runtime: Runtime) -> list[str]:
    """Commands of everything below the runtime that is not one of its keepers."""
    table = linux.processes()
    pids = linux.descendants({runtime.process.pid}, table)
    return [linux.command_of(pid) for pid in pids if Path(f"/proc/{pid}/comm").read_text() != "primer-keeper\n"]


def keeper_of(pid: int) -> int:
    return linux.processes()[pid][0]


async def test_a_timeout_ends_a_program_and_keeps_what_it_had_printed(run: Run, runtime: Runtime) -> None:
    outcome, out, _ = await run("sh", "-c", "echo partial; exec sleep 600", timeout_s=0.5)
    assert (outcome.ended_by, outcome.signal, out) == ("timeout", signal.SIGTERM, b"partial\n")
    assert outcome.evidence.limit == 0.5
    assert programs(runtime) == []


async def test_a_program_that_ignores_term_is_killed_after_the_grace(run: Run, runtime: Runtime) -> None:
    code = (
        "import signal,time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)];"
        "print('armed', flush=True); time.sleep(600)"
    )
    outcome, out, _ = await run("python3", "-c", code, timeout_s=2.0)
    assert (outcome.ended_by, outcome.signal, out) == ("timeout", signal.SIGKILL, b"armed\n")
    assert programs(runtime) == []


async def test_a_program_that_uses_its_grace_to_exit_0_was_still_ended_by_the_timeout(run: Run) -> None:
    outcome, out, _ = await run(
        "sh", "-c", "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done", timeout_s=0.5
    )
    assert (outcome.ended_by, outcome.exit_code, out) == ("timeout", 0, b"saved\n")


async def test_a_timeout_ends_daemons_that_left_session_group_and_descriptors(run: Run, runtime: Runtime) -> None:
    line = "setsid sh -c 'setsid sleep 601 & sleep 602' >/dev/null 2>&1 </dev/null & sleep 603"
    outcome, _, _ = await run("sh", "-c", line, timeout_s=0.5)
    assert outcome.ended_by == "timeout"
    assert outcome.survivors == ()
    assert programs(runtime) == []


async def test_cancel_says_who_and_ends_the_tree(sandbox: Sandbox, runtime: Runtime) -> None:
    handle = await sandbox.start_exec(request("sh", "-c", "sleep 600 & sleep 601"))
    await handle.cancel("alice")
    outcome = await handle.outcome()
    assert (outcome.ended_by, outcome.evidence.cancelled_by) == ("cancelled", "alice")
    assert programs(runtime) == []


async def test_a_stopped_program_can_be_cancelled(sandbox: Sandbox) -> None:
    handle = await sandbox.start_exec(request("sh", "-c", "kill -STOP $$; sleep 600"))
    await handle.cancel("alice")
    assert (await handle.outcome()).ended_by == "cancelled"


async def test_cancelling_what_has_ended_changes_nothing(sandbox: Sandbox) -> None:
    outcome, _, _ = await sandbox.run(request("true", id="done"))
    assert await sandbox.kill_exec("done", "alice") == 0
    assert (await (await sandbox.attach("done")).outcome()) == outcome


async def test_the_call_returns_when_the_main_process_ends_and_lists_what_it_left(
    sandbox: Sandbox, run: Run, runtime: Runtime
) -> None:
    outcome, out, _ = await run("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started", id="left")
    assert (outcome.ended_by, outcome.exit_code, out) == ("exit", 0, b"started\n")
    assert [survivor.command for survivor in outcome.survivors] == ["sleep 600"]
    assert [survivor.command for info in await sandbox.list_execs() for survivor in info.survivors] == ["sleep 600"]
    assert await sandbox.kill_exec("left", "alice") == 0
    assert programs(runtime) == []
    assert [info.survivors for info in await sandbox.list_execs()] == [()]


async def test_a_child_that_holds_stdout_does_not_hold_the_call(run: Run, runtime: Runtime) -> None:
    outcome, out, _ = await run("sh", "-c", "sleep 600 & echo started", timeout_s=60)
    assert (outcome.exit_code, out) == (0, b"started\n")
    assert len(outcome.survivors) == 1


async def test_a_survivor_that_prints_on_is_not_killed_by_its_pipe(
    sandbox: Sandbox, run: Run, runtime: Runtime
) -> None:
    line = "(while [ ! -e stop ]; do echo noise; done; echo alive > proof) & echo started"
    outcome, _, _ = await run("sh", "-c", line, id="noisy")
    assert len(outcome.survivors) >= 1
    (runtime.workdir / "stop").touch()
    await eventually_async((runtime.workdir / "proof").exists, within=20)


async def test_a_run_does_not_touch_the_processes_of_another(sandbox: Sandbox, run: Run, runtime: Runtime) -> None:
    other = await sandbox.start_exec(request("sleep", "600"))
    outcome, _, _ = await run("sleep", "601", timeout_s=0.3)
    assert outcome.ended_by == "timeout"
    assert programs(runtime) == ["sleep 600"]
    await other.cancel("alice")
    await other.outcome()


async def test_a_fork_bomb_that_ignores_term_is_gone_at_its_timeout(run: Run, runtime: Runtime) -> None:
    # bounded by itself: outside a container there is no pids limit that would bound it
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
root = os.getpid()
for level in range(6):
    os.fork()
while True:
    if os.getpid() != root and os.fork() == 0:
        time.sleep(0.01)
        os._exit(0)
    try:
        os.wait()
    except OSError:
        time.sleep(0.01)
"""
    outcome, _, _ = await run("python3", "-c", code, timeout_s=1.5)
    assert outcome.ended_by == "timeout"
    assert outcome.survivors == ()
    assert programs(runtime) == []


async def test_a_flood_above_the_kill_limit_is_ended_with_output_cap(run: Run, runtime: Runtime) -> None:
    outcome, out, _ = await run("sh", "-c", "yes & yes", output_kill_bytes=3_000_000, keep_bytes=100)
    assert outcome.ended_by == "output_cap"
    assert outcome.evidence.limit == 3_000_000
    assert outcome.stdout_bytes > 3_000_000
    assert len(out) == 100
    assert programs(runtime) == []


async def test_a_run_whose_keeper_is_killed_goes_on_and_reports_its_status(sandbox: Sandbox, runtime: Runtime) -> None:
    os.mkfifo(runtime.workdir / "gate")
    handle = await sandbox.start_exec(request("sh", "-c", "cat gate; echo end; exit 7"))
    assert handle.pid is not None
    os.kill(keeper_of(handle.pid), signal.SIGKILL)
    await asyncio.to_thread((runtime.workdir / "gate").write_bytes, b"")
    assert b"".join([chunk.data async for chunk in handle.output()]) == b"end\n"
    assert (await handle.outcome()).exit_code == 7


async def test_what_a_run_hides_by_killing_its_keeper_is_ended_with_it(run: Run, runtime: Runtime) -> None:
    line = "setsid sleep 600 >/dev/null 2>&1 </dev/null & sleep 0.2; kill -9 $PPID; sleep 0.2; exit 5"
    outcome, _, _ = await run("sh", "-c", line)
    assert outcome.exit_code == 5
    await eventually_async(lambda: programs(runtime) == [])


async def test_a_timeout_reaches_the_tree_of_a_killed_keeper(run: Run, runtime: Runtime) -> None:
    line = "setsid sleep 600 >/dev/null 2>&1 </dev/null & kill -9 $PPID; sleep 601"
    outcome, _, _ = await run("sh", "-c", line, timeout_s=0.7)
    assert outcome.ended_by == "timeout"
    await eventually_async(lambda: programs(runtime) == [])


async def test_a_stopped_keeper_goes_on(sandbox: Sandbox) -> None:
    handle = await sandbox.start_exec(request("sh", "-c", "kill -STOP $PPID; echo end; exit 4"))
    assert (await handle.outcome()).exit_code == 4


async def test_keepers_outlive_every_signal_but_kill_and_stop(sandbox: Sandbox) -> None:
    line = "for s in HUP INT QUIT TERM USR2 ALRM PIPE TSTP; do kill -$s $PPID; done; exit 6"
    assert (await sandbox.run(request("sh", "-c", line)))[0].exit_code == 6


async def test_killed_spares_are_replaced(sandbox: Sandbox, runtime: Runtime) -> None:
    for _ in range(3):
        for pid, (parent, _) in linux.processes().items():
            if parent == runtime.process.pid:
                os.kill(pid, signal.SIGKILL)
        assert (await sandbox.run(request("echo", "alive")))[1] == b"alive\n"


async def test_a_stopped_runtime_ends_its_programs(sandbox: Sandbox, runtime: Runtime) -> None:
    handle = await sandbox.start_exec(request("sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 601"))
    assert handle.pid is not None
    await sandbox.close()
    runtime.process.terminate()
    assert await asyncio.to_thread(runtime.process.wait, 15) == 0
    assert not Path(f"/proc/{handle.pid}").exists()


async def test_keepers_end_the_programs_of_a_runtime_that_was_killed(sandbox: Sandbox, runtime: Runtime) -> None:
    handle = await sandbox.start_exec(request("sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 601"))
    assert handle.pid is not None
    await sandbox.close()
    runtime.process.kill()
    await eventually_async(lambda: not Path(f"/proc/{handle.pid}").exists(), within=10)


@pytest.mark.parametrize("limit", [2_000_000])
async def test_the_disk_watcher_ends_the_run_that_fills_the_workspace_and_only_that(
    runtime: Runtime, limit: int
) -> None:
    sandbox = runtime.sandbox(disk_bytes=limit)
    quiet = await sandbox.start_exec(request("sleep", "600"))
    line = "i=0; while :; do i=$((i+1)); head -c 400000 /dev/zero > f$i; sync f$i; sleep 0.05; done"
    outcome, _, _ = await sandbox.run(request("sh", "-c", line, timeout_s=60))
    assert (outcome.ended_by, outcome.evidence.disk, outcome.evidence.limit) == ("disk", "watcher", limit)
    assert "sleep 600" in programs(runtime)
    await quiet.cancel("alice")
    assert (await quiet.outcome()).ended_by == "cancelled"
    await sandbox.close()


async def test_a_file_size_limit_is_a_verdict_of_its_own(run: Run) -> None:
    outcome, _, _ = await run("sh", "-c", "ulimit -f 8; exec head -c 100000 /dev/zero > big")
    assert (outcome.ended_by, outcome.evidence.disk, outcome.signal) == ("disk", "sigxfsz", signal.SIGXFSZ)
