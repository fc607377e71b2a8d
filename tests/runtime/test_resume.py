"""Lost channels: nothing is lost with them, nothing runs twice, and both sides stay small."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from pathlib import Path

import pytest

from primer_site.errors import PrimerError
from tests.eventually import eventually_async
from tests.runtime.conftest import Runtime, SocketChannel, request
from workspaces.providers.base import ChannelClosed, EngineUnavailable
from workspaces.sandbox import Sandbox

FLOOD = 50_000_000
CODE = f"""
import hashlib, random, sys
source, digest, left = random.Random(7), hashlib.sha256(), {FLOOD}
while left:
    block = source.randbytes(min(left, 30011))
    left -= len(block)
    digest.update(block)
    sys.stdout.buffer.write(block)
sys.stdout.flush()
print(digest.hexdigest(), file=sys.stderr)
"""


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def read_all(handle: object) -> tuple[str, int, bytes]:
    """SHA-256 and length of stdout, and stderr; offsets have to be without gap or repeat."""
    digest, length, err = hashlib.sha256(), 0, b""
    async for chunk in handle.output():  # type: ignore[attr-defined]
        if chunk.stream == "stdout":
            assert chunk.offset == length
            digest.update(chunk.data)
            length += len(chunk.data)
        else:
            err += chunk.data
    return digest.hexdigest(), length, err


async def test_fifty_megabytes_arrive_whole_while_the_channel_is_cut_at_random_offsets(runtime: Runtime) -> None:
    chance = random.Random(20)

    async def connect() -> SocketChannel:
        channel = await runtime.connect()
        channel.cut_after = chance.randrange(1, 6_000_000)
        return channel

    sandbox = runtime.sandbox(open_channel=connect)
    handle = await sandbox.start_exec(request(sys.executable, "-c", CODE))
    digest, length, err = await read_all(handle)
    outcome = await handle.outcome()
    assert (outcome.ended_by, outcome.exit_code, outcome.stdout_bytes, length) == ("exit", 0, FLOOD, FLOOD)
    assert digest.encode() == err.strip()
    assert len(runtime.channels) > 5
    await sandbox.close()


async def test_a_run_ends_normally_while_no_channel_is_there(sandbox: Sandbox, runtime: Runtime) -> None:
    os.mkfifo(runtime.workdir / "gate")
    handle = await sandbox.start_exec(request("sh", "-c", "cat gate; echo out; exit 9"))
    runtime.channels[-1].cut()
    await asyncio.to_thread((runtime.workdir / "gate").write_bytes, b"")
    _, length, _ = await read_all(handle)
    assert ((await handle.outcome()).exit_code, length) == (9, 4)


async def test_another_server_process_attaches_by_offset(runtime: Runtime) -> None:
    first, second = runtime.sandbox(), runtime.sandbox()
    os.mkfifo(runtime.workdir / "gate")
    started = await first.start_exec(request("sh", "-c", "echo 0123456789; cat gate; echo end", id="shared"))
    chunk = await anext(started.output())
    await first.close()
    handle = await second.attach("shared", stdout_offset=4)
    await asyncio.to_thread((runtime.workdir / "gate").write_bytes, b"")
    chunks = [chunk async for chunk in handle.output()]
    assert chunk.data == b"0123456789\n"
    assert b"".join(chunk.data for chunk in chunks) == b"456789\nend\n"
    assert chunks[0].offset == 4
    await second.close()


async def test_stdin_goes_on_where_it_was_when_the_channel_breaks(runtime: Runtime) -> None:
    sent = 0

    async def connect() -> SocketChannel:
        channel = await runtime.connect()
        write = channel.write

        async def cut_in_the_middle(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            await write(data)
            if sent > 1_500_000 and len(runtime.channels) == 1:
                channel.cut()

        channel.write = cut_in_the_middle  # type: ignore[method-assign]
        return channel

    sandbox = runtime.sandbox(open_channel=connect)
    data = random.Random(3).randbytes(4_000_000)
    outcome, out, _ = await sandbox.run(request("sha256sum", stdin=data))
    assert (outcome.exit_code, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())
    assert len(runtime.channels) > 1
    await sandbox.close()


async def test_a_start_whose_confirmation_was_lost_runs_once(runtime: Runtime) -> None:
    calls = 0

    async def connect() -> SocketChannel:
        nonlocal calls
        channel = await runtime.connect()
        calls += 1
        if calls == 1:
            write = channel.write

            async def deaf_from_the_start_on(data: bytes) -> None:
                channel.deaf = channel.deaf or b'"op":"start"' in data
                await write(data)

            channel.write = deaf_from_the_start_on  # type: ignore[method-assign]
        return channel

    sandbox = runtime.sandbox(open_channel=connect)
    outcome, out, _ = await sandbox.run(request("sh", "-c", "echo x >> ran; echo out"))
    assert (outcome.exit_code, out) == (0, b"out\n")
    assert (runtime.workdir / "ran").read_text() == "x\n"
    assert calls == 2
    await sandbox.close()


async def test_a_runtime_that_is_gone_makes_the_run_lost_with_what_had_arrived(runtime: Runtime) -> None:
    sandbox = runtime.sandbox(lost_after_s=0.5)
    handle = await sandbox.start_exec(request("sh", "-c", "echo partial; sleep 600"))
    chunks = handle.output()
    assert (await anext(chunks)).data == b"partial\n"
    runtime.process.kill()
    assert [chunk async for chunk in chunks] == []
    outcome = await handle.outcome()
    assert (outcome.ended_by, outcome.exit_code, outcome.signal, outcome.stdout_bytes) == ("lost", None, None, 8)
    with pytest.raises(ChannelClosed):
        await sandbox.list_execs()
    await sandbox.close()


async def test_a_runtime_that_was_started_anew_makes_the_run_lost_and_does_not_run_it_again(runtime: Runtime) -> None:
    sandbox = runtime.sandbox()
    handle = await sandbox.start_exec(request("sh", "-c", "echo x >> ran; sleep 600"))
    await eventually_async((runtime.workdir / "ran").exists)
    runtime.process.kill()
    runtime.process.wait()
    assert runtime.process.stdout is not None
    runtime.process.stdout.close()
    runtime.process = runtime.start()
    assert (await handle.outcome()).ended_by == "lost"
    assert (await sandbox.run(request("cat", "ran")))[1] == b"x\n"
    await sandbox.close()


async def test_a_channel_that_cannot_be_opened_at_all_gives_its_own_error(runtime: Runtime) -> None:
    async def connect() -> SocketChannel:
        raise EngineUnavailable()

    sandbox = runtime.sandbox(open_channel=connect, lost_after_s=0.3)
    with pytest.raises(EngineUnavailable):
        await sandbox.open()
    with pytest.raises(EngineUnavailable):
        await sandbox.start_exec(request("true"))
    await sandbox.close()


async def test_calls_of_many_callers_survive_a_channel_that_breaks(sandbox: Sandbox, runtime: Runtime) -> None:
    await sandbox.write("file", b"content")

    async def caller(number: int) -> bytes:
        for step in range(5):
            if number == 0:
                runtime.channels[-1].cut()
            await sandbox.write(f"dir{number}/{step}", b"%d" % step)
            await sandbox.move(f"dir{number}/{step}", f"dir{number}/moved{step}")
        return (await sandbox.read("file")).data

    assert await asyncio.gather(*(caller(number) for number in range(4))) == [b"content"] * 4
    names = {item.path for item in (await sandbox.list(recursive=True)).items if item.kind == "file"}
    assert names == {"file", *(f"dir{n}/moved{s}" for n in range(4) for s in range(5))}


async def test_a_flood_with_a_slow_reader_keeps_both_sides_small(sandbox: Sandbox, runtime: Runtime) -> None:
    before = rss_bytes(os.getpid()), rss_bytes(runtime.process.pid)
    handle = await sandbox.start_exec(
        request("sh", "-c", f"head -c {2 * FLOOD} /dev/zero", output_kill_bytes=3 * FLOOD)
    )
    taken = 0
    async for chunk in handle.output():
        taken += len(chunk.data)
        if taken < 2_000_000:
            await sandbox.stat("")  # another call goes through while the flood waits for its reader
    grown = rss_bytes(os.getpid()) - before[0], rss_bytes(runtime.process.pid) - before[1]
    assert taken == 2 * FLOOD
    assert grown[0] < 16 << 20
    assert grown[1] < 8 << 20


async def test_a_program_that_nobody_reads_waits_and_another_does_not(sandbox: Sandbox) -> None:
    unread = await sandbox.start_exec(request("yes"))
    for _ in range(5):
        assert (await sandbox.run(request("echo", "hi")))[1] == b"hi\n"
    await unread.cancel("alice")
    outcome = await unread.outcome()
    assert outcome.ended_by == "cancelled"
    assert outcome.stdout_bytes < 4 << 20


async def test_closing_the_client_leaves_the_program_running(runtime: Runtime) -> None:
    first = runtime.sandbox()
    handle = await first.start_exec(request("sleep", "600", id="stays"))
    await first.close()
    with pytest.raises(PrimerError):
        await handle.outcome()
    second = runtime.sandbox()
    assert [(info.id, info.state) for info in await second.list_execs()] == [("stays", "running")]
    await second.kill_exec("stays", "alice")
    await second.close()
