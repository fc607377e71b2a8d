"""After a crash, a restart or a stop: nothing stuck in `running`, nothing run twice, nothing left half."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from accounts.audit import Actor
from accounts.models import User
from agents.messages import ToolResult, repair
from agents.models import Agent
from primer_site import loop
from sessions_app import claims, dispatch, signals
from sessions_app.events import EventDraft, append
from sessions_app.history import history_of
from sessions_app.models import AgentSession, EventKind, Status
from sessions_app.querysets import LostLease
from sessions_app.runner import Run
from sessions_app.services import session_message
from tests.eventually import eventually
from tests.factories import Api
from tests.sessions.cast import call, ended, events_of, make_session, start, until_event
from tests.sessions.conftest import Playing, Process
from workspaces.models import Exec, Workspace

CALL = {"call_id": "call-1", "name": "workspace__exec", "arguments": {"command": "echo x >> count"}}


def crashed(session: AgentSession, *drafts: EventDraft, holder: str = "dead") -> AgentSession:
    """A session whose process died after it had written `drafts`."""
    claimed = claims.claim(session.pk, holder)
    assert claimed is not None
    append(claimed, *drafts)
    return claimed


def reply_with_call() -> tuple[EventDraft, ...]:
    said = {"text": "", "blocks": [], "provider": "scripted"}
    return EventDraft(EventKind.ASSISTANT_MESSAGE, said), EventDraft(EventKind.TOOL_CALL, CALL)


def output_of(exec_id: str) -> EventDraft:
    data = {"call_id": "call-1", "exec_id": exec_id, "stream": "stdout", "offset": 0, "text": "half"}
    return EventDraft(EventKind.TOOL_OUTPUT, data)


def make_exec(session: AgentSession, slug: str) -> Exec:
    """The row of a program that a call of the session started."""
    return Exec.objects.create(slug=slug, workspace=session.workspace, session_id=session.slug, request={"argv": ["x"]})


@pytest.mark.django_db
@pytest.mark.parametrize("written", [(), reply_with_call(), (*reply_with_call(), output_of("exec-77"))])
def test_at_boot_a_run_of_a_dead_process_is_interrupted_with_a_whole_history(written: tuple[EventDraft, ...]) -> None:
    session = crashed(make_session(), *written)
    assert claims.interrupt_foreign() == [session.slug]
    session.refresh_from_db()
    assert (session.status, session.ended_reason) == (Status.ENDED, "interrupted")
    assert (session.ended_detail or {}).get("code") == "interrupted"
    events = events_of(session.slug)
    assert events[-1].kind == "session_ended"
    results = [event.data for event in events if event.kind == "tool_result"]
    assert len(results) == len([event for event in events if event.kind == "tool_call"])
    if results:
        assert not results[0]["ok"]
        assert results[0]["exec_id"] == ("exec-77" if len(written) == 3 else None)
    history = history_of(session)
    assert repair(history) == history
    assert claims.interrupt_foreign() == []


@pytest.mark.django_db
def test_what_a_dead_run_had_done_since_its_turn_began_is_counted() -> None:
    def turn(number: int) -> EventDraft:
        return EventDraft(EventKind.TURN_STARTED, {"turn": number, "model": "m"})

    second, third = {**CALL, "call_id": "call-2"}, {**CALL, "call_id": "call-3"}
    done = EventDraft(EventKind.TOOL_RESULT, {"call_id": "call-1", "ok": True, "text": "exit 0", "exec_id": None})
    calls = (EventDraft(EventKind.TOOL_CALL, second), EventDraft(EventKind.TOOL_CALL, third))
    session = crashed(make_session(), turn(1), *reply_with_call(), *calls, done)
    claims.interrupt_foreign()
    session.refresh_from_db()
    assert (session.turns, session.tool_calls) == (1, 2), "the third call was not begun"
    end = events_of(session.slug)[-1].data
    assert (end["totals"]["turns"], end["totals"]["tool_calls"]) == (1, 2)
    results = [event.data for event in events_of(session.slug) if event.kind == "tool_result"]
    assert [result.get("duration_ms", "given") for result in results] == ["given", None, None], "nobody knows"
    # It goes on and dies again, before its first turn: nothing is counted a second time.
    session_message(by=Actor(session.owner), session=session, text="go on")
    crashed(session)
    claims.interrupt_foreign()
    session.refresh_from_db()
    assert (session.turns, session.tool_calls) == (1, 2)


def test_a_run_that_dies_in_its_first_call_keeps_what_its_reply_had_used(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    used = {"input_tokens": 100, "output_tokens": 7}
    session_id = start(alice, workspace, playing({"calls": [call("echo begun; sleep 600")], "usage": used}), "go")
    until_event(session_id, "tool_output")
    AgentSession.objects.filter(slug=session_id).update(lease_holder="another")
    assert claims.interrupt_foreign() == [session_id]
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["turns"], item["tool_calls"]) == ("interrupted", 1, 1)
    assert (item["usage"]["input_tokens"], item["usage"]["output_tokens"]) == (100, 7)


@pytest.mark.django_db
def test_an_interrupted_call_names_its_program_even_if_that_printed_nothing() -> None:
    second, third = {**CALL, "call_id": "call-2"}, {**CALL, "call_id": "call-3"}
    session = crashed(
        make_session(),
        *reply_with_call(),
        EventDraft(EventKind.TOOL_CALL, second),
        EventDraft(EventKind.TOOL_CALL, third),
    )
    make_exec(session, "exec-1")
    done = {"call_id": "call-1", "ok": True, "text": "exit 0", "exec_id": "exec-1"}
    append(session, EventDraft(EventKind.TOOL_RESULT, done))
    make_exec(session, "exec-2")
    make_exec(make_session(), "exec-of-another-session")
    claims.interrupt_foreign()
    results = [event.data for event in events_of(session.slug) if event.kind == "tool_result"]
    assert [(result["call_id"], result["exec_id"]) for result in results] == [
        ("call-1", "exec-1"), ("call-2", "exec-2"), ("call-3", None),
    ]  # fmt: skip


@pytest.mark.django_db
def test_an_interrupted_call_that_had_started_no_program_names_none() -> None:
    session = crashed(make_session(), *reply_with_call())
    make_exec(session, "exec-1")
    append(
        session, EventDraft(EventKind.TOOL_RESULT, {"call_id": "call-1", "ok": True, "text": "", "exec_id": "exec-1"}),
        EventDraft(EventKind.TOOL_CALL, {**CALL, "call_id": "call-2", "name": "workspace__read"}),
    )  # fmt: skip
    claims.interrupt_foreign()
    results = [event.data for event in events_of(session.slug) if event.kind == "tool_result"]
    assert [(result["call_id"], result["exec_id"]) for result in results] == [("call-1", "exec-1"), ("call-2", None)]


@pytest.mark.django_db
def test_a_run_of_this_very_process_is_left_alone_at_boot() -> None:
    session = crashed(make_session(), holder=claims.HOLDER)
    assert claims.interrupt_foreign() == []
    session.refresh_from_db()
    assert session.status == Status.RUNNING


@pytest.mark.django_db
def test_a_run_whose_lease_ran_out_is_interrupted_and_its_late_runner_is_fenced_out() -> None:
    late = crashed(make_session(), *reply_with_call(), holder="hanging")
    assert claims.interrupt_expired(set()) == []
    AgentSession.objects.filter(pk=late.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert claims.interrupt_expired({late.pk}) == []  # a run that this process knows to be alive
    assert claims.interrupt_expired(set()) == [late.slug]
    count = len(events_of(late.slug))
    with pytest.raises(LostLease):
        append(late, EventDraft(EventKind.TOOL_RESULT, {"call_id": "call-1", "ok": True, "text": "late"}))
    assert claims.renew(late) == (False, "")
    assert len(events_of(late.slug)) == count


def test_after_a_restart_waiting_sessions_run_and_dead_ones_are_interrupted(
    process: Process, workspace: Workspace, agent: Agent, alice: Api, owner: User
) -> None:
    ended(alice, start(alice, workspace, agent))
    process.stop()
    dead = crashed(make_session(owner, agent, workspace), *reply_with_call())
    waiting = make_session(owner, agent, workspace, "Run this code: print('waited')")
    process.start()
    assert ended(alice, waiting.slug)["answer"] == "The snippet printed:\nwaited"
    assert ended(alice, dead.slug)["ended_reason"] == "interrupted"
    assert alice.get(f"workspaces/{workspace.slug}/files/read", path="count").status_code == 404  # not run by anybody


def test_an_interrupted_session_goes_on_by_a_message_and_runs_no_call_again(
    process: Process, workspace: Workspace, agent: Agent, alice: Api, owner: User
) -> None:
    process.stop()
    dead = crashed(make_session(owner, agent, workspace, "echo"), *reply_with_call())
    process.start()
    ended(alice, dead.slug)
    assert alice.post(f"sessions/{dead.slug}/messages", {"text": "Run this code: print('on')"}).status_code == 200
    item = ended(alice, dead.slug)
    assert (item["ended_reason"], item["answer"]) == ("completed", "The snippet printed:\non")
    assert alice.get(f"workspaces/{workspace.slug}/files/read", path="count").status_code == 404
    results = [message for message in history_of(dead) if isinstance(message, ToolResult)]
    assert "interrupted" in results[0].text


def test_a_stop_interrupts_what_does_not_end_in_time_and_ends_its_programs(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    session_id = start(alice, workspace, playing({"calls": [call("echo begun; sleep 600")]}), "go")
    exec_id = until_event(session_id, "tool_output").data["exec_id"]
    process.stop(drain_s=0.2)
    item = alice.get(f"sessions/{session_id}").json()
    assert (item["status"], item["ended_reason"]) == ("ended", "interrupted")
    (result,) = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert (result["ok"], result["exec_id"]) == (False, exec_id)
    eventually(lambda: Exec.objects.get(slug=exec_id).ended_by == "cancelled", within=10)


def test_a_stop_waits_for_what_ends_in_time_and_takes_nothing_new(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"calls": [call("echo begun; sleep 0.5; echo end")]}, {"text": "finished"})
    session_id = start(alice, workspace, agent, "go")
    until_event(session_id, "tool_output")
    process.stop(drain_s=20)
    item = alice.get(f"sessions/{session_id}").json()
    assert (item["ended_reason"], item["answer"]) == ("completed", "finished")
    later = start(alice, workspace, agent, "go")
    assert alice.get(f"sessions/{later}").json()["status"] == "queued"
    process.start()
    assert ended(alice, later)["ended_reason"] == "completed"


def test_a_runner_that_lost_its_lease_stops_its_program_and_writes_nothing(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    session_id = start(alice, workspace, playing({"calls": [call("echo begun; sleep 600")]}), "go")
    exec_id = until_event(session_id, "tool_output").data["exec_id"]
    AgentSession.objects.filter(slug=session_id).update(generation=99, lease_holder="another")
    eventually(lambda: Exec.objects.get(slug=exec_id).ended_by == "cancelled", within=15)
    assert [event.kind for event in events_of(session_id)][-1] == "tool_output"
    assert claims.interrupt_foreign() == [session_id]
    assert ended(alice, session_id)["ended_reason"] == "interrupted"


def test_a_cancel_through_another_process_is_noticed(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    session_id = start(alice, workspace, playing({"calls": [call("sleep 600")]}), "go")
    until_event(session_id, "tool_call")
    AgentSession.objects.filter(slug=session_id).update(cancel_requested_by="carol")
    item = ended(alice, session_id, within=10)
    assert item["ended_detail"]["message"] == "Cancelled by carol."


@pytest.mark.django_db
def test_a_queued_session_is_cancelled_at_once() -> None:
    from sessions_app.services import session_cancel
    from tests.factories import make_user

    session = session_cancel(by=Actor(make_user()), session=make_session())
    assert (session.status, session.ended_reason) == (Status.ENDED, "cancelled")
    assert claims.claim(session.pk) is None


def test_a_bug_in_the_run_ends_the_session_as_failed_and_shows_nothing_of_it(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Any, path: str, *, offset: int, limit: int) -> Any:
        raise ZeroDivisionError("secret path /etc/x")

    monkeypatch.setattr("sessions_app.bench.SandboxBench.read", broken)
    agent = playing({"calls": [{"name": "workspace__read", "arguments": {"path": "a"}}]})
    session_id = start(alice, workspace, agent, "go")
    item = ended(alice, session_id)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("failed", "internal")
    assert "/etc/x" not in str([event.data for event in events_of(session_id)])
    assert [event.data["ok"] for event in events_of(session_id) if event.kind == "tool_result"] == [False]


def test_a_workspace_that_is_deleted_under_a_run_fails_it(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    agent = playing({"calls": [call("echo begun; sleep 600")]}, {"calls": [call("true")]}, {"text": "done"})
    session_id = start(alice, workspace, agent, "go")
    until_event(session_id, "tool_output")
    assert alice.delete(f"workspaces/{workspace.slug}").status_code == 202
    item = ended(alice, session_id)
    assert item["ended_reason"] in ("failed", "completed")
    lost = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert not lost[0]["ok"]
    assert item["ended_reason"] == "failed", item


def test_driving_a_session_that_is_already_over_writes_no_second_end(
    process: Process, workspace: Workspace, agent: Agent, alice: Api
) -> None:
    session_id = start(alice, workspace, agent)
    ended(alice, session_id)
    stale = AgentSession.objects.select_related("workspace", "agent__provider", "owner").get(slug=session_id)
    count = len(events_of(session_id))

    async def drive() -> None:
        await Run(stale).drive()

    loop.run(drive(), 30)
    kinds = [event.kind for event in events_of(session_id)]
    assert kinds.count("session_ended") == 1, kinds[count:]


async def test_a_session_that_is_claimed_while_the_server_stops_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claiming, claimed, halts = asyncio.Event(), asyncio.Event(), []

    class Halted:
        def __init__(self, session: Any) -> None:
            self.pk, self.session, self._end = 1, session, asyncio.Event()

        def halt(self, *how: str) -> None:
            halts.append(how)
            self._end.set()

        async def drive(self) -> None:
            await self._end.wait()

    async def read(*_: Any) -> list[int]:
        return [1]

    async def write(function: Any, *_: Any) -> Any:
        if function is not claims.claim:
            return []
        claiming.set()
        await claimed.wait()
        return SimpleNamespace(slug="sess-1")

    monkeypatch.setattr(dispatch, "Run", Halted)
    monkeypatch.setattr(dispatch, "loop", SimpleNamespace(read=read, write=write))
    dispatcher, stop = dispatch.Dispatcher(), asyncio.Event()
    serving = asyncio.create_task(dispatcher.serve(stop))
    await claiming.wait()
    stop.set()
    draining = asyncio.create_task(dispatcher.drain(0))
    await asyncio.wait({draining}, timeout=0.05)
    claimed.set()
    await draining
    assert halts == [("interrupted", "restart")]
    await serving


def test_the_dispatcher_is_not_disturbed_by_a_run_that_breaks(
    process: Process, workspace: Workspace, agent: Agent, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_session(workspace=workspace, agent=agent)
    original = Run.drive

    async def breaks(self: Run) -> None:
        if self.pk == first.pk:
            raise ZeroDivisionError("bug")
        await original(self)

    monkeypatch.setattr(Run, "drive", breaks)
    signals.queued()
    item = ended(alice, start(alice, workspace, agent))
    assert item["ended_reason"] == "completed"
