"""A cancel in every state a session can be in: it ends, and so does what it had running in its sandbox."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from accounts.audit import Actor
from accounts.models import User
from agents.limits import DEFAULTS
from agents.messages import Usage
from primer_site import loop
from sessions_app import claims, runner
from sessions_app.models import SessionEvent
from sessions_app.runner import CANCEL_S, COMMAND_DEAD, COMMAND_UNSEEN, HEARTBEAT_S, STILL_ENDING, STOP_S, Run
from sessions_app.services import session_cancel
from tests.eventually import eventually
from tests.factories import Api
from tests.llm.stub_http import Fails, How, Says, StubServer
from tests.sessions.cast import call, ended, events_of, make_session, start, until_event
from tests.sessions.conftest import Playing, Process
from tests.sessions.models import Modelled, data_of, each_kind, run
from workspaces.execution import ExecRequest
from workspaces.models import COMING, Exec, Workspace
from workspaces.providers.base import EngineUnavailable
from workspaces.runtime import killer, protocol
from workspaces.sandbox import Sandbox

WITHIN_S = 30.0  # for a busy machine; what is cancelled here would else go on for minutes
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


def cancelled(person: Api, session_id: str) -> dict[str, Any]:
    assert person.post(f"sessions/{session_id}/cancel").status_code in (200, 202)
    item = ended(person, session_id, within=WITHIN_S)
    assert item["ended_reason"] == "cancelled", item
    kinds = [event.kind for event in events_of(session_id)]
    assert (kinds.count("session_ended"), kinds[-1]) == (1, "session_ended")
    return item


def test_the_waits_of_a_cancel_add_up_to_less_than_five_seconds() -> None:
    assert CANCEL_S == 5.0
    assert HEARTBEAT_S + STOP_S < CANCEL_S
    # An agent's program gets the runtime's own grace, and half a second of sweeps fits behind it.
    assert "grace_s" not in ExecRequest.__slots__
    assert protocol.DEFAULT_GRACE_S + 25 * killer._SWEEP_S < STOP_S


def test_a_session_that_is_claimed_but_not_yet_driven(
    process: Process, workspace: Workspace, playing: Playing, owner: User
) -> None:
    agent = playing({"calls": [call("sleep 600")]})
    process.stop()
    session = claims.claim(make_session(owner, agent, workspace).pk)
    assert session is not None
    session_cancel(by=Actor(owner), session=session)

    async def drive() -> None:
        await Run(session).drive()

    process.start()
    loop.run(drive(), 30)
    session.refresh_from_db()
    assert (session.status, session.ended_reason) == ("ended", "cancelled")
    assert not Exec.objects.filter(state="running").exists()


def test_waiting_for_a_workspace_that_does_not_start(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workspaces.providers.fake import FakeProvider

    release, original = threading.Event(), FakeProvider.start

    async def held(self: FakeProvider, spec: Any) -> Any:
        while not release.is_set():
            await asyncio.sleep(0.02)
        return await original(self, spec)

    monkeypatch.setattr(FakeProvider, "start", held)
    Workspace.objects.filter(pk=workspace.pk).update(desired="stopped")
    try:
        session_id = start(alice, workspace, playing({"text": "never"}), "go")
        until_event(session_id, "workspace_phase")
        cancelled(alice, session_id)
        workspace.refresh_from_db()
        assert workspace.phase in (*COMING, "stopped"), "the session did not wait for it"
        assert not data_of(session_id, "turn_started")
    finally:
        release.set()


@each_kind
def test_a_model_that_sends_nothing(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    session_id = start(alice, workspace, modelled(kind, (Says("never"), How(hang=0))), "go")
    assert stubs[0].hung.wait(30)
    cancelled(alice, session_id)
    assert stubs[0].dropped.wait(10)


def test_a_model_in_the_middle_of_its_reply(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    says = Says("never whole " * 10, usage=Usage(100, 7))
    session_id = start(alice, workspace, modelled("anthropic", (says, How(hang=700))), "go")
    until_event(session_id, "text_delta")
    item = cancelled(alice, session_id)
    assert stubs[0].dropped.wait(10)
    assert (item["turns"], item["tool_calls"], item["usage"]["input_tokens"]) == (1, 0, 100)
    assert item["usage"]["cost"] == pytest.approx(100 * 3 / 1e6, abs=2e-4)
    assert item["ended_detail"] == {"code": "cancelled", "message": "Cancelled by alice.", "hint": ""}, "no command ran"


def test_the_pause_before_another_try(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    agent = modelled("openai", Fails(503, headers=(("retry-after", "100"),)))
    session_id = start(alice, workspace, agent, "go")
    assert until_event(session_id, "warning").data["retry_in_s"] == 100
    cancelled(alice, session_id)
    assert len(stubs[0].asked) == 1


def test_the_wait_for_a_place_at_the_provider(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    agent = modelled("openai", (Says("never whole"), How(hang=200)), max_concurrency=1)
    first = start(alice, workspace, agent, "go")
    assert stubs[0].hung.wait(30)
    second = start(alice, workspace, agent, "go")
    warning = until_event(second, "warning").data
    assert warning["code"] == "llm_busy"
    assert agent.provider.slug in warning["message"]
    cancelled(alice, second)
    assert len(stubs[0].asked) == 1
    cancelled(alice, first)


def test_a_question_asked_again_after_the_conversation_was_made_shorter(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    noise = Says(calls=(run("python -c 'print(\"y\" * 8000)'"),))
    agent = modelled("anthropic", noise, (Says("never"), How(hang=0)))
    stubs[0].max_tokens_of_context = 1500
    session_id = start(alice, workspace, agent, "go")
    assert stubs[0].hung.wait(30)
    assert [warning["code"] for warning in data_of(session_id, "warning")] == ["compacted"]
    cancelled(alice, session_id)


def test_between_two_turns(
    process: Process, workspace: Workspace, playing: Playing, owner: User, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = claims.note_used, threading.Event()

    def cancelling(session: Any, *args: Any, **options: Any) -> None:
        original(session, *args, **options)
        if not seen.is_set() and any(getattr(one, "kind", "") == "turn_ended" for one in args):
            seen.set()
            session_cancel(by=Actor(owner), session=session)

    monkeypatch.setattr(claims, "note_used", cancelling)
    session_id = start(alice, workspace, playing({"calls": [call("true")]}), "go")
    item = ended(alice, session_id, within=WITHIN_S)
    assert item["ended_reason"] == "cancelled"
    assert item["turns"] < DEFAULTS["max_turns"]
    assert len(data_of(session_id, "tool_call")) == len(data_of(session_id, "tool_result"))


def test_a_program_that_does_not_want_to_die_is_dead_with_all_its_children_before_the_session_ends(
    process: Process, workspace: Workspace, modelled: Modelled, alice: Api
) -> None:
    mark = f"stubborn-{uuid.uuid4().hex}"
    child = f'sh -c "{STUBBORN}; : {mark}"'
    command = f"trap '' TERM; {child} & setsid {child} & (setsid {child} &) ; echo up; {STUBBORN}; : {mark}"
    agent = modelled("anthropic", Says(calls=(run(command, timeout_s=600),)))
    session_id = start(alice, workspace, agent, "go")
    output = until_event(session_id, "tool_output")
    exec_id = output.data["exec_id"]
    assert _alive(mark) >= 4
    item = cancelled(alice, session_id)
    assert item["ended_detail"]["hint"] == COMMAND_DEAD
    assert _alive(mark) == 0
    row = Exec.objects.get(slug=exec_id)
    assert (row.ended_by, row.survivors) == ("cancelled", [])
    end = SessionEvent.objects.get(session__slug=session_id, kind="session_ended")
    assert row.ended_at is not None
    assert row.ended_at <= end.ts
    (result,) = data_of(session_id, "tool_result")
    lived = (end.ts - output.ts).total_seconds() * 1000
    assert result["duration_ms"] > 0.8 * lived, "the call ran from before its first output until its end"
    assert (result["ended_by"], result["exec_id"], result["evidence"]) == (
        "cancelled",
        exec_id,
        {"cancelled_by": "alice"},
    )


def _alive(mark: str) -> int:
    """Processes of this machine with `mark` in their command line: the fake engine's sandboxes are directories of it."""
    found = 0
    for process in psutil.process_iter(["cmdline", "status"]):
        found += mark in json.dumps(process.info["cmdline"]) and process.info["status"] != psutil.STATUS_ZOMBIE
    return found


def test_a_sandbox_that_does_not_answer_holds_up_no_cancel_and_is_not_called_dead(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(self: Any, exec_id: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("sessions_app.bench.SandboxBench._kill", silent)
    monkeypatch.setattr(runner, "STOP_S", 0.05)
    session_id = start(alice, workspace, playing({"calls": [call("echo up; sleep 600")]}), "go")
    until_event(session_id, "tool_output")
    item = cancelled(alice, session_id)
    assert item["ended_detail"]["hint"] == STILL_ENDING
    (result,) = data_of(session_id, "tool_result")
    assert STILL_ENDING in result["text"]
    assert (result["ok"], result["ended_by"]) == (False, None)


def test_a_command_whose_sandbox_could_not_be_asked_is_not_called_dead(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_exec = Sandbox.start_exec

    async def never(self: Sandbox, request: ExecRequest, **settings: Any) -> Any:
        if "sleep 600" not in " ".join(request.argv):  # the probes of its boot
            return await start_exec(self, request, **settings)
        await asyncio.Event().wait()

    async def away(self: Sandbox, exec_id: str, by: str) -> None:
        raise EngineUnavailable

    monkeypatch.setattr(Sandbox, "start_exec", never)
    monkeypatch.setattr(Sandbox, "kill_exec", away)
    session_id = start(alice, workspace, playing({"calls": [call("sleep 600")]}), "go")
    until_event(session_id, "tool_call")
    eventually(lambda: Exec.objects.filter(session_id=session_id).exists())
    item = cancelled(alice, session_id)
    assert item["ended_detail"]["hint"] == COMMAND_UNSEEN
    (result,) = data_of(session_id, "tool_result")
    assert COMMAND_UNSEEN in result["text"]
    assert result["ok"] is False
