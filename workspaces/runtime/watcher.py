"""The soft disk limit: counts the blocks of the workspace now and then, and ends the run that fills it."""

from __future__ import annotations

import os

from . import linux
from .loop import Job
from .tree import count_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .registry import Registry
    from .runs import Run

_EVERY_S = 2.0
_MAX_ENTRIES = 200_000
_GROWTH = 64 * 1024  # bytes: a log line of a run that cleans up does not make it the one that fills


class Watcher:
    """Cheap while nothing happens: free space is one call, the walk runs only with a program running, in small steps."""

    def __init__(self, host: Registry) -> None:
        self._host = host
        self._walking = self._settling = False
        self._next_at = 0.0
        self._written: dict[str, int] = {}
        self._free = 0
        self.total = 0  # bytes of blocks at the last whole walk

    def tick(self, now: float) -> None:
        host = self._host
        if not host.disk_bytes or self._walking or not host.active or self._ending():
            return
        fallen = self._free - self._free_now()
        # a fall of the free space that could reach the limit does not wait for the next turn
        if now < self._next_at and self.total + fallen <= host.disk_bytes:
            return
        self._walking = True
        self._free = self._free_now()
        steps = count_blocks(host.root, _MAX_ENTRIES)
        host.loop.add_job(Job(steps, self._counted, now + 30.0))

    def _ending(self) -> bool:
        return any(run.facts.cause == "disk" for run in self._host.active.values())

    def _free_now(self) -> int:
        info = os.fstatvfs(self._host.root.fd)
        return info.f_bfree * info.f_frsize

    def _counted(self, total: object, error: Exception | None) -> None:
        self._walking = False
        self._next_at = self._host.loop.now + _EVERY_S
        if error is not None or not isinstance(total, int):
            return  # the tree moved during the walk; the next one comes
        grown, self.total = total > self.total, total
        if self._settling:
            self._settling = False  # what the ended run wrote after the look that ended it is nobody else's
        elif total > self._host.disk_bytes and grown:
            for run in self._fillers():
                run.end("disk", 0.0)
                self._settling = True

    def _fillers(self) -> list[Run]:
        """The run that wrote most since the last look; all of them when the kernel does not tell."""
        written = {run.id: _written_by(run) for run in self._host.active.values()}
        before, self._written = self._written, written
        deltas = {name: count - before.get(name, 0) for name, count in written.items()}
        runs = list(self._host.active.values())
        if not runs or max(deltas.values()) < _GROWTH:
            return runs
        return [max(runs, key=lambda run: deltas[run.id])]


def _written_by(run: Run) -> int:
    """Bytes that the living processes of a run have sent to block devices, children they waited for included."""
    total = 0
    for pid in run.members():
        for line in linux.read_small(f"/proc/{pid}/io", 1024).split(b"\n"):
            if line.startswith(b"write_bytes:"):
                total += int(line.split()[1])
    return total
