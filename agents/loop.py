"""The agent loop: ask the model, run its calls, until it is done or a limit is met. Calls go down, events come up.

Pure: no Django, no SDK, no storage. It keeps no state that a history does not hold, so it starts from any history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from agents.budget import Limits, Spent
from agents.compaction import compact
from agents.events import (
    CallEnded,
    CallExec,
    CallOutput,
    CallStarted,
    Compacted,
    Ended,
    LoopEvent,
    Replied,
    Retrying,
    TurnEnded,
    TurnStarted,
    WaitsForPlace,
)
from agents.llm.base import (
    LLM,
    ContextTooLong,
    LLMError,
    LLMRequest,
    LLMUnavailable,
    Metered,
    Reply,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
    Waiting,
)
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, Usage, UserMessage, repair
from agents.replies import CUT_STOPS, end_by, runnable
from agents.tools.base import ToolEvent, ToolOutcome, ToolOutput

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 20.0
LONGEST_WAIT_S = 120  # that an endpoint may ask for
MAX_COMPACTIONS = 8  # for one question
MAX_FULL = 3  # replies to one question that the context had no room for: unlike a refusal, each is paid
AT_ONCE = 8  # independent calls of one reply
T = TypeVar("T")


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

    def independent(self, call: ToolCall) -> bool:
        """Whether the call changes nothing and may run beside others of its kind."""
        ...

    def run(self, call: ToolCall) -> AsyncGenerator[ToolEvent, None]: ...


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
    spent: Spent = field(default_factory=Spent)
    cost: float | None = 0.0  # of `spent`; None as soon as a part of it has no price
    answer: str = ""
    _deadline: float = 0.0
    _cuts: int = 0  # replies in a row that were cut in the middle of a call
    _told: bool = False  # that the provider has no free place

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

    # -- one turn

    async def _turn(self) -> AsyncGenerator[LoopEvent, None]:
        """One question to the model and the calls of its reply."""
        if (met := self.spent.over(self.limits)) is not None:
            async with aclosing(self._last_answer(*met)) as events:
                async for event in events:
                    yield event
            return
        began = asyncio.get_running_loop().time()
        self.spent.turns += 1
        yield TurnStarted(self.spent.turns, self.settings.model)
        reply: Reply | None = None
        async with aclosing(self._ask()) as stream:
            async for item in stream:
                if isinstance(item, Reply):
                    reply = item
                else:
                    yield item
                    if isinstance(item, Ended):
                        return
        if reply is None:
            raise RuntimeError("the model's stream ended without a reply")
        async with aclosing(self._act(reply)) as acts:
            async for act in acts:
                if isinstance(act, Ended):
                    yield self._turn_ended(self.spent.turns, reply, began)
                yield act
                if isinstance(act, Ended):
                    return
        yield self._turn_ended(self.spent.turns, reply, began)

    def _turn_ended(self, turn: int, reply: Reply, began: float) -> TurnEnded:
        spent = (asyncio.get_running_loop().time() - began) * 1000
        return TurnEnded(turn, reply.stop_reason, reply.usage, round(spent, 1), self._cost_of(reply.usage))

    def _cost_of(self, usage: Usage) -> float | None:
        price = self.llm.prices.get(self.settings.model)
        return price.of(usage) if price is not None else None

    def _count(self, usage: Usage) -> None:
        if not usage.total:
            return
        self.spent.usage += usage
        cost = self._cost_of(usage)
        self.cost = None if self.cost is None or cost is None else round(self.cost + cost, 9)

    async def _last_answer(self, name: str, value: str) -> AsyncGenerator[LoopEvent, None]:
        """The end by a limit; with turns or calls used up the model may still say what it has found, and call nothing."""
        message = f"The run met its limit of {value}."
        ended = Ended(
            "limit", self.answer, name, message, f"Raise limits.{name}, or continue the session by a message."
        )
        if name != "max_tokens":
            began = asyncio.get_running_loop().time()
            self.spent.turns += 1
            yield TurnStarted(self.spent.turns, self.settings.model)
            wish = f"{message} No tool can be called any more. Answer now, with what you have."
            async with aclosing(self._ask(wish)) as stream:
                async for item in stream:
                    if isinstance(item, Reply):
                        if text := item.message.text.strip():
                            self.answer = item.message.text
                            # Without its own blocks: they may hold calls, and no call will have a result.
                            said = AssistantMessage(self.answer, provider=item.message.provider)
                            self.history.append(said)
                            yield Replied(said)
                            ended = replace(ended, answer=text)
                        yield self._turn_ended(self.spent.turns, item, began)
                    elif not isinstance(item, Ended):  # it cannot be asked: the limit is the end all the same
                        yield item
        yield ended

    # -- asking

    async def _ask(self, last_wish: str = "") -> AsyncGenerator[LoopEvent | Reply, None]:
        """The model's stream, asked again when it failed in a way that may pass, with a shorter history when that was too
        long; an `Ended` when it did not answer."""
        attempt, compactions, fulls, attempts = 1, 0, 0, 1 + self.llm.max_retries
        while True:
            full: Reply | None = None  # a reply that the model's context had no room for
            try:
                async with aclosing(self._stream(attempt, last_wish)) as stream:
                    async for event in stream:
                        if isinstance(event, Reply) and event.stop_reason == "context_full":
                            full = event
                        else:
                            yield event
                if full is None:
                    return
                too_long: Reply | Ended = full
                fulls += 1
            except ContextTooLong as exc:
                too_long = Ended("failed", self.answer, exc.code, exc.detail, exc.hint_text)
            except LLMError as exc:
                wait = _pause_before(attempt, exc) if exc.retryable and attempt < attempts else None
                if wait is None:
                    hint = f"{exc.hint_text} A message continues the session."
                    yield Ended("failed", self.answer, exc.code, exc.detail, hint)
                    return
                attempt += 1
                yield Retrying(exc, wait, attempt, attempts)
                await self._in_time(self.pause(wait))
                continue
            paid = full is not None and (fulls >= MAX_FULL or self.spent.out_of_tokens(self.limits))
            shorter = compact(self.history) if compactions < MAX_COMPACTIONS and not paid else None
            if shorter is None:
                yield too_long
                return
            compactions += 1
            self.history = shorter.history
            yield Compacted(shorter.left_out, shorter.shortened)

    async def _stream(
        self, attempt: int, last_wish: str
    ) -> AsyncGenerator[TextDelta | ThinkingDelta | WaitsForPlace | Reply, None]:
        """One question. What it used is counted whether or not a whole reply came: the endpoint counts it too."""
        used = Usage()
        try:
            async with aclosing(self._timed(self.llm.stream(self._request(attempt, last_wish)))) as stream:
                async for event in stream:
                    match event:
                        case Metered(usage):
                            used = usage
                        case Waiting(provider, places):
                            if not self._told:
                                self._told = True
                                yield WaitsForPlace(provider, places)
                        case Reply():
                            self._count(event.usage)
                            used = Usage()
                            yield event
                            return
                        case _:
                            yield event
        finally:
            self._count(used)
        raise LLMUnavailable("The model's stream ended in the middle of a reply.")

    def _request(self, attempt: int, last_wish: str) -> LLMRequest:
        return LLMRequest(
            model=self.settings.model,
            system="\n\n".join(part for part in (self.settings.system, self.limits.told()) if part.strip()),
            messages=(*self.history, UserMessage(last_wish)) if last_wish else tuple(self.history),
            tools=self.tools.specs,
            max_output_tokens=self.settings.max_output_tokens,
            temperature=self.settings.temperature,
            thinking=self.settings.thinking,  # also for the last answer: a turn cannot change it in its middle
            attempt=attempt,
            may_call=not last_wish,
        )

    # -- acting

    async def _act(self, reply: Reply) -> AsyncGenerator[LoopEvent, None]:
        """Takes a reply into the history, runs its calls, and says how the run ends if it does."""
        message = runnable(reply)
        self.answer = message.text if message.text.strip() else self.answer
        if message.text.strip() or message.calls or message.blocks:
            yield Replied(message)
            self.history.append(message)
        for calls in self._batches(message.calls):
            last = calls[-1] is message.calls[-1]
            async with aclosing(
                self._together(calls, last) if len(calls) > 1 else self._call(calls[0], last)
            ) as events:
                async for event in events:
                    yield event
                    if isinstance(event, CallEnded) and (fatal := event.outcome.fatal):
                        yield Ended("failed", self.answer, fatal.cause_code, fatal.detail, fatal.hint_text)
                        return
        self.history = repair(self.history)
        if ended := self._end(reply, message):
            yield ended

    def _end(self, reply: Reply, message: AssistantMessage) -> Ended | None:
        self._cuts = self._cuts + 1 if message.calls and reply.stop_reason in CUT_STOPS else 0
        most = self.settings.max_output_tokens
        return end_by(reply, message, cuts=self._cuts, most_tokens=most, before=self.answer)

    def _batches(self, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
        """Calls in order; independent ones that stand beside each other, together."""
        batch: list[ToolCall] = []
        for call in calls:
            if batch and not (
                len(batch) < AT_ONCE and self.tools.independent(call) and self.tools.independent(batch[-1])
            ):
                yield batch
                batch = []
            batch.append(call)
        if batch:
            yield batch

    async def _together(self, calls: list[ToolCall], last: bool) -> AsyncGenerator[LoopEvent, None]:
        """Runs calls at the same time and tells of them one after the other."""
        tasks = [asyncio.create_task(self._collected(call, last and call is calls[-1])) for call in calls]
        try:
            for task in tasks:
                for event in await task:
                    yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _collected(self, call: ToolCall, last: bool) -> list[LoopEvent]:
        async with aclosing(self._call(call, last)) as events:
            return [event async for event in events]

    async def _call(self, call: ToolCall, last: bool) -> AsyncGenerator[LoopEvent, None]:
        """Runs one call, or explains to the model why not; always ends with one `CallEnded`."""
        self.spent.tool_calls += 1
        yield CallStarted(call)
        outcome: ToolOutcome | None = None
        if self.spent.tool_calls > self.limits.max_tool_calls:
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
        seconds = self._deadline - asyncio.get_running_loop().time()
        if last and (note := self.spent.left(self.limits, seconds)):
            outcome = replace(outcome, text=f"{outcome.text}\n{note}".lstrip("\n"))
        self.history.append(ToolResult(call.call_id, outcome.text, outcome.ok))
        yield CallEnded(call, outcome)

    # -- time

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


def _pause_before(attempt: int, error: LLMError) -> float | None:
    """Seconds to the next attempt: what the endpoint asked for, else doubling, with jitter so that many do not meet. None
    when the endpoint asks for more than anybody would wait."""
    if error.retry_after_s is not None:
        return float(error.retry_after_s) if error.retry_after_s <= LONGEST_WAIT_S else None
    doubled: float = min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), MAX_PAUSE_S)
    return doubled * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
