"""How many questions a provider is asked at once, over all sessions of this process. First come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

DEFAULT_CONCURRENCY = 8
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, tuple[int, asyncio.Semaphore]]] = WeakKeyDictionary()


@asynccontextmanager
async def in_line(places: int, name: str) -> AsyncGenerator[asyncio.Task[object], None]:
    """Stands in line for one of the places at the provider `name`; the task is done when one is held, until the block
    ends. All that give the same name share the places."""
    known = _gates.setdefault(asyncio.get_running_loop(), {})
    if name not in known or known[name][0] != places:  # those inside a gate of another size leave it in their own time
        known[name] = (places, asyncio.Semaphore(places))
    gate = known[name][1]
    place: asyncio.Task[object] = asyncio.create_task(gate.acquire(), name=f"a place at {name}")
    try:
        yield place
    finally:
        if place.done() and not place.cancelled():
            gate.release()
        else:
            place.cancel()


@asynccontextmanager
async def one_of(places: int, name: str) -> AsyncGenerator[None, None]:
    """Waits for one of the places at the provider `name` and holds it."""
    async with in_line(places, name) as place:
        await place
        yield
