"""Waiting on the loop: for an event, at most so long, and never past a cancel."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from primer_site import loop


async def test_an_event_is_heard_and_a_silence_is_told() -> None:
    event = asyncio.Event()
    assert not await loop.heard(event, 0.01)
    assert not await loop.heard(event, -1)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await loop.heard(event, 30)
    assert await loop.heard(event, 0)


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_is_not_lost_however_close_to_the_event_it_comes(turns: int) -> None:
    event = asyncio.Event()

    async def listens() -> None:
        while True:
            event.clear()
            await loop.heard(event, 30)

    task = asyncio.create_task(listens())
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()


async def test_a_wait_of_another_is_ended_by_its_own_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await loop.heard(asyncio.Event(), 30)


def test_no_event_is_waited_for_in_the_way_that_loses_a_cancel() -> None:
    root = Path(__file__).resolve().parents[2]
    packages = ("accounts", "agents", "workspaces", "sessions_app", "primer_site")
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    assert len(files) > 100
    assert [path.name for path in files if re.search(r"wait_for\([\w.]+\.wait\(\)", path.read_text())] == []
