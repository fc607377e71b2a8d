"""Live transcripts: replay, then live, without a gap or a repeat; a slow socket delays nobody."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from primer_site import loop
from sessions_app import events, live
from sessions_app.events import EventDraft, append
from sessions_app.live import Feed, Listener, close_all
from sessions_app.models import AgentSession, EventKind
from sessions_app.permits import Permit
from sessions_app.services import locked
from tests.factories import make_user
from tests.sessions.cast import make_session

RunScenario = Callable[[Coroutine[Any, Any, Any]], Any]


class Socket:
    """A client that keeps what it is sent; `gate` closed means that it does not read."""

    def __init__(self, session: AgentSession, after: int = 0, token_pk: str = "") -> None:
        self.got: list[int] = []
        self.codes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        permit = Permit(session.pk, session.owner_id, session.last_seq, token_pk=token_pk)
        self.listener = Listener(permit, after, self._send, self._close)
        self.task = asyncio.create_task(self.listener.run())

    async def _send(self, text: str) -> None:
        await self.gate.wait()
        self.got.append(json.loads(text)["seq"])

    async def _close(self, code: int) -> None:
        self.codes.append(code)

    async def until(self, seq: int, within: float = 10) -> None:
        async with asyncio.timeout(within):
            while self.got[-1:] != [seq]:
                await asyncio.sleep(0.005)

    async def closed(self, within: float = 10) -> int:
        async with asyncio.timeout(within):
            await asyncio.wait({self.task})
        return self.codes[0]

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


def note(number: int = 0, size: int = 0) -> EventDraft:
    return EventDraft(EventKind.WARNING, {"code": "n", "message": f"{number}" + "x" * size})


@pytest.fixture
def session(quiet_database: None) -> AgentSession:
    return locked(make_session())


@pytest.fixture
def always_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "verdicts", lambda pk, permits: [None] * len(permits))


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return loop.run(scenario, 60)


@pytest.mark.usefixtures("always_permitted")
def test_a_socket_replays_from_its_own_after_and_stays_live(session: AgentSession) -> None:
    async def scenario() -> None:
        await loop.write(append, session, *[note() for _ in range(8)])
        early, late = Socket(session), Socket(session, after=7)
        await early.until(10)
        await late.until(10)
        await loop.write(append, session, note(), note())
        await early.until(12)
        await late.until(12)
        assert early.got == list(range(1, 13))
        assert late.got == list(range(8, 13))
        await early.leave()
        await late.leave()
        assert live.open_feeds() == {}

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_sockets_that_join_while_events_flow_see_each_once_and_in_order(session: AgentSession) -> None:
    async def scenario() -> None:
        chance = random.Random(5)
        sockets: list[Socket] = []
        begins: list[int] = []

        async def flow() -> None:
            for number in range(150):
                await loop.write(append, session, *[note(number) for _ in range(chance.randint(1, 3))])

        writer = asyncio.create_task(flow())
        while not writer.done():
            await asyncio.sleep(chance.random() * 0.02)
            if len(sockets) < 50:
                begins.append(chance.choice([0, 1, 50]) + 1)
                sockets.append(Socket(session, after=begins[-1] - 1))
            if chance.random() < 0.1:
                await sockets[chance.randrange(len(sockets))].leave()
        await writer
        last = await loop.read(lambda: AgentSession.objects.get(pk=session.pk).last_seq)
        stayed = [socket for socket in sockets if not socket.task.done()]
        assert len(stayed) > 10
        for socket in stayed:
            await socket.until(last)
        for first, socket in zip(begins, sockets, strict=True):
            assert socket.got == list(range(first, first + len(socket.got)))
            await socket.leave()

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_lost_bell_costs_at_most_a_poll(session: AgentSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ring", lambda pk, seq: None)

    async def scenario() -> None:
        socket = Socket(session)
        await socket.until(2)
        await loop.write(append, session, note())
        await socket.until(3, within=5)
        await socket.leave()

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_socket_that_does_not_read_gets_4408_and_delays_nobody(
    session: AgentSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUEUE_FRAMES", 20)

    async def scenario() -> None:
        stuck, fine = Socket(session, after=2), Socket(session, after=2)
        stuck.gate.clear()
        await loop.write(append, session, note())
        await fine.until(3)
        for number in range(30):
            await loop.write(append, session, note(number))
            await fine.until(4 + number)
        stuck.gate.set()
        assert await stuck.closed() == 4408
        assert fine.got == list(range(3, 34))
        await fine.leave()

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_socket_whose_sending_fails_is_closed_and_not_left_silent(session: AgentSession) -> None:
    async def scenario() -> None:
        broken = Socket(session)

        async def refuse(text: str) -> None:
            raise ValueError("too long")

        broken.listener._send = refuse
        assert await broken.closed() == 4408

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_socket_that_blocks_too_long_gets_4408(session: AgentSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BLOCKED_S", 0.1)

    async def scenario() -> None:
        stuck = Socket(session)
        stuck.gate.clear()
        assert await stuck.closed() == 4408

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_long_history_waits_for_a_slow_socket_in_bounded_memory(
    session: AgentSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUEUE_BYTES", 50_000)

    async def scenario() -> None:
        for _ in range(20):
            await loop.write(append, session, *[note(0, 10_000) for _ in range(10)])
        slow = Socket(session)
        slow.gate.clear()
        async with asyncio.timeout(10):
            while slow.listener._size < 40_000:
                await asyncio.sleep(0.005)
        assert slow.listener._size <= 60_000
        slow.gate.set()
        await slow.until(202)
        assert slow.got == list(range(1, 203))
        await slow.leave()

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_one_event_larger_than_the_queue_still_arrives(session: AgentSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUEUE_BYTES", 1000)

    async def scenario() -> None:
        socket = Socket(session)
        await socket.until(2)
        await loop.write(append, session, note(0, 5000))
        await socket.until(3)
        await socket.leave()

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_restart_closes_every_socket_with_its_code(session: AgentSession) -> None:
    async def scenario() -> None:
        sockets = [Socket(session) for _ in range(5)]
        for socket in sockets:
            await socket.until(2)
        await close_all(4012)
        assert [await socket.closed() for socket in sockets] == [4012] * 5
        assert live.open_feeds() == {}

    run(scenario())


def test_a_socket_loses_its_permission_within_a_second(session: AgentSession) -> None:
    from accounts.services import token_create

    token, _ = token_create(user=make_user(), name="t", scope="read", expires_in_s=60)

    async def scenario() -> None:
        good, revoked = Socket(session, token_pk=token.pk), Socket(session, token_pk="gone")
        assert await revoked.closed(within=5) == 4401
        await good.until(2)
        await loop.write(lambda: AgentSession.objects.filter(pk=session.pk).delete())
        assert await good.closed(within=5) == 4404

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
@pytest.mark.parametrize("turns", range(8))
def test_a_socket_that_opens_while_the_last_one_leaves_is_live(session: AgentSession, turns: int) -> None:
    async def scenario() -> None:
        leaving = Socket(session)
        await leaving.until(2)
        leaving.task.cancel()
        for _ in range(turns):  # of the loop, between the leaving and the opening
            await asyncio.sleep(0)
        opened = Socket(session)
        await asyncio.wait({leaving.task})
        await opened.until(2)
        assert live.open_feeds() == {session.pk: 1}
        await loop.write(append, session, note())
        await opened.until(3)
        await close_all(4012)
        assert await opened.closed() == 4012
        assert live.open_feeds() == {}

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
@pytest.mark.parametrize("turns", range(8))
def test_a_socket_that_leaves_in_its_replay_takes_no_later_one_along(session: AgentSession, turns: int) -> None:
    async def scenario() -> None:
        live_one = Socket(session)
        await live_one.until(2)
        replaying = Socket(session)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        replaying.task.cancel()
        live_one.task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        opened = Socket(session)
        await asyncio.wait({replaying.task, live_one.task})
        await opened.until(2)
        assert live.open_feeds() == {session.pk: 1}
        await opened.leave()
        assert live.open_feeds() == {}

    run(scenario())


@pytest.mark.usefixtures("always_permitted")
def test_a_reader_that_is_ended_in_the_moment_of_a_bell_ends(session: AgentSession) -> None:
    """A cancel that was swallowed then would leave a reader behind that looks about for ever."""

    async def scenario() -> list[bool]:
        socket = Socket(session)
        await socket.until(2)
        feed = Feed._all[session.pk]
        async with asyncio.timeout(10):
            while not feed._bell._waiters:
                await asyncio.sleep(0)
        pump = feed._tasks[0]
        feed._bell.set()
        await asyncio.sleep(0)
        pump.cancel()
        await asyncio.wait({pump}, timeout=5)
        ended = [pump.done()]
        pump.cancel()
        await socket.leave()
        return ended

    assert run(scenario()) == [True]


@pytest.mark.usefixtures("always_permitted")
def test_opening_and_closing_many_sockets_leaves_no_task_behind(session: AgentSession) -> None:
    async def scenario() -> int:
        await asyncio.sleep(0)
        before = len(asyncio.all_tasks())
        for _ in range(20):
            sockets = [Socket(session) for _ in range(25)]
            await sockets[0].until(2)
            for socket in sockets:
                await socket.leave()
        assert Feed._all == {}
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.005)
        return len(asyncio.all_tasks()) - before

    assert run(scenario()) <= 0
