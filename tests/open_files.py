"""What a process holds open, read from outside while it works."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_targets(pid: int) -> list[str]:
    """The targets of the descriptors of a process; one that closes while this looks is left out."""
    targets: list[str] = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(entry))
    return targets
