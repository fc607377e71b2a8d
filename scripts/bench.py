#!/usr/bin/env python3
"""`make bench`: runs every script of benchmarks/, or those named, one after the other, since they disturb each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py") if "__main__" in path.read_text())
    failed = []
    for name in names or known:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
