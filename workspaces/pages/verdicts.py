"""How a run ended, as its chip says it: in a transcript and in the workspace's own history alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KIB = 1024


def verdict(data: Mapping[str, Any]) -> tuple[str, str, str]:
    """(vocabulary, word, label) of the chip: how a call ended."""
    ended_by, evidence = data.get("ended_by"), data.get("evidence") or {}
    limit = evidence.get("limit")
    amount = f" ({size(limit)})" if isinstance(limit, int | float) else ""
    match ended_by:
        case "exit":
            code = data.get("exit_code")
            return ("exec", "exit", "exit 0") if code == 0 else ("session", "failed", f"exit {code}")
        case "signal":
            return "exec", "signal", f"signal {data.get('signal')}"
        case "cancelled":
            by = evidence.get("cancelled_by")
            return "exec", "cancelled", f"cancelled by {by}" if by else "cancelled"
        case "timeout":
            return "exec", "timeout", f"timeout after {limit:g} s" if isinstance(limit, int | float) else "timeout"
        case "oom":
            return "exec", "oom", f"out of memory{amount}"
        case "pids":
            return "exec", "pids", "process limit" + (f" ({limit:g})" if isinstance(limit, int | float) else "")
        case "disk":
            return "exec", "disk", f"disk full{amount}"
        case "output_cap":
            return "exec", "output_cap", f"output cap{amount}"
        case "lost":
            return "exec", "lost", "lost"
    return ("exec", "exit", "done") if data.get("ok") else ("session", "failed", "failed")


def size(count: float) -> str:
    """`120 B`, `1.5 MiB`."""
    value, steps = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= KIB and len(steps) > 1:
        value, steps = value / KIB, steps[1:]
    return f"{value:.1f}".removesuffix(".0") + f" {steps[0]}"
