"""Bells between services and the runners of this process, from any thread. Losing one costs a second: runners also poll."""

from __future__ import annotations

from collections.abc import Callable

from primer_site import loop

_on_queued: Callable[[], None] | None = None
_on_cancelled: Callable[[int], None] | None = None


def listen(on_queued: Callable[[], None] | None, on_cancelled: Callable[[int], None] | None) -> None:
    """Names what hears the bells, both called on the loop; there is one dispatcher in a process."""
    global _on_queued, _on_cancelled
    _on_queued, _on_cancelled = on_queued, on_cancelled


def queued() -> None:
    """A session waits for a runner."""
    if _on_queued is not None:
        loop.current().call_soon_threadsafe(_on_queued)


def cancelled(session_pk: int) -> None:
    """Somebody wants the run of this session to end."""
    if _on_cancelled is not None:
        loop.current().call_soon_threadsafe(_on_cancelled, session_pk)
