"""What happens in a run of the agent loop, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from agents.llm.base import LLMError, TextDelta, ThinkingDelta
from agents.messages import AssistantMessage, ToolCall, Usage
from agents.tools.base import ToolOutcome, ToolOutput

EndReason = Literal["completed", "failed", "limit", "timed_out"]


@dataclass(frozen=True, slots=True)
class TurnStarted:
    turn: int
    model: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """`cost` is None where the model has no price."""

    turn: int
    stop_reason: str
    usage: Usage
    duration_ms: float
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Replied:
    """The model's whole reply; every call in it will get one `CallEnded`, run or not."""

    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Comes before the call has any effect."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallExec:
    """The call is about to run a program, whose output can be read by this id."""

    call: ToolCall
    exec_id: str


@dataclass(frozen=True, slots=True)
class CallOutput:
    call: ToolCall
    output: ToolOutput


@dataclass(frozen=True, slots=True)
class CallEnded:
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Retrying:
    """The model failed and is asked again in `retry_in_s` seconds, as attempt number `attempt` of at most `attempts`.

    What was streamed of the failed reply is void.
    """

    error: LLMError
    retry_in_s: float
    attempt: int
    attempts: int


@dataclass(frozen=True, slots=True)
class WaitsForPlace:
    """The LLM provider is asked as many questions as it takes at once; this one waits. Told once in a run."""

    provider: str
    places: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation was too long for the model and is shorter now; the transcript keeps all of it."""

    left_out: int  # messages
    shortened: int  # results of tools


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `answer` is the model's last text; `code`, `message`, `hint` say why unless it completed."""

    reason: EndReason
    answer: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""


LoopEvent: TypeAlias = (
    TurnStarted
    | TurnEnded
    | TextDelta
    | ThinkingDelta
    | Replied
    | CallStarted
    | CallExec
    | CallOutput
    | CallEnded
    | Retrying
    | WaitsForPlace
    | Compacted
    | Ended
)
