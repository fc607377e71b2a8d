"""Background services of the server process: started with it, kept alive, drained and ended at its stop. No Django."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from primer_site import loop

END_S = 5.0  # what a stop grants to a service after its drain
log = structlog.get_logger(__name__)
_up: dict[str, bool] = {}
_beats: dict[str, float] = {}


def states() -> dict[str, bool]:
    """Each service of this process by name: does it run now?"""
    return dict(_up)


def beat(name: str) -> None:
    """A service says that its work moves, each time it looks for more."""
    _beats[name] = time.monotonic()


def silence(name: str) -> float:
    """Seconds since the last beat of a service; 0 for one that never beats."""
    last = _beats.get(name)
    return 0.0 if last is None else time.monotonic() - last


@dataclass(frozen=True, slots=True)
class Service:
    """A long-running coroutine beside the requests; it returns soon after `stop` is set."""

    name: str
    serve: Callable[[asyncio.Event], Awaitable[None]]
    # Needed by what drains (a run may still wait for its workspace), so it is told to stop only afterwards.
    outlives_drain: bool = False


class Running:
    """A started service; make it on the loop it shall run on."""

    def __init__(self, service: Service, first_pause_s: float = 1.0) -> None:
        self.service = service
        self.stop = asyncio.Event()
        self._first_pause_s = first_pause_s
        self._task = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        """Runs the service until the stop; one that fails is logged and started again with growing pauses (up to 30 s)."""
        pause = self._first_pause_s
        while not self.stop.is_set():
            _up[self.service.name] = True
            _beats.pop(self.service.name, None)
            try:
                await self.service.serve(self.stop)
                pause = self._first_pause_s
            except Exception:
                log.exception("service failed", service=self.service.name, again_in_s=pause)
            _up[self.service.name] = False
            if not self.stop.is_set() and not await loop.heard(self.stop, pause):
                pause = min(pause * 2, 30.0)

    async def end(self) -> None:
        """Waits for the end of the service, at most END_S; then cancels it."""
        self.stop.set()
        done, _ = await asyncio.wait([self._task], timeout=END_S)
        if not done:
            log.warning("service did not stop in time", service=self.service.name)
            self._task.cancel()
