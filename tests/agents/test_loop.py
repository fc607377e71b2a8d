"""The agent loop: what it never does, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from agents.budget import Limits
from agents.events import (
    CallEnded,
    CallExec,
    CallOutput,
    CallStarted,
    Ended,
    LoopEvent,
    Replied,
    Retrying,
    TurnEnded,
    TurnStarted,
)
from agents.llm.base import LLM, LLMEvent, LLMRequest, Reply, TextDelta
from agents.llm.scripted import ScriptedLLM, parse_turns
from agents.loop import AgentLoop, Settings
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, UserMessage
from agents.tools import Toolbox
from agents.tools.base import BenchFailed
from tests.agents.bench import MemoryBench, printed
from workspaces.execution import OutputChunk

WRITE = {"name": "workspace__write", "arguments": {"path": "a.py", "content": "print(1)\n"}}
TOOL_NAMES = ("write", "read", "edit", "ls", "glob", "grep", "exec", "output_read", "output_grep")
RUN = {"name": "workspace__exec", "arguments": {"command": "python a.py"}}


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


def make_loop(turns: list[dict[str, Any]], bench: MemoryBench | None = None, **limits: Any) -> AgentLoop:
    llm = ScriptedLLM(parse_turns(turns))
    return AgentLoop(llm, Toolbox(bench or MemoryBench()), Settings("m"), Limits(**limits), pause=no_pause)


async def play(loop: AgentLoop, *history: Message) -> list[LoopEvent]:
    async with aclosing(loop.events(history or (UserMessage("go"),))) as events:
        return [event async for event in events]


def ending(events: list[LoopEvent]) -> Ended:
    last = events[-1]
    assert isinstance(last, Ended)
    assert sum(isinstance(event, Ended) for event in events) == 1
    return last


def results(loop: AgentLoop) -> list[ToolResult]:
    return [message for message in loop.history if isinstance(message, ToolResult)]


async def test_a_reply_without_calls_completes_with_its_text() -> None:
    events = await play(make_loop([{"text": "Hello."}]))
    assert ending(events) == Ended("completed", "Hello.")
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-2], TurnEnded)


async def test_a_call_runs_between_its_announcement_and_its_result() -> None:
    bench = MemoryBench(lambda command: printed(b"1\n"))
    loop = make_loop([{"calls": [WRITE]}, {"calls": [RUN]}, {"text": "done"}], bench)
    events = await play(loop)
    kinds = [type(event) for event in events if not isinstance(event, TurnStarted | TurnEnded | TextDelta)]
    assert kinds == [
        Replied, CallStarted, CallEnded, Replied, CallStarted, CallExec, CallOutput, CallEnded, Replied, Ended,
    ]  # fmt: skip
    assert bench.files == {"a.py": b"print(1)\n"}
    assert [result.ok for result in results(loop)] == [True, True]


async def test_an_unknown_tool_is_an_error_result_and_the_loop_goes_on() -> None:
    loop = make_loop([{"calls": [{"name": "host__exec", "arguments": {}}]}, {"text": "sorry"}])
    assert ending(await play(loop)).reason == "completed"
    (result,) = results(loop)
    assert not result.ok
    assert "no tool 'host__exec'" in result.text
    assert "workspace__exec" in result.text


@pytest.mark.parametrize(
    "arguments",
    [
        [], "text", None, {}, {"path": "a"}, {"path": 1, "content": "x"}, {"path": "a", "content": "x", "workspace": "ws-1"},
        {"path": "a\x00b", "content": "x"}, {"path": "a", "content": "\ud83d"}, {"path": "", "content": "x"},
        {"path": "a", "content": "x" * 5_000_000}, {"path": True, "content": "x"},
    ],
)  # fmt: skip
async def test_bad_arguments_never_run_and_are_told_to_the_model(arguments: Any) -> None:
    bench = MemoryBench()
    loop = make_loop([{"calls": [{"name": "workspace__write", "arguments": arguments}]}, {"text": "ok"}], bench)
    assert ending(await play(loop)).reason == "completed"
    (result,) = results(loop)
    assert not result.ok
    assert result.text.startswith("The call was not run: ")
    assert bench.files == {}


async def test_a_call_cut_by_the_output_limit_is_not_run_and_the_model_may_send_it_again() -> None:
    bench = MemoryBench()
    loop = make_loop([{"calls": [WRITE], "stop_reason": "max_tokens"}, {"calls": [WRITE]}, {"text": "ok"}], bench)
    assert ending(await play(loop)).reason == "completed"
    assert [result.ok for result in results(loop)] == [False, True]
    assert "cut off" in results(loop)[0].text


async def test_text_cut_by_the_output_limit_ends_as_a_limit() -> None:
    end = ending(await play(make_loop([{"text": "half a sent", "stop_reason": "max_tokens"}])))
    assert (end.reason, end.code, end.answer) == ("limit", "max_output_tokens", "half a sent")


async def test_a_refusal_is_never_completed() -> None:
    end = ending(await play(make_loop([{"text": "No.", "stop_reason": "refusal"}])))
    assert (end.reason, end.code) == ("failed", "refused")


@pytest.mark.parametrize("turn", [{}, {"text": "  \n"}, {"thinking": "only thoughts"}])
async def test_an_empty_reply_fails_and_is_never_sent_back(turn: dict[str, Any]) -> None:
    loop = make_loop([turn])
    end = ending(await play(loop))
    assert (end.reason, end.code) == ("failed", "empty_reply")
    follow_up = make_loop([{"text": "hi"}])
    await play(follow_up, *loop.history, UserMessage("again"))
    assert all(not isinstance(m, AssistantMessage) or m.text.strip() for m in follow_up.history)


async def test_an_endless_loop_ends_at_the_limit_of_turns() -> None:
    end = ending(await play(make_loop([{"calls": [RUN]}], max_turns=3)))
    assert (end.reason, end.code) == ("limit", "max_turns")
    assert "3 turns" in end.message


async def test_calls_above_the_limit_get_results_but_do_not_run() -> None:
    bench = MemoryBench()
    loop = make_loop([{"calls": [RUN, RUN, RUN]}], bench, max_tool_calls=2)
    end = ending(await play(loop))
    assert (end.reason, end.code) == ("limit", "max_tool_calls")
    assert len(bench.commands) == 2
    assert [result.ok for result in results(loop)] == [True, True, False]


async def test_used_up_tokens_end_the_run_before_the_next_question() -> None:
    loop = make_loop([{"calls": [RUN], "usage": {"input_tokens": 60, "output_tokens": 50}}], max_tokens=100)
    end = ending(await play(loop))
    assert (end.reason, end.code) == ("limit", "max_tokens")
    assert loop.spent.usage == Usage(60, 50)


async def test_the_wall_clock_ends_a_running_tool() -> None:
    bench = MemoryBench(lambda command: [OutputChunk("stdout", 0, b"before"), asyncio.Event()])
    events = await play(make_loop([{"calls": [RUN]}], bench, timeout_s=0.05))
    assert (ending(events).reason, ending(events).code) == ("timed_out", "timeout_s")
    assert bench.killed == ["exec-1"]
    assert any(isinstance(event, CallOutput) for event in events)


async def test_the_wall_clock_ends_a_model_that_does_not_answer() -> None:
    class Silent(LLM):
        kind = "silent"
        closed = False

        async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
            try:
                await asyncio.Event().wait()
                yield TextDelta("never")
            finally:
                Silent.closed = True

        async def models(self) -> list[str]:
            return []

    loop = AgentLoop(Silent(), Toolbox(MemoryBench()), Settings("m"), Limits(timeout_s=0.05))
    assert ending(await play(loop)).reason == "timed_out"
    assert Silent.closed


async def test_cancelling_the_reader_ends_the_program() -> None:
    bench = MemoryBench(lambda command: [OutputChunk("stdout", 0, b"x"), asyncio.Event()])
    running = asyncio.Event()

    async def read() -> None:
        async with aclosing(make_loop([{"calls": [RUN]}], bench).events([UserMessage("go")])) as events:
            async for event in events:
                if isinstance(event, CallOutput):
                    running.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(running.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.killed == ["exec-1"]


async def test_a_stream_that_breaks_is_asked_again_and_the_break_is_visible() -> None:
    loop = make_loop([{"text": "a whole answer", "break_after": 3, "times": 2}])
    events = await play(loop)
    assert ending(events) == Ended("completed", "a whole answer")
    assert [(e.attempt, e.attempts) for e in events if isinstance(e, Retrying)] == [(2, 5), (3, 5)]
    assert sum(isinstance(event, Replied) for event in events) == 1


async def test_a_model_that_stays_away_fails_after_bounded_tries() -> None:
    events = await play(make_loop([{"error": "llm_unavailable"}]))
    assert (ending(events).reason, ending(events).code) == ("failed", "llm_unavailable")
    assert sum(isinstance(event, Retrying) for event in events) == 4


async def test_a_wrong_configuration_is_not_asked_again() -> None:
    events = await play(make_loop([{"error": "llm_config"}]))
    assert ending(events).code == "llm_config"
    assert not any(isinstance(event, Retrying) for event in events)


async def test_no_tool_runs_twice_when_the_model_breaks_after_it() -> None:
    bench = MemoryBench()
    turns: list[dict[str, Any]] = [{"calls": [RUN]}, {"text": "done", "error": "llm_unavailable", "times": 2}]
    assert ending(await play(make_loop(turns, bench))).reason == "completed"
    assert len(bench.commands) == 1


async def test_a_call_without_a_result_is_interrupted_and_never_run_again() -> None:
    bench = MemoryBench()
    reply = AssistantMessage("", (ToolCall("call-1", "workspace__exec", RUN["arguments"]),))
    loop = make_loop([{"calls": [RUN]}, {"text": "I see."}], bench)
    await play(loop, UserMessage("go"), reply, UserMessage("and now?"))
    assert bench.commands == []
    assert "interrupted" in results(loop)[0].text
    assert not results(loop)[0].ok


async def test_a_lost_sandbox_ends_the_run_with_its_own_code() -> None:
    bench = MemoryBench(lambda command: [BenchFailed("The workspace is lost.", cause_code="workspace_lost")])
    events = await play(make_loop([{"calls": [RUN, RUN]}, {"text": "never said"}], bench))
    end = ending(events)
    assert (end.reason, end.code, end.message) == ("failed", "workspace_lost", "The workspace is lost.")
    assert len(bench.commands) == 1
    assert any(isinstance(event, CallEnded) and not event.outcome.ok for event in events)


async def test_a_failing_program_is_a_result_for_the_model() -> None:
    bench = MemoryBench(lambda command: printed(b"", 3, b"no such thing\n"))
    loop = make_loop([{"calls": [RUN]}, {"text": "it failed"}], bench)
    assert ending(await play(loop)).reason == "completed"
    (result,) = results(loop)
    assert result.ok
    assert result.text.startswith("exit 3")
    assert "no such thing" in result.text


async def test_a_bug_in_a_tool_is_not_an_answer_for_the_model() -> None:
    bench = MemoryBench(lambda command: [ZeroDivisionError("bug")])
    with pytest.raises(ZeroDivisionError):
        await play(make_loop([{"calls": [RUN]}], bench))


async def test_usage_adds_up_over_turns() -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "cache_read_tokens": 1}
    loop = make_loop([{"calls": [RUN], "usage": usage}, {"text": "x", "usage": usage}])
    await play(loop)
    assert (loop.spent.usage, loop.spent.turns, loop.spent.tool_calls) == (Usage(20, 4, 2, 0), 2, 1)


async def test_the_question_holds_what_the_agent_says() -> None:
    seen: list[LLMRequest] = []

    class Watching(LLM):
        kind = "watching"

        async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
            seen.append(request)
            yield Reply(AssistantMessage("ok"), "end_turn")

        async def models(self) -> list[str]:
            return []

    settings = Settings("big", "be brief", max_output_tokens=7, temperature=0.5, thinking="auto")
    await play(AgentLoop(Watching(), Toolbox(MemoryBench()), settings))
    (request,) = seen
    assert (request.model, request.max_output_tokens) == ("big", 7)
    assert request.system.startswith("be brief\n\nThis run ends after 50 turns, 200 tool calls or 1800 s.")
    assert (request.temperature, request.thinking) == (0.5, "auto")
    names = {tool.name for tool in request.tools}
    assert names == {f"workspace__{name}" for name in TOOL_NAMES}
    for tool in request.tools:
        assert not {"workspace", "workspace_id", "user", "host", "token"} & set(tool.schema["properties"])
