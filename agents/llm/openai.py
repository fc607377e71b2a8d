"""Chat Completions through the official SDK, at its own address or at any endpoint that speaks it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from agents.llm.base import LLMConfig, LLMEvent, LLMRequest, LLMUnavailable, Metered, Reply, TextDelta, ThinkingDelta
from agents.llm.sending import NO_TEXT, Made, arguments_of, distinct, dumped, parsed, sendable, tool_name, with_messages
from agents.llm.wire import BROKEN, WireLLM
from agents.messages import AssistantMessage, Message, StopReason, ToolCall, ToolResult, Usage, UserMessage

if TYPE_CHECKING:
    import httpx2

STOPS: dict[str, StopReason] = {"length": "max_tokens", "content_filter": "refusal"}


class OpenAILLM(WireLLM):
    kind: ClassVar[str] = "openai"
    own_url: ClassVar[str] = "https://api.openai.com/v1"

    @property
    def sdk(self) -> ModuleType:
        import openai

        return openai

    def make_client(self, http: httpx2.AsyncClient) -> Any:
        self._sent = Made(_json_of)
        return self.sdk.AsyncOpenAI(
            api_key=self.key, base_url=self.endpoint.base_url, max_retries=0, timeout=http.timeout, http_client=http
        )

    async def replies(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        if request.thinking != "off":
            raise LLMConfig("Chat Completions has no setting for thinking.", hint="Set the agent's thinking to off.")
        parts = _Parts()
        system = [dumped({"role": "system", "content": sendable(request.system)})] if request.system.strip() else []
        messages = [text for text in self._sent.of(request.messages) if text]
        stream = await self.ask(
            "/chat/completions", with_messages(body_of(request, own=self.at_home), system + messages)
        )
        try:
            async with aclosing(self.pieces(stream)) as chunks:
                async for chunk in chunks:
                    for delta in parts.feed(chunk):
                        yield delta
        except (LLMUnavailable, OSError, ValueError, self.sdk.APITimeoutError):
            if not parts.stop:
                raise
        yield replace(parts.reply(), request_id=str(stream.response.headers.get("x-request-id") or "")[:100])


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Parts:
    """Puts a reply together from its chunks. It is whole once a reason to stop came; the usage follows in a chunk of its own."""

    text: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    stop: str = ""

    def feed(self, chunk: dict[str, Any]) -> list[LLMEvent]:
        events: list[LLMEvent] = []
        if isinstance(used := chunk.get("usage"), dict):
            self.usage = _usage(used)
            events.append(Metered(self.usage))
        for choice in chunk.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            events += self._delta(choice.get("delta") or {})
            self.stop = choice.get("finish_reason") or self.stop
        return events

    def _delta(self, delta: dict[str, Any]) -> list[LLMEvent]:
        events: list[LLMEvent] = []
        # Not of the API itself: servers of open models send their thoughts under one of these names.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            events.append(ThinkingDelta(thought))
        if content := delta.get("content"):
            self.text.append(content)
            events.append(TextDelta(content))
        if refusal := delta.get("refusal"):
            self.refused.append(refusal)
            events.append(TextDelta(refusal))
        for position, piece in enumerate(delta.get("tool_calls") or []):
            index = piece.get("index")
            call = self.calls.setdefault(index if isinstance(index, int) else position, _Call())
            call.call_id = call.call_id or str(piece.get("id") or "")
            function = piece.get("function") or {}
            call.name = call.name or str(function.get("name") or "")
            call.arguments += _spelled(function.get("arguments"))
        return events

    def reply(self) -> Reply:
        if not self.stop:
            raise LLMUnavailable(BROKEN)
        taken: set[str] = set()
        calls = tuple(
            parsed(distinct(call.call_id, taken), call.name, call.arguments) for _, call in sorted(self.calls.items())
        )
        stop: StopReason = STOPS.get(self.stop, "tool_use" if calls else "end_turn")
        if self.refused:
            stop = "refusal"
        text = "".join(self.text) or "".join(self.refused)
        return Reply(AssistantMessage(text, calls, (), OpenAILLM.kind), stop, self.usage)


def _spelled(arguments: Any) -> str:
    """A piece of JSON text; some servers send the object itself."""
    return arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)


def _usage(used: dict[str, Any]) -> Usage:
    """Their prompt tokens contain those of the cache; ours are counted apart, as they are priced."""
    details = used.get("prompt_tokens_details") or {}
    read, written = int(details.get("cached_tokens") or 0), int(details.get("cache_write_tokens") or 0)
    prompt = int(used.get("prompt_tokens") or 0)
    return Usage(max(0, prompt - read - written), int(used.get("completion_tokens") or 0), read, written)


# -- the question


def body_of(request: LLMRequest, *, own: bool) -> dict[str, Any]:
    """The parameters of one question but for its messages; `own` is whether it goes to the API's own address."""
    body: dict[str, Any] = {
        "model": request.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        # The old name is refused by newer models there, the new one is not known to many servers elsewhere.
        "max_completion_tokens" if own else "max_tokens": request.max_output_tokens,
    }
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.schema}}
            for t in request.tools
        ]
        body["tool_choice"] = "auto" if request.may_call else "none"
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def _json_of(message: Message) -> str:
    """A message as JSON; "" for a reply without anything in it, which no API takes back."""
    match message:
        case UserMessage(text):
            return dumped({"role": "user", "content": sendable(text)})
        case ToolResult(call_id, text):
            content = sendable(text) if text.strip() else NO_TEXT
            return dumped({"role": "tool", "tool_call_id": call_id, "content": content})
        case AssistantMessage():
            return dumped(said) if (said := _assistant(message)) else ""


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    text = sendable(message.text) if message.text.strip() else None
    if text is None and not message.calls:
        return {}
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if message.calls:
        said["tool_calls"] = [_call(call) for call in message.calls]
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(sendable(arguments_of(call)), ensure_ascii=False)
    return {"id": call.call_id, "type": "function", "function": {"name": tool_name(call.name), "arguments": arguments}}
