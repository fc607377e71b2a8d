#!/usr/bin/env python3
"""`make deps`: installs the newest versions that pyproject.toml allows and writes them to constraints.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact versions of everything below the server and development extras; 'make deps' writes it anew.\n"


def main() -> int:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [
        *pip,
        "install",
        "--quiet",
        "--upgrade",
        "--upgrade-strategy",
        "eager",
        "--editable",
        ".[server,mcp,dev]",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    listed = subprocess.run([*pip, "freeze", "--exclude-editable"], capture_output=True, text=True, check=True).stdout
    (ROOT / "constraints.txt").write_text(HEADER + listed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
