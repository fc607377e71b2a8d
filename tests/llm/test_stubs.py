"""The endpoints of the tests refuse what the real ones refuse: else no test above them proves anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.llm.stub_anthropic import AnthropicStub
from tests.llm.stub_http import Refused, Says
from tests.llm.stub_openai import OpenAIStub

TOOL = {"name": "run", "description": "", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": [{"type": "text", "text": "go"}]}


def use(call_id: str, name: str = "run", arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "r"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def messages_api(*messages: dict[str, Any], **over: Any) -> None:
    stub = AnthropicStub()
    stub.sse(Says("x", thinking="deep"), 0)  # issues a signature
    body = {"model": "m", "max_tokens": 2000, "tools": [TOOL], "stream": True, "messages": list(messages), **over}
    stub.check({name: value for name, value in body.items() if value is not None}, {"anthropic-version": "2023-06-01"})


def thought(words: str = "deep", **over: Any) -> dict[str, Any]:
    stub = AnthropicStub()
    stub.sse(Says("x", thinking="deep"), 0)
    return {"type": "thinking", "thinking": words, "signature": next(iter(stub.signed)), **over}


UNSIGNED = {"type": "thinking", "thinking": "deep"}


def test_the_messages_api_takes_a_whole_history() -> None:
    messages_api(USER, said(thought(), text("Look."), use("a"), use("b")), told(result("a"), result("b"), text("more")))


@pytest.mark.parametrize(
    ("messages", "over", "words"),
    [
        ([], {}, "at least one message"),
        ([said(text("hi")), USER], {}, "first message must use the user role"),
        ([USER, said(text("hi"))], {}, "prefill"),
        ([told()], {}, "non-empty content"),
        ([told(text(""))], {}, "must be non-empty"),
        ([told(text(" \n"))], {}, "non-whitespace"),
        ([USER, said(text("")), USER], {}, "must be non-empty"),
        ([USER, said(UNSIGNED, use("a")), told(result("a"))], {}, "signature: Field required"),
        ([USER, said(thought("other"), use("a")), told(result("a"))], {}, "Invalid `signature`"),
        ([USER, said(thought(signature="forged"), use("a")), told(result("a"))], {}, "Invalid `signature`"),
        ([USER, said(use("a"), thought()), told(result("a"))], {}, "first block must be `thinking`"),
        ([USER, said(use("a")), USER], {}, "without `tool_result`"),
        ([USER, said(use("a"), use("b")), told(result("a"))], {}, "without `tool_result`"),
        ([USER, said(use("a")), told(text("first"), result("a"))], {}, "without `tool_result`"),
        ([USER, said(use("a"), use("a")), told(result("a"))], {}, "must be unique"),
        ([USER, said(use("a")), told(result("a"), result("a"))], {}, "single result"),
        ([USER, said(text("x")), told(result("a"))], {}, "unexpected `tool_use_id`"),
        ([USER, said(use("a", "no such tool!")), told(result("a"))], {}, "name: String should match"),
        ([USER, said(use("", "run")), told(result(""))], {}, "id: String should match"),
        ([USER, said(use("a", arguments=[])), told(result("a"))], {}, "valid dictionary"),
        ([USER, said(use("a")), told(result("a"))], {"tools": None}, "must define tools"),
        ([USER, said({"type": "redacted_thinking", "data": "forged"}, use("a")), told(result("a"))], {}, "Invalid `data`"),
        ([USER, said(use("a")), told(result("a"))], {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "found `tool_use`"),
        ([USER], {"system": [text("")]}, "system"),
        ([USER], {"thinking": {"type": "enabled", "budget_tokens": 10}}, "greater than or equal to 1024"),
        ([USER], {"thinking": {"type": "enabled", "budget_tokens": 4000}}, "must be greater than"),
        ([USER], {"stop": "x"}, "Extra inputs"),
        ([USER], {"max_tokens": 0}, "max_tokens"),
        ([told(*[{**text("x"), "cache_control": {"type": "ephemeral"}}] * 5)], {}, "maximum of 4 blocks"),
    ],
)  # fmt: skip
def test_the_messages_api_refuses(messages: list[dict[str, Any]], over: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        messages_api(*messages, **over)


def test_the_messages_api_refuses_a_temperature_in_its_present_version() -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [USER], "temperature": 0.5}
    with pytest.raises(Refused, match="temperature"):
        AnthropicStub().check(body, {"anthropic-version": "2026-10-21"})


def test_the_messages_api_takes_a_thought_back_only_behind_what_was_before_it() -> None:
    stub, version = AnthropicStub(), {"anthropic-version": "2023-06-01"}
    question = {"model": "m", "max_tokens": 2000, "tools": [TOOL], "system": [text("Be brief.")], "messages": [USER]}
    stub.asked.append(question)
    stub.sse(Says("x", thinking="deep"), 0)
    reply = said({"type": "thinking", "thinking": "deep", "signature": next(iter(stub.signed))}, use("a"))
    marked = {**result("a"), "cache_control": {"type": "ephemeral"}}
    stub.check({**question, "messages": [USER, reply, told(marked)]}, version)
    for change in (
        {"messages": [told(text("go on")), reply, told(marked)]},
        {"system": [text("Be long.")]},
        {"tools": [TOOL, TOOL]},
    ):
        with pytest.raises(Refused, match="bound to a different conversation"):
            stub.check({**question, "messages": [USER, reply, told(marked)], **change}, version)


def chat(*messages: dict[str, Any], **over: Any) -> None:
    OpenAIStub().check({"model": "m", "messages": list(messages), "stream": True, **over}, {})


def asked(words: Any = "go", role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": words}


def called(*ids: str, arguments: str = "{}", name: str = "run", content: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def answered(call_id: str, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_chat_completions_takes_a_whole_history() -> None:
    chat(
        asked("Be brief.", "system"), asked(), called("a", "b", content="Look."), answered("b"), answered("a"), asked()
    )


@pytest.mark.parametrize(
    ("messages", "over", "words"),
    [
        ([], {}, "too short"),
        ([asked("")], {}, "expected a string"),
        ([asked(None)], {}, "expected a string"),
        ([asked("x", "robot")], {}, "not one of the roles"),
        ([asked(), {"role": "assistant", "content": ""}], {}, "must be set"),
        ([asked(), {"role": "assistant", "content": None}], {}, "must be set"),
        ([asked(), {"role": "assistant", "content": "x", "tool_calls": []}], {}, "too short"),
        ([asked(), called("a")], {}, "did not have response messages"),
        ([asked(), called("a"), asked()], {}, "did not have response messages"),
        ([asked(), called("a", "b"), answered("a"), asked()], {}, "did not have response messages: b"),
        ([asked(), called("a", "a"), answered("a")], {}, "Duplicate value"),
        ([asked(), called("")], {}, "Duplicate value"),
        ([asked(), answered("a")], {}, "must be a response"),
        ([asked(), called("a"), answered("a"), answered("a")], {}, "must be a response"),
        ([asked(), called("a"), answered("a", None)], {}, "Invalid value"),
        ([asked(), called("a", arguments="[]"), answered("a")], {}, "must be a JSON object"),
        ([asked(), called("a", name="no such tool!"), answered("a")], {}, "function.name"),
        ([asked()], {"thinking": "auto"}, "Unrecognized request argument"),
        ([asked()], {"max_tokens": 1, "max_completion_tokens": 1}, "Setting both"),
    ],
)  # fmt: skip
def test_chat_completions_refuses(messages: list[dict[str, Any]], over: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        chat(*messages, **over)
