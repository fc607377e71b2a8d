"""What passes between a model and its tools: plain values, no Django, no SDK. Identity and storage are somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# `context_full`: the model's context ended in the middle of the reply; `max_tokens`: the limit of a reply did.
StopReason = Literal["end_turn", "tool_use", "max_tokens", "context_full", "refusal", "pause"]
INTERRUPTED = "This call was interrupted: whether it took effect is unknown. It was not and will not be run again."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A wish of the model. `problem` says why it cannot be run as it stands (not an object, cut in the middle), or ""."""

    call_id: str
    name: str
    arguments: Any = field(default_factory=dict)
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        found = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return {**found, "problem": self.problem} if self.problem else found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ToolCall:
        return cls(data["call_id"], data["name"], data["arguments"], data.get("problem", ""))


@dataclass(frozen=True, slots=True)
class UserMessage:
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"role": "user", "text": self.text}


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One reply. `blocks` are the provider's own form of it, opaque here, sent back unmodified to the same `provider`."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    blocks: tuple[dict[str, Any], ...] = ()
    provider: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "role": "assistant",
            "text": self.text,
            "calls": [call.to_dict() for call in self.calls],
            "blocks": list(self.blocks),
            "provider": self.provider,
        }


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model sees of a call; `ok` False where the tool itself failed. A failing program is an ok result."""

    call_id: str
    text: str
    ok: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {"role": "tool", "call_id": self.call_id, "text": self.text, "ok": self.ok}


Message: TypeAlias = UserMessage | AssistantMessage | ToolResult


def message_from_dict(data: dict[str, Any]) -> Message:
    """The value behind any `to_dict`; raises KeyError or ValueError for what never came from one."""
    match data["role"]:
        case "user":
            return UserMessage(data["text"])
        case "assistant":
            calls = tuple(ToolCall.from_dict(call) for call in data["calls"])
            return AssistantMessage(data["text"], calls, tuple(data["blocks"]), data["provider"])
        case "tool":
            return ToolResult(data["call_id"], data["text"], data["ok"])
    raise ValueError(f"no message has the role {data['role']!r}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply, or a sum of several."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def to_dict(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Usage:
        return cls(**{name: int(data.get(name) or 0) for name in cls.__slots__})


def open_calls(history: Iterable[Message]) -> list[ToolCall]:
    """Calls without a result: what a crash, a cancel or a limit left behind."""
    return [
        call
        for reply, results in _exchanges(history)
        if isinstance(reply, AssistantMessage)
        for call in reply.calls
        if call.call_id not in results
    ]


def repair(history: Iterable[Message]) -> list[Message]:
    """A history that any model accepts: each call has one result, behind its reply; nothing is empty.

    A call without a result gets an "interrupted" one. Results nobody asked for and second results are dropped, and so is
    a reply with neither text nor calls: providers refuse to be shown what they themselves sent.
    """
    mended: list[Message] = []
    for message, results in _exchanges(history):
        if message.text.strip() or (isinstance(message, AssistantMessage) and message.calls):
            mended.append(message)
        if isinstance(message, AssistantMessage):
            mended += [
                results.get(call.call_id) or ToolResult(call.call_id, INTERRUPTED, ok=False) for call in message.calls
            ]
    return mended


def _exchanges(history: Iterable[Message]) -> Iterator[tuple[UserMessage | AssistantMessage, dict[str, ToolResult]]]:
    """Each message with the results up to the next one: some models use the same call ids in every reply."""
    current: UserMessage | AssistantMessage | None = None
    results: dict[str, ToolResult] = {}
    for message in history:
        if isinstance(message, ToolResult):
            results.setdefault(message.call_id, message)
            continue
        if current is not None:
            yield current, results
        current, results = message, {}
    if current is not None:
        yield current, results
