"""The agent loop: ask the model, run its calls, until it is done or a limit is met. Calls go down, events come up.

Pure: no Django, no SDK, no storage. It keeps no state that a history does not hold, so it starts from any history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from agents.llm.base import LLM, LLMError, LLMRequest, LLMUnavailable, Reply, TextDelta, ThinkingDelta, ToolSpec
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, repair
from agents.tools.base import ToolEvent, ToolOutcome, ToolOutput

EndReason = Literal["completed", "failed", "limit", "timed_out"]
MAX_ATTEMPTS = 4
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 20.0
MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
CUT = (
    "the reply was cut off by its output limit in the middle of this call. Send the whole call again, in smaller parts"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use; None is no limit. `timeout_s` is wall clock, `max_tokens` the sum of all tokens."""

    max_turns: int = 50
    max_tool_calls: int = 200
    timeout_s: float = 1800.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the model is asked."""

    model: str
    system: str = ""
    max_output_tokens: int = 8192
    temperature: float | None = None
    thinking: str | dict[str, Any] = "off"


class Tools(Protocol):
    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    def run(self, call: ToolCall) -> AsyncGenerator[ToolEvent, None]: ...


@dataclass(frozen=True, slots=True)
class TurnStarted:
    turn: int
    model: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    turn: int
    stop_reason: str
    usage: Usage
    duration_ms: float


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
    """The model failed and is asked again in `retry_in_s` seconds; what was streamed of the failed reply is void."""

    error: LLMError
    retry_in_s: float
    attempt: int


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
    | Ended
)


class _OutOfTime(Exception):
    """The run's wall clock is used up."""


@dataclass(slots=True)
class AgentLoop:
    """One run. `events()` is read once; closing it or cancelling its reader ends the model's stream or the running tool."""

    llm: LLM
    tools: Tools
    settings: Settings
    limits: Limits = field(default_factory=Limits)
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    history: list[Message] = field(default_factory=list)
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    answer: str = ""
    _deadline: float = 0.0

    async def events(self, history: Sequence[Message]) -> AsyncGenerator[LoopEvent, None]:
        """Runs from `history`, whose last message the model has not answered, to one `Ended`."""
        self.history = repair(history)
        self._deadline = asyncio.get_running_loop().time() + self.limits.timeout_s
        try:
            while True:
                async with aclosing(self._turn()) as turn:
                    async for event in turn:
                        yield event
                        if isinstance(event, Ended):
                            return
        except _OutOfTime:
            seconds = f"{self.limits.timeout_s:g} s"
            yield Ended(
                "timed_out", self.answer, "timeout_s", f"The run took longer than its limit of {seconds}.",
                "Raise limits.timeout_s, or continue the session by a message.",
            )  # fmt: skip

    async def _turn(self) -> AsyncGenerator[LoopEvent, None]:
        """One question to the model and the calls of its reply."""
        if limit := self._limit_before_turn():
            yield limit
            return
        began = asyncio.get_running_loop().time()
        self.turns += 1
        yield TurnStarted(self.turns, self.settings.model)
        reply: Reply | None = None
        async with aclosing(self._ask()) as stream:
            async for event in stream:
                if isinstance(event, Reply):
                    reply = event
                else:
                    yield event
                    if isinstance(event, Ended):
                        return
        if reply is None:
            raise RuntimeError("the model's stream ended without a reply")
        async with aclosing(self._act(reply)) as acts:
            async for act in acts:
                if isinstance(act, Ended):
                    yield self._turn_ended(reply, began)
                yield act
                if isinstance(act, Ended):
                    return
        yield self._turn_ended(reply, began)

    def _turn_ended(self, reply: Reply, began: float) -> TurnEnded:
        spent = (asyncio.get_running_loop().time() - began) * 1000
        return TurnEnded(self.turns, reply.stop_reason, reply.usage, round(spent, 1))

    def _limit_before_turn(self) -> Ended | None:
        most = self.limits.max_tokens
        if self.turns >= self.limits.max_turns:
            return self._limit("max_turns", f"{self.limits.max_turns} turns")
        if self.tool_calls > self.limits.max_tool_calls:
            return self._limit("max_tool_calls", f"{self.limits.max_tool_calls} tool calls")
        if most is not None and self.usage.total >= most:
            return self._limit("max_tokens", f"{most} tokens")
        return None

    def _limit(self, name: str, value: str) -> Ended:
        hint = f"Raise limits.{name}, or continue the session by a message."
        return Ended("limit", self.answer, name, f"The run met its limit of {value}.", hint)

    async def _ask(self) -> AsyncGenerator[LoopEvent | Reply, None]:
        """The model's stream, asked again when it failed in a way that may pass; an `Ended` when it did not."""
        attempt = 1
        while True:
            try:
                async with aclosing(self._stream(attempt)) as stream:
                    async for event in stream:
                        yield event
                return
            except LLMError as exc:
                if not exc.retryable or attempt >= MAX_ATTEMPTS:
                    yield Ended("failed", self.answer, exc.code, exc.detail, exc.hint_text)
                    return
                wait = _pause_before(attempt, exc)
                yield Retrying(exc, wait, attempt)
            await self._in_time(self.pause(wait))
            attempt += 1

    async def _stream(self, attempt: int) -> AsyncGenerator[TextDelta | ThinkingDelta | Reply, None]:
        request = LLMRequest(
            model=self.settings.model,
            system=self.settings.system,
            messages=tuple(self.history),
            tools=self.tools.specs,
            max_output_tokens=self.settings.max_output_tokens,
            temperature=self.settings.temperature,
            thinking=self.settings.thinking,
            attempt=attempt,
        )
        async with aclosing(self._timed(self.llm.stream(request))) as stream:
            async for event in stream:
                yield event
                if isinstance(event, Reply):
                    return
        raise LLMUnavailable("The model's stream ended in the middle of a reply.")

    async def _act(self, reply: Reply) -> AsyncGenerator[LoopEvent, None]:
        """Takes a reply into the history, runs its calls, and says how the run ends if it does."""
        self.usage += reply.usage
        message = _bounded(reply)
        self.answer = message.text if message.text.strip() else self.answer
        if message.text.strip() or message.calls or message.blocks:
            yield Replied(message)
            self.history.append(message)
        for call in message.calls:
            self.tool_calls += 1
            async with aclosing(self._call(call)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, CallEnded) and (fatal := event.outcome.fatal):
                        yield Ended("failed", self.answer, fatal.cause_code, fatal.detail, fatal.hint_text)
                        return
        self.history = repair(self.history)
        if ended := self._end(reply, message):
            yield ended

    def _end(self, reply: Reply, message: AssistantMessage) -> Ended | None:
        if message.calls:
            return self._limit_before_turn() if self.tool_calls > self.limits.max_tool_calls else None
        match reply.stop_reason:
            case "refusal":
                return Ended("failed", message.text, "refused", "The model refused to answer.", "Ask differently.")
            case "max_tokens":
                text = f"The reply was cut off at {self.settings.max_output_tokens} tokens."
                return Ended("limit", message.text, "max_output_tokens", text, "Raise the agent's max_output_tokens.")
            case "pause":
                return None
        if not message.text.strip():
            return Ended(
                "failed", self.answer, "empty_reply", "The model gave an empty reply.", "Send a message to go on."
            )
        return Ended("completed", message.text)

    async def _call(self, call: ToolCall) -> AsyncGenerator[LoopEvent, None]:
        """Runs one call, or explains to the model why not; always ends with one `CallEnded`."""
        yield CallStarted(call)
        outcome: ToolOutcome | None = None
        if self.tool_calls > self.limits.max_tool_calls:
            text = f"The call was not run: the limit of {self.limits.max_tool_calls} tool calls is used up."
            outcome = ToolOutcome(text, ok=False)
        else:
            async with aclosing(self._timed(self.tools.run(call))) as events:
                async for event in events:
                    if isinstance(event, ToolOutput):
                        yield CallOutput(call, event)
                    elif isinstance(event, ToolOutcome):
                        outcome = event
                    else:
                        yield CallExec(call, event.exec_id)
        if outcome is None:
            raise RuntimeError(f"the tool {call.name} ended without an outcome")
        self.history.append(ToolResult(call.call_id, outcome.text, outcome.ok))
        yield CallEnded(call, outcome)

    async def _timed(self, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The same stream, ended at the deadline. No time-out spans a `yield`: it would cancel the reader instead."""
        async with aclosing(stream):
            while True:
                try:
                    item = await self._in_time(anext(stream))
                except StopAsyncIteration:
                    return
                yield item

    async def _in_time(self, work: Awaitable[T]) -> T:
        timer = asyncio.timeout_at(self._deadline)
        try:
            async with timer:
                return await work
        except TimeoutError:
            if timer.expired():
                raise _OutOfTime from None
            raise


def _pause_before(attempt: int, error: LLMError) -> float:
    """Seconds to the next attempt: what the endpoint asked for, else doubling, with jitter so that many do not meet."""
    if error.retry_after_s is not None:
        return float(min(error.retry_after_s, MAX_PAUSE_S))
    doubled: float = min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), MAX_PAUSE_S)
    return doubled * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret


def _bounded(reply: Reply) -> AssistantMessage:
    """The reply with its last call marked as cut when the output limit was met, and oversized arguments left out."""
    message = reply.message
    calls = [_sized(call) for call in message.calls]
    if calls and reply.stop_reason == "max_tokens":
        last = calls[-1]
        calls[-1] = ToolCall(last.call_id, last.name, last.arguments, last.problem or CUT)
    return AssistantMessage(message.text, tuple(calls), message.blocks, message.provider)


def _sized(call: ToolCall) -> ToolCall:
    size = len(repr(call.arguments))
    if size <= MAX_ARGUMENT_BYTES:
        return call
    return ToolCall(call.call_id, call.name, {}, f"its arguments have about {size} bytes; at most {MAX_ARGUMENT_BYTES}")
