"""What every kind of model keeps, whatever its API: the same suite over all three."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from agents.events import Ended
from agents.llm.base import LLMConfig, LLMUnavailable
from agents.loop import AgentLoop, Settings
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, UserMessage
from agents.tools import Toolbox
from tests.agents.bench import MemoryBench
from tests.llm.conftest import Making, asking, heard, reply_of, thoughts
from tests.llm.stub_http import Fails, Says

KINDS = ("scripted", "anthropic", "openai")
EXEC = "workspace__exec"
pytestmark = pytest.mark.parametrize("kind", KINDS)


async def test_text_comes_in_pieces_and_then_whole(kind: str, modelled: Making) -> None:
    model = modelled(kind, Says("Grüße, 世界 🌍!", usage=Usage(11, 7, 3, 2)))
    reply = reply_of(await heard(model.llm, asking()))
    assert reply.message.text == "Grüße, 世界 🌍!"
    assert (reply.stop_reason, reply.usage, reply.message.calls) == ("end_turn", Usage(11, 7, 3, 2), ())


async def test_thinking_is_heard_and_is_no_part_of_the_text(kind: str, modelled: Making) -> None:
    events = await heard(modelled(kind, Says("42", thinking="six times seven")).llm, asking())
    assert thoughts(events) == "six times seven"
    assert reply_of(events).message.text == "42"


async def test_several_calls_come_in_order_with_ids_of_their_own(kind: str, modelled: Making) -> None:
    says = Says("Both.", calls=((EXEC, '{"command": "echo ä"}'), (EXEC, '{"command": "false", "timeout_s": 3}')))
    reply = reply_of(await heard(modelled(kind, says).llm, asking()))
    assert [call.arguments for call in reply.message.calls] == [
        {"command": "echo ä"},
        {"command": "false", "timeout_s": 3},
    ]
    assert len({call.call_id for call in reply.message.calls}) == 2
    assert (reply.stop_reason, [call.problem for call in reply.message.calls]) == ("tool_use", ["", ""])


@pytest.mark.parametrize(
    ("spelled", "words"),
    [
        ('{"command": "rm', "JSON"), ("[]", "JSON object"), ('"text"', "JSON object"), ("null", "JSON object"),
        ('{"command": INVALID}', "JSON"), ('{"command": NaN}', "JSON"), ("7", "JSON object"),
    ],
)  # fmt: skip
async def test_broken_arguments_are_a_problem_and_never_an_empty_object(
    kind: str, modelled: Making, spelled: str, words: str
) -> None:
    if kind == "scripted" and spelled == '{"command": NaN}':
        spelled = "[]"  # a script in YAML has no such spelling
    reply = reply_of(await heard(modelled(kind, Says(calls=((EXEC, spelled),))).llm, asking()))
    (call,) = reply.message.calls
    assert words in call.problem
    assert not isinstance(call.arguments, dict)


WRITE = "workspace__write"
NOT_TO_RUN = {
    "truncated": '{"path": "a.py", "content": "import o', "a list": "[]", "a text": '"a.py"', "null": "null", "nothing": "",
    "missing": '{"path": "a.py"}', "another type": '{"path": 1, "content": "x"}', "NUL": '{"path": "a\\u0000", "content": "x"}',
    "extra": '{"path": "a.py", "content": "x", "workspace_id": "ws-1"}', "surrogate": '{"path": "a.py", "content": "\\ud800"}',
    "5 MB": json.dumps({"path": "a.py", "content": "x" * 5_000_000}),
}  # fmt: skip


@pytest.mark.parametrize("spelled", NOT_TO_RUN.values(), ids=NOT_TO_RUN.keys())
async def test_a_call_that_cannot_run_as_it_stands_changes_nothing_and_the_model_goes_on(
    kind: str, modelled: Making, spelled: str
) -> None:
    bench = MemoryBench()
    model = modelled(kind, Says("Writing.", calls=((WRITE, spelled),)), Says("I see."))
    loop = AgentLoop(model.llm, Toolbox(bench), Settings("stub-1"))
    async with aclosing(loop.events([UserMessage("Write a.py.")])) as events:
        last = [event async for event in events][-1]
    assert last == Ended("completed", "I see.")
    (result,) = [message for message in loop.history if isinstance(message, ToolResult)]
    assert not result.ok
    assert result.text.startswith("The call was not run: ")
    assert bench.files == {}
    assert model.stub is None or not model.stub.refusals


async def test_a_call_cut_by_the_limit_says_so(kind: str, modelled: Making) -> None:
    says = Says(calls=((EXEC, '{"command": "echo ha'),), stop="max_tokens")
    reply = reply_of(await heard(modelled(kind, says).llm, asking()))
    assert reply.stop_reason == "max_tokens"
    assert reply.message.calls[0].problem


@pytest.mark.parametrize("stop", ["max_tokens", "refusal"])
async def test_reasons_to_stop_have_the_same_names(kind: str, modelled: Making, stop: str) -> None:
    assert reply_of(await heard(modelled(kind, Says("Half", stop=stop)).llm, asking())).stop_reason == stop


async def test_an_empty_reply_is_a_reply(kind: str, modelled: Making) -> None:
    reply = reply_of(await heard(modelled(kind, Says("")).llm, asking()))
    assert (reply.message.text, reply.message.calls, reply.stop_reason) == ("", (), "end_turn")


async def test_a_conversation_with_everything_in_it_is_taken_back(kind: str, modelled: Making) -> None:
    first = Says("", thinking="Let me look.", calls=((EXEC, '{"command": "ls"}'), ("no such tool!", "{")))
    model = modelled(kind, first, Says("Done."))
    reply = reply_of(await heard(model.llm, asking()))
    results = [ToolResult(call.call_id, text, ok) for call, text, ok in zip(reply.message.calls, ("", "No."), (True, False), strict=True)]  # fmt: skip
    history: tuple[Message, ...] = (UserMessage("Say hello."), reply.message, *results, UserMessage("And \ud83d?"))
    assert reply_of(await heard(model.llm, asking(*history))).message.text == "Done."
    assert model.stub is None or not model.stub.refusals


async def test_a_reply_of_another_kind_is_taken_too(kind: str, modelled: Making) -> None:
    call = ToolCall("call-1", EXEC, {"command": "ls"})
    reply = AssistantMessage("Looking.", (call,), ({"type": "strange", "x": 1},), "another")
    model = modelled(kind, Says("Seen."), Says("Seen."))
    history = (UserMessage("go"), reply, ToolResult("call-1", "a.py"))
    assert reply_of(await heard(model.llm, asking(*history))).message.text == "Seen."
    assert model.stub is None or not model.stub.refusals


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_unavailable(kind: str, modelled: Making, status: int) -> None:
    model = modelled(kind, Fails(status))
    with pytest.raises(LLMUnavailable) as caught:
        await heard(model.llm, asking())
    assert caught.value.retryable
    assert caught.value.detail.endswith(".")
    assert model.stub is None or len(model.stub.asked) == 1, "the SDK asked again by itself"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_cannot_pass_is_a_wrong_configuration(kind: str, modelled: Making, status: int) -> None:
    with pytest.raises(LLMConfig) as caught:
        await heard(modelled(kind, Fails(status, "invalid_request_error", "No such thing")).llm, asking())
    assert not caught.value.retryable


async def test_an_error_in_the_middle_of_a_good_answer_is_unavailable(kind: str, modelled: Making) -> None:
    model = modelled(kind, Fails(200, "overloaded_error", "Overloaded", inside=True))
    with pytest.raises(LLMUnavailable):
        await heard(model.llm, asking())


async def test_closing_the_stream_early_ends_the_question(kind: str, modelled: Making) -> None:
    model = modelled(kind, Says("a long answer " * 50))
    async with aclosing(model.llm.stream(asking())) as events:
        await anext(events)
    if model.stub is not None:
        async with asyncio.timeout(5):
            while model.stub.open:
                await asyncio.sleep(0.01)


async def test_many_questions_at_once_do_not_mix(kind: str, modelled: Making) -> None:
    model = modelled(kind, Says("same"))
    replies = await asyncio.gather(*(heard(model.llm, asking()) for _ in range(12)))
    assert {reply_of(events).message.text for events in replies} == {"same"}


async def test_the_models_have_names(kind: str, modelled: Making) -> None:
    expected = ["scripted"] if kind == "scripted" else ["stub-1", "stub-2"]
    assert await modelled(kind, Says("x")).llm.models() == expected
