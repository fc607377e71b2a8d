"""One thread, one epoll: descriptors with callbacks, a deadline for the next wake, and jobs that run in small steps."""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generator

IN, OUT, HUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP
MAX_FAULTS = 20
_SLICE_S = 0.004  # of jobs between two looks at the descriptors: what a long walk may delay a run


class Job:
    """A generator run to its end in steps; then `done(value, error)` is called once."""

    def __init__(
        self, steps: Generator[None, None, Any], done: Callable[[Any, Exception | None], None], deadline: float
    ) -> None:
        self.steps, self.done, self.deadline = steps, done, deadline

    def step(self, now: float) -> bool:
        """True when it has ended."""
        try:
            if now > self.deadline:
                self.steps.close()
                raise TimeoutError("the operation took too long")
            next(self.steps)
        except StopIteration as stop:
            self.done(stop.value, None)
            return True
        except Exception as error:  # every failure becomes an answer; PID 1 must go on
            self.done(None, error)
            return True
        return False


class Loop:
    def __init__(self) -> None:
        self._poll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._masks: dict[int, int] = {}
        self._jobs: list[Job] = []
        self._faults = 0
        self.now = time.monotonic()

    def watch(self, fd: int, mask: int, callback: Callable[[int], None] | None = None) -> None:
        """Sets what is waited for at a descriptor; with mask 0 it stays known but only its hang-up would wake, so it is
        taken out of the poll instead."""
        if callback is not None:
            self._callbacks[fd] = callback
        known = self._masks.get(fd, 0)
        if mask == known:
            return
        if not mask:
            self._poll.unregister(fd)
        elif known:
            self._poll.modify(fd, mask)
        else:
            self._poll.register(fd, mask)
        self._masks[fd] = mask

    def forget(self, fd: int) -> None:
        """Before a descriptor is closed."""
        if self._masks.pop(fd, 0):
            self._poll.unregister(fd)
        self._callbacks.pop(fd, None)

    def close_fd(self, fd: int) -> None:
        """Forgets and closes: a number that lived on in the poll would be taken for the next descriptor that gets it."""
        self.forget(fd)
        os.close(fd)

    def add_job(self, job: Job) -> None:
        """Takes the first step at once: most jobs are one step."""
        if not job.step(time.monotonic()):
            self._jobs.append(job)

    def run_once(self, wait_s: float) -> None:
        """Waits for at most `wait_s` (not at all while jobs run), calls what is due, then runs jobs for one slice."""
        events = self._poll.poll(0 if self._jobs else wait_s, 64)
        self.now = time.monotonic()
        for fd, mask in events:
            callback = self._callbacks.get(fd)
            if callback is not None:  # closed by a callback of this very round otherwise
                self.guarded(callback, mask)
        if self._jobs:
            self._run_jobs()

    def guarded(self, callback: Callable[..., object], *arguments: object) -> None:
        """PID 1 outlives a fault of its own: it is written to the engine's log, a few times at most, and the loop goes on."""
        try:
            callback(*arguments)
        except Exception:
            self._faults += 1
            if self._faults <= MAX_FAULTS:
                sys.excepthook(*sys.exc_info())

    def _run_jobs(self) -> None:
        end = time.monotonic() + _SLICE_S
        while self._jobs and (now := time.monotonic()) < end:
            self.guarded(self._step, self._jobs.pop(0), now)

    def _step(self, job: Job, now: float) -> None:
        if not job.step(now):
            self._jobs.append(job)

    def close(self) -> None:
        self._poll.close()
