"""A reply as the loop may act on it. Pure."""

from __future__ import annotations

from agents.llm.base import Reply
from agents.messages import AssistantMessage, ToolCall

MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
CUT_STOPS = ("max_tokens", "context_full")
CUT = (
    "the reply was cut off by its output limit in the middle of this call. Send the whole call again, in smaller parts"
)


def runnable(reply: Reply) -> AssistantMessage:
    """The reply with its last call marked as cut when the output limit was met, and oversized arguments left out."""
    message = reply.message
    calls = [_sized(call) for call in message.calls]
    if calls and reply.stop_reason in CUT_STOPS:
        last = calls[-1]
        calls[-1] = ToolCall(last.call_id, last.name, last.arguments, last.problem or CUT)
    return AssistantMessage(message.text, tuple(calls), message.blocks, message.provider)


def _sized(call: ToolCall) -> ToolCall:
    size = len(repr(call.arguments))
    if size <= MAX_ARGUMENT_BYTES:
        return call
    return ToolCall(call.call_id, call.name, {}, f"its arguments have about {size} bytes; at most {MAX_ARGUMENT_BYTES}")
