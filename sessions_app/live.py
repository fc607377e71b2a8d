"""Fan-out of live transcripts: one reader for each (process, session), whatever the number of sockets.

The store is the truth. The bell only says when to look; losing every bell costs a second. A socket first replays from its
own `after`, then joins the reader without a gap or a repeat; a slow one delays nobody and is let go.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog
from channels.layers import get_channel_layer

from primer_site import loop, metrics
from sessions_app.events import envelope, events_after, group_of
from sessions_app.fragments import Fragments
from sessions_app.models import AgentSession, SessionEvent
from sessions_app.permits import Permit, verdicts

TOO_SLOW = 4408
PAGE = 500
REPLAY_PAGE = 100  # a socket that does not read holds one page of the replay
POLL_S = 1.0
COALESCE_S = 0.03  # on a busy session: one look for many bells
QUEUE_FRAMES, QUEUE_BYTES = 2000, 4 * 1024 * 1024  # of one socket
BLOCKED_S = 10.0  # for one frame to leave
JSON, HTML = PROTOCOLS = ("primer.v1.json", "primer.v1.html")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """One event, serialised once for all sockets."""

    seq: int
    text: str


def encode(event: SessionEvent, protocol: str = JSON, drawing: Drawing | None = None) -> Frame:
    """The event for one sub-protocol; for the console's pages with the fragment that they would draw themselves."""
    shown = envelope(event)
    if protocol == HTML:
        shown["html"] = (drawing or Drawing(event.session_id)).of(event)
    return Frame(event.seq, json.dumps(shown, ensure_ascii=False, separators=(",", ":")))


class Drawing:
    """Draws the events of one session in order: colours of a terminal go on from chunk to chunk."""

    def __init__(self, session_pk: int) -> None:
        self._session_pk = session_pk
        self._fragments: Fragments | None = None

    def of(self, event: SessionEvent) -> str:
        if self._fragments is None:
            rows = AgentSession.objects.filter(pk=self._session_pk)
            found = rows.values_list("slug", "workspace__slug", "workspace__deleted_at").first()
            session, workspace, deleted = found or ("", "", None)
            self._fragments = Fragments(workspace if deleted is None else "", session, workspace)
        return self._fragments.of(event)


class Shared:
    """One event and its frames, each made once whatever the number of sockets."""

    def __init__(self, event: SessionEvent, protocols: Iterable[str], drawing: Drawing) -> None:
        self.event = event
        self._frames = {protocol: encode(event, protocol, drawing) for protocol in protocols}

    def frame(self, protocol: str) -> Frame | None:
        """None when somebody of that protocol came while the frames were made."""
        return self._frames.get(protocol)


def shared_after(session_pk: int, after: int, limit: int, protocols: frozenset[str], drawing: Drawing) -> list[Shared]:
    """Events behind `after`, encoded for these sub-protocols here, on a reader's thread: templates take their time."""
    return [Shared(event, protocols, drawing) for event in events_after(session_pk, after, limit)]


class Listener:
    """One socket: a bounded queue and a sender of its own. `close` is called once, with the code."""

    def __init__(
        self,
        permit: Permit,
        after: int,
        send: Callable[[str], Awaitable[None]],
        close: Callable[[int], Awaitable[None]],
        protocol: str = JSON,
    ) -> None:
        self.permit = permit
        self.protocol = protocol
        self.last_seq = after  # of what was queued
        self._send = send
        self._close = close
        self._queue: deque[Frame] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._code: int | None = None

    @property
    def closed(self) -> bool:
        return self._code is not None

    def offer(self, frame: Frame) -> None:
        """Queues a live frame; one that was sent before is dropped, and a full queue ends the socket."""
        if self.closed or frame.seq <= self.last_seq:
            return
        if not self._has_room(frame):
            self.end(TOO_SLOW)
            return
        self._take(frame)

    async def put(self, frame: Frame) -> None:
        """Queues a frame of the replay: history waits for a slow socket instead of ending it."""
        while not self.closed and not self._has_room(frame):
            self._room.clear()
            await self._room.wait()
        if not self.closed and frame.seq > self.last_seq:
            self._take(frame)

    def _has_room(self, frame: Frame) -> bool:
        fits = len(self._queue) < QUEUE_FRAMES and self._size + len(frame.text) <= QUEUE_BYTES
        return fits or not self._queue  # one frame may be larger than the queue

    def _take(self, frame: Frame) -> None:
        self._queue.append(frame)
        self._size += len(frame.text)
        self.last_seq = frame.seq
        self._news.set()

    def end(self, code: int) -> None:
        """Closes the socket with `code`; the first code wins, and what is still queued is dropped: the client resumes."""
        if self._code is None:
            self._code = code
            self._queue.clear()
            self._news.set()
            self._room.set()

    async def run(self) -> None:
        """Replays, joins the reader, sends until the end; returns after the close."""
        feed = Feed.enter(self)
        replay = asyncio.create_task(feed.admit(self), name=f"replay {feed.session_pk}")
        try:
            while not self.closed:
                await self._send_queued()
                self._news.clear()
                if not self._queue and not self.closed:
                    await self._news.wait()
        except TimeoutError:
            self.end(TOO_SLOW)
        except Exception:  # a socket that stays open and silent is the one thing no client can make good
            log.exception("socket failed", session=feed.session_pk)
            self.end(TOO_SLOW)
        finally:
            replay.cancel()
            await asyncio.wait({replay})
            feed.leave(self)
        if self._code is not None:
            await self._close(self._code)

    async def _send_queued(self) -> None:
        while self._queue and not self.closed:
            frame = self._queue.popleft()
            self._size -= len(frame.text)
            self._room.set()
            async with asyncio.timeout(BLOCKED_S):
                await self._send(frame.text)


class Feed:
    """The reader of one session in this process."""

    _all: dict[int, Feed] = {}

    def __init__(self, session_pk: int) -> None:
        self.session_pk = session_pk
        self.last_seq = 0  # of what was offered to those who joined
        self.joined: set[Listener] = set()
        self.replaying: set[Listener] = set()
        self._drawing = Drawing(session_pk)
        self._bell = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def enter(cls, listener: Listener) -> Feed:
        """The feed of a listener's session, which from now on counts it and runs.

        Nothing is awaited between finding the feed and being counted, so the last one to leave cannot end it in between.
        """
        session_pk = listener.permit.session_pk
        feed = cls._all.get(session_pk)
        if feed is None:
            feed = cls._all[session_pk] = cls(session_pk)
        feed.replaying.add(listener)
        feed._start()
        return feed

    @property
    def listeners(self) -> list[Listener]:
        return [*self.joined, *self.replaying]

    async def admit(self, listener: Listener) -> None:
        """Replays the store to a listener that has entered and lets it join where the reader is."""
        drawing = Drawing(self.session_pk)
        try:
            while not listener.closed:
                start, only = listener.last_seq, frozenset({listener.protocol})
                batch = await loop.read(shared_after, self.session_pk, start, REPLAY_PAGE, only, drawing)
                for one in batch:
                    if (frame := one.frame(listener.protocol)) is not None:
                        await listener.put(frame)
                # Nothing is awaited between this comparison and the joining, so nothing falls between history and live.
                if len(batch) < REPLAY_PAGE and (not self.joined or listener.last_seq >= self.last_seq):
                    if not self.joined:
                        self.last_seq = listener.last_seq
                    self.replaying.discard(listener)
                    self.joined.add(listener)
                    self._bell.set()
                    return
        except Exception:
            log.exception("replay failed", session=self.session_pk)
            listener.end(TOO_SLOW)  # "reconnect and resume" is what helps

    def leave(self, listener: Listener) -> None:
        self.joined.discard(listener)
        self.replaying.discard(listener)
        if not self.listeners and self._tasks:
            del self._all[self.session_pk]
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    def _start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._pump(), name=f"feed {self.session_pk}"),
                asyncio.create_task(self._hear(), name=f"bell {self.session_pk}"),
                asyncio.create_task(self._check(), name=f"permits {self.session_pk}"),
            ]

    async def _pump(self) -> None:
        """Looks after each bell, at once when it was quiet, and each second in any case."""
        looked = 0.0
        while True:
            self._bell.clear()
            busy = looked + COALESCE_S - asyncio.get_running_loop().time()
            if busy > 0:
                await asyncio.sleep(busy)
            looked = asyncio.get_running_loop().time()
            if not (self.joined and await self._look()):
                await loop.heard(self._bell, POLL_S)

    async def _look(self) -> bool:
        """Reads what is new and offers it; whether there may be more."""
        start = self.last_seq
        try:
            spoken = frozenset(listener.protocol for listener in self.joined)
            batch = await loop.read(shared_after, self.session_pk, start, PAGE, spoken, self._drawing)
        except Exception:  # the database is away for a moment; the sockets need not notice
            log.exception("feed cannot read", session=self.session_pk)
            return False
        if self.last_seq != start:  # everybody left meanwhile and somebody else joined elsewhere
            return True
        if batch:
            metrics.events_seen(batch[0].event.ts)
        if {listener.protocol for listener in self.joined} - spoken:
            return True  # somebody joined meanwhile who speaks another one: read again, for all
        for one in batch:
            self.last_seq = one.event.seq
            for listener in self.joined:
                if (frame := one.frame(listener.protocol)) is not None:
                    listener.offer(frame)
        return len(batch) == PAGE

    async def _hear(self) -> None:
        layer = get_channel_layer()
        while True:
            try:
                channel = await layer.new_channel()
                await layer.group_add(group_of(self.session_pk), channel)
                try:
                    while True:
                        await layer.receive(channel)
                        self._bell.set()
                finally:
                    await layer.group_discard(group_of(self.session_pk), channel)
            except Exception:  # a broken layer makes things slower, not wrong
                log.exception("bell is broken", session=self.session_pk)
                await asyncio.sleep(POLL_S)

    async def _check(self) -> None:
        """Once a second: may each of the sockets still see this session?"""
        while True:
            await asyncio.sleep(POLL_S)
            asked = self.listeners
            try:
                codes = await loop.read(verdicts, self.session_pk, [listener.permit for listener in asked])
            except Exception:
                log.exception("permits cannot be read", session=self.session_pk)
                continue
            for listener, code in zip(asked, codes, strict=True):
                if code is not None:
                    listener.end(code)


async def close_all(code: int) -> None:
    """Closes every live transcript of this process with `code` (4012 at a restart)."""
    for listener in [one for feed in Feed._all.values() for one in feed.listeners]:
        listener.end(code)


def open_feeds() -> dict[int, int]:
    """Sockets for each session that has a reader in this process."""
    return {pk: len(feed.listeners) for pk, feed in Feed._all.items()}
