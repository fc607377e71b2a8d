"""The real runtime as a process of this machine, over a unix socket, and the real client in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workspaces.execution import ExecOutcome, ExecRequest
from workspaces.runtime import build
from workspaces.sandbox import Sandbox

SECRET = b"a token that never travels"
_numbers = itertools.count(1)


class SocketChannel:
    """A unix socket as a channel; `cut` breaks it in the middle of whatever is under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.cut_after: int | None = None  # bytes still let through
        self.deaf = False  # what comes is thrown away, and the stream ends

    async def read(self, limit: int) -> bytes:
        if self.cut_after is None:
            data = await self.reader.read(limit)
            return b"" if self.deaf else data
        data = await self.reader.read(min(limit, max(1, self.cut_after)))
        self.cut_after -= len(data)
        if self.cut_after <= 0:
            self.cut()
        return data

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def cut(self) -> None:
        self.writer.transport.abort()


class Runtime:
    """One runtime process; `connect` opens a channel, `channels` remembers them all."""

    prefix: tuple[str, ...] = ()  # before its command

    def __init__(self, home: Path, archive: Path) -> None:
        self.home = home
        self.workdir = home / "workspace"
        self.workdir.mkdir()
        self.socket = str(home / "s")
        self.archive = archive
        self.channels: list[SocketChannel] = []
        self.log = (home / "log").open("wb")
        self.process: subprocess.Popen[bytes] = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [*self.prefix, sys.executable, "-I", "-S", "-E", str(self.archive), "serve"]
        command += ["--socket", self.socket, "--workdir", str(self.workdir)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == f"primer-runtime ready {build.VERSION}\n".encode()
        return process

    async def connect(self) -> SocketChannel:
        channel = SocketChannel(*await asyncio.open_unix_connection(self.socket))
        self.channels.append(channel)
        return channel

    def sandbox(self, **over: Any) -> Sandbox:
        return Sandbox(over.pop("open_channel", self.connect), over.pop("secret", SECRET), **over)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.log.close()

    def log_text(self) -> str:
        return (self.home / "log").read_text(errors="replace")


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runtime") / build.ENTRY_NAME
    build.build(path)
    return path


@pytest.fixture
def runtime(tmp_path: Path, archive: Path) -> Iterator[Runtime]:
    runtime = Runtime(tmp_path, archive)
    yield runtime
    runtime.stop()
    assert runtime.log_text() == ""  # a fault of the runtime's own is written there and survived: never here


@pytest.fixture
async def sandbox(runtime: Runtime) -> AsyncIterator[Sandbox]:
    sandbox = runtime.sandbox()
    await sandbox.open()
    yield sandbox
    await sandbox.close()


Run = Callable[..., Awaitable[tuple[ExecOutcome, bytes, bytes]]]


def request(*argv: str, **over: Any) -> ExecRequest:
    return ExecRequest(id=over.pop("id", f"exec-{next(_numbers)}"), argv=argv, **over)


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Runs a program to its end: outcome, stdout, stderr."""

    async def run(*argv: str, keep_bytes: int = 1 << 20, **over: Any) -> tuple[ExecOutcome, bytes, bytes]:
        return await sandbox.run(request(*argv, **over), keep_bytes=keep_bytes)

    return run
