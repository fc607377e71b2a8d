#!/usr/bin/env python3
"""Makes .venv with everything in it: `python3 scripts/venv.py`. Standard library only; does nothing when it is current."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from distribution import can_install, install, say

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARK = VENV / ".installed"
UNFINISHED = VENV / ".unfinished"  # ours, and killed before it was whole: an interpreter alone does not tell
OLDEST = (3, 11)


def main() -> int:
    if sys.version_info < OLDEST:
        return fail(
            f"this is Python {sys.version.split()[0]}; Primer needs {OLDEST[0]}.{OLDEST[1]} or later",
            "name a newer one: make PYTHON=python3.12 demo",
        )
    wanted = fingerprint()
    if usable() and MARK.is_file() and MARK.read_text() == wanted:
        return 0
    try:
        if not usable() and not make():
            return 1
        return fill(wanted)
    except KeyboardInterrupt:
        return 130


def fill(wanted: str) -> int:
    say("installing Primer and its dependencies into .venv (a minute or two)")
    fresh, ours = UNFINISHED.exists(), MARK.is_file()
    if ours:
        UNFINISHED.touch()  # killed from here on, it may hold packages that are half there
    command = [
        str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--constraint", "constraints.txt", "--editable", ".[server,mcp,dev]",
    ]  # fmt: skip
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        if not fresh:
            UNFINISHED.unlink(missing_ok=True)
        return fail(
            "the dependencies could not be installed",
            "see pip's lines above: a package index must be reachable (pip config list shows which); then run this again",
        )
    MARK.write_text(wanted)
    UNFINISHED.unlink(missing_ok=True)
    return 0


def fingerprint() -> str:
    """What the environment was made from, and where: its programs hold that path."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{digest.hexdigest()}\n{VENV}\n"


def usable() -> bool:
    """Whether what is there can be brought up to date; else it was killed half made, or moved, and is made anew."""
    if UNFINISHED.exists() or not (VENV / "bin" / "python").exists():
        return False
    made_at = MARK.read_text().splitlines()[1:] if MARK.is_file() else []
    return made_at in ([], [str(VENV)])


def make() -> bool:
    """Makes the environment; Debian keeps the module for that in a package of its own, which root installs here."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if importlib.util.find_spec("ensurepip") is None:
        if not can_install():
            fail("this Python has no ensurepip, so no environment can be made", f"sudo apt-get install {package}")
            return False
        if not install(package):
            fail(f"{package} could not be installed", "see the lines above: a package mirror must be reachable")
            return False
    shutil.rmtree(VENV, ignore_errors=True)  # half of one, from a try that did not end
    VENV.mkdir()
    UNFINISHED.touch()
    return subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False).returncode == 0


def fail(reason: str, hint: str) -> int:
    say(f"error: {reason}\nhint: {hint}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
