"""Chat Completions as a stub: its stream of chunks, and its refusals of histories that it does not take."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.llm.stub_anthropic import halves
from tests.llm.stub_http import Fails, Says, StubServer, require, size_in_tokens

FIELDS = {
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "temperature",
    "reasoning_effort",
}  # fmt: skip
STOPS = {"max_tokens": "length", "refusal": "content_filter", "end_turn": "stop", "tool_use": "tool_calls"}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class OpenAIStub(StubServer):
    path = "/v1/chat/completions"

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.reasons = False  # a model of the newer kind, which wants to be asked otherwise
        self.wants_thoughts = False  # a model that must be shown what it thought when it called a tool
        self.alternates = False  # a model whose chat template refuses two questions in a row

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    # -- answers

    def sse(self, says: Says, number: int) -> bytes:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if says.text else None}]
        deltas += [{"reasoning_content": piece} for piece in halves(says.thinking)]
        deltas += [{"content": piece} for piece in halves(says.text)]
        for index, (name, arguments) in enumerate(says.calls):
            call_id = says.ids[index] if says.ids else f"call_{number}_{index}"
            begin: dict[str, Any] = {
                "index": index,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            deltas.append({"tool_calls": [begin]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in halves(arguments)
            ]
        stop = STOPS.get(says.stop or ("tool_use" if says.calls else "end_turn"), "stop")
        choices: list[list[dict[str, Any]]] = [
            [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
        ]
        choices.append([{"index": 0, "delta": {}, "finish_reason": stop}])
        lines = [_chunk(number, choice) for choice in choices]
        return b"".join([*lines, _chunk(number, [], usage=_usage(says)), b"data: [DONE]\n\n"])

    def error(self, status: int, kind: str, message: str) -> dict[str, Any]:
        code = "context_length_exceeded" if "maximum context length" in message else None
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def error_event(self, fails: Fails) -> bytes:
        begun = self.sse(Says("Hello, this is the beg"), 0)
        cut = begun[: begun.index(b'data: {"id": "chatcmpl-0", "choices": [{"index": 0, "delta": {}')]
        error = json.dumps(self.error(200, fails.kind, fails.message))
        return cut + f"data: {error}\n\n".encode()

    def models(self) -> dict[str, Any]:
        item: dict[str, Any] = {"object": "model", "created": 1, "owned_by": "stub"}
        return {"object": "list", "data": [{"id": name, **item} for name in ("stub-2", "stub-1")]}

    # -- refusals

    def check(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        for name in body.keys() - FIELDS:
            require(False, f"Unrecognized request argument supplied: {name}")
        if self.reasons:
            _check_of_newer_models(body)
        messages = body.get("messages")
        require(
            not (body.get("max_tokens") and body.get("max_completion_tokens")), "Setting both limits is not supported"
        )
        require(body.get("model"), "you must provide a model parameter")
        require(messages, "[] is too short - 'messages'")
        assert isinstance(messages, list)
        if self.max_tokens_of_context is not None:
            size, most = size_in_tokens(body), self.max_tokens_of_context
            sentence = f"This model's maximum context length is {most} tokens. However, you requested {size} tokens."
            require(size <= most, sentence)
        waiting: list[str] = []
        for index, message in enumerate(messages):
            if message["role"] == "tool":
                sentence = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                require(message["tool_call_id"] in waiting, sentence)
                waiting.remove(message["tool_call_id"])
                require(isinstance(message["content"], str), f"Invalid value for 'messages[{index}].content'")
                continue
            again = self.alternates and index and message["role"] == "user" == messages[index - 1]["role"]
            require(not again, "Conversation roles must alternate user/assistant/user/assistant/...")
            require(not waiting, f"tool_call_ids did not have response messages: {', '.join(waiting)}")
            if message["role"] == "assistant":
                waiting = _check_assistant(index, message)
                known = self.wants_thoughts or "reasoning_content" not in message
                require(known, "Additional properties are not allowed ('reasoning_content' was unexpected)")
                thought = not (self.wants_thoughts and waiting) or "reasoning_content" in message
                require(thought, "The `reasoning_content` in the thinking mode must be passed back to the API.")
            else:
                require(message["role"] in ("system", "user"), f"'{message['role']}' is not one of the roles")
                ok = isinstance(message["content"], str) and message["content"]
                require(ok, f"Invalid value for 'content': expected a string, messages.[{index}]")
        require(not waiting, f"tool_call_ids did not have response messages: {', '.join(waiting)}")


def _check_of_newer_models(body: dict[str, Any]) -> None:
    sentence = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    require("max_tokens" not in body, sentence)
    sentence = f"Function tools with reasoning_effort are not supported for {body['model']} in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    require(not body.get("tools") or body.get("reasoning_effort") == "none", sentence)


def _check_assistant(index: int, message: dict[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    require(calls is None or calls, f"[] is too short - 'messages.{index}.tool_calls'")
    require(message.get("content") or calls, f"messages.{index}: content or tool_calls must be set")
    ids = [call["id"] for call in calls or []]
    require(all(ids) and len(ids) == len(set(ids)), f"Duplicate value for 'tool_call_id' in messages[{index}]")
    for call in calls or []:
        function = call["function"]
        require(NAME.fullmatch(function["name"]), f"Invalid 'messages[{index}].tool_calls[0].function.name'")
        require(isinstance(json.loads(function["arguments"]), dict), "function.arguments must be a JSON object")
    return ids


def _usage(says: Says) -> dict[str, Any]:
    used = says.usage
    prompt = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": used.output_tokens,
        "total_tokens": prompt + used.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": used.cache_read_tokens,
            "cache_write_tokens": used.cache_write_tokens,
        },
    }


def _chunk(number: int, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
    data: dict[str, Any] = {
        "id": f"chatcmpl-{number}", "choices": choices, "object": "chat.completion.chunk", "created": 1, "model": "stub",
        "usage": usage,
    }  # fmt: skip
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
