"""The Messages API through the official SDK, at its own address or at any endpoint that speaks it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from agents.llm.base import LLMEvent, LLMRequest, LLMUnavailable, Metered, Reply, TextDelta, ThinkingDelta, ToolSpec
from agents.llm.sending import NO_TEXT, Made, arguments_of, distinct, dumped, parsed, sendable, tool_name, with_messages
from agents.llm.wire import BROKEN, WireLLM
from agents.messages import AssistantMessage, Message, StopReason, ToolCall, ToolResult, Usage, UserMessage

if TYPE_CHECKING:
    import httpx2

DRAIN_S = 0.25
log = structlog.get_logger(__name__)
OLDER_VERSION = "2023-06-01"
CACHED = {"cache_control": {"type": "ephemeral"}}
STOPS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "context_full",
    "refusal": "refusal",
    "pause_turn": "pause",
}
THOUGHTS = ("thinking", "redacted_thinking")
# A thought is valid only behind what was before it when it was thought: a conversation that was made shorter, or in which a
# secret was masked, is another one. The API names the block, and says what is wrong in its first sentence.
THOUGHTS_REFUSED = re.compile(
    r"\bmessages\.\d+\.content\.\d+(?:\.(?:redacted_)?thinking\b|(?:\.type)?: [^.]{0,80}?"
    r"(?:thinking`? blocks?\b|thinking`?, but found|\bsignature\b))",
    re.IGNORECASE,
)
USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}


class AnthropicLLM(WireLLM):
    kind: ClassVar[str] = "anthropic"
    own_url: ClassVar[str] = "https://api.anthropic.com"
    takes_thinking: ClassVar[bool] = True

    @property
    def sdk(self) -> ModuleType:
        import anthropic

        return anthropic

    def make_client(self, http: httpx2.AsyncClient) -> Any:
        self._refused: set[str] = set()  # thoughts that the endpoint did not take back, by their signatures
        self._budget_refused = False  # with one, a reply that goes on must begin with its thought
        self._sent = Made(self._json_of)
        return self.sdk.AsyncAnthropic(
            api_key=self.key, base_url=self.endpoint.base_url, max_retries=0, timeout=http.timeout, http_client=http,
            open_telemetry=False,
        )  # fmt: skip

    @property
    def own_headers(self) -> dict[str, str]:
        # The SDK sends a bearer token; endpoints of others often read only the header of older versions.
        return super().own_headers | ({} if self.at_home else {"X-Api-Key": self.key})

    async def replies(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        parts = _Parts()
        stream = await self._asked(request)
        async with aclosing(self.pieces(stream)) as events:
            async for event in events:
                if (delta := parts.feed(event)) is not None:
                    yield delta
                if parts.done:
                    await _drain(events)
                    break
        yield replace(parts.reply(), request_id=str(stream.response.headers.get("request-id") or "")[:100])

    async def _asked(self, request: LLMRequest) -> Any:
        """The stream of the answer. Thoughts that are not taken back are left out from then on, all of them: one that goes
        makes those behind it invalid too."""
        # The SDK's version of the API knows no temperature any more; the one before it does.
        extra = {} if request.temperature is None else {"anthropic-version": OLDER_VERSION}
        try:
            return await self.ask("/v1/messages", self._question(request), extra)
        except self.sdk.BadRequestError as exc:
            if not THOUGHTS_REFUSED.search(self.wish_in(exc)) or not self._forget(request):
                raise
            log.info("asked without earlier thoughts", provider=self.endpoint.name, model=request.model)
        return await self.ask("/v1/messages", self._question(request), extra)

    def _question(self, request: LLMRequest) -> bytes:
        body = body_of(request)
        if self._budget_refused:
            body.pop("thinking", None)
        return with_messages(body, self._messages(request.messages))

    def _forget(self, request: LLMRequest) -> bool:
        """Leaves the thoughts of this history out of every later question; False when that changes nothing."""
        known = (len(self._refused), self._budget_refused)
        self._budget_refused |= isinstance(request.thinking, dict)
        for message in request.messages:
            if isinstance(message, AssistantMessage):
                self._refused.update(filter(None, map(_signature, message.blocks)))
        self._sent = Made(self._json_of)
        return (len(self._refused), self._budget_refused) != known

    def _json_of(self, message: Message) -> list[str]:
        """The blocks of a message as JSON; [] for a reply without anything that the API takes back."""
        if not isinstance(message, AssistantMessage):
            return [dumped(_said(message))]
        return [dumped(block) for block in _assistant(message) if _signature(block) not in self._refused]

    def _messages(self, history: Sequence[Message]) -> list[str]:
        """Alternating messages as JSON; the results of a reply's calls are the first blocks behind it. The last block is
        marked for the cache, so that the next question reads all of this one from it."""
        turns: list[tuple[str, list[str]]] = []
        for message, blocks in zip(history, self._sent.of(history), strict=True):
            role = "assistant" if isinstance(message, AssistantMessage) else "user"
            if blocks and turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            elif blocks:
                turns.append((role, list(blocks)))
        if turns and not isinstance(last := history[-1], AssistantMessage):
            turns[-1][1][-1] = dumped(_said(last) | CACHED)
        return [f'{{"role":"{role}","content":[{",".join(blocks)}]}}' for role, blocks in turns]


async def _drain(events: AsyncIterator[Any]) -> None:
    """Reads to the end, so that the connection serves the next question; the reply is whole already, whatever comes."""
    try:
        async with asyncio.timeout(DRAIN_S):
            async for _ in events:
                pass
    except Exception as exc:
        log.debug("the end of an answer was not clean", exc_info=exc)


class _Parts:
    """Puts a reply together from its events. `done` is set by the API's own last event and by nothing else."""

    def __init__(self) -> None:
        self.done = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._usage: dict[str, int] = {}
        self._stop = ""

    def feed(self, event: dict[str, Any]) -> LLMEvent | None:
        match event.get("type"):
            case "message_start":
                return self._count(event["message"].get("usage"))
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
                self._json[event["index"]] = ""
            case "content_block_delta":
                return self._delta(event["index"], event["delta"])
            case "message_delta":
                self._stop = event["delta"].get("stop_reason") or self._stop
                return self._count(event.get("usage"))
            case "message_stop":
                self.done = True
        return None  # kinds of events may be added at any time

    def _delta(self, index: int, delta: dict[str, Any]) -> LLMEvent | None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                return TextDelta(delta["text"])
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return ThinkingDelta(delta["thinking"])
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._json[index] += delta["partial_json"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return None

    def _count(self, usage: dict[str, Any] | None) -> Metered:
        """Counts are running totals: a later one replaces an earlier one, one that is missing does not."""
        for ours, theirs in USAGE.items():
            value = (usage or {}).get(theirs)
            if isinstance(value, int) and value >= 0:
                self._usage[ours] = value
        return Metered(Usage.from_dict(self._usage))

    def reply(self) -> Reply:
        if not self.done:
            raise LLMUnavailable(BROKEN)
        calls: list[ToolCall] = []
        taken: set[str] = set()
        for index, block in sorted(self._blocks.items()):
            if block.get("type") != "tool_use":
                continue
            block["id"] = distinct(str(block.get("id") or ""), taken)
            call = self._call(index, block)
            block["input"] = arguments_of(call)
            calls.append(call)
        blocks = tuple(block for _, block in sorted(self._blocks.items()))
        text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
        stop = STOPS.get(self._stop, "tool_use" if calls else "end_turn")
        message = AssistantMessage(text, tuple(calls), blocks, AnthropicLLM.kind)
        return Reply(message, stop, Usage.from_dict(self._usage))

    def _call(self, index: int, block: dict[str, Any]) -> ToolCall:
        name = str(block.get("name") or "")
        if self._json[index]:
            return parsed(block["id"], name, self._json[index])
        given = block.get("input") or {}
        problem = "" if isinstance(given, dict) else "its arguments are not a JSON object"
        return ToolCall(block["id"], name, given, problem)


# -- the question


def body_of(request: LLMRequest) -> dict[str, Any]:
    """The parameters of one question but for its messages. What stays the same over a session is marked for the cache."""
    body: dict[str, Any] = {"model": request.model, "max_tokens": request.max_output_tokens, "stream": True}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
        body["tool_choice"] = {"type": "auto" if request.may_call else "none"}
    if request.system.strip():
        body["system"] = [{"type": "text", "text": sendable(request.system), **CACHED}]
    elif request.tools:
        body["tools"][-1] |= CACHED
    if request.thinking == "auto":
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
    elif isinstance(request.thinking, dict):
        body["thinking"] = {"type": "enabled", "budget_tokens": request.thinking["budget_tokens"]}
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "input_schema": spec.schema}


def _said(message: UserMessage | ToolResult) -> dict[str, Any]:
    text = sendable(message.text)
    if isinstance(message, UserMessage):
        return {"type": "text", "text": text}
    result = {"type": "tool_result", "tool_use_id": message.call_id, "content": text if text.strip() else NO_TEXT}
    return result if message.ok else {**result, "is_error": True}


def _assistant(message: AssistantMessage) -> list[dict[str, Any]]:
    """The reply's own blocks unmodified, but for those that the API sends and does not take back."""
    if message.provider == AnthropicLLM.kind and message.blocks:
        return [_taken_back(sendable(block)) for block in message.blocks if _is_accepted(block)]
    text = [{"type": "text", "text": sendable(message.text)}] if message.text.strip() else []
    return text + [_use(call) for call in message.calls]


def _is_accepted(block: dict[str, Any]) -> bool:
    if block.get("type") == "text":
        return bool(str(block.get("text") or "").strip())
    return block.get("type") != "thinking" or bool(block.get("signature"))


def _signature(block: dict[str, Any]) -> str:
    """What tells one thought from others; "" of what is none."""
    return str(block.get("signature") or block.get("data") or "") if block.get("type") in THOUGHTS else ""


def _taken_back(block: dict[str, Any]) -> dict[str, Any]:
    """Unmodified, but for the name of a tool that the model made up and no API takes."""
    return {**block, "name": tool_name(str(block.get("name")))} if block.get("type") == "tool_use" else block


def _use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": tool_name(call.name), "input": sendable(arguments_of(call))}
