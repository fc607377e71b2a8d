"""A conversation that no longer fits the model, made shorter. Deterministic: the events tell it again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.messages import AssistantMessage, Message, ToolResult, UserMessage, repair

KEEP = 0.6  # of the size, each time the model refuses
SHORT_CHARS = 400  # of a result that was shortened
LEFT_OUT = "[Earlier parts of this conversation were left out: it became too long.]"


@dataclass(frozen=True, slots=True)
class Shorter:
    history: list[Message]
    left_out: int
    shortened: int


def compact(history: Sequence[Message]) -> Shorter | None:
    """At most about `KEEP` of the size, None when nothing more can go.

    First the results of older calls shrink to their first and last lines, which name the exec whose output is kept; then
    the oldest exchanges go, except for the first message and the last. What is in work is touched last.
    """
    groups = _groups(repair(history))
    whole = sum(map(_size, groups))
    target = KEEP * whole
    shortened = _shorten(groups, range(len(groups) - 1), target)
    left_out = 0
    while sum(map(_size, groups)) > target and (oldest := _droppable(groups)) is not None:
        left_out += len(groups.pop(oldest))
    shortened += _shorten(groups, range(len(groups)), target)
    if left_out and isinstance(first := groups[0][0], UserMessage) and not first.text.endswith(LEFT_OUT):
        groups[0][0] = UserMessage(f"{first.text}\n\n{LEFT_OUT}")
    if sum(map(_size, groups)) >= whole:
        return None
    return Shorter([message for group in groups for message in group], left_out, shortened)


def _groups(history: Sequence[Message]) -> list[list[Message]]:
    """Each message with the results behind it: they stay or go together."""
    groups: list[list[Message]] = []
    for message in history:
        if isinstance(message, ToolResult) and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _size(group: list[Message]) -> int:
    return sum(_chars(message) for message in group)


def _chars(message: Message) -> int:
    if not isinstance(message, AssistantMessage):
        return len(message.text)
    if message.blocks:
        return sum(len(str(block)) for block in message.blocks)
    return len(message.text) + sum(len(str(call.arguments)) for call in message.calls)


def _shorten(groups: list[list[Message]], which: range, target: float) -> int:
    """Shortens results, oldest first, until the target is met; how many."""
    count = 0
    for index in which:
        for place, message in enumerate(groups[index]):
            if sum(map(_size, groups)) <= target:
                return count
            if isinstance(message, ToolResult) and len(message.text) > SHORT_CHARS * 3 // 2:
                groups[index][place] = replace(message, text=_short(message.text))
                count += 1
    return count


def _short(text: str) -> str:
    half = SHORT_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out to save room]\n{text[-half:]}"


def _droppable(groups: list[list[Message]]) -> int | None:
    """The oldest group that is neither the task, nor the last thing that was asked, nor what is in work."""
    asked = max(index for index, group in enumerate(groups) if isinstance(group[0], UserMessage))
    return next((index for index in range(1, len(groups) - 1) if index != asked), None)
