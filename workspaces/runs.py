"""One run as this process holds it: what is kept of its output, who listens, and how far the database has followed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from primer_site import loop
from primer_site.errors import PrimerError
from workspaces import exec_rows
from workspaces.exec_rows import STREAMS
from workspaces.execution import MIB, ExecOutcome, OutputChunk, Stream
from workspaces.output import Keeper, Kept

LISTENER_BYTES = 1 * MIB
STALL_S = 5.0  # how long one listener that does not read may hold a program up; after that it gets a gap
STORE_BYTES = 64 * 1024  # less than the smallest window of the runtime, which keeps what is not stored yet
HOLD_BYTES = 1 * MIB  # unstored bytes in memory; an honest runtime stops before, by its window
STORE_AFTER_S = 1.0
STORE_TRIES_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # and on like the last

log = structlog.get_logger(__name__)


class Listener:
    """A bounded queue of live output for one reader. Offsets tell the reader what was left out."""

    def __init__(self) -> None:
        self._chunks: deque[OutputChunk] = deque()
        self._size = 0
        self._behind = False
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def offer(self, chunk: OutputChunk) -> None:
        """Adds a chunk; waits for a slow reader, but only once: a reader that stalls loses output until it has caught up."""
        if self._behind and self._size:
            return
        self._behind = False
        if self._size >= LISTENER_BYTES:
            self._room.clear()
            if not await loop.heard(self._room, STALL_S):
                self._behind = True
                return
        self._chunks.append(chunk)
        self._size += len(chunk.data)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> OutputChunk | None:
        """The next chunk, None after the end."""
        while not self._chunks:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        chunk = self._chunks.popleft()
        self._size -= len(chunk.data)
        if self._size < LISTENER_BYTES:
            self._room.set()
        return chunk


class Run:
    """State of one run. `ended` is set after its end is in the database; then either `outcome` or `error` is there."""

    def __init__(
        self, pk: int, exec_id: str, workspace_pk: int, keepers: dict[Stream, Keeper], session_id: str | None = None
    ) -> None:  # fmt: skip
        self.pk, self.id, self.workspace_pk, self.session_id = pk, exec_id, workspace_pk, session_id
        self.keepers = keepers
        self.listeners: set[Listener] = set()
        self.handle: Any = None
        self.starting: asyncio.Future[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.cancelled_by: str | None = None
        self.started = asyncio.Event()  # the program runs, or will never run
        self.ended = asyncio.Event()
        self.news = asyncio.Event()
        self.outcome: ExecOutcome | None = None
        self.error: PrimerError | None = None
        self.trouble = ""  # why the end was not seen, where the server itself failed
        self.kept: dict[Stream, Kept] = {}  # where all that is kept was in memory to the end
        self._storing = asyncio.Lock()
        self._storing_soon = False
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, chunk: OutputChunk) -> None:
        """Keeps a chunk, stores what has become much, and hands it to those who listen."""
        keeper = self.keepers[chunk.stream]
        keeper.take(chunk.offset, chunk.data)
        self.news.set()
        if len(keeper.head) >= STORE_BYTES:
            self._store_soon()
        elif keeper.head:
            self._store_later()
        if len(keeper.head) >= HOLD_BYTES:
            await self.flush()
        for listener in list(self.listeners):
            await listener.offer(chunk)

    def settled(self, name: Stream) -> int:
        return self.keepers[name].settled

    def _store_later(self) -> None:
        if self._timer is None and not self._storing_soon:
            self._timer = asyncio.get_running_loop().call_later(STORE_AFTER_S, self._store_soon)

    def _store_soon(self) -> None:
        self._stop_timer()
        if not self._storing_soon and not self.ended.is_set():
            self._storing_soon = True
            loop.spawn(self._store(), name=f"store output {self.id}")

    async def _store(self) -> None:
        """Stores while much is there, then tells the sandbox that it may forget it."""
        try:
            await self.flush()
            while any(len(keeper.head) >= STORE_BYTES for keeper in self.keepers.values()) and await self.flush():
                pass
        finally:
            self._storing_soon = False
        if any(keeper.head for keeper in self.keepers.values()) and not self.ended.is_set():
            self._store_later()  # the rest, or what the database did not take: a full window waits for it

    async def acknowledge(self) -> None:
        if self.handle is not None:
            await self.handle.acknowledge()

    async def flush(self) -> bool:
        """Moves the head's bytes into the database; False when it does not take them: they stay, here and in the sandbox."""
        async with self._storing:
            parts = [(name, *self.keepers[name].unstored()) for name in STREAMS]
            if any(data for _, _, data in parts):
                try:
                    await loop.write(exec_rows.store_all, self.pk, parts)
                except DatabaseError as exc:
                    log.warning("output not stored yet", exec=self.id, cause=str(exc))
                    return False
                self._mark_stored(parts)
        await self.acknowledge()
        return True

    def _mark_stored(self, parts: list[tuple[Stream, int, bytes]]) -> None:
        for name, _, data in parts:
            self.keepers[name].mark_stored(len(data))

    async def finish(self, outcome: ExecOutcome) -> None:
        """Stores outcome and the rest of the output in one transaction, again and again while the database is locked."""
        self._stop_timer()
        async with self._storing:
            heads, tails = [], []
            for name in STREAMS:
                keeper = self.keepers[name]
                offset, head = keeper.unstored()
                tail = keeper.tail()
                if keeper.stored == 0:
                    self.kept[name] = Kept(head + tail, keeper.gap)
                heads.append((name, offset, head))
                tails.append((name, keeper.tail_start, tail))
            gaps = {name: self.keepers[name].gap for name in STREAMS}
            await patiently(exec_rows.finish, self.pk, outcome, gaps, heads + tails, self.trouble)
            self._mark_stored(heads)
            self.outcome = outcome

    async def give_up(self, outcome: ExecOutcome) -> None:
        """Stores the end alone, after `finish` failed for good: what is stored of the output stays, the rest is a gap."""
        self.kept = {}
        gaps = {name: (self.keepers[name].stored, total) for name, total in self.totals.items()}
        told = {name: gap if gap[1] > gap[0] else None for name, gap in gaps.items()}
        await patiently(exec_rows.finish, self.pk, outcome, told, [], self.trouble)

    async def suspend(self) -> None:
        """Stores everything, the tail included, so that the next process can go on from here."""
        self._stop_timer()
        await self.flush()
        tails = [(name, self.keepers[name].tail_start, self.keepers[name].tail()) for name in STREAMS]
        try:
            await loop.write(exec_rows.store_all, self.pk, tails)
        except DatabaseError as exc:  # the next process says what is missing
            log.warning("tail not stored", exec=self.id, cause=str(exc))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Tells everybody that no more comes."""
        self._stop_timer()
        self.started.set()
        self.ended.set()
        self.news.set()
        for listener in self.listeners:
            listener.end()

    @property
    def totals(self) -> dict[Stream, int]:
        return {name: self.keepers[name].total for name in STREAMS}


async def patiently(function: Any, *args: Any) -> None:
    """Writes as soon as the database can: a run whose end is not stored would be taken for a running one."""
    for pause in itertools.chain(STORE_TRIES_S, itertools.repeat(STORE_TRIES_S[-1])):
        try:
            await loop.write(function, *args)
            return
        except (OperationalError, InterfaceError) as exc:  # locked, or gone for a while: others do not get better
            log.warning("end of a run not stored yet", cause=str(exc), again_in_s=pause)
            await asyncio.sleep(pause)
