"""The demo's server and its `primectl`: processes with a home, a port and a context of their own."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from primer_site.errors import PrimerError

START_S = 180.0  # an emulated machine needs two minutes
COMMAND_S = 300.0
STOP_S = 30.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished `primectl`."""

    line: str
    code: int
    stdout: str

    def must(self, beginning: str) -> str:
        """The line of stdout that begins so; raises PrimerError when there is none or the command failed."""
        found = next((text for text in self.stdout.splitlines() if text.startswith(beginning)), None)
        if self.code or found is None:
            raise PrimerError(f"`{self.line}` ended with exit code {self.code} and did not print {beginning!r}")
        return found


class DemoServer:
    def __init__(self, directory: Path, token: str, *, local: bool) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.work = directory / "work"
        self.work.mkdir()
        self._log = directory / "server.log"
        self._process: subprocess.Popen[str] | None = None
        # Nothing of the caller's own install may reach the demo, and nothing of the demo the caller's context file.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PRIMER_", "PRIMECTL_"))}
        self.env = {
            **inherited,
            "PRIMER_HOME": str(self.home),
            "PRIMER_INIT_TOKEN": token,
            "PRIMER_DRAIN_S": "2",
            "PRIMECTL_CONFIG": str(directory / "primectl.yaml"),
            "PYTHONUNBUFFERED": "1",
            **({"PRIMER_ALLOW_LOCAL": "1"} if local else {}),
        }

    def start(self) -> None:
        """Starts the server; raises PrimerError with the end of its log when it does not serve."""
        command = [sys.executable, "-m", "primer_site.command", "up", "--port", "0", "--no-samples"]
        click.echo("\n$ primer up --port 0 --no-samples")
        with self._log.open("w") as log:
            # A session of its own: Ctrl-C reaches the demo, which then stops the server in order.
            self._process = subprocess.Popen(
                command,
                env=self.env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread runs yet
            )
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout or []:
                if line.startswith("Console "):  # the password behind it belongs to nobody
                    click.echo(line.partition("   admin")[0].rstrip())
                if line.startswith("Try "):
                    return
                if line.startswith(("warn", "fail")):
                    click.echo(line, nl=False)
        finally:
            timer.cancel()
        raise PrimerError(f"The demo's server did not start: {self._log.read_text()[-2000:].strip() or 'no output'}")

    def primectl(self, *arguments: str) -> Ran:
        """Runs one command of the recipe, shows it and its output as it comes, and returns its stdout and exit code."""
        line = shlex.join(["primectl", *arguments])
        click.echo(f"$ {line}")
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments], env=self.env, cwd=self.work,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        kept: list[bytes] = []
        readers = [
            threading.Thread(target=_copy, args=(process.stdout, kept)),
            threading.Thread(target=_copy, args=(process.stderr, [])),
        ]
        for reader in readers:
            reader.start()
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired as exc:
            raise PrimerError(f"`{line}` did not end within {COMMAND_S:g} s.") from exc
        finally:
            if process.poll() is None:
                process.kill()
            for reader in readers:
                reader.join()
        stdout = b"".join(kept).decode(errors="replace")
        if stdout and not stdout.endswith("\n"):
            click.echo()
        return Ran(line, code, stdout)

    def instance_id(self) -> str:
        """The label of what this server makes on the engine; "" when it never came so far."""
        path = self.home / "instance-id"
        return path.read_text().strip() if path.is_file() else ""

    def stop(self) -> int | None:
        """Ends the server in order and returns its exit code; None when there was none."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()


def _die_with_parent() -> None:
    """Runs in the child before its exec: a demo that is killed must not leave its server running."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _copy(stream: IO[bytes] | None, kept: list[bytes]) -> None:
    if stream is None:
        return
    with stream:
        for line in stream:
            kept.append(line)
            click.echo(line.decode(errors="replace"), nl=False)
