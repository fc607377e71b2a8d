"""The one writer: dense numbers, fenced by generation, secrets masked, deltas merged."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any
from urllib.parse import quote

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.redact import MASK, Redactor
from primer_site import loop
from sessions_app import claims
from sessions_app.events import EventDraft, append, events_after
from sessions_app.models import AgentSession, EventKind, SessionEvent, Status
from sessions_app.querysets import LostLease
from sessions_app.redact import clean
from sessions_app.services import locked
from sessions_app.writer import FULL_CHARS, Writer
from tests.sessions.cast import events_of, make_session


def delta(text: str) -> EventDraft:
    return EventDraft(EventKind.TEXT_DELTA, {"text": text})


def output(text: str, offset: int, call_id: str = "c1", stream: str = "stdout") -> EventDraft:
    data = {"call_id": call_id, "exec_id": "exec-1", "stream": stream, "offset": offset, "text": text}
    return EventDraft(EventKind.TOOL_OUTPUT, data)


@pytest.mark.django_db
def test_numbers_are_dense_from_one() -> None:
    session = locked(make_session())
    append(session, delta("a"), delta("b"))
    append(session, delta("c"))
    assert [event.seq for event in events_of(session.slug)] == [1, 2, 3, 4, 5]
    session.refresh_from_db()
    assert session.last_seq == 5


@pytest.mark.django_db
def test_a_runner_of_an_older_generation_writes_nothing() -> None:
    session = locked(make_session())
    AgentSession.objects.filter(pk=session.pk).update(generation=7)
    before = SessionEvent.objects.count()
    with pytest.raises(LostLease):
        append(session, delta("too late"))
    assert SessionEvent.objects.count() == before


@pytest.mark.django_db
def test_a_batch_that_fails_leaves_no_number_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    session = locked(make_session())
    with pytest.raises(IntegrityError), transaction.atomic():
        append(session, delta("a"), EventDraft("nonsense"))  # type: ignore[arg-type]
    append(session, delta("b"))
    events_of(session.slug)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values",
    [{"status": "zzz"}, {"status": "running"}, {"status": "ended"}, {"ended_reason": "completed"}, {"status": "ended", "ended_reason": "x"}],
)  # fmt: skip
def test_the_database_refuses_states_that_make_no_sense(values: dict[str, Any]) -> None:
    session = make_session()
    with pytest.raises(IntegrityError), transaction.atomic():
        AgentSession.objects.filter(pk=session.pk).update(**values)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "row", [{"seq": 1, "kind": "warning"}, {"seq": 0, "kind": "warning"}, {"seq": 99, "kind": "zzz"}]
)
def test_the_database_refuses_events_that_make_no_sense(row: dict[str, Any]) -> None:
    session = make_session()
    with pytest.raises(IntegrityError), transaction.atomic():
        SessionEvent.objects.create(session=session, data={}, **row)


@pytest.mark.django_db
def test_only_one_runner_claims_a_session() -> None:
    session = make_session()
    first = claims.claim(session.pk, "one")
    assert first is not None
    assert claims.claim(session.pk, "two") is None
    assert (first.status, first.generation, first.lease_holder) == (Status.RUNNING, 1, "one")


def test_two_threads_append_to_two_sessions_without_a_gap(quiet_database: None) -> None:
    sessions = [locked(make_session()), locked(make_session())]

    def work(session: AgentSession) -> None:
        for number in range(50):
            append(session, delta(str(number)))
        connection.close()

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        assert len(events_of(session.slug)) == 52


@pytest.mark.django_db
def test_text_that_no_database_takes_is_made_visible() -> None:
    session = locked(make_session())
    append(session, delta("a\x00b\ud83dc"))
    assert events_of(session.slug)[-1].data["text"] == "a\u2400b\ufffdc"


@pytest.mark.django_db
def test_nesting_without_end_is_cut() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    session = locked(make_session())
    append(session, EventDraft(EventKind.TOOL_CALL, {"call_id": "c", "name": "x", "arguments": deep}))
    assert "[nested too deep]" in str(events_of(session.slug)[-1].data)


SECRET = "hunter2:swordfish/42"


@pytest.mark.parametrize(
    "text",
    [
        SECRET, quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"x{SECRET}y".encode()).decode(), base64.b64encode(f"ab{SECRET}".encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(), f"key={SECRET};",
    ],
)  # fmt: skip
def test_a_known_secret_is_masked_in_every_form(text: str) -> None:
    hidden = Redactor([SECRET]).hide(text)
    assert MASK in hidden
    for form in (SECRET, "swordfish", base64.b64encode(b"swordfish").decode()[:8]):
        assert form not in hidden


def test_masking_reaches_keys_and_nested_values_and_leaves_the_rest() -> None:
    cleaned = clean({"a": [f"<{SECRET}>", 1, None, True], SECRET: {"b": "plain"}}, Redactor([SECRET, "abc"]))
    assert cleaned == {"a": [f"<{MASK}>", 1, None, True], MASK: {"b": "plain"}}


@settings(deadline=None)  # a busy machine is not a failure
@given(st.text("ab:", max_size=40), st.text("ab", min_size=4, max_size=6), st.data())
def test_a_secret_cut_anywhere_is_still_masked(around: str, secret: str, data: st.DataObject) -> None:
    text = f"{around}{secret}{around}"
    redactor, shown, held = Redactor([secret]), "", ""
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        now, held = redactor.split(held + text[at : at + size])
        shown += redactor.hide(now)
        at += size
    assert secret not in (shown + redactor.hide(held)).replace(MASK, "|")


# The merging writer, on the loop of the process.


@pytest.fixture
def long_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored by time: a busy machine must not decide what is merged."""
    monkeypatch.setattr("sessions_app.writer.QUIET_S", 30.0)


def written(session_slug: str, kind: str = "text_delta") -> list[str]:
    return [event.data["text"] for event in events_of(session_slug) if event.kind == kind]


def play(session: AgentSession, *steps: Any, redactor: Redactor | None = None) -> None:
    """Adds drafts and waits for numbers of seconds, then flushes."""

    async def scenario() -> None:
        writer = Writer(session, redactor or Redactor())
        for step in steps:
            if isinstance(step, EventDraft):
                await writer.add(step)
            else:
                await asyncio.sleep(step)
        await writer.flush()

    loop.run(scenario(), 20)


def test_the_first_delta_is_stored_at_once_and_the_next_ones_together(quiet_database: None, long_quiet: None) -> None:
    session = locked(make_session())
    play(session, *[delta(f"{number} ") for number in range(20)])
    texts = written(session.slug)
    assert texts[0] == "0 "
    assert len(texts) == 2
    assert "".join(texts) == "".join(f"{number} " for number in range(20))


def test_a_full_buffer_does_not_wait(quiet_database: None, long_quiet: None) -> None:
    session = locked(make_session())
    play(session, delta("first"), *[delta("x" * 600) for _ in range(4)])
    assert [len(text) for text in written(session.slug)] == [5, 1200, 1200]
    assert FULL_CHARS == 1024


def test_a_held_delta_is_stored_without_a_further_call(quiet_database: None) -> None:
    session = locked(make_session())

    async def scenario() -> list[str]:
        writer = Writer(session, Redactor())
        await writer.add(delta("one"))
        await writer.add(delta("two"))
        for _ in range(200):
            found = await loop.read(events_after, session.pk, 2, 10)
            if len(found) == 2:
                break
            await asyncio.sleep(0.01)
        return [event.data["text"] for event in found]

    assert loop.run(scenario(), 20) == ["one", "two"]


def test_streams_and_calls_are_never_mixed_and_the_order_is_kept(quiet_database: None, long_quiet: None) -> None:
    session = locked(make_session())
    play(
        session, output("a", 0), output("b", 1), output("E", 0, stream="stderr"), output("c", 2), output("d", 0, "c2"),
        EventDraft(EventKind.WARNING, {"message": "!"}), output("e", 1, "c2"),
    )  # fmt: skip
    rows = [
        (event.data.get("call_id"), event.data.get("stream"), event.data.get("offset"), event.data.get("text"))
        for event in events_of(session.slug)[2:]
    ]
    assert rows == [
        ("c1", "stdout", 0, "a"), ("c1", "stdout", 1, "b"), ("c1", "stderr", 0, "E"), ("c1", "stdout", 2, "c"),
        ("c2", "stdout", 0, "d"), (None, None, None, None), ("c2", "stdout", 1, "e"),
    ]  # fmt: skip


def test_a_secret_split_over_deltas_is_held_until_it_is_whole(quiet_database: None) -> None:
    session = locked(make_session())
    play(session, output("key hun", 0), 0.1, output("ter2 end", 7), redactor=Redactor(["hunter2"]))
    rows = [(e.data["offset"], e.data["text"]) for e in events_of(session.slug) if e.kind == "tool_output"]
    assert rows == [(0, "key "), (4, "[secret] end")]


def test_a_lost_lease_is_raised_by_the_next_call(quiet_database: None) -> None:
    session = locked(make_session())
    AgentSession.objects.filter(pk=session.pk).update(generation=5)
    with pytest.raises(LostLease):
        play(session, delta("a"))


def test_a_cancelled_run_still_tells_what_it_had_begun_to_tell(quiet_database: None) -> None:
    session = locked(make_session())
    free = threading.Event()

    async def scenario() -> None:
        writer = Writer(session, Redactor())
        busy = asyncio.create_task(loop.write(free.wait, 20))
        await asyncio.sleep(0)
        telling = asyncio.create_task(writer.add(EventDraft(EventKind.WARNING, {"message": "it happened"})))
        for _ in range(5):
            await asyncio.sleep(0)
        telling.cancel()
        await asyncio.wait({telling})
        free.set()
        await writer.add(EventDraft(EventKind.WARNING, {"message": "the end"}))
        await busy

    loop.run(scenario(), 20)
    assert [event.data["message"] for event in events_of(session.slug)[2:]] == ["it happened", "the end"]


def test_a_run_that_is_cancelled_while_another_store_goes_on_takes_nothing_back(quiet_database: None) -> None:
    session = locked(make_session())
    free = threading.Event()

    async def scenario() -> None:
        writer = Writer(session, Redactor())
        busy = asyncio.create_task(loop.write(free.wait, 20))
        await asyncio.sleep(0)
        first = asyncio.create_task(writer.add(EventDraft(EventKind.WARNING, {"message": "first"})))
        second = asyncio.create_task(writer.add(EventDraft(EventKind.WARNING, {"message": "it happened"})))
        for _ in range(5):
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        assert not first.done()
        free.set()
        await writer.flush()
        await asyncio.gather(busy, first)

    loop.run(scenario(), 20)
    assert [event.data["message"] for event in events_of(session.slug)[2:]] == ["first", "it happened"]


def test_a_database_that_is_away_for_a_moment_loses_nothing(
    quiet_database: None, long_quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = locked(make_session())
    failures = [OperationalError("database is locked"), OperationalError("database is locked")]

    def sometimes(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return append(*args, **options)

    monkeypatch.setattr("sessions_app.writer.append", sometimes)
    monkeypatch.setattr("sessions_app.writer.AGAIN_S", (0.0, 0.0, 0.0))
    play(session, delta("a"), delta("b"), EventDraft(EventKind.WARNING, {"message": "c"}))
    assert written(session.slug) == ["a", "b"]
    assert events_of(session.slug)[-1].kind == "warning"
