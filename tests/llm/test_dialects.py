"""Endpoints of one API that want to be asked differently: newer models, chat templates, servers that count otherwise."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from agents.budget import Limits
from agents.events import Compacted, Ended
from agents.llm.anthropic import THOUGHTS_REFUSED
from agents.llm.base import ContextTooLong, LLMConfig, LLMUnavailable
from agents.llm.failures import of_status, own_words
from agents.llm.openai import Dialect
from agents.loop import AgentLoop, Settings
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, UserMessage
from agents.redact import Redactor
from agents.services import ask_once
from agents.tools import Toolbox
from agents.tools.base import ToolOutcome
from tests.agents.bench import MemoryBench
from tests.agents.test_loop import no_pause, play
from tests.llm.conftest import Making, Model, asking, heard, reply_of
from tests.llm.stub_anthropic import AnthropicStub
from tests.llm.stub_http import Fails, How, Says
from tests.llm.stub_openai import OpenAIStub

EXEC = "workspace__exec"
LS = ((EXEC, '{"command": "ls"}'),)
GO = UserMessage("go")


def openai_stub(model: Model) -> OpenAIStub:
    assert isinstance(model.stub, OpenAIStub)
    return model.stub


def anthropic_stub(model: Model) -> AnthropicStub:
    assert isinstance(model.stub, AnthropicStub)
    return model.stub


def loop_of(model: Model, thinking: Any = "off", **limits: Any) -> AgentLoop:
    settings = Settings("stub-1", thinking=thinking)
    return AgentLoop(model.llm, Toolbox(MemoryBench()), settings, Limits(**limits), pause=no_pause)


# -- Chat Completions


async def test_a_model_that_takes_tools_only_without_reasoning_is_asked_so_after_its_refusal(wired: Making) -> None:
    model = wired("openai", Says(calls=LS), Says("Done."))
    stub = openai_stub(model)
    stub.reasons = True
    assert (await play(loop_of(model)))[-1] == Ended("completed", "Done.")
    assert len(stub.refusals) == 2, "one for each thing that it wants otherwise, and never again"
    assert stub.asked[0]["max_tokens"] == 8192
    for body in stub.asked[2:]:
        assert body["reasoning_effort"] == "none"
        assert body["max_completion_tokens"] == 8192
        assert "max_tokens" not in body


async def test_a_model_that_wants_its_thoughts_back_gets_them_after_its_refusal(wired: Making) -> None:
    model = wired("openai", Says("Look.", "Deep", LS), Says("And.", calls=LS), Says("Done."))
    stub = openai_stub(model)
    stub.wants_thoughts = True
    assert (await play(loop_of(model)))[-1] == Ended("completed", "Done.")
    assert len(stub.refusals) == 1
    assert all("reasoning_content" not in message for message in stub.asked[1]["messages"])
    said = [message for message in stub.asked[-1]["messages"] if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in said] == ["Deep", ""]


async def test_what_no_model_asked_for_is_not_sent(wired: Making) -> None:
    model = wired("openai")
    await heard(model.llm, asking())
    assert openai_stub(model).asked[0].keys() == {
        "model", "stream", "stream_options", "max_tokens", "tools", "tool_choice", "messages"
    }  # fmt: skip


async def test_a_refusal_that_names_nothing_new_is_a_failure(wired: Making) -> None:
    said = "To use function tools, set reasoning_effort to 'none'."
    model = wired("openai", Fails(400, "invalid_request_error", said))
    with pytest.raises(LLMConfig, match="reasoning_effort"):
        await heard(model.llm, asking())
    assert len(openai_stub(model).asked) == 2


async def test_a_model_whose_thoughts_use_up_a_tiny_reply_has_answered(wired: Making) -> None:
    said = "Could not finish the message because max_tokens or model output limit was reached. Please try again with higher max_tokens."
    model = wired("openai", Fails(400, "invalid_request_error", said))
    reply = await ask_once(model.llm, "stub-1")
    assert (reply.message.text, reply.stop_reason) == ("", "max_tokens")


@pytest.mark.parametrize(
    "said",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        "Missing `reasoning_content` field in the assistant message at message index 1.",
    ],
)
def test_each_way_of_asking_for_thoughts_is_understood_once(said: str) -> None:
    for body in ({"message": said}, {"message": "Param Incorrect", "param": said}):
        dialect = Dialect("max_tokens")
        assert dialect.learn(body, body["message"], tools=True)
        assert dialect == Dialect("max_tokens", thoughts=True)
        assert not dialect.learn(body, body["message"], tools=True)


def test_the_fields_of_a_refusal_count_before_its_words() -> None:
    dialect = Dialect("max_tokens")
    assert dialect.learn({"param": "max_tokens", "code": "unsupported_parameter"}, "Nicht erlaubt.", tools=False)
    assert dialect.tokens == "max_completion_tokens"
    dialect = Dialect("max_tokens")
    words = "Set reasoning_effort to none. Use max_completion_tokens instead."
    assert not dialect.learn({"param": "messages[3].content", "code": None}, words, tools=True)


@pytest.mark.parametrize(
    "said",
    [
        "content: [input: 'Use max_completion_tokens instead; set reasoning_effort to none'] is not valid",
        'Invalid content: "why must reasoning_content be set? it must be passed back"',
        "Additional properties are not allowed ('reasoning_content' was unexpected)",
        "Invalid content: 'say: could not finish the message because max_tokens'",
    ],
)
async def test_what_a_refusal_quotes_of_the_question_is_no_wish_of_the_endpoint(said: str, wired: Making) -> None:
    model = wired("openai", Fails(400, "invalid_request_error", said))
    with pytest.raises(LLMConfig):
        await heard(model.llm, asking())
    assert len(openai_stub(model).asked) == 1


async def test_a_refusal_of_a_long_conversation_changes_nothing_but_its_length_whatever_it_quotes(
    wired: Making,
) -> None:
    said = "This model's maximum context length is 9 tokens. The reasoning_content must be passed back. set reasoning_effort to none."
    model = wired("openai", Says("Look.", calls=LS), Fails(400, "invalid_request_error", said), Says("Done."))
    loop = loop_of(model)
    history: list[Message] = [UserMessage("first"), AssistantMessage("y" * 5000), GO]
    async with aclosing(loop.events(history)) as stream:
        events = [event async for event in stream]
    assert events[-1] == Ended("completed", "Done.")
    assert sum(isinstance(event, Compacted) for event in events) == 1
    last = openai_stub(model).asked[-1]
    assert "reasoning_effort" not in last
    assert all("reasoning_content" not in message for message in last["messages"])


async def test_two_questions_in_a_row_are_asked_as_one(wired: Making) -> None:
    model = wired("openai")
    stub = openai_stub(model)
    stub.alternates = True
    await heard(model.llm, asking(UserMessage("one"), UserMessage("two"), AssistantMessage("a"), UserMessage("three")))
    assert [message["content"] for message in stub.asked[0]["messages"][1:]] == ["one\n\ntwo", "a", "three"]


def chunks(*deltas: dict[str, Any], stop: str = "tool_calls") -> bytes:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": stop})
    return b"".join(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices)


def piece(arguments: str, call_id: str | None = None, index: int | None = 0, name: str | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments} | ({"name": name} if name else {})
    known: dict[str, Any] = {"function": function} | ({"id": call_id} if call_id else {})
    return known | ({"index": index} if index is not None else {})


@pytest.mark.parametrize("index", [0, None], ids=["one index for all", "no index"])
async def test_calls_that_share_an_index_are_told_apart_by_their_ids(index: int | None, wired: Making) -> None:
    raw = chunks(
        {"tool_calls": [piece('{"command": "a"}', "x", index, EXEC)]},
        {"tool_calls": [piece('{"command":', "y", index, EXEC)]},
        {"tool_calls": [piece(' "b"}', "y", index)]},
    )
    model = wired("openai", (Says("x"), How(raw=raw)))
    calls = reply_of(await heard(model.llm, asking())).message.calls
    assert [(call.call_id, call.arguments, call.problem) for call in calls] == [
        ("x", {"command": "a"}, ""), ("y", {"command": "b"}, "")
    ]  # fmt: skip


async def test_a_name_that_is_repeated_with_each_piece_begins_no_other_call(wired: Making) -> None:
    raw = chunks({"tool_calls": [piece('{"command":', "x", 0, EXEC)]}, {"tool_calls": [piece(' "b"}', "x", 0, EXEC)]})
    (call,) = reply_of(await heard(wired("openai", (Says("x"), How(raw=raw))).llm, asking())).message.calls
    assert (call.name, call.arguments) == (EXEC, {"command": "b"})


async def test_a_failure_that_a_server_of_open_models_sends_as_an_answer_is_told(wired: Making) -> None:
    raw = b'data: {"object": "error", "message": "The engine is dead.", "type": "InternalServerError", "code": 500}\n\n'
    with pytest.raises(LLMUnavailable, match=r"The engine is dead\."):
        await heard(wired("openai", (Says("x"), How(raw=raw))).llm, asking())


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_reply_of_more_text_than_was_asked_for_ends(kind: str, wired: Making) -> None:
    flood, most = "y" * 100_000, 64 * 1024 + 64 * 100
    model = wired(kind, Says(flood), Says("", thinking=flood), Says("y" * most))
    for _ in range(2):
        with pytest.raises(LLMUnavailable, match="more than any reply"):
            await heard(model.llm, asking(max_output_tokens=100))
    assert len(reply_of(await heard(model.llm, asking(max_output_tokens=100))).message.text) == most


# -- Messages: thoughts belong to the conversation they were thought in


async def test_thoughts_of_a_conversation_that_was_made_shorter_are_left_out_and_it_goes_on(wired: Making) -> None:
    long = Says("Look.", thinking="deep", calls=((EXEC, json.dumps({"command": "cat " + "x" * 3000})),))
    model = wired("anthropic", long, long, long, Says("Done.", thinking="end"))
    stub = anthropic_stub(model)
    stub.max_tokens_of_context = 2000
    events = await play(loop_of(model, "auto"))
    assert events[-1] == Ended("completed", "Done.")
    assert any(isinstance(event, Compacted) for event in events)
    assert any("bound to a different conversation" in refusal for refusal in stub.refusals)
    assert "thinking" in stub.asked[-1], "it may go on thinking"
    kinds = [block["type"] for message in stub.asked[-1]["messages"] for block in message["content"]]
    assert "thinking" not in kinds
    assert "tool_use" in kinds


async def test_with_a_budget_a_turn_whose_thought_is_gone_goes_on_without_one(wired: Making) -> None:
    call = ToolCall("toolu_1", EXEC, {"command": "ls"})
    used = {"type": "tool_use", "id": "toolu_1", "name": EXEC, "input": {"command": "ls"}}
    model = wired("anthropic", Says("Done."))
    said = AssistantMessage("", (call,), (used,), "anthropic")  # its thought held a secret, and was taken out
    question = asking(GO, said, ToolResult("toolu_1", "a.py"), thinking={"budget_tokens": 2000})
    assert reply_of(await heard(model.llm, question)).message.text == "Done."
    stub = anthropic_stub(model)
    assert ["thinking" in body for body in stub.asked] == [True, False]


async def test_a_refusal_of_thoughts_that_were_not_sent_is_a_failure(wired: Making) -> None:
    model = wired("anthropic", Fails(400, "invalid_request_error", "Invalid `signature` in `thinking` block"))
    with pytest.raises(LLMConfig, match="signature"):
        await heard(model.llm, asking())
    assert len(anthropic_stub(model).asked) == 1


@pytest.mark.parametrize(
    "said",
    [
        "prompt is too long: 900 tokens > 100 maximum; check the signature of messages.1.content.0: signature",
        "prompt is too long: 900 tokens > 100 maximum; 'check the signature of f()'",
    ],
)
async def test_a_refusal_of_a_long_conversation_takes_no_thoughts_away_whatever_it_quotes(
    said: str, wired: Making
) -> None:
    model = wired("anthropic", Says("Look.", "Deep", LS), Fails(400, "invalid_request_error", said), Says("Done."))
    model_thinks = {"budget_tokens": 2000}
    loop = loop_of(model, model_thinks)
    history: list[Message] = [UserMessage("first"), AssistantMessage("y" * 5000), UserMessage("go")]
    async with aclosing(loop.events(history)) as stream:
        events = [event async for event in stream]
    assert sum(isinstance(event, Compacted) for event in events) == 1
    third = anthropic_stub(model).asked[2]
    assert "thinking" in third
    assert len(third["messages"]) < len(anthropic_stub(model).asked[1]["messages"])


async def test_a_refusal_that_quotes_words_on_signatures_is_a_failure(wired: Making) -> None:
    said = "messages.0.content.0.text: Input should be shorter, but is 'check the signature of the thinking block'"
    model = wired("anthropic", Says("Look.", "Deep", LS), Fails(400, "invalid_request_error", said))
    end = (await play(loop_of(model, "auto")))[-1]
    assert isinstance(end, Ended)
    assert (end.reason, end.code) == ("failed", "llm_config")
    assert len(anthropic_stub(model).asked) == 2


@pytest.mark.parametrize(
    "said",
    [
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.0.thinking.signature: Field required",
        "messages.129.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`. When `thinking` is on",
        "messages.3.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
        '{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in '
        '`thinking` block"}}',
    ],
)
def test_each_refusal_of_a_thought_is_understood_also_one_that_a_gateway_passes_on(said: str) -> None:
    assert THOUGHTS_REFUSED.search(own_words(said))


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ("This model's maximum context length is 9 tokens.", "This model's maximum context length is 9 tokens."),
        ("Use 'max_completion_tokens' instead.", "Use 'max_completion_tokens' instead."),
        ("bad content: 'the prompt is too long'", "bad content: "),
        ("bad content: “the prompt is too long”", "bad content: "),
    ],
)
def test_an_endpoints_own_words_end_where_it_quotes_the_question(said: str, own: str) -> None:
    assert own_words(said) == own
    failure = of_status(400, {"error": {"message": said, "type": "invalid_request_error"}}, {}, Redactor([]))
    assert isinstance(failure, ContextTooLong) == ("context length" in own)


async def test_the_last_answer_is_asked_for_with_the_thinking_of_its_turn(wired: Making) -> None:
    model = wired("anthropic", Says("", thinking="deep", calls=LS), Says("So far."))
    events = await play(loop_of(model, {"budget_tokens": 2000}, max_turns=1))
    assert isinstance(end := events[-1], Ended)
    assert (end.reason, end.code, end.answer) == ("limit", "max_turns", "So far.")
    asked = anthropic_stub(model).asked
    assert asked[1]["thinking"] == asked[0]["thinking"]
    assert asked[1]["max_tokens"] == asked[0]["max_tokens"]
    assert not anthropic_stub(model).refusals


# -- a context that ends in the middle of a reply


async def test_a_reply_that_the_context_has_no_room_for_is_asked_for_again_with_a_shorter_conversation(
    wired: Making,
) -> None:
    full = Says("Half an ans", stop="context_full")
    model = wired("anthropic", Says("x" * 5000, calls=LS), full, Says("Done."))
    loop = loop_of(model)
    history: list[Message] = [UserMessage("first"), AssistantMessage("y" * 5000), GO]
    async with aclosing(loop.events(history)) as stream:
        events = [event async for event in stream]
    assert events[-1] == Ended("completed", "Done.")
    assert sum(isinstance(event, Compacted) for event in events) == 1
    assert not any(isinstance(message, AssistantMessage) and message.text == "Half an ans" for message in loop.history)


async def test_a_reply_that_alone_fills_the_context_ends_by_that_limit_and_blames_no_other(wired: Making) -> None:
    model = wired("anthropic", Says("Half an ans", stop="context_full"))
    events = await play(loop_of(model))
    assert isinstance(end := events[-1], Ended)
    assert (end.reason, end.code, end.answer) == ("limit", "context", "Half an ans")
    assert "max_output_tokens" not in end.message + end.hint


@pytest.mark.parametrize(("limits", "asked"), [({"max_tokens": 1000}, 1), ({}, 3)], ids=["over its limit", "in all"])
async def test_replies_that_the_context_has_no_room_for_are_paid_and_their_number_is_bounded(
    limits: dict[str, int], asked: int, wired: Making
) -> None:
    model = wired("anthropic", Says("Half", stop="context_full", usage=Usage(200_000, 100)))
    history: list[Message] = []
    for number in range(40):
        history += [UserMessage(f"q{number} {'z' * 300}"), AssistantMessage("y" * 500)]
    async with aclosing(loop_of(model, **limits).events([*history, GO])) as stream:
        events = [event async for event in stream]
    assert isinstance(end := events[-1], Ended)
    assert (end.reason, end.code, end.answer) == ("limit", "context", "Half")
    assert len(anthropic_stub(model).asked) == asked


async def test_in_its_last_turn_too_a_reply_without_room_is_asked_for_again(wired: Making) -> None:
    model = wired("anthropic", Says("Half", stop="context_full"), Says("Done."))
    history: list[Message] = [UserMessage("first"), AssistantMessage("y" * 5000), GO]
    async with aclosing(loop_of(model, max_turns=1).events(history)) as stream:
        events = [event async for event in stream]
    assert events[-1] == Ended("completed", "Done.")


async def test_a_call_that_the_context_cut_is_not_run(wired: Making) -> None:
    # Whole JSON, and perhaps half a command all the same.
    cut = Says(calls=((EXEC, '{"command": "rm -r"}'),), stop="context_full")
    model = wired("anthropic", cut, Says("I see."))
    loop = loop_of(model)
    assert (await play(loop))[-1] == Ended("completed", "I see.")
    (result,) = [message for message in loop.history if isinstance(message, ToolResult)]
    assert result.text.startswith("The call was not run: ")


# -- servers that make a grammar of a tool's schema


def test_a_schema_that_is_told_counts_no_characters_and_the_bounds_hold_all_the_same() -> None:
    specs = Toolbox(MemoryBench()).specs
    rules = [rule for spec in specs for rule in spec.schema["properties"].values()]
    assert len(specs) == 9
    assert all(rule.keys() <= {"type", "description", "minimum", "maximum", "enum"} for rule in rules), rules
    assert all(spec.schema["additionalProperties"] is False for spec in specs)


async def test_a_bound_that_no_schema_tells_is_told_to_who_goes_beyond() -> None:
    for command, words in (("", "must not be empty"), ("x" * 65537, "has 65537 bytes; at most 65536 are taken")):
        call = ToolCall("c1", EXEC, {"command": command})
        async with aclosing(Toolbox(MemoryBench()).run(call)) as events:
            (found,) = [event async for event in events]
        assert isinstance(found, ToolOutcome)
        assert not found.ok
        assert words in found.text
