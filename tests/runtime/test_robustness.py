"""What the runtime goes on after: garbage before its claim, spare keepers that cannot live, an archive replaced under it."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.runtime.conftest import Run, Runtime, request
from workspaces.runtime import build, linux, protocol
from workspaces.runtime.loop import Job, Loop
from workspaces.runtime.paths import Root
from workspaces.runtime.registry import SPARE_PAUSE_S, YOUNG_S, Registry


def spares(runtime: Runtime) -> set[int]:
    return {pid for pid, (parent, state) in linux.processes().items() if parent == runtime.process.pid and state != "Z"}


def claim(value: Any) -> bytes:
    return protocol.Encoder().encode(protocol.CLAIM, 0, protocol.dumps({"hash": value}))


@pytest.mark.parametrize(
    "data",
    [
        claim("zz"), claim("\u0661" * 64), claim("\ud800"), claim(None), claim(7), claim("00" * 31), claim("00" * 33),
        claim(["00" * 32]), protocol.Encoder().encode(protocol.CLAIM, 0), protocol.Encoder().encode(protocol.CLAIM, 0, b"\xff"),
    ],
)  # fmt: skip
async def test_a_claim_that_is_none_ends_its_connection_and_the_runtime_can_still_be_claimed(
    data: bytes, runtime: Runtime
) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(runtime.socket)
    sock.sendall(data)
    while sock.recv(65536):
        pass
    sock.close()
    sandbox = runtime.sandbox()
    await sandbox.open()
    assert (await sandbox.run(request("echo", "fine")))[1] == b"fine\n"
    await sandbox.close()


class Spare:
    """A keeper of `fork`; a dead one has ended by itself before anybody could ask it for anything."""

    def __init__(self, now: float, dead: bool) -> None:
        self.sock, peer = socket.socketpair()
        peer.close()
        self.pid, self.alive, self.killed, self.dead, self.idle_since = 0, False, True, dead, now


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    loop, root = Loop(), Root(str(tmp_path))
    registry = Registry(loop, root, {}, False)
    yield registry
    for spare in registry._idle:
        spare.sock.close()
    loop.close()
    os.close(root.fd)


def test_the_loop_outlives_the_end_of_a_job_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a job that took longer than its first step: nobody above it would catch what its end raises."""
    loop, ended = Loop(), []

    def steps() -> Generator[None, None, str]:
        yield
        return "value"

    def breaks(value: Any, error: Exception | None) -> None:
        ended.append(value)
        raise MemoryError("no room to say so")

    loop.add_job(Job(steps(), breaks, loop.now + 60))
    loop.add_job(Job(steps(), lambda value, error: ended.append(value), loop.now + 60))
    for _ in range(5):
        loop.run_once(0.0)
    loop.close()
    assert ended == ["value", "value"]
    assert "no room to say so" in capfd.readouterr().err


def live_for(registry: Registry, seconds: int, born: list[float], lifetime: float) -> None:
    """Turns of the loop every 10 ms; each spare lives so long."""
    registry._fork = lambda: born.append(registry.loop.now) or Spare(registry.loop.now, False)  # type: ignore[method-assign, assignment, func-returns-value, return-value]
    for _ in range(seconds * 100):
        registry.loop.now += 0.01
        registry.ensure_idle()
        for spare in registry._idle:
            spare.dead = registry.loop.now - spare.idle_since >= lifetime  # type: ignore[misc]
        registry._on_idle(0)


def test_spares_that_die_at_once_are_made_ever_more_slowly(registry: Registry) -> None:
    born: list[float] = []
    live_for(registry, 60, born, lifetime=0.0)
    pauses = [after - before for before, after in itertools.pairwise(born)]
    assert len(born) < 25
    assert pauses[0] == pytest.approx(SPARE_PAUSE_S[0], abs=0.02)
    assert pauses[-1] == pytest.approx(SPARE_PAUSE_S[1], abs=0.02)
    assert pauses[:-1] == sorted(pauses[:-1])


def test_a_spare_that_was_killed_later_is_replaced_at_once(registry: Registry) -> None:
    born: list[float] = []
    live_for(registry, 20, born, lifetime=0.0)
    born.clear()
    live_for(registry, 60, born, lifetime=2 * YOUNG_S)
    assert len(born) >= 20


async def test_the_runtime_and_new_keepers_need_nothing_of_their_archive_any_more(tmp_path: Path) -> None:
    archive = tmp_path / build.ENTRY_NAME
    build.build(archive)
    (tmp_path / "home").mkdir()
    runtime = Runtime(tmp_path / "home", archive)
    try:
        sandbox = runtime.sandbox()
        await sandbox.open()
        archive.write_bytes(b"something else")
        first = eventually(lambda: spares(runtime))
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: (now := spares(runtime)) and not now & first)
        assert (await sandbox.run(request("echo", "fine")))[1] == b"fine\n"
        outcome, out, _ = await sandbox.run(request("sh", "-c", "echo partial; sleep 600", timeout_s=0.3))
        assert (outcome.ended_by, out) == ("timeout", b"partial\n")
        await sandbox.write("a", b"text")
        assert (await sandbox.read("a")).data == b"text"
        await sandbox.close()
    finally:
        runtime.stop()
    assert runtime.log_text() == ""


async def test_the_writer_of_a_pipe_that_is_about_to_die_is_no_survivor(run: Run) -> None:
    code = "import subprocess; p = subprocess.Popen(['sh', '-c', 'sleep 0.02'], stdout=-3, stderr=-3); print('done')"
    for _ in range(3):
        outcome, out, _ = await run("python3", "-c", code)
        assert (outcome.ended_by, out, outcome.survivors) == ("exit", b"done\n", ())
