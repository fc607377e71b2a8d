"""The loop's limits, its retries, independent calls, long conversations: what the model is told and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.budget import NOTE, Limits, Spent
from agents.compaction import LEFT_OUT, compact
from agents.events import CallEnded, CallStarted, Compacted, Ended, LoopEvent, Replied, Retrying, TurnEnded, TurnStarted
from agents.llm.base import LLM, ContextTooLong, LLMEvent, LLMRequest, LLMUnavailable, Reply
from agents.llm.scripted import ScriptedLLM, parse_turns
from agents.loop import AgentLoop, Settings, _pause_before
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, UserMessage, open_calls, repair
from agents.prices import Price, add_cost, prices_of
from agents.tools import Toolbox
from tests.agents.bench import MemoryBench, printed
from tests.agents.test_loop import RUN, WRITE, ending, make_loop, no_pause, play, results
from workspaces.execution import FileRange

READ = {"name": "workspace__read", "arguments": {"path": "a.py"}}


class Recording(ScriptedLLM):
    """Plays a script and remembers the questions."""

    def __init__(self, *turns: dict[str, Any], most_chars: int | None = None) -> None:
        super().__init__(parse_turns(list(turns)))
        self.asked: list[LLMRequest] = []
        self.most_chars = most_chars

    async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        self.asked.append(request)
        if self.most_chars is not None and sum(len(m.text) for m in request.messages) > self.most_chars:
            raise ContextTooLong
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


def recording(*turns: dict[str, Any], bench: MemoryBench | None = None, **limits: Any) -> tuple[Recording, AgentLoop]:
    most_chars = limits.pop("most_chars", None)
    llm = Recording(*turns, most_chars=most_chars)
    return llm, AgentLoop(llm, Toolbox(bench or MemoryBench()), Settings("m"), Limits(**limits), pause=no_pause)


# Limits


async def test_at_the_limit_of_turns_the_model_gives_a_last_answer_without_tools() -> None:
    llm, loop = recording({"calls": [RUN]}, {"calls": [RUN]}, {"text": "So far: 42."}, max_turns=2)
    end = ending(await play(loop))
    assert (end.reason, end.code, end.answer) == ("limit", "max_turns", "So far: 42.")
    assert [request.may_call for request in llm.asked] == [True, True, False]
    last = llm.asked[-1].messages[-1]
    assert isinstance(last, UserMessage)
    assert "limit of 2 turns" in last.text
    assert loop.spent.turns == 3, "the last answer is a turn of the transcript too"


async def test_a_model_that_calls_in_its_last_answer_runs_nothing_and_leaves_no_open_call() -> None:
    bench = MemoryBench()
    _, loop = recording({"text": "one", "calls": [RUN]}, bench=bench, max_turns=2)
    events = await play(loop)
    assert (ending(events).code, ending(events).answer) == ("max_turns", "one")
    assert len(bench.commands) == 2
    assert not open_calls(loop.history)
    last = [event.message for event in events if isinstance(event, Replied)][-1]
    assert (last.calls, last.blocks) == ((), ())


async def test_a_model_that_is_away_at_the_limit_still_ends_with_the_limit() -> None:
    _, loop = recording({"text": "a", "calls": [RUN]}, {"error": "llm_unavailable"}, max_turns=1)
    end = ending(await play(loop))
    assert (end.reason, end.code, end.answer) == ("limit", "max_turns", "a")


async def test_replies_that_are_cut_in_the_middle_of_a_call_again_and_again_name_the_limit_that_cuts_them() -> None:
    bench = MemoryBench()
    llm, loop = recording({"calls": [WRITE], "stop_reason": "max_tokens"}, bench=bench, max_turns=50)
    events = await play(loop)
    end = ending(events)
    assert (end.reason, end.code) == ("limit", "max_output_tokens")
    assert "8192 tokens" in end.message
    assert "max_output_tokens" in end.hint
    assert "max_turns" not in end.hint
    assert (len(llm.asked), bench.files) == (3, {})
    assert not open_calls(loop.history)
    assert sum(isinstance(event, TurnEnded) for event in events) == 3


async def test_calls_that_the_end_of_the_context_cuts_again_and_again_end_by_the_context_and_blame_no_other_limit() -> (
    None
):
    bench = MemoryBench()
    _, loop = recording({"calls": [WRITE], "stop_reason": "context_full"}, bench=bench)
    end = ending(await play(loop))
    assert (end.reason, end.code, bench.files) == ("limit", "context", {})
    assert "the model's context ends" in end.message
    assert "max_output_tokens" not in end.message + end.hint
    assert all("by the end of the model's context" in result.text for result in results(loop))


async def test_a_model_that_sends_smaller_calls_after_a_cut_goes_on() -> None:
    cut = {"calls": [WRITE], "stop_reason": "max_tokens"}
    _, loop = recording(cut, cut, {"calls": [RUN]}, cut, cut, {"text": "Done."})
    assert ending(await play(loop)) == Ended("completed", "Done.")


async def test_used_up_tokens_are_not_spent_on_a_last_answer() -> None:
    llm, loop = recording({"calls": [RUN], "usage": {"output_tokens": 100}}, {"text": "no"}, max_tokens=100)
    assert ending(await play(loop)).code == "max_tokens"
    assert len(llm.asked) == 1


async def test_the_model_is_told_the_limits_and_what_is_left() -> None:
    llm, loop = recording({"calls": [RUN]}, max_turns=4, max_tokens=1000)
    await play(loop)
    assert "This run ends after 4 turns, 200 tool calls, 1800 s or 1000 tokens." in llm.asked[0].system
    assert len({request.system for request in llm.asked}) == 1
    assert [NOTE in result.text for result in results(loop)] == [False, True, True, True]
    assert results(loop)[1].text.endswith("\n[Left of this run: 2 turns.]")


async def test_only_the_last_of_several_results_says_what_is_left() -> None:
    _, loop = recording({"calls": [WRITE, READ, READ]}, {"text": "x"}, max_turns=2)
    await play(loop)
    assert [NOTE in result.text for result in results(loop)] == [False, False, True]


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 500), st.integers(0, 600), st.floats(-5, 4000))
@settings(max_examples=200, deadline=None)
def test_what_is_left_is_never_negative(turns: int, used: int, calls: int, made: int, seconds: float) -> None:
    told = Spent(used, made, Usage(used)).left(Limits(turns, calls, 3600.0, 1000), seconds)
    assert "-" not in told
    assert Spent(used, made).over(Limits(turns, calls)) is None or used >= turns or made > calls


# Retries


async def test_a_pause_that_the_endpoint_asks_for_is_kept() -> None:
    waits: list[float] = []
    failing = _Failing(LLMUnavailable("Slow down.", retry_after_s=30))

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    loop = AgentLoop(failing, Toolbox(MemoryBench()), Settings("m"), pause=pause)
    assert ending(await play(loop)).code == "llm_unavailable"
    assert waits == [30.0] * 4


def test_a_pause_that_nobody_asks_for_doubles_and_is_never_the_same_for_many() -> None:
    for attempt, most in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0], 1):
        pauses = [_pause_before(attempt, LLMUnavailable()) for _ in range(50)]
        assert all(pause is not None and most / 2 <= pause <= most for pause in pauses)
        assert len(set(pauses)) > 40


async def test_nobody_waits_for_an_hour() -> None:
    loop = AgentLoop(
        _Failing(LLMUnavailable("Later.", retry_after_s=3600)), Toolbox(MemoryBench()), Settings("m"), pause=no_pause
    )
    events = await play(loop)
    assert ending(events).code == "llm_unavailable"
    assert not any(isinstance(event, Retrying) for event in events)


async def test_the_provider_says_how_often_it_is_asked_again() -> None:
    failing = _Failing(LLMUnavailable())
    failing.max_retries = 1
    events = await play(AgentLoop(failing, Toolbox(MemoryBench()), Settings("m"), pause=no_pause))
    assert [(e.attempt, e.attempts) for e in events if isinstance(e, Retrying)] == [(2, 2)]
    failing.max_retries = 0
    assert not any(
        isinstance(e, Retrying) for e in await play(AgentLoop(failing, Toolbox(MemoryBench()), Settings("m")))
    )


class _Failing(LLM):
    kind = "failing"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        raise self._error
        yield  # pragma: no cover - makes it a generator

    async def models(self) -> list[str]:
        return []


# Several calls in one reply


class MeetingBench(MemoryBench):
    """Reads wait until two of them are there at once."""

    def __init__(self, parties: int) -> None:
        super().__init__(files={"a.py": b"x"})
        self.barrier = asyncio.Barrier(parties)

    async def read(self, path: str, *, offset: int, limit: int) -> FileRange:
        await self.barrier.wait()
        return await super().read(path, offset=offset, limit=limit)


async def test_independent_reads_run_at_the_same_time_and_are_told_in_order() -> None:
    calls = [{**READ, "arguments": {"path": "a.py", "limit": number}} for number in (1, 2, 3)]
    loop = make_loop([{"calls": calls}, {"text": "done"}], MeetingBench(3), timeout_s=10)
    events = await play(loop)
    assert ending(events).reason == "completed"
    order = [event.call.call_id for event in events if isinstance(event, CallStarted | CallEnded)]
    assert order == ["call-1", "call-1", "call-2", "call-2", "call-3", "call-3"]
    assert [result.call_id for result in results(loop)] == ["call-1", "call-2", "call-3"]


async def test_a_read_behind_a_write_sees_what_was_written() -> None:
    loop = make_loop([{"calls": [WRITE, READ, RUN, READ]}, {"text": "done"}])
    assert ending(await play(loop)).reason == "completed"
    assert [result.text.startswith("print(1)") for result in results(loop)] == [False, True, False, True]


async def test_the_wall_clock_ends_reads_that_run_together_and_leaves_none_running() -> None:
    bench = MeetingBench(5)
    loop = make_loop([{"calls": [READ, READ]}], bench, timeout_s=0.05)
    before = len(asyncio.all_tasks())
    assert ending(await play(loop)).reason == "timed_out"
    assert len(asyncio.all_tasks()) == before
    assert bench.barrier.n_waiting == 0


async def test_cancelling_the_reader_cancels_reads_that_run_together() -> None:
    bench = MeetingBench(5)
    task = asyncio.create_task(play(make_loop([{"calls": [READ, READ]}], bench)))
    async with asyncio.timeout(5):
        while bench.barrier.n_waiting < 2:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.barrier.n_waiting == 0


# Long conversations


async def test_a_conversation_that_is_too_long_is_made_shorter_and_goes_on() -> None:
    bench = MemoryBench(lambda command: printed(b"x" * 5000 + b"\n"))
    _llm, loop = recording(*({"calls": [RUN]} for _ in range(6)), {"text": "done"}, bench=bench, most_chars=12_000)
    events = await play(loop)
    assert ending(events) == Ended("completed", "done")
    assert any(isinstance(event, Compacted) for event in events)
    assert len(bench.commands) == 6, "no call runs twice"
    assert not any(isinstance(event, Retrying) for event in events)
    assert "exec exec-1" in results(loop)[0].text, "the handle of what was left out stays"


async def test_a_task_that_alone_is_too_long_fails_with_a_sentence() -> None:
    _, loop = recording({"text": "x"}, most_chars=100)
    end = ending(await play(loop, UserMessage("y" * 1000)))
    assert (end.reason, end.code) == ("failed", "context_too_long")


TEXTS = st.sampled_from(["short", "x" * 700, "long " * 400, "🌍" * 300])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Anything that events may hold: replies with and without calls, missing, doubled and strange results."""
    history: list[Message] = [UserMessage(draw(TEXTS))]
    for number in range(draw(st.integers(0, 8))):
        calls = tuple(ToolCall(f"c{number}-{i}", "t", {}) for i in range(draw(st.integers(0, 3))))
        history.append(AssistantMessage(draw(st.one_of(st.just(""), TEXTS)), calls))
        for call in calls:
            history += [ToolResult(call.call_id, draw(TEXTS))] * draw(st.integers(0, 2))
        if draw(st.booleans()):
            history.append(ToolResult("nobody-asked", "x"))
        if draw(st.booleans()):
            history.append(UserMessage(draw(TEXTS)))
    return history


@given(conversations())
@settings(max_examples=200, deadline=None)
def test_a_shorter_conversation_is_one_that_models_accept(history: list[Message]) -> None:
    whole = repair(history)
    asked = [message for message in whole if isinstance(message, UserMessage)]
    seen = 0
    while (shorter := compact(whole)) is not None:
        assert sum(len(m.text) for m in shorter.history) < sum(len(m.text) for m in whole)
        assert shorter.history == repair(shorter.history)
        assert not open_calls(shorter.history)
        assert shorter.history[0].text.removesuffix(f"\n\n{LEFT_OUT}") == asked[0].text
        assert asked[-1].text in [m.text.removesuffix(f"\n\n{LEFT_OUT}") for m in shorter.history]
        whole, seen = shorter.history, seen + 1
        assert seen < 60
    assert compact(whole) is None


# Invariants of the loop

CALLS = st.sampled_from(
    [
        RUN, WRITE, READ, {"name": "nonsense", "arguments": {}}, {"name": "workspace__exec", "arguments": []},
        {"name": "workspace__ls", "arguments": {}}, {"name": "workspace__write", "arguments": {"path": "x"}},
    ]
)  # fmt: skip
TURNS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(["", " ", "Hello."]),
            "calls": st.lists(CALLS, max_size=5),
            "stop_reason": st.sampled_from(["max_tokens", "refusal", "pause", "end_turn"]),
            "break_after": st.integers(0, 3),
            "error": st.sampled_from(["llm_unavailable", "llm_config", ""]),
            "times": st.integers(0, 6),
            "usage": st.fixed_dictionaries({"output_tokens": st.integers(0, 50)}),
        },
    ),
    min_size=1,
    max_size=6,
)


@given(TURNS, st.integers(1, 6), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 120)))
@settings(max_examples=150, deadline=None)
def test_whatever_the_model_does_the_run_ends_once_and_leaves_a_history_that_models_accept(
    turns: list[dict[str, Any]], max_turns: int, max_calls: int, max_tokens: int | None
) -> None:
    bench = MemoryBench()
    loop = make_loop(turns, bench, max_turns=max_turns, max_tool_calls=max_calls, max_tokens=max_tokens)
    events = asyncio.run(play(loop))
    end = ending(events)
    assert end.reason in ("completed", "failed", "limit")
    assert end.reason == "completed" or (end.code and end.message)
    assert end.reason != "completed" or end.answer.strip()
    assert loop.history == repair(loop.history)
    _check_calls(events, bench, max_calls)
    assert loop.spent.turns <= max_turns + 1  # the last answer
    shown = [event.turn for event in events if isinstance(event, TurnStarted)]
    assert shown == list(range(1, loop.spent.turns + 1))


def _check_calls(events: list[LoopEvent], bench: MemoryBench, max_calls: int) -> None:
    started = [event.call.call_id for event in events if isinstance(event, CallStarted)]
    ended = [event.call.call_id for event in events if isinstance(event, CallEnded)]
    wished = [call.call_id for event in events if isinstance(event, Replied) for call in event.message.calls]
    assert sorted(started) == sorted(ended) == sorted(wished)
    assert len(bench.commands) <= max_calls
    runs = [e for e in events if isinstance(e, CallEnded) and e.call.name == "workspace__exec" and e.outcome.ok]
    assert len(runs) == len(bench.commands), "a program ran without its result, or twice"


# Cost


async def test_each_turn_has_its_cost_and_the_run_their_sum() -> None:
    usage = {"input_tokens": 1000, "output_tokens": 100, "cache_read_tokens": 10_000, "cache_write_tokens": 2000}
    llm, loop = recording({"calls": [RUN], "usage": usage}, {"text": "x", "usage": usage})
    llm.prices = prices_of({"m": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}})
    costs = [event.cost for event in await play(loop) if isinstance(event, TurnEnded)]
    assert costs == [pytest.approx(0.003 + 0.0015 + 0.003 + 0.0075)] * 2
    assert loop.cost == pytest.approx(sum(cost for cost in costs if cost is not None))


async def test_without_a_price_there_is_no_cost_and_never_a_part_of_it() -> None:
    llm, loop = recording({"text": "x", "usage": {"input_tokens": 5}})
    llm.prices = {"another": Price(1, 1)}
    assert [event.cost for event in await play(loop) if isinstance(event, TurnEnded)] == [None]
    assert loop.cost is None
    assert add_cost({"input_tokens": 0, "cost": None}, 0.5) == 0.5
    assert add_cost({"input_tokens": 7, "cost": None}, 0.5) is None
    assert add_cost({"input_tokens": 7, "cost": 0.25}, 0.5) == 0.75
    assert add_cost({"input_tokens": 7, "cost": 0.25}, None) is None
    assert Reply(AssistantMessage("x"), "end_turn").usage == Usage()
