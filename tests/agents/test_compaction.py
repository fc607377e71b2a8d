"""What a conversation that is made shorter keeps, and how it is measured."""

from __future__ import annotations

from typing import Any

import pytest

from agents import compaction
from agents.compaction import compact
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from tests.agents.test_loop import RUN


def test_a_long_conversation_is_measured_once_however_much_of_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = [0], compaction._chars

    def counting(message: Message) -> int:
        measured[0] += 1
        return measure(message)

    monkeypatch.setattr(compaction, "_chars", counting)
    history: list[Message] = [UserMessage("Do it.")]
    for _ in range(300):
        history += [AssistantMessage("", (ToolCall("c", str(RUN["name"]), {}),)), ToolResult("c", "r" * 700)]
    shorter = compact(history)
    assert shorter is not None
    assert shorter.shortened > 100
    assert measured[0] == len(history)


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking", "reasoning"])
def test_thoughts_of_the_last_reply_cost_nothing_else_its_place(kind: str) -> None:
    history: list[Message] = []
    for number in range(20):
        history += [UserMessage(f"q{number} {'z' * 400}"), AssistantMessage("y" * 500)]
    call, thought = ToolCall("c", str(RUN["name"]), {}), {"type": kind, "text": "t" * 30_000}

    def shorter(*blocks: dict[str, Any]) -> Any:
        return compact([*history, UserMessage("go"), AssistantMessage("Look.", (call,), blocks), ToolResult("c", "r")])

    assert shorter(thought).left_out == shorter().left_out > 0


def test_a_conversation_of_thoughts_alone_can_be_made_shorter() -> None:
    history: list[Message] = [UserMessage("Do it.")]
    for _ in range(5):
        thought = {"type": "thinking", "thinking": "t" * 30_000, "signature": "s"}
        history += [AssistantMessage("", (ToolCall("c", "t", {}),), (thought,)), ToolResult("c", "r")]
    shorter = compact(history)
    assert shorter is not None
    assert shorter.left_out > 0
