"""Ends everything a run has started: TERM, grace, then STOP and KILL until nothing is left. Needs no new process."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

GIVE_UP_S = 10.0  # of sweeps without success: what is left then sleeps in the kernel, and is listed
_SWEEP_S = 0.02


class Kill:
    """One ending in progress, moved on by `step` from the loop; `done` when the run's tree is empty or given up.

    `roots` names the processes whose descendants are the run's (its keeper, or what is known to be left of it), `singles`
    processes to end themselves as well; both are asked at each sweep, since keepers die and processes move to PID 1.
    """

    def __init__(
        self, roots: Callable[[], set[int]], singles: Callable[[], set[int]], now: float, grace_s: float
    ) -> None:
        self._roots, self._singles = roots, singles
        self._kill_at = now + grace_s
        self._give_up_at = now + grace_s + GIVE_UP_S
        self.next_at = self._kill_at
        self.done = False
        self.left: set[int] = set()
        if grace_s > 0:
            for pid in self._targets():
                linux.send_signal(pid, _signal.SIGTERM)
                linux.send_signal(pid, _signal.SIGCONT)  # a stopped process takes TERM only when it goes on

    def _targets(self) -> set[int]:
        table = linux.processes()
        singles = {pid for pid in self._singles() if pid in table and table[pid][1] not in "ZX"}
        return linux.descendants(self._roots() | singles, table) | singles

    def step(self, now: float, gone: bool) -> None:
        """`gone`: the keeper itself has seen that no child is left, which is the kernel's own count."""
        if gone:
            self.done, self.left = True, set()
        elif now >= self.next_at:
            self._sweep()
            self.next_at = now + _SWEEP_S
            if not self.left or now >= self._give_up_at:
                self.done = True

    def failed(self, now: float) -> bool:
        """Something is left that no signal ends, or nobody has reported the end of the main process for as long."""
        return self.done and (bool(self.left) or now >= self._give_up_at)

    def _sweep(self) -> None:
        """Freezes first: a stopped process keeps its slot of the pids limit, so a fork bomb that ignores TERM fills it
        with frozen copies and cannot refill what is killed afterwards."""
        stopped: set[int] = set()
        for _ in range(20):
            found = self._targets()
            if found <= stopped:
                break
            for pid in found - stopped:
                linux.send_signal(pid, _signal.SIGSTOP)
            stopped |= found
        for pid in stopped:
            linux.send_signal(pid, _signal.SIGKILL)
        self.left = stopped
