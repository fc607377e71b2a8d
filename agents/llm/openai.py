"""Chat Completions through the official SDK, at its own address or at any endpoint that speaks it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from agents.llm.base import LLMConfig, LLMEvent, LLMRequest, LLMUnavailable, Metered, Reply, TextDelta, ThinkingDelta
from agents.llm.failures import of_status, own_words
from agents.llm.sending import NO_TEXT, Made, arguments_of, distinct, dumped, parsed, sendable, tool_name, with_messages
from agents.llm.wire import BROKEN, WireLLM
from agents.messages import AssistantMessage, Message, StopReason, ToolCall, ToolResult, Usage, UserMessage

if TYPE_CHECKING:
    import httpx2

STOPS: dict[str, StopReason] = {"length": "max_tokens", "content_filter": "refusal"}
THOUGHT = "reasoning"  # the type of the block that keeps what the model thought
# What the API says instead of a reply whose thoughts alone used up its tokens.
OUT_OF_TOKENS = re.compile(r"\W*could not finish the message because max_tokens", re.IGNORECASE)
# How servers ask for thoughts; those that do not know them name them too.
THOUGHTS_WANTED = re.compile(
    r"reasoning_content\W[^.]{0,60}(?:must be passed back|is missing)|missing\W{1,3}reasoning_content\b", re.IGNORECASE
)
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Dialect:
    """How an endpoint wants to be asked. Models of one API differ in it, and a refusal is the only place that says so."""

    tokens: str  # the name of the limit of a reply
    reasoning: str = ""  # `reasoning_effort`, sent only when an endpoint asked for it
    thoughts: bool = False  # whether it wants its thoughts back, which others do not know

    def learn(self, body: Any, wish: str, *, tools: bool) -> bool:
        """Whether the refusal (its body, and the endpoint's own words in it) names what is wanted instead, and it was not
        known: then it is worth to ask again."""
        given = {name: body.get(name) for name in ("param", "code")} if isinstance(body, dict) else {}
        param = str(given.get("param") or "")
        if THOUGHTS_WANTED.search(wish) or THOUGHTS_WANTED.search(own_words(param)):  # some say it there
            fresh, self.thoughts = not self.thoughts, True
            return fresh
        if param.startswith("messages"):  # what was said is wrong, and not how it was asked
            return False
        if self.tokens == "max_tokens" and (
            given == {"param": "max_tokens", "code": "unsupported_parameter"}
            or re.search(r"max_completion_tokens\W+instead", wish)
        ):
            self.tokens = "max_completion_tokens"
            return True
        # Newer models take tools in Chat Completions only without reasoning, and reason unless they are told not to.
        if tools and not self.reasoning and re.search(r"reasoning_effort to \W*none", wish):
            self.reasoning = "none"
            return True
        return False


class OpenAILLM(WireLLM):
    kind: ClassVar[str] = "openai"
    own_url: ClassVar[str] = "https://api.openai.com/v1"

    @property
    def sdk(self) -> ModuleType:
        import openai

        return openai

    def make_client(self, http: httpx2.AsyncClient) -> Any:
        self._sent = Made(self._json_of)
        # The old name is refused by newer models there, the new one is not known to many servers elsewhere.
        self._dialect = Dialect("max_completion_tokens" if self.at_home else "max_tokens")
        return self.sdk.AsyncOpenAI(
            api_key=self.key, base_url=self.endpoint.base_url, max_retries=0, timeout=http.timeout, http_client=http
        )

    async def replies(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        if request.thinking != "off":
            raise LLMConfig("Chat Completions has no setting for thinking.", hint="Set the agent's thinking to off.")
        parts = _Parts()
        try:
            stream = await self._asked(request)
        except self.sdk.BadRequestError as exc:
            if not OUT_OF_TOKENS.match(self.wish_in(exc)):
                raise
            yield Reply(AssistantMessage(provider=self.kind), "max_tokens")
            return
        try:
            async with aclosing(self.pieces(stream)) as chunks:
                async for chunk in chunks:
                    if chunk.get("object") == "error":  # not the API's own way, but that of servers of open models
                        raise of_status(200, chunk, {}, self._redactor)
                    for delta in parts.feed(chunk):
                        yield delta
        except (LLMUnavailable, OSError, ValueError, self.sdk.APITimeoutError):
            if not parts.stop:
                raise
        yield replace(parts.reply(), request_id=str(stream.response.headers.get("x-request-id") or "")[:100])

    async def _asked(self, request: LLMRequest) -> Any:
        """The stream of the answer; asked again for each thing that the endpoint says it wants otherwise."""
        system = [dumped({"role": "system", "content": sendable(request.system)})] if request.system.strip() else []
        while True:
            messages = system + [text for text in self._sent.of(_merged(request.messages)) if text]
            try:
                return await self.ask("/chat/completions", with_messages(body_of(request, self._dialect), messages))
            except self.sdk.BadRequestError as exc:
                if not self._dialect.learn(exc.body, self.wish_in(exc), tools=bool(request.tools)):
                    raise
                self._sent = Made(self._json_of)
                log.info("asked otherwise", provider=self.endpoint.name, model=request.model, dialect=self._dialect)

    def _json_of(self, message: Message) -> str:
        """A message as JSON; "" for a reply without anything in it, which no API takes back."""
        match message:
            case UserMessage(text):
                return dumped({"role": "user", "content": sendable(text)})
            case ToolResult(call_id, text):
                content = sendable(text) if text.strip() else NO_TEXT
                return dumped({"role": "tool", "tool_call_id": call_id, "content": content})
            case AssistantMessage():
                return dumped(said) if (said := _assistant(message, self._dialect.thoughts)) else ""


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Parts:
    """Puts a reply together from its chunks. It is whole once a reason to stop came; the usage follows in a chunk of its own."""

    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stop: str = ""
    _at: dict[int, _Call] = field(default_factory=dict)  # the call that is being spelled at each index

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
            self.thoughts.append(thought)
            events.append(ThinkingDelta(thought))
        if content := delta.get("content"):
            self.text.append(content)
            events.append(TextDelta(content))
        if refusal := delta.get("refusal"):
            self.refused.append(refusal)
            events.append(TextDelta(refusal))
        for position, piece in enumerate(delta.get("tool_calls") or []):
            function = piece.get("function") or {}
            call = self._call(piece, position, begins=bool(function.get("name")))
            call.call_id = call.call_id or str(piece.get("id") or "")
            call.name = call.name or str(function.get("name") or "")
            call.arguments += _spelled(function.get("arguments"))
        return events

    def _call(self, piece: dict[str, Any], position: int, *, begins: bool) -> _Call:
        """The call that a piece belongs to. Some servers give every call of a reply the same index: a name with another
        id begins another call."""
        index, call_id = piece.get("index"), str(piece.get("id") or "")
        place = index if isinstance(index, int) else position
        call = self._at.get(place)
        if call is None or (begins and call_id and call.call_id not in ("", call_id)):
            call = self._at[place] = _Call()
            self.calls.append(call)
        return call

    def reply(self) -> Reply:
        if not self.stop:
            raise LLMUnavailable(BROKEN)
        taken: set[str] = set()
        calls = tuple(parsed(distinct(call.call_id, taken), call.name, call.arguments) for call in self.calls)
        stop: StopReason = STOPS.get(self.stop, "tool_use" if calls else "end_turn")
        if self.refused:
            stop = "refusal"
        text = "".join(self.text) or "".join(self.refused)
        thoughts = ({"type": THOUGHT, "text": "".join(self.thoughts)},) if self.thoughts else ()
        return Reply(AssistantMessage(text, calls, thoughts, OpenAILLM.kind), stop, self.usage)


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


def body_of(request: LLMRequest, dialect: Dialect) -> dict[str, Any]:
    """The parameters of one question but for its messages."""
    body: dict[str, Any] = {
        "model": request.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        dialect.tokens: request.max_output_tokens,
    }
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.schema}}
            for t in request.tools
        ]
        body["tool_choice"] = "auto" if request.may_call else "none"
        if dialect.reasoning:
            body["reasoning_effort"] = dialect.reasoning
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def _merged(history: Sequence[Message]) -> list[Message]:
    """The history with questions that follow each other as one: chat templates of open models refuse two in a row, and a
    run that was cancelled before its answer leaves two."""
    merged: list[Message] = []
    for message in history:
        if merged and isinstance(message, UserMessage) and isinstance(last := merged[-1], UserMessage):
            merged[-1] = UserMessage(f"{last.text}\n\n{message.text}")
        else:
            merged.append(message)
    return merged


def _assistant(message: AssistantMessage, thoughts: bool) -> dict[str, Any]:
    text = sendable(message.text) if message.text.strip() else None
    if text is None and not message.calls:
        return {}
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if message.calls:
        said["tool_calls"] = [_call(call) for call in message.calls]
    if thoughts:
        said["reasoning_content"] = sendable("".join(b["text"] for b in message.blocks if b.get("type") == THOUGHT))
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(sendable(arguments_of(call)), ensure_ascii=False)
    return {"id": call.call_id, "type": "function", "function": {"name": tool_name(call.name), "arguments": arguments}}
