"""What an exec costs at the sandbox client, against a bare subprocess of this machine: interleaved, medians, ratios.

    python benchmarks/exec.py [--rounds 15]

The runtime runs as a plain process here (no engine in between), so the numbers are those of runtime, protocol and client.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workspaces.execution import ExecRequest
from workspaces.runtime import build
from workspaces.sandbox import Sandbox

CALLERS, CALLS_EACH = 8, 15
FLOOD_BYTES = 200 << 20
numbers = itertools.count()


class SocketChannel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self, limit: int) -> bytes:
        return await self.reader.read(limit)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    await work()
    return (time.perf_counter() - begin) * 1000


def request(*argv: str) -> ExecRequest:
    return ExecRequest(id=f"bench-{next(numbers)}", argv=argv)


async def host(*argv: str) -> None:
    """The bare subprocess: no thread, no loop, as short as python can do it."""
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)


async def compare(sandbox: Sandbox, rounds: int, *argv: str) -> tuple[float, float]:
    """Median milliseconds here and bare; the two take turns, so that what disturbs one disturbs the other."""
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(await timed(lambda: sandbox.run(request(*argv))))
        bare.append(await timed(lambda: host(*argv)))
    return statistics.median(ours), statistics.median(bare)


async def throughput(sandbox: Sandbox, rounds: int) -> tuple[float, float]:
    """Calls a second of eight callers: through one channel, and as eight threads with bare subprocesses."""

    async def ours() -> None:
        async def caller() -> None:
            for _ in range(CALLS_EACH):
                await sandbox.run(request("true"))

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def bare_caller() -> None:
        for _ in range(CALLS_EACH):
            subprocess.run(["true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)

    async def bare() -> None:
        await asyncio.gather(*(asyncio.to_thread(bare_caller) for _ in range(CALLERS)))

    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(await timed(ours))
        theirs.append(await timed(bare))
    calls = CALLERS * CALLS_EACH * 1000
    return calls / statistics.median(mine), calls / statistics.median(theirs)


async def flood(sandbox: Sandbox, rounds: int) -> tuple[float, float, float]:
    """Median and worst milliseconds of `true` while 200 MiB pour out of another exec, and the client's growth in MiB."""
    before = rss_mib(os.getpid())
    delays: list[float] = []

    async def pour() -> None:
        handle = await sandbox.start_exec(request("head", "-c", str(FLOOD_BYTES), "/dev/zero"))
        async for _ in handle.output():
            pass

    while len(delays) < rounds:
        pouring = asyncio.ensure_future(pour())
        while not pouring.done():
            delays.append(await timed(lambda: sandbox.run(request("true"))))
        await pouring
    return statistics.median(delays), max(delays), rss_mib(os.getpid()) - before


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(sandbox: Sandbox, pid: int, rounds: int) -> None:
    print(f"runtime, idle: {rss_mib(pid):.1f} MiB RSS (target <= 12)")
    for argv, target in ((("true",), 2.0), (("python3", "-c", "print(6*7)"), 1.2)):
        ours, bare = await compare(sandbox, rounds, *argv)
        print(f"{' '.join(argv)}: {ours:.2f} ms, bare {bare:.2f} ms, ratio {ours / bare:.2f} (target <= {target})")
    mine, theirs = await throughput(sandbox, max(3, rounds // 5))
    print(f"8 callers: {mine:.0f}/s, bare {theirs:.0f}/s, ratio {mine / theirs:.2f} (target >= 0.7)")
    await sandbox.write("kilobyte", b"x" * 1024)
    reads = [await timed(lambda: sandbox.read("kilobyte")) for _ in range(10 * rounds)]
    print(f"1 KB read: {statistics.median(reads):.2f} ms (target <= 2)")
    quiet = statistics.median([await timed(lambda: sandbox.run(request("true"))) for _ in range(rounds)])
    median, worst, grown = await flood(sandbox, rounds)
    print(
        f"`true` during a 200 MiB flood: median {median:.1f} ms, worst {worst:.1f} ms, quiet {quiet:.1f} ms "
        f"(target: at most 100 ms more); client grew by {grown:.1f} MiB (target < 16)"
    )
    print(f"runtime, afterwards: {rss_mib(pid):.1f} MiB RSS; load average {os.getloadavg()[0]:.1f}")


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        archive, socket = Path(home) / build.ENTRY_NAME, str(Path(home) / "socket")
        build.build(archive)
        command = [sys.executable, "-I", "-S", "-E", str(archive), "serve", "--socket", socket, "--workdir", home]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()

        async def connect() -> SocketChannel:
            return SocketChannel(*await asyncio.open_unix_connection(socket))

        sandbox = Sandbox(connect, b"benchmark")
        try:
            await sandbox.open()
            await measure(sandbox, process.pid, rounds)
        finally:
            await sandbox.close()
            process.terminate()
            process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side; medians are shown")
    asyncio.run(main(max(15, parser.parse_args().rounds)))
