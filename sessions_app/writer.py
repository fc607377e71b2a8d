"""The writer of one run: merges deltas and output, so that a chatty stream does not become a row for each byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import structlog
from django.db import OperationalError

from agents.redact import Redactor
from primer_site import loop
from sessions_app import claims
from sessions_app.events import EventDraft, append
from sessions_app.models import AgentSession

QUIET_S = 0.05
FULL_CHARS = 1024
AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # pauses while the database does not answer; the run waits, and its output with it
P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)


async def store(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `function`, one transaction, on the writer thread; tries again while the database is locked or away.

    Cancelling the caller does not take the work back that already waits for the thread: what happened must be told.
    """
    for pause in AGAIN_S:
        try:
            return await _shielded(loop.write(function, *args, **kwargs))
        except OperationalError:
            log.warning("database does not answer", again_in_s=pause)
            await asyncio.sleep(pause)
    return await _shielded(loop.write(function, *args, **kwargs))


async def _shielded(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody is there to see it
    return await asyncio.shield(task)


class Writer:
    """`add` returns when the event is stored, or, for a delta, when it is taken: it is stored at most QUIET_S later.

    The first delta after QUIET_S of silence is stored at once, later ones each QUIET_S or FULL_CHARS. The order of
    `add`s is the order of the transcript. A failure to store is raised by the next call.
    """

    def __init__(self, session: AgentSession, redactor: Redactor) -> None:
        self._session = session
        self._redactor = redactor
        self._lock = asyncio.Lock()
        self._held: EventDraft | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed: asyncio.Task[None] | None = None
        self._written = 0.0  # loop time of the last store
        self._failure: Exception | None = None

    async def add(self, *drafts: EventDraft, totals: dict[str, Any] | None = None) -> None:
        """Takes drafts in order; several that are no deltas are stored in one transaction, and with them what the run has
        used so far (`totals`: turns, tool_calls, usage)."""
        self._raise_failure()
        if len(drafts) == 1 and drafts[0].flow is not None:
            await self._merge(drafts[0])
        else:
            await self._store(*drafts, totals=totals)

    async def flush(self) -> None:
        """Stores what is still held, whatever it might have become."""
        await self._store()
        self._raise_failure()

    async def _merge(self, draft: EventDraft) -> None:
        if self._held is not None and self._held.flow != draft.flow:
            await self._store()
        if self._held is None:
            self._held = draft
        else:
            text = self._held.data["text"] + draft.data["text"]
            self._held = replace(self._held, data={**self._held.data, "text": text})
        due = self._written + QUIET_S - asyncio.get_running_loop().time()
        if due <= 0 or len(self._held.data["text"]) >= FULL_CHARS:
            await self._store(final=False)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timed = asyncio.ensure_future(self._store_timed())

    async def _store_timed(self) -> None:
        try:
            await self._store(final=False)
        except Exception as exc:
            self._failure = exc

    async def _store(self, *drafts: EventDraft, final: bool = True, totals: dict[str, Any] | None = None) -> None:
        """Stores the held text, then `drafts`. Unless `final`, an end that may begin a secret stays held.

        A caller that is cancelled while another store goes on takes nothing back: a call that was run must not look as if
        it never was.
        """
        await _shielded(self._store_in_turn(*drafts, final=final, totals=totals))

    async def _store_in_turn(self, *drafts: EventDraft, final: bool, totals: dict[str, Any] | None) -> None:
        async with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            ready = [*self._take(final), *drafts]
            if ready:
                if totals:
                    await store(claims.note_used, self._session, totals, *ready, redactor=self._redactor)
                else:
                    await store(append, self._session, *ready, redactor=self._redactor)
                self._written = asyncio.get_running_loop().time()

    def _take(self, final: bool) -> list[EventDraft]:
        held, self._held = self._held, None
        if held is None:
            return []
        text: str = held.data["text"]
        now, later = (text, "") if final else self._redactor.split(text)
        if later:
            moved = (
                {"offset": held.data["offset"] + len(now.encode("utf-8", "replace"))} if "offset" in held.data else {}
            )
            self._held = replace(held, data={**held.data, **moved, "text": later})
        return [replace(held, data={**held.data, "text": now})] if now else []

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
