#!/usr/bin/env python3
"""Makes .venv with everything in it: `python3 scripts/venv.py`. Standard library only; does nothing when it is current."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARK = VENV / ".installed"
OLDEST = (3, 11)


def main() -> int:
    if sys.version_info < OLDEST:
        return fail(
            f"this is Python {sys.version.split()[0]}; Primer needs {OLDEST[0]}.{OLDEST[1]} or later",
            "name a newer one: make PYTHON=python3.12 demo",
        )
    wanted = fingerprint()
    if MARK.is_file() and MARK.read_text() == wanted:
        return 0
    if not (VENV / "bin" / "python").exists() and not make():
        return 1
    print("installing Primer and its dependencies into .venv (a minute or two)", file=sys.stderr, flush=True)
    command = [
        str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--constraint", "constraints.txt", "--editable", ".[server,dev]",
    ]  # fmt: skip
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return fail(
            "the dependencies could not be installed", "look at pip's lines above: is a package index reachable?"
        )
    MARK.write_text(wanted)
    return 0


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def make() -> bool:
    """Makes the environment; Debian keeps the module for that in a package of its own, which root installs here."""
    if importlib.util.find_spec("ensurepip") is None and not install_ensurepip():
        return False
    shutil.rmtree(VENV, ignore_errors=True)  # half of one, from a try without ensurepip
    return subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False).returncode == 0


def install_ensurepip() -> bool:
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        fail("this Python has no ensurepip, so no environment can be made", f"sudo apt-get install {package}")
        return False
    print(f"installing {package} from the distribution", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
    ):
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
            fail(f"{package} could not be installed", "is a package mirror reachable?")
            return False
    return True


def fail(reason: str, hint: str) -> int:
    print(f"error: {reason}\nhint: {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
