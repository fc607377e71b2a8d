"""Programs in the real runtime: how they start, what they print, how they end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from primer_site.errors import Invalid
from tests.runtime.conftest import Run, Runtime, request
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import ExecUnknown, StartFailure


@pytest.mark.parametrize(
    ("argv", "over", "part", "reason"),
    [
        (["nosuchcmd"], {}, "argv0", "not_found"),
        (["/nope/cmd"], {}, "argv0", "not_found"),
        (["/etc/passwd"], {}, "argv0", "not_executable"),
        (["/etc"], {}, "argv0", "is_a_directory"),
        (["/etc/passwd/x"], {}, "argv0", "not_a_directory"),
        (["true"], {"cwd": "/nope"}, "cwd", "not_found"),
        (["true"], {"cwd": "/etc/passwd"}, "cwd", "not_a_directory"),
        (["sh", "-c", "x" * 200_000], {}, "argv0", "argument_too_long"),
        (["sh", "-c", *["y" * 100_000] * 30], {}, "argv0", "argument_too_long"),
    ],
)
async def test_what_cannot_start_is_a_typed_error_and_never_output(
    run: Run, argv: list[str], over: dict[str, str], part: str, reason: str
) -> None:
    with pytest.raises(StartFailure) as caught:
        await run(*argv, **over)
    assert (caught.value.part, caught.value.reason) == (part, reason)
    assert caught.value.code == "cannot_start"


async def test_a_text_file_without_interpreter_line_and_one_with_a_missing_interpreter_do_not_start(
    run: Run, runtime: Runtime
) -> None:
    for name, text, reason in (("plain", "echo hi\n", "not_a_program"), ("lost", "#!/nope/sh\n", "no_interpreter")):
        path = runtime.workdir / name
        path.write_text(text)
        path.chmod(0o755)
        with pytest.raises(StartFailure) as caught:
            await run(f"./{name}")
        assert caught.value.reason == reason


@pytest.mark.parametrize("argv", [("",), ("a\0b",), ("true", "a\0b")])
async def test_an_argv_that_no_kernel_takes_is_invalid(run: Run, argv: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        await run(*argv)


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
async def test_an_environment_name_with_an_equals_sign_or_nul_is_invalid(run: Run, name: str) -> None:
    with pytest.raises(Invalid):
        await run("true", env={name: "x"})


async def test_a_failing_program_is_a_result(run: Run) -> None:
    outcome, out, err = await run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (outcome.ended_by, outcome.exit_code, outcome.signal) == ("exit", 3, None)
    assert (out, err) == (b"out\n", b"err\n")
    assert (outcome.stdout_bytes, outcome.stderr_bytes) == (4, 4)


async def test_a_program_that_prints_engine_errors_and_exits_126_ended_by_exit(run: Run) -> None:
    outcome, _, _ = await run("sh", "-c", "echo 'OCI runtime exec failed: exec failed'; exit 126")
    assert (outcome.ended_by, outcome.exit_code) == ("exit", 126)


async def test_death_by_a_signal_is_told_apart_from_an_exit_code(run: Run) -> None:
    outcome, _, _ = await run("sh", "-c", "kill -SEGV $$")
    assert (outcome.ended_by, outcome.exit_code, outcome.signal) == ("signal", None, 11)


async def test_no_stdin_is_an_end_of_file_at_once(run: Run) -> None:
    outcome, out, _ = await run("python3", "-c", "import sys; print(repr(sys.stdin.read()))")
    assert (outcome.exit_code, out) == (0, b"''\n")


@pytest.mark.parametrize("size", [1, 65_536, 3_000_001])
async def test_stdin_arrives_whole_and_then_ends(run: Run, size: int) -> None:
    outcome, out, _ = await run("sh", "-c", "wc -c", stdin=b"x" * size)
    assert (outcome.exit_code, int(out)) == (0, size)


async def test_a_program_that_does_not_read_its_stdin_ends_all_the_same(run: Run) -> None:
    outcome, out, _ = await run("sh", "-c", "exec <&-; echo done", stdin=b"x" * 5_000_000)
    assert (outcome.exit_code, out) == (0, b"done\n")


async def test_a_megabyte_of_code_runs_when_it_comes_on_stdin(run: Run) -> None:
    code = "x = 1\n" * 200_000 + "print('ran')\n"
    _, out, _ = await run("python3", "-", stdin=code.encode())
    assert out == b"ran\n"


async def test_it_runs_in_the_workspace_with_its_own_session_and_signals_at_default(run: Run, runtime: Runtime) -> None:
    code = (
        "import os,signal; print(os.getcwd()); print(os.getsid(0) == os.getpid());"
        "print([s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN and s not in (13, 25)])"
    )
    _, out, _ = await run("python3", "-c", code)
    assert out.decode().split("\n")[:3] == [str(runtime.workdir), "True", "[]"]


async def test_relative_and_absolute_working_directories(run: Run, runtime: Runtime) -> None:
    (runtime.workdir / "inner").mkdir()
    assert (await run("pwd", cwd="inner"))[1] == f"{runtime.workdir}/inner\n".encode()
    assert (await run("pwd", cwd="/usr"))[1] == b"/usr\n"


async def test_no_descriptor_of_the_runtime_reaches_a_program(run: Run) -> None:
    _, out, _ = await run("sh", "-c", "ls /proc/self/fd")
    assert set(out.split()) <= {b"0", b"1", b"2", b"3"}  # 3 is ls's own look at the directory


async def test_the_environment_is_the_plain_one_below_the_sandboxs_below_the_execs(runtime: Runtime) -> None:
    sandbox = runtime.sandbox(env={"A": "sandbox", "B": "sandbox"})
    _, out, _ = await sandbox.run(request("env", env={"B": "exec"}))
    await sandbox.close()
    values = dict(line.split("=", 1) for line in out.decode().splitlines())
    assert (values["A"], values["B"]) == ("sandbox", "exec")
    assert set(values) <= {"A", "B", "PATH", "HOME", "LANG", "LC_ALL", "TZ", "HOSTNAME", "PYTHONDONTWRITEBYTECODE"}


async def test_an_edit_of_the_same_size_within_a_second_is_what_python_runs(run: Run, runtime: Runtime) -> None:
    module = runtime.workdir / "answer.py"
    for text in ("print(41)", "print(42)"):
        module.write_text(text)
        os.utime(module, (1_700_000_000, 1_700_000_000))
        assert (await run("python3", "-c", "import answer"))[1] == f"{text[6:8]}\n".encode()
    _, out, _ = await run("sh", "-c", "echo $PYTHONDONTWRITEBYTECODE", env={"PYTHONDONTWRITEBYTECODE": ""})
    assert out == b"\n"  # whoever wants the files says so


async def test_bytes_that_are_not_utf8_pass_through_argv_and_output(run: Run) -> None:
    raw = b"caf\xe9 \xff\x00"[:-1]
    _, out, _ = await run("printf", "%s", raw.decode("utf-8", "surrogateescape"))
    assert out == raw


async def test_output_that_imitates_the_wire_stays_inside_its_stream(run: Run) -> None:
    outcome, out, _ = await run("sh", "-c", r"printf '\000\000\000\005\021\000\000\000\001{}'; exit 1")
    assert (outcome.ended_by, outcome.exit_code, out) == ("exit", 1, b"\0\0\0\x05\x11\0\0\0\x01{}")


async def test_five_hundred_fast_programs_twenty_at_a_time_lose_no_output(sandbox: Sandbox) -> None:
    limit = asyncio.Semaphore(20)

    async def one() -> tuple[bytes, int | None]:
        async with limit:
            outcome, out, _ = await sandbox.run(request("echo", "hello"))
            return out, outcome.exit_code

    results = await asyncio.gather(*(one() for _ in range(500)))
    assert set(results) == {(b"hello\n", 0)}


async def test_output_comes_as_it_is_produced(sandbox: Sandbox, runtime: Runtime) -> None:
    os.mkfifo(runtime.workdir / "gate")
    handle = await sandbox.start_exec(request("sh", "-c", "echo first; cat gate; echo last"))
    chunks = handle.output()
    assert (await anext(chunks)).data == b"first\n"
    await asyncio.to_thread((runtime.workdir / "gate").write_bytes, b"")  # opens only because the program still runs
    assert b"".join([chunk.data async for chunk in chunks]) == b"last\n"
    assert (await handle.outcome()).exit_code == 0


async def test_a_second_start_with_the_same_id_attaches_and_runs_nothing_twice(run: Run, runtime: Runtime) -> None:
    results = [await run("sh", "-c", "echo x >> ran; echo out", id="same") for _ in range(3)]
    assert (runtime.workdir / "ran").read_text() == "x\n"
    assert [outcome for outcome, _, _ in results] == [results[0][0]] * 3
    assert results[0][1] == b"out\n"  # taken once; afterwards only the outcome is kept


async def test_a_failed_start_is_remembered_under_its_id(run: Run) -> None:
    for _ in range(2):
        with pytest.raises(StartFailure):
            await run("nosuchcmd", id="bad")


async def test_an_unknown_id_cannot_be_attached_to(sandbox: Sandbox) -> None:
    with pytest.raises(ExecUnknown):
        await sandbox.attach("never-started")


async def test_the_first_bytes_are_kept_and_the_counts_are_true(run: Run) -> None:
    outcome, out, _ = await run("sh", "-c", "head -c 5000000 /dev/zero", keep_bytes=1000)
    assert (len(out), outcome.stdout_bytes) == (1000, 5_000_000)


async def test_usage_is_measured(run: Run) -> None:
    code = "b = bytearray(40_000_000)\nfor i in range(2_000_000): pass"
    outcome, _, _ = await run("python3", "-c", code)
    assert outcome.cpu_ms > 10
    assert outcome.max_rss_bytes > 40_000_000


async def test_runs_at_the_same_time_are_marked_shared(sandbox: Sandbox, runtime: Runtime) -> None:
    os.mkfifo(runtime.workdir / "gate")
    first = await sandbox.start_exec(request("cat", "gate"))
    second, _, _ = await sandbox.run(request("true"))
    await asyncio.to_thread((runtime.workdir / "gate").write_bytes, b"")
    alone = (await first.outcome()).evidence.shared, second.evidence.shared
    assert alone == (True, True)
    assert (await sandbox.run(request("true")))[0].evidence.shared is False


async def test_facts_say_where_it_runs(sandbox: Sandbox, runtime: Runtime) -> None:
    facts = sandbox.facts
    assert (facts.pid, facts.uid, facts.workdir) == (runtime.process.pid, os.getuid(), str(runtime.workdir))
    assert Path(f"/proc/{facts.pid}").exists()


async def test_known_runs_are_listed(sandbox: Sandbox) -> None:
    await sandbox.run(request("true", id="one"))
    assert [(info.id, info.state, info.program) for info in await sandbox.list_execs()] == [("one", "ended", "true")]
