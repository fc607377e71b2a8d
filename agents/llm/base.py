"""The contract of a model driver: one async stream of a reply. Drivers know their SDK; nothing else does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from agents.messages import AssistantMessage, Message, StopReason, Usage
from agents.prices import Price, prices_of
from primer_site.errors import PrimerError


class LLMError(PrimerError):
    """The model could not answer."""

    code, status = "llm_error", 502


class LLMConfig(LLMError):
    """The model's endpoint refuses this configuration."""

    code, status = "llm_config", 424
    hint = "Correct the LLM provider: its kind, its key, its base_url or the model's name."


class ContextTooLong(LLMError):
    """The conversation is longer than what the model takes."""

    code, status = "context_too_long", 424
    hint = "Lower the agent's max_output_tokens, which counts too, use a model with a larger context, or start a new session."


class LLMUnavailable(LLMError):
    """The model did not answer."""

    code, status, retryable = "llm_unavailable", 502, True
    hint = "Try again later."


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """One question. `attempt` counts from 1 over the retries of the same question."""

    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 8192
    temperature: float | None = None  # sent only when set
    thinking: str | dict[str, Any] = "off"
    attempt: int = 1
    may_call: bool = True  # False: tools are described, since the history uses them, and none may be called


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole reply; the last value of a stream. A stream that ends without one broke."""

    message: AssistantMessage
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    request_id: str = ""  # the endpoint's own name of the request, for its support; hostile text


@dataclass(frozen=True, slots=True)
class Metered:
    """What the question has cost so far, by the endpoint's own count; a later one replaces it, and so does the reply."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Waiting:
    """The question waits for one of the `places` at `provider`, which others hold."""

    provider: str
    places: int


LLMEvent: TypeAlias = TextDelta | ThinkingDelta | Metered | Waiting | Reply


class LLM(ABC):
    """One configured model endpoint. Holds configuration and a client, nothing durable; `stream` may run many times at once."""

    kind: ClassVar[str]
    takes_thinking: ClassVar[bool] = False
    max_retries: int = 4  # of one question, by the loop: drivers ask once
    default_model: str = ""
    prices: dict[str, Price] = {}

    @classmethod
    def configured(cls, config: dict[str, Any], key: str, name: str) -> LLM:
        """The driver for a provider's stored configuration; `LLMConfig` when it cannot work. May take a second."""
        made = cls()
        made.take(config)
        return made

    def take(self, config: dict[str, Any]) -> None:
        """What every kind takes from its configuration."""
        self.default_model = config.get("default_model") or type(self).default_model
        self.prices = prices_of(config.get("prices") or {})
        self.max_retries = type(self).max_retries if config.get("max_retries") is None else int(config["max_retries"])

    @abstractmethod
    def stream(self, request: LLMRequest) -> AsyncGenerator[LLMEvent, None]:
        """Deltas, and what else is known before the end, as they come; then one `Reply`.

        Raises `LLMConfig` for what a retry cannot mend, `ContextTooLong` where a shorter history can, and `LLMUnavailable`
        for what a retry may; nothing else. Closing the generator ends the request. A call whose arguments are broken or cut comes with `problem` set, never as `{}`.
        """

    @abstractmethod
    async def models(self) -> list[str]:
        """Names of the models that can be asked; the same errors as `stream`."""

    async def close(self) -> None:
        """Releases the client."""
        return
