"""The bridge: a process that copies bytes between the engine's stream and the runtime's socket."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime, request
from workspaces.sandbox import Sandbox


class BridgeChannel:
    """What a provider does with the engine's exec, done with a plain process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout

    async def read(self, limit: int) -> bytes:
        return await self.stdout.read(limit)

    async def write(self, data: bytes) -> None:
        self.stdin.write(data)
        await self.stdin.drain()

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        self.stdin.close()
        await self.process.wait()


@pytest.fixture
async def bridges(runtime: Runtime, archive: Path) -> AsyncIterator[list[BridgeChannel]]:
    made: list[BridgeChannel] = []
    yield made
    for bridge in made:
        await bridge.close()


@pytest.fixture
async def bridged(runtime: Runtime, archive: Path, bridges: list[BridgeChannel]) -> AsyncIterator[Sandbox]:
    """The client of a runtime that is reached through bridges only."""

    async def connect() -> BridgeChannel:
        command = [sys.executable, "-I", "-S", "-E", str(archive), "bridge", "--socket", runtime.socket]
        pipe = asyncio.subprocess.PIPE
        bridges.append(BridgeChannel(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)))
        return bridges[-1]

    sandbox = Sandbox(connect, b"a token that never travels")
    yield sandbox
    await sandbox.close()


async def test_everything_passes_through_a_bridge(bridged: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    await bridged.write("file", data)
    assert (await bridged.read("file")).data == data
    outcome, out, _ = await bridged.run(request("sha256sum", stdin=data))
    assert (outcome.exit_code, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())


async def test_a_killed_bridge_costs_nothing_but_a_new_one(bridged: Sandbox, bridges: list[BridgeChannel]) -> None:
    handle = await bridged.start_exec(request("sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"))
    total, kills = 0, 0
    async for chunk in handle.output():
        if chunk.stream == "stdout":
            assert chunk.offset == total
            total += len(chunk.data)
        if total > (kills + 1) * 5_000_000:
            bridges[-1].process.kill()
            kills += 1
    assert ((await handle.outcome()).exit_code, total) == (0, 20_000_000)
    assert kills == 3
    assert len(bridges) > 3


def test_without_a_runtime_it_says_so_and_ends(archive: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-E", str(archive), "bridge", "--socket", str(tmp_path / "nobody")]
    done = subprocess.run(command, input=b"", check=False, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (69, b"")
    assert b"does not listen" in done.stderr


def test_the_end_of_its_input_ends_it_after_it_has_passed_on_the_rest(runtime: Runtime, archive: Path) -> None:
    command = [sys.executable, "-I", "-S", "-E", str(archive), "bridge", "--socket", runtime.socket]
    done = subprocess.run(command, input=b"", check=False, capture_output=True, timeout=20)
    assert done.returncode == 0
    assert b'"boot_id"' in done.stdout
