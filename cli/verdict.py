"""How an exec ended: its exit code, and what that code does not say. Pure."""

from __future__ import annotations

from typing import Any

from cli.errors import Exit
from cli.text import count_bytes, dig, seconds, size
from cli.transcript import signal_of

MOST_SURVIVORS = 64  # a sandbox lists no more of them


def verdict(
    result: dict[str, Any],
    lost: dict[str, int],
    workspace: str = "",
    *,
    shown: bool = False,
    unkept: dict[str, int] | None = None,
) -> tuple[int, list[str]]:
    """The exit code of an exec, and the lines for people about what its code does not say.

    Without a `workspace`, the one it ran in goes away with all its processes: then none of them is worth a line. `lost`
    counts bytes that are missing of what was `shown` as it came, or else of what is kept; `unkept` those behind the end of
    what is kept: a flood is counted to its end.
    """
    code, line = _ending(result, unkept or {})
    lines = [f"primectl: {line}"] if line else []
    for stream, missing in lost.items():
        total = result.get(f"{stream}_bytes")
        if missing and isinstance(total, int):
            lines.insert(
                0, f"primectl: {kept_words(total - missing, total)} of {stream} {'shown' if shown else 'kept'}"
            )
    survivors = result.get("survivors")
    if workspace and isinstance(survivors, list) and survivors:
        noun = "1 process still runs" if len(survivors) == 1 else f"{how_many(survivors)} processes still run"
        lines.append(f"primectl: {noun}: primectl workspace execs {workspace}")
    return code, lines


def how_many(survivors: list[Any]) -> str:
    """`2`, or `64 or more` where the list is as long as one can be."""
    return f"{len(survivors)} or more" if len(survivors) >= MOST_SURVIVORS else str(len(survivors))


def kept_words(kept: int, total: int) -> str:
    """`1 MiB of 87 MiB`; what is missing in bytes where both would read the same."""
    few, all_ = size(max(0, kept)), size(total)
    return f"{few} of {all_}" if few != all_ else f"all but {count_bytes(total - kept)} of {all_}"


def _ending(result: dict[str, Any], unkept: dict[str, int]) -> tuple[int, str]:
    ended_by, limit = result.get("ended_by"), dig(result, "evidence.limit")
    known = isinstance(limit, int | float) and not isinstance(limit, bool)
    own = _own_code(result)
    match ended_by:
        case "exit":
            return own, ""
        case "signal":
            return 128 + signal_of(result), f"ended by signal {signal_of(result)}"
        case "oom":
            return int(Exit.OOM), "ended by oom" + (f": memory limit {size(limit)}" if known else "")
        case "timeout":
            kept = sum(_kept_bytes(result, stream, unkept) for stream in ("stdout", "stderr"))
            after = f" after {seconds(limit)}" if known else ""
            return int(Exit.EXEC_TIMEOUT), f"ended by timeout{after}; output kept: {count_bytes(kept)}"
        case "cancelled":
            by = dig(result, "evidence.cancelled_by")
            return int(Exit.CTRL_C), "ended by cancelled" + (f": by {by}" if by else "")
        case "pids":
            return own or 1, "ended by pids" + (f": limit {limit:g}" if known else "")
        case "disk":
            return own or 1, "ended by disk: no space left" + (f" of {size(limit)}" if known else "")
        case "output_cap":
            return own or 1, "ended by output_cap" + (f": {_flooded(result, limit, unkept)}" if known else "")
    why = str(dig(result, "error.detail") or "no reason given").removesuffix(".")
    return int(Exit.EXEC_LOST), f"{'not started' if ended_by == 'not_started' else 'lost'}: {why}"


def _kept_bytes(result: dict[str, Any], stream: str, unkept: dict[str, int]) -> int:
    """What the server keeps of a stream: all of it but the gap and what came after its end."""
    total, gap = result.get(f"{stream}_bytes"), result.get(f"{stream}_gap")
    if not isinstance(total, int):
        return 0
    holes = gap[1] - gap[0] if isinstance(gap, list) and len(gap) == 2 and all(isinstance(n, int) for n in gap) else 0
    return max(0, total - holes - unkept.get(stream, 0))


def _flooded(result: dict[str, Any], limit: float, unkept: dict[str, int]) -> str:
    """`stdout passed 256 MiB, 1 MiB kept`."""
    counts = {stream: result.get(f"{stream}_bytes") for stream in ("stdout", "stderr")}
    for stream, count in counts.items():
        if isinstance(count, int) and count >= limit:
            return f"{stream} passed {size(limit)}, {size(_kept_bytes(result, stream, unkept))} kept"
    return f"a stream passed {size(limit)}"


def _own_code(result: dict[str, Any]) -> int:
    code = result.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool):
        return code & 0xFF if code >= 0 else 128 + min(-code, 127)
    return 128 + signal_of(result) if result.get("signal") else 0
