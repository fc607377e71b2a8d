"""Async generators of the one loop as bodies of HTTP answers, whichever loop reads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from accounts.authentication import still_signed_in
from primer_site import loop

PERMIT_S = 1.0
T = TypeVar("T")


async def on_loop(source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Iterates `source` on the loop of the process, where its events and channels belong.

    Under the server that is the loop that reads this anyway; a test client, or a WSGI server, reads on a loop of its own.
    """
    close: Callable[[], Awaitable[Any]] | None = getattr(source, "aclose", None)
    if asyncio.get_running_loop() is loop.current():
        try:
            async for item in source:
                yield item
        finally:
            if close is not None:
                await close()
        return
    try:
        while True:
            try:
                yield await _there(source.__anext__())
            except StopAsyncIteration:
                return
    finally:
        if close is not None:
            await _there(close())


async def while_signed_in(source: AsyncIterator[T], user_pk: int, token_pk: str | None) -> AsyncGenerator[T, None]:
    """Passes `source` on until its reader's token is revoked or user deactivated, looked up once a second at most."""
    looked = time.monotonic()
    try:
        async for item in source:
            if time.monotonic() - looked >= PERMIT_S:
                if not await loop.read(still_signed_in, user_pk, token_pk):
                    return
                looked = time.monotonic()
            yield item
    finally:
        if (close := getattr(source, "aclose", None)) is not None:
            await close()


async def _there(step: Awaitable[T]) -> T:
    async def take() -> tuple[bool, Any]:
        try:
            return True, await step
        except StopAsyncIteration:  # cannot pass through a future
            return False, None

    more, value = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(take(), loop.current()))
    if not more:
        raise StopAsyncIteration
    return value  # type: ignore[no-any-return]
