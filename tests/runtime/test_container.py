"""The runtime as PID 1 of a real container: what code of the same uid can do to it, and the kernel's own counters."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from tests.engine import INSTANCE, DockerView, docker_view, new_workspace_id, runtime_image  # noqa: F401
from tests.runtime.conftest import SECRET, request
from tests.runtime.test_resume import read_all
from workspaces.execution import ExecOutcome
from workspaces.providers import provider_class
from workspaces.providers.base import SandboxSpec
from workspaces.sandbox import Sandbox

pytestmark = pytest.mark.docker


@pytest.fixture
async def boxed(docker_view: DockerView, runtime_image: str) -> AsyncIterator[Sandbox]:  # noqa: F811
    """A sandbox of 128 processes, 256 MiB and 8 MiB per file, in the reference container."""
    provider = provider_class("container")(
        {"connection": {"kind": "socket", "socket_path": docker_view.socket_path}}, {}, instance_id=INSTANCE
    )
    spec = SandboxSpec(
        instance_id=INSTANCE,
        workspace_id=new_workspace_id(),
        generation=1,
        image=runtime_image,
        pids_limit=128,
        memory_bytes=256 << 20,
        disk_bytes=8 << 20,
    )
    ref = await provider.start(spec)
    sandbox = Sandbox(lambda: provider.connect(ref), SECRET)
    await sandbox.open()
    yield sandbox
    await sandbox.close()
    await provider.destroy(ref)
    await provider.close()


async def py(sandbox: Sandbox, code: str, **over: object) -> tuple[ExecOutcome, str]:
    outcome, out, err = await sandbox.run(request("python3", "-c", code, **over))
    return outcome, (out + err).decode(errors="replace")


async def alone(sandbox: Sandbox) -> None:
    """Nothing of any run is left, and the next program works."""
    line = "for p in /proc/[0-9]*; do echo $(cat $p/comm); done 2>/dev/null"
    _, out, _ = await sandbox.run(request("sh", "-c", line))
    assert set(out.decode().split()) <= {"python3", "primer-keeper", "sh", "cat"}


async def test_it_is_pid_1_of_uid_1000_with_limits_it_can_name_and_small(boxed: Sandbox) -> None:
    facts = boxed.facts
    assert (facts.pid, facts.uid) == (1, 1000)
    assert facts.limits["pids"] == 128
    assert facts.limits["memory_bytes"] == 256 << 20
    assert facts.rss_bytes <= 12 << 20


async def test_code_of_the_same_uid_reads_neither_the_runtime_nor_a_keeper(boxed: Sandbox) -> None:
    code = """
import os
for pid in (1, os.getppid()):
    for name in ('environ', 'mem', 'maps', 'auxv', 'stack', 'fd', 'root', 'cwd', 'map_files'):
        path = f'/proc/{pid}/{name}'
        try:
            print('OPENED', path, os.listdir(path) if name in ('fd', 'map_files') else os.open(path, os.O_RDONLY))
        except OSError as error:
            print(error.strerror)
print([line for line in open('/proc/1/status') if line.startswith(('SigCgt', 'Threads'))])
"""
    _, out = await py(boxed, code)
    assert "OPENED" not in out
    assert r"Threads:\t1\n" in out  # no other thread id leads to it
    assert "0000000000000000" in out  # no handler at all: the kernel then drops every signal from inside


async def test_kill_9_of_everything_ends_the_program_and_neither_the_runtime_nor_the_channel_for_long(
    boxed: Sandbox,
) -> None:
    outcome, out, _ = await boxed.run(request("sh", "-c", "echo before; kill -9 1; kill -9 -1; echo after"))
    assert out.startswith(b"before\n")
    assert (outcome.ended_by, outcome.signal) in (("signal", signal.SIGKILL), ("exit", None))
    await alone(boxed)


async def test_a_run_that_kills_everything_else_still_ends_with_its_whole_output(boxed: Sandbox) -> None:
    other = await boxed.start_exec(request("sh", "-c", "sleep 3; echo other; exit 5"))
    code = """
import os
mine, pid = set(), os.getpid()
while pid:
    mine.add(pid)
    pid = int([line for line in open(f'/proc/{pid}/status') if line.startswith('PPid')][0].split()[1])
killed = 0
for name in os.listdir('/proc'):
    comm = open(f'/proc/{name}/comm').read() if name.isdigit() else ''
    if name.isdigit() and int(name) not in mine and name != '1' and comm not in ('sh\\n', 'sleep\\n'):
        try:
            os.kill(int(name), 9)
            killed += 1
        except OSError:
            pass
print('killed', killed, flush=True)
print('END OF OUTPUT')
"""
    outcome, out = await py(boxed, code)
    assert (outcome.ended_by, outcome.exit_code) == ("exit", 0)
    assert out.endswith("END OF OUTPUT\n")
    assert b"".join([chunk.data async for chunk in other.output()]) == b"other\n"
    assert (await other.outcome()).exit_code == 5  # although its keeper was killed
    await alone(boxed)


async def test_fifty_megabytes_arrive_whole_while_the_program_kills_the_bridge_under_them(boxed: Sandbox) -> None:
    code = """
import hashlib, os, random, sys
source, digest, left, kills = random.Random(7), hashlib.sha256(), 50_000_000, 0
cut = left - source.randrange(1, 6_000_000)
while left:
    block = source.randbytes(min(left, 30011))
    left -= len(block)
    digest.update(block)
    sys.stdout.buffer.write(block)
    if left >= cut:
        continue
    cut -= source.randrange(1, 6_000_000)
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if open(f'/proc/{pid}/cmdline', 'rb').read().endswith(b'\\0bridge\\0'):
                os.kill(int(pid), 9)
                kills += 1
        except OSError:
            pass
sys.stdout.flush()
print(digest.hexdigest(), kills, file=sys.stderr)
"""
    handle = await boxed.start_exec(request("python3", "-c", code, timeout_s=120))
    digest, length, err = await read_all(handle)
    outcome = await handle.outcome()
    assert (outcome.ended_by, outcome.exit_code, outcome.stdout_bytes, length) == ("exit", 0, 50_000_000, 50_000_000)
    printed, kills = err.decode().split()
    assert digest == printed
    assert int(kills) > 5


async def test_a_fork_bomb_at_the_pids_limit_is_gone_at_its_timeout_and_calls_are_answered_meanwhile(
    boxed: Sandbox,
) -> None:
    code = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    handle = await boxed.start_exec(request("python3", "-c", code, timeout_s=3.0))
    outcome = asyncio.ensure_future(handle.outcome())
    while not outcome.done():
        await boxed.write("during", b"answered")
        await asyncio.wait({outcome}, timeout=0.3)
    assert outcome.result().ended_by == "timeout"
    assert outcome.result().survivors == ()
    assert outcome.result().evidence.pids_max > 0
    await alone(boxed)


async def test_a_thread_bomb_that_fails_of_it_is_ended_by_pids(boxed: Sandbox) -> None:
    code = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(6,), daemon=True).start()
"""
    outcome, out = await py(boxed, code)
    assert (outcome.ended_by, outcome.evidence.limit) == ("pids", 128)
    assert "can't start new thread" in out
    await alone(boxed)


async def test_a_memory_bomb_is_ended_by_oom_and_the_workspace_lives(boxed: Sandbox) -> None:
    outcome, _ = await py(boxed, "b = []\nwhile True: b.append(bytearray(8 << 20))")
    assert (outcome.ended_by, outcome.signal) == ("oom", signal.SIGKILL)
    assert outcome.evidence.oom_kill > 0
    assert outcome.evidence.limit == 256 << 20
    await alone(boxed)


async def test_a_file_above_the_limit_of_the_container_is_a_disk_verdict(boxed: Sandbox) -> None:
    outcome, _, _ = await boxed.run(request("head", "-c", "64000000", "/dev/zero"))
    assert outcome.ended_by == "exit"
    outcome, _, _ = await boxed.run(request("sh", "-c", "exec dd if=/dev/zero of=big bs=1M count=64"))
    assert (outcome.ended_by, outcome.evidence.disk, outcome.evidence.limit) == ("disk", "sigxfsz", 8 << 20)


async def test_the_environment_holds_nothing_of_the_control_plane(boxed: Sandbox) -> None:
    _, out, _ = await boxed.run(request("sh", "-c", "env; cat /proc/1/cmdline | tr '\\0' ' '"))
    text = out.decode().lower()
    assert not any(word in text for word in ("api_key", "secret", "token", "django_", "database_url", "anthropic"))
    _, out, _ = await boxed.run(request("env"))
    names = {line.partition("=")[0] for line in out.decode().splitlines()}
    assert names == {"HOME", "LANG", "PATH", "HOSTNAME", "PYTHONDONTWRITEBYTECODE"}


async def test_a_run_that_stops_every_process_it_can_still_ends_and_the_stopped_bridge_goes(boxed: Sandbox) -> None:
    """SIGSTOP reaches the bridge and the keeper; the client opens another channel and the runtime ends the old one."""
    code = """
import os, signal, time
for pid in sorted((int(p) for p in os.listdir('/proc') if p.isdigit()), reverse=True):
    if pid not in (1, os.getpid()):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
time.sleep(1)
print('end')
"""
    outcome, text = await py(boxed, code, timeout_s=60)
    assert (outcome.ended_by, outcome.exit_code, text) == ("exit", 0, "end\n")

    async def stopped() -> int:
        line = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') T ' || true"
        _, out, _ = await boxed.run(request("sh", "-c", line))
        return int(out)

    for _ in range(60):
        if await stopped() == 0:
            break
        await asyncio.sleep(0.5)
    assert await stopped() == 0
