"""Threads for views: as many as there are requests at once, the one that worked last first.

The pool of the standard library hands work round all the threads it ever made, so each of them would keep a database
connection with a cold cache for ever. Here a thread that finds nothing to do for a while ends, and its connections with it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
IDLE_S = 30.0
Tell = Callable[[], None]  # gives the result to who waits for it
Job = Callable[[], Tell]


class Threads:
    """Runs sync calls in threads. `at_end` runs in each thread before it ends: it closes what the thread kept open."""

    def __init__(self, name: str, *, idle_s: float = IDLE_S, at_end: Callable[[], None] = lambda: None) -> None:
        self.name, self.idle_s, self.at_end = name, idle_s, at_end
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Job]] = []  # a stack: the warmest thread is the last
        self._made = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function` in a thread. When the caller is cancelled the call itself runs on to its end."""
        future: Future[T] = Future()
        self._give(lambda: _call(future, lambda: function(*args, **kwargs)))
        return await asyncio.wrap_future(future)

    @property
    def idle(self) -> int:
        """Threads that wait for work."""
        return len(self._idle)

    def _give(self, job: Job) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return
            self._made += 1
            name = f"{self.name}-{self._made}"
        mine: queue.SimpleQueue[Job] = queue.SimpleQueue()
        mine.put(job)  # and not an argument: a thread object keeps those as long as it lives
        threading.Thread(target=self._work, args=(mine,), name=name, daemon=True).start()

    def _work(self, mine: queue.SimpleQueue[Job]) -> None:
        job: Job | None = mine.get()
        try:
            while job is not None:
                tell = job()
                # Before the result is told: whoever gets it may at once have more to do, for this thread and no new one.
                with self._lock:
                    self._idle.append(mine)
                tell()
                del job, tell  # or the last request would live as long as this thread waits
                job = self._next(mine)
        finally:
            self.at_end()

    def _next(self, mine: queue.SimpleQueue[Job]) -> Job | None:
        try:
            return mine.get(timeout=self.idle_s)
        except queue.Empty:
            with self._lock:
                if mine in self._idle:
                    self._idle.remove(mine)
                    return None
            return mine.get()  # given between the end of the wait and the lock


def _call(future: Future[Any], call: Callable[[], Any]) -> Tell:
    if not future.set_running_or_notify_cancel():
        return lambda: None
    try:
        result = call()
    except BaseException as exc:
        error = exc  # the name of an except clause is gone behind it
        return lambda: future.set_exception(error)
    return lambda: future.set_result(result)
