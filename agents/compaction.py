"""A conversation that no longer fits the model, made shorter. Deterministic: the events tell it again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.messages import AssistantMessage, Message, ToolResult, UserMessage, repair

KEEP = 0.6  # of the size, each time the model refuses
SHORT_CHARS = 400  # of a result that was shortened
# Types of blocks that are thoughts. Most APIs take none back, the others none of a conversation that was made shorter:
# measured, they would take the place of what is said.
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
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
    conversation = _Conversation(repair(history))
    target = KEEP * conversation.size
    whole = conversation.size
    shortened = conversation.shorten(len(conversation.groups) - 1, target)
    left_out = conversation.leave_out(target)
    shortened += conversation.shorten(len(conversation.groups), target)
    groups = conversation.groups
    size = conversation.size
    if left_out and isinstance(first := groups[0][0], UserMessage) and not first.text.endswith(LEFT_OUT):
        groups[0][0] = UserMessage(f"{first.text}\n\n{LEFT_OUT}")
        size += len(LEFT_OUT) + 2
    if size - conversation.thoughts_gone >= whole:
        return None
    return Shorter([message for group in groups for message in group], left_out, shortened)


class _Conversation:
    """Groups of messages that stay or go together, and how many characters they have. Each is measured once: a long one
    must not hold up the event loop."""

    def __init__(self, history: Sequence[Message]) -> None:
        self.groups = _groups(history)
        self._sizes = [sum(map(_chars, group)) for group in self.groups]
        self.size = sum(self._sizes)
        self.thoughts_gone = 0  # characters of those in what was left out

    def shorten(self, first: int, target: float) -> int:
        """Shortens results of the `first` groups, oldest first, until the target is met; how many."""
        count = 0
        for index in range(first):
            for place, message in enumerate(self.groups[index]):
                if self.size <= target:
                    return count
                if isinstance(message, ToolResult) and len(message.text) > SHORT_CHARS * 3 // 2:
                    short = replace(message, text=_short(message.text))
                    self._sizes[index] -= len(message.text) - len(short.text)
                    self.size -= len(message.text) - len(short.text)
                    self.groups[index][place] = short
                    count += 1
        return count

    def leave_out(self, target: float) -> int:
        """Leaves out the oldest groups until the target is met, but not the task, nor the last thing that was asked, nor
        what is in work; how many messages that are."""
        asked = max(index for index, group in enumerate(self.groups) if isinstance(group[0], UserMessage))
        kept, sizes, count = self.groups[:1], self._sizes[:1], 0
        for index in range(1, len(self.groups)):
            if self.size > target and index not in (asked, len(self.groups) - 1):
                self.size -= self._sizes[index]
                self.thoughts_gone += sum(map(_thoughts, self.groups[index]))
                count += len(self.groups[index])
            else:
                kept.append(self.groups[index])
                sizes.append(self._sizes[index])
        self.groups, self._sizes = kept, sizes
        return count


def _groups(history: Sequence[Message]) -> list[list[Message]]:
    """Each message with the results behind it: they stay or go together."""
    groups: list[list[Message]] = []
    for message in history:
        if isinstance(message, ToolResult) and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _chars(message: Message) -> int:
    if not isinstance(message, AssistantMessage):
        return len(message.text)
    said = len(message.text) + sum(len(str(call.arguments)) for call in message.calls)
    # Of some kinds the blocks are all of it.
    return max(said, sum(len(str(block)) for block in message.blocks if block.get("type") not in THOUGHTS))


def _thoughts(message: Message) -> int:
    blocks = message.blocks if isinstance(message, AssistantMessage) else ()
    return sum(len(str(block)) for block in blocks if block.get("type") in THOUGHTS)


def _short(text: str) -> str:
    half = SHORT_CHARS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out to save room]\n{text[-half:]}"
