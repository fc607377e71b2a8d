"""A program may take the permissions of its own workspace away: that locks nobody out, neither now nor after a restart."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime, request
from workspaces.runtime import linux
from workspaces.runtime.paths import Root
from workspaces.runtime.server import why_not
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import exec_error

# What root may open in spite of every mode has to be taken from it: the sandbox's user has no such capability.
BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


class Bound(Runtime):
    prefix = BOUND


@pytest.fixture
def runtime(tmp_path: Path, archive: Path) -> Iterator[Runtime]:
    runtime = Bound(tmp_path, archive)
    yield runtime
    runtime.workdir.chmod(0o700)
    runtime.stop()
    assert runtime.log_text() == ""


def mode_of(runtime: Runtime) -> int:
    return stat.S_IMODE(runtime.workdir.stat().st_mode)


@pytest.mark.parametrize("mode", [0o000, 0o005, 0o300, 0o500])
def test_a_runtime_starts_over_a_root_that_its_own_programs_locked(mode: int, runtime: Runtime) -> None:
    runtime.process.terminate()
    runtime.process.wait(10)
    assert runtime.process.stdout is not None
    runtime.process.stdout.close()
    runtime.workdir.chmod(mode)
    runtime.process = runtime.start()
    assert mode_of(runtime) == mode | 0o700


async def test_a_program_after_one_that_locked_the_root_starts_as_ever(sandbox: Sandbox, runtime: Runtime) -> None:
    outcome, _, _ = await sandbox.run(request("chmod", "000", "."))
    assert (outcome.exit_code, mode_of(runtime)) == (0, 0)
    assert (await sandbox.run(request("sh", "-c", "echo kept >a; cat a")))[1] == b"kept\n"
    assert mode_of(runtime) == 0o700


async def test_file_calls_after_a_program_that_locked_the_root_go_on(sandbox: Sandbox, runtime: Runtime) -> None:
    await sandbox.write("a.txt", b"kept")
    for call in (
        lambda: sandbox.list(""),
        lambda: sandbox.read("a.txt"),
        lambda: sandbox.write("b.txt", b"new"),
        lambda: sandbox.stat("a.txt"),
    ):
        runtime.workdir.chmod(0)
        await call()
        assert mode_of(runtime) == 0o700


def test_a_root_of_somebody_else_and_a_file_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "file").chmod(0o400)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert not linux.regain(fd)
    os.close(fd)
    (tmp_path / "root").mkdir(mode=0o500)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    os.close(Root(str(tmp_path / "root")).fd)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "root")] == [0o400, 0o500]


def test_a_link_in_place_of_the_root_gives_nobody_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o500)
    (tmp_path / "root").symlink_to("other")
    os.close(Root(str(tmp_path / "root")).fd)
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o500


def test_a_runtime_that_cannot_open_its_root_says_what_to_do(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    command = [sys.executable, "-I", "-S", "-E", str(archive), "serve", "--socket", str(tmp_path / "s")]
    command += ["--workdir", str(tmp_path / "file")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    start = f"primer-runtime cannot start: ENOTDIR at {tmp_path}/file. Put a directory of uid {os.geteuid()} there, "
    assert (done.returncode, done.stderr) == (1, f"{start}and start again.\n")
    refused = PermissionError(errno.EACCES, "Permission denied", "/workspace")
    words = why_not(refused, "@s", "/workspace")
    assert words.startswith(f"EACCES at /workspace. Give the directory to uid {os.geteuid()} (chown), with mode 0750, ")
    assert why_not(OSError(errno.EADDRINUSE, "in use"), "@s", "/workspace") == "EADDRINUSE at @s"


def test_a_start_that_the_root_refuses_does_not_speak_of_a_cwd_that_nobody_gave() -> None:
    facts = {"part": "cwd", "reason": "not_executable"}
    own, given = exec_error("cannot_start", "", facts), exec_error("cannot_start", "", facts, cwd="a")
    assert own.detail == "Cannot start in the workspace: its permissions refuse it."
    assert "create a new workspace" in own.hint_text
    assert "cwd" not in own.hint_text
    assert given.detail == "Cannot start in the working directory a: its permissions refuse it."
    assert "chmod u+rwx" in given.hint_text
