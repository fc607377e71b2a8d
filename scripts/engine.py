#!/usr/bin/env python3
"""Finds a container engine that answers, or gets one: `python3 scripts/engine.py`. Standard library only.

Exit 0: one answers on the socket. Exit 1: there is none, and stderr says what to do. As root on Debian or Ubuntu it
installs docker.io from the distribution and starts dockerd; anywhere else it changes nothing.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from distribution import can_install, install, run, say

START_S = 60.0
IMAGE = "primer/workspace-runtime:1.0"
LOG = Path("/var/log/dockerd.log")
USUAL = "/var/run/docker.sock"
LOG_LINES = 4
LINE_CHARS = 400
NEEDED = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}  # capabilities(7): dockerd mounts, and makes networks


class Refused(Exception):
    """No engine can be had: the reason, and what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def socket_path() -> str:
    """Of DOCKER_HOST, else the usual place, else that of an engine of this user's own (`primer` looks there too)."""
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host.removeprefix("unix://")
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent", "docker.sock")
    return str(own) if own.is_socket() and not Path(USUAL).is_socket() else USUAL


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


def get() -> None:
    """Returns once an engine answers; raises Refused where none can be had."""
    try:
        if answers():
            return
    except PermissionError:
        raise Refused(
            f"this user may not use the container engine at {socket_path()}",
            "sudo usermod -aG docker $USER, then sign in again; or run this as root",
        ) from None
    named = os.environ.get("DOCKER_HOST", "")
    if named not in ("", f"unix://{USUAL}"):
        raise Refused(
            f"no container engine answers at {socket_path()}; DOCKER_HOST is {named}",
            "start that engine, or unset DOCKER_HOST to use this machine's own; a unix:// address is needed here",
        )
    if os.geteuid() != 0:
        raise Refused(
            f"no container engine answers at {socket_path()}",
            "start it (sudo systemctl start docker) or install it (sudo apt-get install docker.io); root does both here",
        )
    if lacking := lacking_capabilities():
        raise Refused(
            f"no container engine answers at {socket_path()}, and this root may not run one: it lacks {lacking}",
            f"if this is a container: give it its host's {USUAL}, or start it with --privileged",
        )
    if shutil.which("dockerd") is None:
        fetch()
    if not answers():  # where there is an init system, the package has started it already
        start()


def lacking_capabilities() -> str:
    """Looked at before anything is installed; "" when nothing is lacking."""
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return ", ".join(name for name, bit in NEEDED.items() if held is not None and not int(held[1], 16) >> bit & 1)


def fetch() -> None:
    if not can_install():
        raise Refused("no container engine is installed", "install Docker Engine for this distribution and start it")
    if not install("docker.io"):
        raise Refused(
            "docker.io could not be installed",
            "see the lines above: a package mirror must be reachable (try: apt-get update); then run this again",
        )


def start() -> None:
    """Starts dockerd, by the init system where there is one, else in the background; waits until it answers."""
    mount_cgroups()
    if Path("/run/systemd/system").is_dir():
        say("starting docker by systemd")
        failed, output = run(["systemctl", "start", "docker"])
        if failed or not wait():
            raise Refused(f"systemd could not start docker: {output.strip()}", "journalctl -u docker -n 20 says why")
        return
    say(f"starting dockerd in the background, its log is {LOG}")
    with LOG.open("ab") as log:
        begin = log.tell()
        daemon = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    if wait(daemon):
        return
    code = daemon.poll()
    ended = f"dockerd did not answer within {START_S:g} s" if code is None else f"dockerd ended with exit code {code}"
    said = why(LOG.read_bytes()[begin:].decode(errors="replace"))
    raise Refused(f"{ended}:\n{said}", f"mend that and run this again; the whole log is {LOG}")


def wait(daemon: subprocess.Popen[bytes] | None = None) -> bool:
    """Whether the engine answers in time; a daemon that has ended never will."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended = daemon is not None and daemon.poll() is not None
        if answers():
            return True
        if ended:
            return False
        time.sleep(0.2)
    return False


def why(text: str) -> str:
    """What dockerd printed for people as it ended; else the last lines of its log."""
    lines = [line[:LINE_CHARS] for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line.startswith("time=")]
    return "\n".join(f"  {line.strip()}" for line in (plain or lines)[-LOG_LINES:]) or "  (its log is empty)"


def mount_cgroups() -> None:
    """A machine without an init system may have none mounted, and dockerd refuses to start then."""
    mounted = any(" cgroup" in line for line in Path("/proc/mounts").read_text().splitlines())
    if mounted or not (shutil.which("cgroupfs-mount") or (can_install() and install("cgroupfs-mount"))):
        return
    run(["cgroupfs-mount"])


def ensure_base_tool() -> None:
    """mmdebstrap makes the sandbox image's base where no registry answers; only needed until the image is built."""
    if shutil.which("mmdebstrap") is None and can_install() and ask(f"/images/{IMAGE}/json") != 200:
        install("mmdebstrap", reason="it makes the base of the sandbox image where no registry answers")


def main() -> int:
    try:
        get()
        ensure_base_tool()
    except Refused as refused:
        say(f"error: {refused}\nhint: {refused.hint}")
        say("hint: without an engine there is only `.venv/bin/primer demo --local`, which is NOT ISOLATED")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
