"""A real `primer up` as a process with a home of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0  # a loaded machine


def share_static(home: Path) -> None:
    """Gives a new home the static files that an earlier one of this run collected: that is most of a first start.

    The server compares them with their sources itself, so stale ones would only be collected again.
    """
    if "PRIMER_HOME" not in os.environ:  # a benchmark: one server, nothing to share
        return
    shared = Path(os.environ["PRIMER_HOME"]) / "static-of-tests"
    known = [path for path in (home / "static",) if (path / ".collected").is_file()]
    if known and not shared.exists():
        shutil.copytree(known[0], shared)
    elif not known and shared.exists():
        shutil.copytree(shared, home / "static", dirs_exist_ok=True)


class LiveServer:
    """`url` and `token` (an admin's) are valid between `start` and the end of the process, and stay the same over restarts."""

    def __init__(self, directory: Path, *, samples: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.samples = samples  # whether a first start makes the objects that a person finds there
        self.directory = directory
        self.home = directory / "home"
        self.token = secrets.token_hex(32)
        self.password = "a-" + secrets.token_urlsafe(18)
        self.port = 0
        self.output: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def instance_id(self) -> str:
        """The label of everything this server makes on an engine."""
        return (self.home / "instance-id").read_text().strip()

    def env(self, **extra: str) -> dict[str, str]:
        """The environment of a `primer` or `primectl` process that belongs to this server."""
        return {
            **os.environ,
            "PRIMER_HOME": str(self.home),
            "PRIMECTL_CONFIG": str(self.directory / "primectl.yaml"),
            "PRIMER_INIT_TOKEN": self.token,
            "PRIMER_INIT_ADMIN_PASSWORD": self.password,
            "PRIMER_DRAIN_S": "2",
            "PYTHONUNBUFFERED": "1",
            **extra,
        }

    def start(self, *arguments: str, **extra: str) -> None:
        """Starts the server and returns when it serves; fails with its output when it ends instead."""
        command = [
            sys.executable,
            "-m",
            "primer_site.command",
            "up",
            "--port",
            str(self.port),
            *([] if self.samples else ["--no-samples"]),
            *arguments,
        ]
        share_static(self.home)
        self.output.clear()
        with (self.directory / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self.env(**extra), text=True, stdout=subprocess.PIPE, stderr=log
            )
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.output.append(line.rstrip("\n"))
                if line.startswith("Console "):
                    self.port = int(line.split()[1].rstrip("/").rpartition(":")[2])
                if line.startswith("Try "):
                    break
            else:
                self.process.stdout.close()  # nobody else reads it now
                self.process.wait()
                raise AssertionError("\n".join(["the server did not start", *self.output, self.log()[-4000:]]))
        finally:
            timer.cancel()
        share_static(self.home)
        # The pipe must not fill up; nothing of interest follows.
        threading.Thread(target=self._read_on, args=(self.process,), daemon=True).start()

    def _read_on(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.append(line.rstrip("\n"))

    def log(self) -> str:
        """Everything the server wrote to its stderr, over all its starts."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self, within: float = 30) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self, *arguments: str, **extra: str) -> None:
        """Starts again on the same port, after a stop when it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.start(*arguments, **extra)

    def destroy(self) -> None:
        """Ends the process and removes its sandboxes from the engine."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.kill9()
        command = [sys.executable, "-m", "primer_site.command", "destroy", "--yes"]
        subprocess.run(command, cwd=ROOT, env=self.env(), capture_output=True, text=True, timeout=120, check=False)

    def request(self, method: str, path: str, *, token: str | None = None, **kwargs: Any) -> requests.Response:
        """One call of the API as the admin, or with another token ("" sends none)."""
        headers = dict(kwargs.pop("headers", {}))
        value = self.token if token is None else token
        if value:
            headers["Authorization"] = f"Bearer {value}"
        return requests.request(method, self.url + path, headers=headers, timeout=kwargs.pop("timeout", 60), **kwargs)
