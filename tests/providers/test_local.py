"""Plain processes: what the local provider still promises although it isolates nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from primer_site.errors import Invalid
from tests.eventually import eventually, eventually_async
from workspaces.execution import ExecRequest
from workspaces.providers import processes, provider_class
from workspaces.providers.base import ChannelClosed, EngineUnavailable, Ref, SandboxSpec, StartFailed, State
from workspaces.providers.directory import NOBODY, remove_tree
from workspaces.providers.local import LocalProvider
from workspaces.sandbox import Sandbox

ROOT = os.geteuid() == 0


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="primer-local-"))  # pytest's own directories are closed to uid 65534
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def local(root: Path) -> AsyncIterator[LocalProvider]:
    provider = LocalProvider({"root_path": str(root)}, {}, instance_id="inst")
    yield provider
    for ref in await provider.discover():
        await provider.destroy(ref)
    await provider.close()


def spec(**over: object) -> SandboxSpec:
    return replace(SandboxSpec("inst", f"ws-{secrets.token_hex(8)}", 1), **over)  # type: ignore[arg-type]


async def shell(provider: LocalProvider, ref: Ref, line: str) -> str:
    sandbox = Sandbox(lambda: provider.connect(ref), b"s" * 32)
    outcome, stdout, stderr = await sandbox.run(ExecRequest(secrets.token_hex(8), ("sh", "-c", line)))
    await sandbox.close()
    return (stdout + stderr).decode() if outcome.ended_by == "exit" else outcome.ended_by


@pytest.mark.parametrize("path", ["", "relative/path", "/a\0b"])
def test_a_root_path_that_is_not_absolute_is_refused(path: str) -> None:
    with pytest.raises(Invalid) as caught:
        LocalProvider({"root_path": path}, {}, instance_id="inst")
    assert caught.value.errors[0].field == "config.root_path"


async def test_a_root_path_that_cannot_be_made_is_unreachable_with_a_sentence(root: Path) -> None:
    (root / "file").write_text("")
    provider = LocalProvider({"root_path": str(root / "file" / "below")}, {}, instance_id="inst")
    check = await provider.check()
    assert check.health == "unreachable"
    assert check.reasons[0].endswith("cannot be used: Not a directory.")
    with pytest.raises(EngineUnavailable):
        await provider.start(spec())


async def test_it_says_that_it_isolates_nothing(local: LocalProvider) -> None:
    check = await local.check()
    assert check.reasons[0].startswith("NOT ISOLATED")
    assert not LocalProvider.isolates
    assert "enforced" not in check.enforces.values()


@pytest.mark.skipif(not ROOT, reason="only a root server has another user to give")
async def test_under_a_root_server_programs_run_as_nobody_in_a_directory_of_nobody(
    local: LocalProvider, root: Path
) -> None:
    ref = await local.start(spec())
    assert (
        await shell(local, ref, "id -u; id -g; id -G; stat -c '%u %a' .")
        == f"{NOBODY}\n{NOBODY}\n{NOBODY}\n{NOBODY} 700\n"
    )
    assert "Permission denied" in await shell(local, ref, f"ls {root}/.state")


async def test_limits_of_a_plain_process_are_set(local: LocalProvider) -> None:
    ref = await local.start(spec(disk_bytes=2**20))
    assert await shell(local, ref, "ulimit -c; ulimit -n") == "0\n1024\n"
    assert await shell(local, ref, "exec head -c 3000000 /dev/zero > big") in ("disk", "signal")


async def test_nothing_of_the_servers_environment_reaches_a_program(
    local: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMER_SENTINEL", "secret")
    ref = await local.start(spec())
    assert "PRIMER_SENTINEL" not in await shell(local, ref, "env")


async def test_the_runtime_outlives_the_server_and_belongs_to_no_one(local: LocalProvider, root: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from workspaces.providers.base import SandboxSpec\n"
        "from workspaces.providers.local import LocalProvider\n"
        "p = LocalProvider({'root_path': sys.argv[1]}, {}, instance_id='inst')\n"
        "asyncio.run(p.start(SandboxSpec('inst', 'ws-00000000000000aa', 1)))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, cwd=Path(__file__).parents[2])
    (ref,) = await local.discover()
    assert (await local.status(ref)).state is State.RUNNING
    assert await shell(local, ref, "echo alive") == "alive\n"


async def test_a_pid_that_came_back_as_another_process_is_not_ours(local: LocalProvider, root: Path) -> None:
    made = spec()
    ref = await local.start(made)
    processes.end_tree(int(ref.extra["pid"]), ref.extra["started"])
    record = root / ".state" / f"{made.workspace_id}.json"
    record.write_text(record.read_text().replace(f'"pid": {ref.extra["pid"]}', f'"pid": {os.getpid()}'))
    assert (await local.status(ref)).state is State.STOPPED
    await local.destroy(ref)  # and this process is still here


async def test_a_listener_that_took_the_runtimes_name_is_not_believed(local: LocalProvider, root: Path) -> None:
    made = spec()
    ref = await local.start(made)
    name = root / made.workspace_id / "run" / "s"
    name.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(name))
        listener.listen()
        with pytest.raises(ChannelClosed, match="Another process"):
            await LocalProvider(local.config, {}, instance_id="inst").connect(ref)


async def test_a_runtime_that_cannot_start_is_a_failed_start_with_its_last_lines(root: Path) -> None:
    provider = LocalProvider({"root_path": str(root)}, {}, instance_id="inst")
    await provider.check()
    (zipapp,) = (root / ".runtime").glob("*.pyz")
    zipapp.write_text("print('no luck')")
    with pytest.raises(StartFailed) as caught:
        await provider.start(spec())
    assert caught.value.boot_lines[-1:] != ()
    assert await provider.discover() == []
    assert [path.name for path in root.iterdir() if path.name.startswith("ws-")] == []


async def test_a_boot_log_that_is_a_link_is_not_followed(local: LocalProvider, root: Path) -> None:
    made = spec()
    ref = await local.start(made)
    log = root / made.workspace_id / "run" / "boot.log"
    log.unlink()
    log.symlink_to("/etc/passwd")
    await local.stop(ref)
    assert (await local.status(ref)).boot_lines == ()


def test_a_tree_of_any_depth_with_links_is_removed_and_no_link_is_followed(root: Path) -> None:
    kept = root / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    build = "mkdir t; cd t; ln -s ../kept link; for i in $(seq 1500); do mkdir d; cd -P d; done; mkfifo pipe; chmod 0 ."
    subprocess.run(["sh", "-c", build], cwd=root, check=True)
    remove_tree(str(root / "t"))
    assert [path.name for path in root.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_a_whole_tree_of_processes_is_ended_also_one_that_left_its_session() -> None:
    script = "sleep 600 & (setsid sh -c 'sleep 600 & sleep 600') & sleep 600"
    root = subprocess.Popen(["sh", "-c", script])
    try:
        eventually(lambda: len(processes.descendants(root.pid)) >= 4)
        below = processes.descendants(root.pid)
        assert processes.end_tree(root.pid, processes.started(root.pid))
        assert [pid for pid in below if processes.started(pid)] == []
    finally:
        root.wait()


def test_a_process_that_is_not_the_one_meant_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert not processes.end_tree(child.pid, "1")
        assert not processes.end_tree(child.pid, "")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


async def test_a_dead_process_is_stopped_and_a_stop_of_it_succeeds(local: LocalProvider) -> None:
    ref = await local.start(spec())
    os.kill(int(ref.extra["pid"]), 9)

    async def stopped() -> bool:
        return (await local.status(ref)).state is State.STOPPED

    await eventually_async(stopped)
    await local.stop(ref)


async def test_python_is_there_by_that_name_on_any_machine(local: LocalProvider, root: Path) -> None:
    ref = await local.start(spec())
    programs = root / ".runtime" / "bin"
    path = (await shell(local, ref, "echo $PATH")).strip().split(":")
    assert path[-1] == str(programs)  # last: the machine's own programs come first
    assert await shell(local, ref, f"PATH={programs}; python -c 'print(6 * 7)'; python3 -c 'print(7)'") == "42\n7\n"
    await local.check()  # again changes nothing, and mends what was changed
    (programs / "python").unlink()
    (programs / "python").symlink_to("/nonexistent")
    await local.check()
    assert await shell(local, ref, f"{programs}/python -c 'print(1)'") == "1\n"
    assert sorted(entry.name for entry in programs.iterdir()) == ["python", "python3"]


@pytest.mark.parametrize(
    ("kind", "other", "config"),
    [
        ("local", "container", {"root_path": "/nowhere"}),
        ("fake", "container", {"root_path": "/nowhere"}),
        ("container", "local", {"connection": {"kind": "socket", "socket_path": "/nowhere.sock"}}),
    ],
)
async def test_no_provider_starts_what_was_described_for_another_kind(
    kind: str, other: str, config: dict[str, object]
) -> None:
    provider = provider_class(kind)(config, {}, instance_id="inst")
    with pytest.raises(StartFailed, match=f"for a {other} provider, and this one is of the kind {kind}"):
        await provider.start(spec(kind=other))
    await provider.close()
