"""A deterministic model that needs no key: it runs the snippet it is given, or plays a script of turns.

It ships as a product: the first run of a new install uses it, and so do demos and tests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agents.budget import NOTE
from agents.llm.base import LLM, LLMConfig, LLMEvent, LLMRequest, LLMUnavailable, Reply, TextDelta, ThinkingDelta
from agents.llm.snippet import MAX_BYTES, snippet_of
from agents.messages import AssistantMessage, Message, StopReason, ToolCall, ToolResult, Usage, UserMessage

FILE, COMMAND = "snippet.py", "python snippet.py"
WRITE, EXEC = "workspace__write", "workspace__exec"
HELP = "Give me code to run, for example: Run this code: print(6 * 7)"
DELTA_CHARS = 40
STOPS: tuple[StopReason, ...] = ("end_turn", "tool_use", "max_tokens", "context_full", "refusal", "pause")
ERRORS = {"llm_unavailable": LLMUnavailable, "llm_config": LLMConfig}
TURN_FIELDS = frozenset(
    {"text", "thinking", "calls", "stop_reason", "usage", "error", "break_after", "times", "pause_ms"}
)


class BadScript(ValueError):
    """A script of turns is not usable; `field` is the path of what is wrong."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(f"{field_name}: {message}")
        self.field, self.message = field_name, message


@dataclass(frozen=True, slots=True)
class Turn:
    """One scripted reply.

    `calls` are `{name, arguments}`; arguments that are no object play a broken call. `error` is raised instead of a
    reply, `break_after` ends the stream silently after so many characters of text; both on the first `times` attempts
    (None: on each). `pause_ms` passes before each delta.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    break_after: int | None = None
    times: int | None = None
    pause_ms: int = 0

    def fails(self, attempt: int) -> bool:
        return self.times is None or attempt <= self.times


def parse_turns(data: Any, name: str = "turns") -> tuple[Turn, ...]:
    """The script in a provider's configuration; raises `BadScript` naming the place."""
    if not isinstance(data, list) or not 1 <= len(data) <= 1000:
        raise BadScript(name, "must be a list of 1 to 1000 turns")
    return tuple(_turn(item, f"{name}[{index}]") for index, item in enumerate(data))


def _turn(item: Any, name: str) -> Turn:
    if not isinstance(item, dict):
        raise BadScript(name, "must be an object")
    if unknown := sorted(set(item) - TURN_FIELDS):
        raise BadScript(f"{name}.{unknown[0]}", "unknown field")
    for key in ("text", "thinking"):
        if not isinstance(item.get(key, ""), str):
            raise BadScript(f"{name}.{key}", "must be text")
    for key in ("break_after", "times", "pause_ms"):
        value = item.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000):
            raise BadScript(f"{name}.{key}", "must be a whole number from 0 to 1000000")
    if item.get("stop_reason") not in (None, *STOPS):
        raise BadScript(f"{name}.stop_reason", f"must be one of {', '.join(STOPS)}")
    if item.get("error", "") not in ("", *ERRORS):
        raise BadScript(f"{name}.error", f"must be one of {', '.join(ERRORS)}")
    return Turn(
        text=item.get("text", ""), thinking=item.get("thinking", ""), calls=_calls(item.get("calls", []), name),
        stop_reason=item.get("stop_reason"), usage=_usage(item.get("usage", {}), name), error=item.get("error", ""),
        break_after=item.get("break_after"), times=item.get("times"), pause_ms=item.get("pause_ms") or 0,
    )  # fmt: skip


def _calls(data: Any, name: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(data, list):
        raise BadScript(f"{name}.calls", "must be a list")
    for index, call in enumerate(data):
        if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
            raise BadScript(f"{name}.calls[{index}]", "must be {name, arguments}")
    return tuple(data)


def _usage(data: Any, name: str) -> Usage:
    known = Usage.__slots__
    if not isinstance(data, dict) or any(
        key not in known or not isinstance(value, int) or isinstance(value, bool) or value < 0
        for key, value in data.items()
    ):
        raise BadScript(f"{name}.usage", f"must map {', '.join(known)} to whole numbers")
    return Usage.from_dict(data)


class ScriptedLLM(LLM):
    """Plays `turns` when there are any (the last one repeats), else behaves as a code runner."""

    kind: ClassVar[str] = "scripted"
    takes_thinking: ClassVar[bool] = True
    default_model: str = "scripted"

    def __init__(self, turns: Sequence[Turn] = ()) -> None:
        self._turns = tuple(turns)

    @classmethod
    def configured(cls, config: dict[str, Any], key: str, name: str) -> LLM:
        made = cls(parse_turns(config["turns"]) if config.get("turns") else ())
        made.take(config)
        return made

    async def models(self) -> list[str]:
        return ["scripted"]

    async def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        turn = self._next(request.messages)
        if turn.error and turn.fails(request.attempt):
            raise ERRORS[turn.error]()
        async for event in _deltas(turn, request.attempt):
            yield event
        if turn.break_after is not None and turn.fails(request.attempt):
            return  # a quiet end in the middle: the loop must notice by itself
        made = sum(len(m.calls) for m in request.messages if isinstance(m, AssistantMessage))
        calls = tuple(_call(call, made + index) for index, call in enumerate(turn.calls, 1))
        stop = turn.stop_reason or ("tool_use" if calls else "end_turn")
        yield Reply(AssistantMessage(turn.text, calls, (), self.kind), stop, turn.usage)

    def _next(self, messages: Sequence[Message]) -> Turn:
        if not self._turns:
            return code_runner(messages)
        done = sum(isinstance(message, AssistantMessage) for message in messages)
        return self._turns[min(done, len(self._turns) - 1)]


async def _deltas(turn: Turn, attempt: int) -> AsyncGenerator[LLMEvent, None]:
    """Thinking and text in small pieces, as a real model sends them."""
    text = turn.text
    if turn.break_after is not None and turn.fails(attempt):
        text = text[: turn.break_after]
    for kind, whole in ((ThinkingDelta, turn.thinking), (TextDelta, text)):
        for start in range(0, len(whole), DELTA_CHARS):
            await asyncio.sleep(turn.pause_ms / 1000)
            yield kind(whole[start : start + DELTA_CHARS])


def _call(data: dict[str, Any], number: int) -> ToolCall:
    arguments = data["arguments"]
    problem = "" if isinstance(arguments, dict) else "its arguments are not a JSON object"
    return ToolCall(f"call-{number}", data["name"], arguments, problem)


def code_runner(messages: Sequence[Message]) -> Turn:
    """Writes the snippet of the last user message, runs it, reports what it printed. A function of the history alone."""
    asked = max((i for i, m in enumerate(messages) if isinstance(m, UserMessage)), default=-1)
    question = messages[asked] if asked >= 0 else None
    code = snippet_of(question.text) if isinstance(question, UserMessage) else ""
    if not code:
        return Turn(text=HELP)
    if len(code.encode("utf-8", "replace")) > MAX_BYTES:
        return Turn(text=f"The snippet is larger than {MAX_BYTES} bytes. Put it into a file and ask me to run that.")
    results = [m for m in messages[asked + 1 :] if isinstance(m, ToolResult)]
    if not results:
        return Turn(calls=({"name": WRITE, "arguments": {"path": FILE, "content": code}},))
    if not results[-1].ok:
        step = "written" if len(results) == 1 else "run"
        return Turn(text=f"The snippet could not be {step}: {results[-1].text}")
    if len(results) == 1:
        return Turn(calls=({"name": EXEC, "arguments": {"command": COMMAND}},))
    return Turn(text=report(results[-1].text))


def report(result: str) -> str:
    """What the code runner says of an exec's result: what was printed, and how it ended unless that was exit 0."""
    how, stdout, stderr = split_result(result)
    parts = [f"The snippet printed:\n{stdout}" if stdout else "The snippet printed nothing."]
    if how != "exit 0":
        parts.insert(0, f"The snippet failed: {how}.")
        if stderr:
            parts.append(f"Its errors:\n{stderr}")
    return "\n".join(parts)


def split_result(result: str) -> tuple[str, str, str]:
    """The verdict, stdout and stderr of an exec's result as the tool renders it. The last header is ours: output comes before."""
    head, _, body = result.partition("\n")
    body = re.sub(rf"\n?{re.escape(NOTE)}[^\n]*\Z", "", body)
    how = head.split(" (")[0]
    out = re.match(r"stdout: \d+ bytes\n?", body)
    if out is None:
        return how, body, ""
    headers = list(re.finditer(r"^stderr: \d+ bytes$", body, re.MULTILINE))
    if not headers:
        return how, body[out.end() :], ""
    last = headers[-1]
    return how, body[out.end() : last.start()].removesuffix("\n"), body[last.end() :].removeprefix("\n")
