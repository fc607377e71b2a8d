"""A Docker engine of a test's own, to be stopped and killed without hurting anybody."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.eventually import eventually


class PrivateEngine:
    """`dockerd` with its own data, socket and containerd below one directory; `socket` is what a provider is given."""

    def __init__(self, *, nameserver: str = "") -> None:
        # Not a test's own directory, whose path may be long: a socket of containerd's has room for 104 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="primer-engine-"))
        self.nameserver = nameserver  # what the engine believes to be its host's resolver; "" leaves the machine's
        self.socket = self.directory / "engine.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # In a network namespace of its own: an engine without a bridge removes the one that the machine's engine uses.
        dockerd = [
            "dockerd", f"--host=unix://{self.socket}", f"--data-root={self.directory / 'data'}",
            f"--exec-root={self.directory / 'exec'}", f"--pidfile={self.directory / 'engine.pid'}",
            "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
        ]  # fmt: skip
        command = ["unshare", "--net", *dockerd]
        if self.nameserver:
            resolver = self.directory / "resolv.conf"
            resolver.write_text(f"nameserver {self.nameserver}\n")
            script = 'mount --bind "$0" /etc/resolv.conf && ip link set lo up && exec "$@"'
            command = ["unshare", "--net", "--mount", "sh", "-c", script, str(resolver), *dockerd]
        # A killed engine leaves pid files. A number that is in use again, or belongs to a process that nobody has
        # reaped yet, would keep the next one from starting.
        for stale in ("engine.pid", "exec/containerd/containerd.pid"):
            (self.directory / stale).unlink(missing_ok=True)
        with (self.directory / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        eventually(lambda: self.docker("info").returncode == 0, within=60, message=f"{self.directory}/engine.log")

    def docker(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "-H", f"unix://{self.socket}", *words], capture_output=True, check=False)

    def take_image(self, tag: str) -> None:
        """Copies an image from the machine's engine, since none can be pulled."""
        with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as saved:
            loaded = subprocess.run(
                ["docker", "-H", f"unix://{self.socket}", "load"], stdin=saved.stdout, capture_output=True, check=False
            )
        assert loaded.returncode == 0, loaded.stderr

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(60)

    def destroy(self) -> None:
        """Ends the engine and what it started, and removes its data."""
        if self.process is None:
            return
        if self.process.poll() is None:
            names = self.docker("ps", "-aq").stdout.decode().split()
            if names:
                self.docker("rm", "-f", "-v", *names)
            self.end()
        # A killed engine leaves its containerd and shims behind; their command lines name our directory.
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                os.kill(int(entry.name), signal.SIGKILL)
        for line in Path("/proc/mounts").read_text().splitlines():
            if (mount := line.split()[1]).startswith(str(self.directory)):
                subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _is_ours(self, entry: Path) -> bool:
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        tools = (b"containerd", b"containerd-shim-runc-v2", b"containerd-shim", b"dockerd")
        return (
            bool(words)
            and os.path.basename(words[0]) in tools
            and any(str(self.directory).encode() in w for w in words)
        )
