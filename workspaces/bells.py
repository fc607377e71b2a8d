"""Doorbells between services, reconciler and waiters of one process. They carry no data: who hears one reads the row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from primer_site import loop

_waiters: dict[int, set[asyncio.Event]] = {}
_reconciler: Callable[[int], None] | None = None


def wake(workspace_pk: int) -> None:
    """Tells this process, from any thread, that a workspace's row changed. A lost bell costs one second: all who wait also poll."""
    loop.current().call_soon_threadsafe(ring, workspace_pk)


def ring(workspace_pk: int) -> None:
    """The same on the loop itself."""
    for event in _waiters.get(workspace_pk, ()):
        event.set()
    if _reconciler is not None:
        _reconciler(workspace_pk)


def listen(reconciler: Callable[[int], None] | None) -> None:
    """Names the function that hears every bell; there is one reconciler in a process."""
    global _reconciler
    _reconciler = reconciler


@contextlib.contextmanager
def watch(workspace_pk: int) -> Iterator[asyncio.Event]:
    """An event that is set at each bell of the workspace. Enter it before reading the row, so that no change is missed."""
    event = asyncio.Event()
    _waiters.setdefault(workspace_pk, set()).add(event)
    try:
        yield event
    finally:
        waiting = _waiters[workspace_pk]
        waiting.discard(event)
        if not waiting:
            del _waiters[workspace_pk]


async def wait(event: asyncio.Event, at_most: float) -> None:
    """Waits for the next bell, at most so many seconds."""
    await loop.heard(event, at_most)
    event.clear()
