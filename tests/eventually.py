"""Waiting for a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.02


def eventually(check: Callable[[], Any], within: float = 5, message: str = "") -> Any:
    """Calls `check` until it returns something true, and returns that; fails with the last value after `within` seconds.

    An AssertionError inside `check` counts as "not yet" and is shown when time is up; any other error ends the wait.
    """
    deadline = time.monotonic() + within
    last: object = None
    while True:
        try:
            if last := check():
                return last
        except AssertionError as exc:
            last = exc
        if time.monotonic() >= deadline:
            raise AssertionError(f"{message or 'condition'} did not hold within {within:g} s; last: {last!r}")
        time.sleep(PAUSE_S)


async def eventually_async(check: Callable[[], Any], within: float = 5, message: str = "") -> Any:
    """The same on an event loop; `check` may be a coroutine function."""
    import asyncio

    deadline = time.monotonic() + within
    last: object = None
    while True:
        try:
            result = check()
            if last := (await result if inspect.isawaitable(result) else result):
                return last
        except AssertionError as exc:
            last = exc
        if time.monotonic() >= deadline:
            raise AssertionError(f"{message or 'condition'} did not hold within {within:g} s; last: {last!r}")
        await asyncio.sleep(PAUSE_S)
