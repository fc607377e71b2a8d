"""Processes of this machine without a parent that waits: who they are, and how a whole tree of them is ended."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

END_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.005


def started(pid: int) -> str:
    """When a process began, in the kernel's ticks since boot; "" when it is not there or only waits to be reaped.

    With the pid it names one process for ever: numbers come back, the pair does not.
    """
    fields = _stat(pid)
    return "" if not fields or fields[0] in ("Z", "X") else fields[19]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """All living processes below `pid` by parentage."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) and fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_tree(pid: int, since: str) -> bool:
    """Kills the process that began at `since` and everything below it; whether it was there. Blocks up to 5 s.

    The root is stopped first: it is the parent that orphans come to, and dead it would let them go.
    """
    if started(pid) != since or not since:
        return False
    _signal(pid, signal.SIGSTOP)
    deadline = time.monotonic() + END_TIMEOUT_S
    while (below := descendants(pid)) and time.monotonic() < deadline:
        for child in below:
            _signal(child, signal.SIGSTOP)  # what is stopped does not fork while the others are killed
        for child in below:
            _signal(child, signal.SIGKILL)
        time.sleep(POLL_S)
    _signal(pid, signal.SIGKILL)
    while started(pid) == since and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return True


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
