"""A process that runs a small application on the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import docker_view, runtime_image
from tests.eventually import eventually
from tests.workspaces.conftest import alice, bob, process, provider, root_path, running, template

__all__ = ["alice", "bob", "docker_view", "process", "provider", "root_path", "running", "runtime_image", "template"]

ROOT = Path(__file__).resolve().parents[2]


class BareServer:
    def __init__(self, directory: Path, **limits: float) -> None:
        self.directory = directory
        self.log = (directory / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.bare_app", str(directory), json.dumps(limits)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def told(self, name: str) -> str | None:
        path = self.directory / name
        return path.read_text() if path.exists() else None

    def wait_for(self, name: str, within: float = 10) -> str:
        eventually((self.directory / name).exists, within, name)
        return (self.directory / name).read_text()

    def allow(self, name: str) -> None:
        (self.directory / name).touch()

    def settled(self, name: str) -> int:
        """The number in a file once it stands still for ten looks."""
        seen: list[str | None] = []

        def still() -> bool:
            seen.append(self.told(name))
            return len(seen) > 10 and seen[-1] is not None and len(set(seen[-10:])) == 1

        eventually(still, 20, name)
        return int(seen[-1] or 0)

    def logged(self) -> str:
        return (self.directory / "log").read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.log.close()


@pytest.fixture
def serve(tmp_path):
    servers: list[BareServer] = []

    def start(**limits) -> BareServer:
        directory = tmp_path / f"server{len(servers)}"
        directory.mkdir()
        servers.append(BareServer(directory, **limits))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
