from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from cli.output import Console
from tests.cli.fake import TOKEN, Primer, Server, start
from tests.recipe import PUBLISHED

ROOT = Path(__file__).parents[2]


@dataclass
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Keeping(io.BytesIO):
    """Like a pipe: closing it is the reader's business."""

    def close(self) -> None:
        return


@dataclass
class Cli:
    """Runs the program in this process against the fake server."""

    env: dict[str, str]
    clock: Clock = field(default_factory=Clock)

    def __call__(self, *argv: str, stdin: bytes = b"", **settings: Any) -> Result:
        """`out_tty`, `err_tty`, `in_tty` make a stream a terminal, `width` columns wide; other keywords are variables."""
        out, err = _Keeping(), _Keeping()
        terminals = {name: settings.pop(name, False) for name in ("out_tty", "err_tty", "in_tty")}
        width = settings.pop("width", 80)
        console = Console(out, err, io.BytesIO(stdin), env={**self.env, **settings}, width=width, **terminals)
        code = run(argv, console, sleep=self.clock.sleep, clock=self.clock)
        return Result(code, out.getvalue(), err.getvalue().decode())


@pytest.fixture
def served() -> Iterator[tuple[Primer, Server]]:
    primer, server = start()
    yield primer, server
    server.shutdown()
    server.server_close()


@pytest.fixture
def primer(served: tuple[Primer, Server]) -> Primer:
    return served[0]


@pytest.fixture
def url(served: tuple[Primer, Server]) -> str:
    return served[1].url


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    return {
        "PRIMECTL_SERVER": url,
        "PRIMECTL_TOKEN": TOKEN,
        "PRIMECTL_CONFIG": str(tmp_path / "config" / "config.yaml"),
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "PATH": os.environ["PATH"],
    }


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    return Cli(environment)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory with the recipe's files."""
    place = tmp_path / "here"
    place.mkdir()
    for name, text in PUBLISHED.items():
        (place / name).write_text(text)
    monkeypatch.chdir(place)
    return place


Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn(environment: dict[str, str], tmp_path: Path) -> Iterator[Spawn]:
    """Starts the program as a process of its own; what is still there at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **settings: Any) -> subprocess.Popen[bytes]:
        env = {**environment, "PYTHONPATH": str(ROOT), **settings.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = settings.pop("args", ["-m", "cli.main", *argv])
        process = subprocess.Popen([sys.executable, *line], env=env, **{**pipes, **settings})
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr, process.stdin):
            if stream is not None:
                stream.close()
