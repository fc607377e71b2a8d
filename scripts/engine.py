#!/usr/bin/env python3
"""Finds a container engine that answers, or gets one: `python3 scripts/engine.py`. Standard library only.

Exit 0: one answers on the socket. Exit 1: there is none, and stderr says what to do. As root on Debian or Ubuntu it
installs docker.io from the distribution and starts dockerd; anywhere else it changes nothing.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S = 60.0
IMAGE = "primer/workspace-runtime:1.0"
LOG = Path("/var/log/dockerd.log")


class Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def socket_path() -> str:
    host = os.environ.get("DOCKER_HOST", "")
    return host.removeprefix("unix://") if host.startswith("unix://") else "/var/run/docker.sock"


def ask(path: str) -> int:
    """The status of a GET on the engine's API; raises OSError when nobody answers."""
    connection = Unix(socket_path())
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def answers() -> bool:
    """A running engine, not a client program on the PATH: that one proves nothing."""
    try:
        return ask("/_ping") == 200
    except PermissionError:
        raise
    except (OSError, http.client.HTTPException):
        return False


def on_debian() -> bool:
    return Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def install(*packages: str) -> bool:
    """Installs distribution packages; False with apt's last lines on stderr when that fails."""
    say(f"installing {' '.join(packages)} from the distribution")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            say("\n".join([f"{' '.join(command)} failed:", *lines[-5:]]))
            return False
    return True


def start() -> bool:
    """Starts dockerd, by the init system where there is one, else in the background; waits until it answers."""
    mount_cgroups()
    if Path("/run/systemd/system").is_dir():
        say("starting docker by systemd")
        subprocess.run(["systemctl", "start", "docker"], check=False)
    else:
        say(f"starting dockerd in the background, its log is {LOG}")
        with LOG.open("ab") as log:
            subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if answers():
            return True
        time.sleep(0.2)
    return False


def mount_cgroups() -> None:
    """A machine without an init system may have none mounted, and dockerd refuses to start then."""
    mounted = any(" cgroup" in line for line in Path("/proc/mounts").read_text().splitlines())
    if not mounted and (shutil.which("cgroupfs-mount") or install("cgroupfs-mount")):
        subprocess.run(["cgroupfs-mount"], check=False)


def ensure_base_tool() -> None:
    """mmdebstrap makes the sandbox image's base where no registry answers; only needed until the image is built."""
    if shutil.which("mmdebstrap") or os.geteuid() != 0 or not on_debian():
        return
    if ask(f"/images/{IMAGE}/json") != 200:
        install("mmdebstrap")


def refuse(reason: str, what_to_do: str) -> int:
    say(f"error: {reason}\nhint: {what_to_do}")
    say("hint: without an engine there is only `.venv/bin/primer demo --local`, which is NOT ISOLATED")
    return 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    root = os.geteuid() == 0
    try:
        if answers():
            ensure_base_tool()
            return 0
    except PermissionError:
        return refuse(
            f"this user may not use the container engine at {socket_path()}",
            "sudo usermod -aG docker $USER, then sign in again; or run this as root",
        )
    if not root:
        return refuse(
            f"no container engine answers at {socket_path()}",
            "start it (sudo systemctl start docker) or install it (sudo apt-get install docker.io); root does both here",
        )
    if shutil.which("dockerd") is None:
        if not on_debian():
            return refuse(
                "no container engine is installed", "install Docker Engine for this distribution and start it"
            )
        if not install("docker.io"):
            return refuse("docker.io could not be installed", "look at the lines above: is a package mirror reachable?")
    if not start():
        tail = LOG.read_text(errors="replace").splitlines()[-8:] if LOG.exists() else []
        return refuse(f"dockerd did not answer within {START_S:g} s", "\n".join([f"its log ({LOG}) ends:", *tail]))
    ensure_base_tool()
    return 0


if __name__ == "__main__":
    sys.exit(main())
