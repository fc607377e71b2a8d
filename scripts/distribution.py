"""Packages of the distribution, for the scripts that install what is missing: as root on Debian or Ubuntu."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOCK_WAIT_S = 300.0  # a fresh machine updates itself in its first minutes and holds apt's locks meanwhile
POLL_S = 2.0
SHOWN_LINES = 6
# A mirror that cannot be reached is to be told within a minute, not after four tries of 30 s for each of its lists.
APT = ("apt-get", "-y", "-oAcquire::Retries=1", "-oAcquire::http::Timeout=15", "-oAcquire::https::Timeout=15")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def can_install() -> bool:
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def install(*packages: str, reason: str = "") -> bool:
    """Installs packages without the recommended ones; False, with apt's own complaints on stderr, when that fails."""
    names = " ".join(packages)
    say(f"installing {names} from the distribution" + (f": {reason}" if reason else ""))
    # A list that cannot be fetched need not matter: it may be another repository's. What counts is the installation.
    _, update = apt("update")
    code, output = apt("install", "--no-install-recommends", *packages)
    if code:
        say("\n".join([f"apt-get could not install {names}:", *complaints(update, output)]))
    return code == 0


def apt(*arguments: str) -> tuple[int, str]:
    """Exit code and output of apt-get. Waits for another one at work, and finishes what a killed one left behind."""
    deadline = time.monotonic() + LOCK_WAIT_S
    waits = finished = False
    while True:
        code, output = run([*APT, *arguments])
        if code == 0:
            return code, output
        if "Could not get lock" in output and time.monotonic() < deadline:
            if not waits:
                say("another package manager is at work on this machine, waiting for it")
            waits = True
            time.sleep(POLL_S)
        elif "dpkg --configure -a" in output and not finished:
            say("finishing an installation that was interrupted")
            finished = True
            run(["dpkg", "--configure", "-a"])
        else:
            return code, output


def run(command: list[str]) -> tuple[int, str]:
    # Complaints are recognised by their English words.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def complaints(*outputs: str) -> list[str]:
    """What apt said went wrong, first things first, each once: a failed fetch explains the missing package after it."""
    lines = [line.strip() for output in outputs for line in output.splitlines()]
    marked = list(dict.fromkeys(line for line in lines if line.startswith(("E:", "W:", "dpkg: error"))))
    shown = marked or [line for line in lines if line]
    return shown if len(shown) <= SHOWN_LINES else [*shown[: SHOWN_LINES - 1], shown[-1]]
