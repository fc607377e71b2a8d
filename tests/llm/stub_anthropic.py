"""The Messages API as a stub: its stream of events, and its refusals of histories that it does not take."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tests.llm.stub_http import Fails, Says, StubServer, require, size_in_tokens

FIELDS = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "stream"}
STOPS = {"pause": "pause_turn", "context_full": "model_context_window_exceeded"}
THOUGHTS = ("thinking", "redacted_thinking")
BOUND = "The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior`."
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
VERSIONS = ("2026-10-21", "2023-06-01")


class AnthropicStub(StubServer):
    path = "/v1/messages"

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.signed: dict[str, str] = {}  # signature -> thinking
        self.bound: dict[str, str] = {}  # signature or data -> what was before it, in the question that it answered

    # -- answers

    def sse(self, says: Says, number: int) -> bytes:
        usage = {
            "input_tokens": says.usage.input_tokens,
            "output_tokens": 1,
            "cache_read_input_tokens": says.usage.cache_read_tokens,
            "cache_creation_input_tokens": says.usage.cache_write_tokens,
        }
        start: dict[str, Any] = {
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "stub", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        events: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": start}), ("ping", {})]
        for index, (block, deltas) in enumerate(self._blocks(says, number)):
            events.append(("content_block_start", {"index": index, "content_block": block}))
            events += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
            events.append(("content_block_stop", {"index": index}))
        stop = says.stop or ("tool_use" if says.calls else "end_turn")
        delta = {"stop_reason": STOPS.get(stop, stop), "stop_sequence": None}
        events.append(("message_delta", {"delta": delta, "usage": {"output_tokens": says.usage.output_tokens}}))
        events.append(("message_stop", {}))
        return b"".join(_event(kind, data) for kind, data in events)

    def _blocks(self, says: Says, number: int) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if says.thinking:
            signature = "sig-" + hashlib.sha256(f"{number}{says.thinking}".encode()).hexdigest()
            self.signed[signature] = says.thinking
            self._bind(signature)
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in halves(says.thinking)]
            deltas.append({"type": "signature_delta", "signature": signature})
            blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
        if says.redacted:
            data = f"redacted-{number}-{says.redacted}"
            self.signed[data] = ""
            self._bind(data)
            blocks.append(({"type": "redacted_thinking", "data": data}, []))
        if says.text or not says.calls:  # the API does send empty text
            deltas = [{"type": "text_delta", "text": piece} for piece in halves(says.text)]
            blocks.append(({"type": "text", "text": ""}, deltas))
        for position, (name, arguments) in enumerate(says.calls):
            call_id = says.ids[position] if says.ids else f"toolu_{number}_{position}"
            block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
            pieces = ["", *halves(arguments)] if arguments else [""]
            blocks.append((block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]))
        return blocks

    def _bind(self, signature: str) -> None:
        if self.asked:
            body = self.asked[-1]
            self.bound[signature] = _prefix(body, len(body["messages"]))

    def error(self, status: int, kind: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}

    def error_event(self, fails: Fails) -> bytes:
        begun = self.sse(Says("Hello, this is the beg"), 0)
        cut = begun[: begun.index(b"event: content_block_stop")]
        return cut + _event("error", {"error": {"type": fails.kind, "message": fails.message}})

    def models(self) -> dict[str, Any]:
        item = {"type": "model", "display_name": "S", "created_at": "2026-01-01T00:00:00Z", "lifecycle": "active"}
        data = [{"id": name, **item} for name in ("stub-2", "stub-1")]
        return {"data": data, "has_more": False, "first_id": "stub-2", "last_id": "stub-1"}

    # -- refusals

    def check(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        version = headers.get("anthropic-version")
        require(version in VERSIONS, "anthropic-version: is required")
        allowed = FIELDS | ({"temperature"} if version == VERSIONS[1] else set())
        for name in body.keys() - allowed:
            require(False, f"{name}: Extra inputs are not permitted")
        require(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens: Field required")
        require(body.get("model"), "model: Field required")
        _check_thinking(body)
        _check_cache_marks(body)
        for block in body.get("system", []):
            require(block["text"], "system: text content blocks must be non-empty")
        if self.max_tokens_of_context is not None:
            size = size_in_tokens(body)
            most = self.max_tokens_of_context
            require(size <= most, f"prompt is too long: {size} tokens > {most} maximum")
        messages = body["messages"]
        require(messages, "messages: at least one message is required")
        require(messages[0]["role"] == "user", "messages: first message must use the user role")
        require(messages[-1]["role"] == "user", "This model does not support assistant message prefill.")
        for index, message in enumerate(messages):
            self._check_message(index, message, messages)
        self._check_bound(body)
        _check_led(body)
        used = any(block["type"] == "tool_use" for m in messages for block in _content(m))
        require(not used or body.get("tools"), "Requests which include `tool_use` blocks must define tools")

    def _check_bound(self, body: dict[str, Any]) -> None:
        """A thought is taken back only behind what was before it when it was thought."""
        for index, message in enumerate(body["messages"]):
            for place, block in enumerate(_content(message)):
                before = self.bound.get(block.get("signature") or block.get("data") or "")
                same = before is None or before == _prefix(body, index)
                require(same, f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block. {BOUND}")

    def _check_message(self, index: int, message: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        blocks = _content(message)
        require(blocks, f"messages.{index}: all messages must have non-empty content")
        for place, block in enumerate(blocks):
            where = f"messages.{index}.content.{place}"
            if block["type"] == "text":
                require(block["text"], "messages: text content blocks must be non-empty")
                require(block["text"].strip(), "messages: text content blocks must contain non-whitespace text")
            elif block["type"] == "thinking":
                require("signature" in block, f"{where}.thinking.signature: Field required")
                issued = self.signed.get(block["signature"])
                require(issued == block["thinking"], f"{where}: Invalid `signature` in `thinking` block")
            elif block["type"] == "redacted_thinking":
                require(block["data"] in self.signed, f"{where}: Invalid `data` in `redacted_thinking` block")
            elif block["type"] == "tool_use":
                require(isinstance(block["input"], dict), f"{where}.tool_use.input: Input should be a valid dictionary")
                require(NAME.fullmatch(block["name"]), f"{where}.tool_use.name: String should match pattern")
                require(NAME.fullmatch(block["id"]), f"{where}.tool_use.id: String should match pattern")
        if message["role"] == "assistant":
            _check_pairs(index, blocks, _content(messages[index + 1]))
        else:
            before = {b["id"] for b in _content(messages[index - 1]) if b["type"] == "tool_use"} if index else set()
            for block in blocks:
                known = block["type"] != "tool_result" or block["tool_use_id"] in before
                require(known, f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks")


def _check_pairs(index: int, blocks: list[dict[str, Any]], following: list[dict[str, Any]]) -> None:
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    require(len(ids) == len(set(ids)), "messages: `tool_use` ids must be unique")
    first = [block.get("tool_use_id") for block in following[: len(ids)]]
    missing = [call_id for call_id in ids if call_id not in first]
    sentence = f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}"
    require(not missing, sentence)
    results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
    require(len(results) == len(set(results)), "each tool_use must have a single result")
    if any(block["type"] in THOUGHTS for block in blocks):
        require(blocks[0]["type"] in THOUGHTS, "the first block must be `thinking`")


def _prefix(body: dict[str, Any], count: int) -> str:
    """The system prompt, the tools and the first messages, without marks for the cache; roles that repeat are one message."""
    known: list[tuple[str, Any]] = []
    for message in body["messages"][:count]:
        known += [(message["role"], _unmarked(block)) for block in _content(message)]
    said = [[_unmarked(block) for block in body.get(name) or []] for name in ("system", "tools")]
    return hashlib.sha256(json.dumps([said, known], sort_keys=True).encode()).hexdigest()


def _unmarked(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "cache_control"}


def _check_led(body: dict[str, Any]) -> None:
    """With a budget, the reply that the last results go on with must begin with a thought."""
    if (body.get("thinking") or {}).get("type") != "enabled":
        return
    led, at = "", 0
    for index, message in reversed(list(enumerate(body["messages"]))):
        content = _content(message)
        if message["role"] == "assistant":
            led, at = content[0]["type"], index
        elif not any(block["type"] == "tool_result" for block in content):
            break
    sentence = f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{led}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block"
    require(led in ("", *THOUGHTS), sentence)


def _check_thinking(body: dict[str, Any]) -> None:
    thinking = body.get("thinking") or {"type": "disabled"}
    require(thinking["type"] in ("enabled", "adaptive", "disabled"), "thinking.type: unknown")
    if thinking["type"] == "enabled":
        budget = thinking["budget_tokens"]
        require(budget >= 1024, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        require(budget < body["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`")


def _check_cache_marks(body: dict[str, Any]) -> None:
    blocks = [*body.get("system", []), *body.get("tools", []), *(b for m in body["messages"] for b in _content(m))]
    marked = [block for block in blocks if "cache_control" in block]
    require(len(marked) <= 4, "A maximum of 4 blocks with cache_control may be provided.")
    require(all(block.get("type") != "thinking" for block in marked), "cache_control cannot be set for thinking")


def _content(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, ensure_ascii=False)}\n\n".encode()
