"""The one event loop of the process, and the only ways onto it and off it.

Sync code (views, services) hands a coroutine to `run`. Async code reaches the database by `read` and `write`, which use
named threads that keep their connections: a slow reader delays no writer. Never `async_to_sync` for provider or sandbox
work: each call may make a new loop, and a kept channel then dies with the old one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import structlog

from primer_site.errors import Timeout

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)
_lock = threading.Lock()
_turn = threading.Lock()  # at writing; SQLite's own way to wait is to sleep and look again
_loop: asyncio.AbstractEventLoop | None = None
_tasks: set[asyncio.Task[Any]] = set()
_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="db-writer")
_reader = ThreadPoolExecutor(max_workers=2, thread_name_prefix="db-reader")


def adopt(loop: asyncio.AbstractEventLoop) -> None:
    """Makes `loop` the loop of this process: the server calls it with its own before the first request."""
    global _loop
    with _lock:
        _loop = loop


def current() -> asyncio.AbstractEventLoop:
    """The loop of this process; without a server a daemon thread runs one from the first use on."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="primer-loop", daemon=True).start()
        return _loop


def run(coro: Coroutine[Any, Any, T], timeout: float) -> T:
    """Runs `coro` on the loop and waits at most `timeout` seconds from a sync thread; then cancels it and raises `Timeout`."""
    loop = current()
    if threading.current_thread() is threading.main_thread() and loop.is_running() and _runs_here(loop):
        coro.close()
        raise RuntimeError("loop.run was called on the loop's own thread: await the coroutine instead.")
    # A fresh context: a task made inside a request must not keep the request's variables alive.
    future = contextvars.Context().run(asyncio.run_coroutine_threadsafe, coro, loop)
    try:
        return future.result(timeout)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise  # the coroutine itself raised a TimeoutError
        future.cancel()
        raise Timeout(f"The operation did not finish within {timeout:g} s.") from None


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def spawn(coro: Coroutine[Any, Any, Any], *, name: str) -> None:
    """Starts a background task on the loop from any thread, in a fresh context; a failure is logged, never lost."""
    loop = current()
    if _runs_here(loop):
        _start(coro, name)
    else:
        loop.call_soon_threadsafe(_start, coro, name)


def _start(coro: Coroutine[Any, Any, Any], name: str) -> None:
    task = asyncio.get_running_loop().create_task(coro, name=name, context=contextvars.Context())
    _tasks.add(task)  # the loop itself holds tasks only weakly
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task failed", task=task.get_name(), exc_info=error)


async def write(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function`, which writes to the database, on the one writer thread."""
    return await _call(_writer, _in_turn, lambda: function(*args, **kwargs))


def write_here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function`, which writes to the database, in this sync thread, in turn with the writer thread.

    Spares a view two changes of thread. Raises `RuntimeError` within a transaction: who waits for a turn must not hold the
    database's own lock, which the writer may be waiting for.
    """
    from django.db import transaction

    if transaction.get_connection().in_atomic_block:
        raise RuntimeError("loop.write_here was called within a transaction.")
    return _in_turn(lambda: function(*args, **kwargs))


def _in_turn(call: Callable[[], T]) -> T:
    with _turn:
        return call()


async def read(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function`, which only reads the database, on one of two reader threads."""
    return await _call(_reader, function, *args, **kwargs)


async def heard(event: asyncio.Event, within_s: float) -> bool:
    """Waits for an event, at most so many seconds; whether it was set.

    `asyncio.wait_for` of Python 3.11 swallows a cancel that comes in the moment of the event: a task in a loop goes on for ever.
    """
    try:
        async with asyncio.timeout(max(0.0, within_s)):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs sync code that itself calls `run` in a thread of its own, and closes the connections it opened."""
    return await asyncio.get_running_loop().run_in_executor(None, _closing, lambda: function(*args, **kwargs))


def _closing(call: Callable[[], T]) -> T:
    from django.db import connections

    try:
        return call()
    finally:
        connections.close_all()


async def _call(pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, _guarded, lambda: function(*args, **kwargs))


def _guarded(call: Callable[[], T]) -> T:
    from django.db import InterfaceError, OperationalError, connections

    try:
        return call()
    except (OperationalError, InterfaceError):
        connections.close_all()  # a connection that broke once must not serve the next caller
        raise


def close_database_threads(within_s: float | None = None) -> None:
    """Closes the kept connections, so that a test or a restore may remove the database file; `TimeoutError` when busy."""
    from django.db import connections

    for future in [_writer.submit(connections.close_all), *(_reader.submit(connections.close_all) for _ in range(4))]:
        future.result(within_s)
