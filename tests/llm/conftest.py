"""The three kinds of models behind one fixture: a real endpoint of this machine for two of them, a script for the third."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.conf import settings

from agents.llm import llm_class
from agents.llm.base import LLM, LLMEvent, LLMRequest, Reply, TextDelta, ThinkingDelta, ToolSpec
from agents.llm.scripted import ScriptedLLM, parse_turns
from agents.messages import Message, UserMessage
from tests.llm.stub_anthropic import AnthropicStub
from tests.llm.stub_http import KEY, Answer, Fails, Step, StubServer
from tests.llm.stub_openai import OpenAIStub

STUBS: dict[str, type[StubServer]] = {"anthropic": AnthropicStub, "openai": OpenAIStub}
TOOLS = (
    ToolSpec(
        "workspace__exec",
        "Runs a command.",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
)


@dataclass
class Model:
    """One configured model of a kind, and the endpoint behind it (None: it plays a script)."""

    llm: LLM
    stub: StubServer | None
    made: list[LLM] = field(default_factory=list)


Making = Callable[..., Model]


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StubServer]]:
    """Starts endpoints, allowed by the server's settings, and stops them."""
    started: list[StubServer] = []

    def start(kind: str, *steps: Step) -> StubServer:
        stub = STUBS[kind](*steps)
        stub.start()
        started.append(stub)
        monkeypatch.setattr(settings, "PRIMER_LLM_HOSTS", [one.host for one in started])
        return stub

    yield start
    for stub in started:
        stub.stop()


def endpoint_config(stub: StubServer, kind: str, **over: Any) -> dict[str, Any]:
    return {"kind": kind, "base_url": stub.url, "default_model": "stub-1", **over}


@pytest.fixture
async def wired(stubs: Callable[..., StubServer]) -> AsyncIterator[Making]:
    """`wired(kind, *steps, **config)`: a driver and its endpoint."""
    made: list[LLM] = []

    def make(kind: str, *steps: Step, key: str = KEY, **config: Any) -> Model:
        stub = stubs(kind, *steps)
        llm = llm_class(kind).configured(endpoint_config(stub, kind, **config), key, f"{kind}-{stub.port}")
        made.append(llm)
        return Model(llm, stub)

    yield make
    for llm in made:
        await llm.close()


@pytest.fixture
def modelled(wired: Making) -> Making:
    """The same for the scripted kind too: its script says what the others' endpoints say."""

    def make(kind: str, *steps: Answer) -> Model:
        if kind != "scripted":
            return wired(kind, *steps)
        return Model(ScriptedLLM(parse_turns([_turn(step) for step in steps])), None)

    return make


def _turn(step: Answer) -> dict[str, Any]:
    if isinstance(step, Fails):
        passes = step.status in (408, 409, 429) or step.status >= 500 or step.inside
        return {"error": "llm_unavailable" if passes else "llm_config"}
    calls = [{"name": name, "arguments": _or_text(arguments)} for name, arguments in step.calls]
    turn = {"text": step.text, "thinking": step.thinking, "calls": calls, "usage": step.usage.to_dict()}
    return {**turn, "stop_reason": step.stop} if step.stop else turn


def _or_text(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def asking(*messages: Message, **over: Any) -> LLMRequest:
    return LLMRequest("stub-1", "You are a stub.", messages or (UserMessage("Say hello."),), TOOLS, **over)


async def heard(llm: LLM, request: LLMRequest) -> list[LLMEvent]:
    async with aclosing(llm.stream(request)) as events:
        return [event async for event in events]


def reply_of(events: list[LLMEvent]) -> Reply:
    """The last event, the only one of its kind; the deltas before it make up its text."""
    last = events[-1]
    assert isinstance(last, Reply)
    assert sum(isinstance(event, Reply) for event in events) == 1
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == last.message.text
    return last


def thoughts(events: list[LLMEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ThinkingDelta))
