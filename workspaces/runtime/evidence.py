"""What stands behind a verdict: cgroup counters (v1 and v2), limits, and the order in which they count."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_V2_ROOT = "/sys/fs/cgroup"


class Counters:
    """Counter files of the runtime's own cgroup, found once and kept open, so reading them costs no path walk.

    In a container the mount point is the container's own cgroup and /proc/self/cgroup may name a path of the host that
    does not exist inside; elsewhere the path below the mount point is the right one. Both are tried, the path first.
    """

    def __init__(self, root: str = _V2_ROOT, membership: str = "/proc/self/cgroup") -> None:
        self._files: dict[str, int] = {}
        paths = _membership(linux.read_small(membership, 16384))
        for name, controller, v1, v2 in (
            ("oom_kill", "memory", "memory.oom_control", "memory.events"),
            ("pids_max", "pids", "pids.events", "pids.events"),
        ):
            fd = _open_first(root, controller, paths, v1, v2)
            if fd is not None:
                self._files[name] = fd
        self.limits = _limits(root, paths)

    def read(self) -> tuple[int, int]:
        """oom kills and refused forks so far; 0 where the kernel does not tell."""
        return self._value("oom_kill", b"oom_kill"), self._value("pids_max", b"max")

    def _value(self, name: str, field: bytes) -> int:
        fd = self._files.get(name)
        if fd is None:
            return 0
        try:
            lines = os.pread(fd, 4096, 0).split(b"\n")
        except OSError:
            return 0
        for line in lines:
            words = line.split()
            if len(words) == 2 and words[0] == field and words[1].isdigit():
                return int(words[1])
        return 0


def _membership(text: bytes) -> dict[str, str]:
    """controller -> path; the unified hierarchy under the name ""."""
    paths = {}
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def _places(root: str, controller: str, paths: dict[str, str]) -> list[tuple[str, bool]]:
    """Directories that may hold the controller's files, best first, and whether each is of version 2."""
    v1 = f"{root}/{controller}"
    own_v1, own_v2 = paths.get(controller, "/"), paths.get("", "/")
    return [(v1 + own_v1, False), (v1, False), (root + own_v2, True), (root, True)]


def _open_first(root: str, controller: str, paths: dict[str, str], v1: str, v2: str) -> int | None:
    for directory, unified in _places(root, controller, paths):
        try:
            return os.open(f"{directory}/{v2 if unified else v1}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def _limits(root: str, paths: dict[str, str]) -> dict[str, float]:
    """memory_bytes, pids, cpu_cores as the kernel applies them; a limit that is not set is left out."""
    limits: dict[str, float] = {}
    for name, controller, v1, v2 in (
        ("memory_bytes", "memory", "memory.limit_in_bytes", "memory.max"),
        ("pids", "pids", "pids.max", "pids.max"),
    ):
        text = _read_first(root, controller, paths, v1, v2)
        if text.isdigit() and int(text) < 1 << 60:  # v1 writes "no limit" as a number near 2**63
            limits[name] = int(text)
    words = _read_first(root, "cpu", paths, "cpu.cfs_quota_us", "cpu.max").split()
    if len(words) == 1:
        words += _read_first(root, "cpu", paths, "cpu.cfs_period_us", "cpu.max").split()[-1:]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        limits["cpu_cores"] = int(words[0]) / int(words[1])
    return limits


def _read_first(root: str, controller: str, paths: dict[str, str], v1: str, v2: str) -> str:
    for directory, unified in _places(root, controller, paths):
        text = linux.read_small(f"{directory}/{v2 if unified else v1}", 64).strip()
        if text:
            return text.decode("ascii", "replace")
    return ""


class Facts:
    """What is known of a run at its end; `cause` is why the runtime ended it, "" when it ended by itself."""

    def __init__(self) -> None:
        self.cause = ""  # cancelled, timeout, output_cap, disk
        self.cancelled_by: str | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.oom_kill = self.pids_max = 0
        self.shared = False
        self.disk_full = False
        self.timeout_s = 0.0
        self.output_kill_bytes = 0
        self.file_limit: float | None = None
        self.disk_bytes: float | None = None


def verdict(facts: Facts, limits: dict[str, float]) -> tuple[str, dict[str, Any]]:
    """`ended_by` and its evidence, first match: cancelled, timeout, output_cap, disk, oom, pids, signal, exit.

    Counters are written down also when they decide nothing. A number such as 137 proves nothing: programs print and
    return what they like. ("lost" is the client's word: a runtime that answers has lost nothing.)
    """
    failed = facts.exit_code != 0
    disk, limit = None, None
    if facts.signal == _signal.SIGXFSZ:
        disk, limit = "sigxfsz", facts.file_limit
    elif facts.cause == "disk":
        disk, limit = "watcher", facts.disk_bytes
    elif facts.disk_full and failed:
        disk = "enospc"
    if facts.cause in ("cancelled", "timeout", "output_cap"):
        ended_by = facts.cause
        limit = {"timeout": facts.timeout_s, "output_cap": float(facts.output_kill_bytes)}.get(facts.cause)
    elif disk in ("sigxfsz", "watcher"):
        ended_by = "disk"
    elif facts.oom_kill > 0 and failed:
        ended_by, limit = "oom", limits.get("memory_bytes")
    elif facts.pids_max > 0 and failed:
        ended_by, limit = "pids", limits.get("pids")
    else:
        ended_by = "signal" if facts.signal is not None else "exit"
    return ended_by, {
        "oom_kill": facts.oom_kill,
        "pids_max": facts.pids_max,
        "disk": disk,
        "limit": limit,
        "shared": facts.shared,
        "cancelled_by": facts.cancelled_by,
    }
