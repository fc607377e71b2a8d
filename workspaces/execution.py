"""Values that cross the sandbox boundary: what an exec is asked, what it reports, what a file is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from primer_site.words import counted
from workspaces.runtime.protocol import MAX_SURVIVORS

Stream = Literal["stdout", "stderr"]
EndedBy = Literal["exit", "signal", "oom", "pids", "disk", "output_cap", "timeout", "cancelled", "lost"]
FileKind = Literal["file", "dir", "symlink", "other"]

KIB = 1024
MIB = 1024 * KIB
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_KEEP_BYTES = 1 * MIB  # per stream
MAX_KEEP_BYTES = 64 * MIB  # per stream
OUTPUT_KILL_BYTES = 256 * MIB  # per stream


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One program to run in a sandbox.

    `id` is chosen by the caller and makes the start repeatable: a second start with the same id attaches to the first.
    `argv` is the program and its arguments; a shell line is `["sh", "-c", line]`. `cwd` is absolute or relative to the
    workspace. Times are seconds, sizes are bytes.
    """

    id: str
    argv: tuple[str, ...]
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout_s: float = DEFAULT_TIMEOUT_S
    output_kill_bytes: int = OUTPUT_KILL_BYTES


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes of one stream in order; `offset` counts from the start of the stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """What stands behind a verdict; counters are deltas over the run, `limit` is the limit that was met (bytes, pids, seconds)."""

    oom_kill: int = 0
    pids_max: int = 0
    disk: Literal["sigxfsz", "enospc", "watcher"] | None = None
    limit: float | None = None
    shared: bool = False
    cancelled_by: str | None = None


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that the run left behind; `command` is what the process calls itself: hostile text."""

    pid: int
    command: str


def still_running(survivors: int) -> str:
    """`1 process still runs`; of a list that is as long as one can be, `64 or more processes still run`."""
    if survivors >= MAX_SURVIVORS:
        return f"{survivors} or more processes still run"
    return f"{counted(survivors, 'process', 'processes')} still {'runs' if survivors == 1 else 'run'}"


@dataclass(frozen=True, slots=True)
class ExecOutcome:
    """How an exec ended: exactly one of `exit_code` and `signal` is set unless it was lost. Times in ms, sizes in bytes."""

    ended_by: EndedBy
    exit_code: int | None
    signal: int | None
    stdout_bytes: int
    stderr_bytes: int
    duration_ms: float
    cpu_ms: float = 0.0
    max_rss_bytes: int = 0
    evidence: Evidence = Evidence()
    survivors: tuple[Survivor, ...] = ()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of the workspace; `path` is relative to it, `mode` the permission bits, `modified_at` seconds since the epoch."""

    path: str
    name: str
    kind: FileKind
    size_bytes: int
    modified_at: float
    mode: int
    etag: str | None = None  # from the content: only where it was read


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a directory; `cursor` continues it, None at the end."""

    items: tuple[FileInfo, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a regular file from `offset`; `info.size_bytes` is its size when it was opened."""

    info: FileInfo
    offset: int
    data: bytes
    truncated: bool
