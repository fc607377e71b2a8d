"""A test hook: the process ends itself with SIGKILL at a named point, as a power cut would. Inert unless PRIMER_CRASH_AT is set."""

from __future__ import annotations

import os
import signal

VARIABLE = "PRIMER_CRASH_AT"


def reach(name: str) -> None:
    """Marks a point (`after-volume`, `after-create`, …) from which a restart must recover; kills here when asked to."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
