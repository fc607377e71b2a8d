"""History as APIs take it: what every driver must mend before it sends. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from agents.messages import Message, ToolCall

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS = 64
NO_TEXT = "(no output)"


class Made(Generic[T]):
    """What `make` makes of each message, once: a history grows at its end, and all of it goes with every question."""

    def __init__(self, make: Callable[[Message], T]) -> None:
        self._make = make
        self._known: dict[int, tuple[Message, T]] = {}  # by identity; holding the message keeps its id from another one

    def of(self, history: Sequence[Message]) -> list[T]:
        known = self._known
        self._known = {id(message): known.get(id(message)) or (message, self._make(message)) for message in history}
        return [self._known[id(message)][1] for message in history]


def dumped(value: Any) -> str:
    """Compact JSON, characters as they are; the value is `sendable` already."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def with_messages(body: dict[str, Any], messages: Sequence[str]) -> bytes:
    """The body as JSON, with messages that are JSON already."""
    return f'{dumped(body)[:-1]},"messages":[{",".join(messages)}]}}'.encode()


def sendable(value: Any) -> Any:
    """The JSON value without half surrogates: no encoder of an HTTP client takes them."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [sendable(item) for item in value]
    return value


def tool_name(name: str) -> str:
    """A name as APIs take it back in a history: models invent others."""
    return _NOT_NAME.sub("_", name)[:NAME_CHARS] or "unknown"


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object. What was no object goes back as an empty one; the call's result says what was wrong."""
    return call.arguments if isinstance(call.arguments, dict) else {}


def parsed(call_id: str, name: str, text: str) -> ToolCall:
    """The call a model spelled as JSON; broken or cut JSON, and what is no object, keep their text and say why."""
    try:
        arguments = json.loads(text, parse_constant=_refuse) if text.strip() else {}
    except (ValueError, RecursionError):
        return ToolCall(call_id, name, text, "its arguments are not valid JSON: send the whole call again")
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, arguments, "its arguments are not a JSON object")
    return ToolCall(call_id, name, arguments)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def distinct(call_id: str, taken: set[str]) -> str:
    """An id that no other call of the reply has: some endpoints send none, or one twice."""
    found, number = call_id or "call", 1
    while found in taken:
        number += 1
        found = f"{call_id or 'call'}_{number}"
    taken.add(found)
    return found
