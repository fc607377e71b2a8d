"""A reply as the loop may act on it. Pure."""

from __future__ import annotations

from agents.events import Ended
from agents.llm.base import Reply
from agents.messages import AssistantMessage, ToolCall

MAX_ARGUMENT_BYTES = 2 * 1024 * 1024
CUT_STOPS = ("max_tokens", "context_full")
MAX_CUTS = 3  # replies in a row that end in the middle of a call: more of the same helps nobody
CUT_BY = {"max_tokens": "by its output limit", "context_full": "by the end of the model's context"}
CUT = "the reply was cut off {} in the middle of this call. Send the whole call again, in smaller parts"
RAISE_OUTPUT = "Raise the agent's max_output_tokens"
CONTEXT_HINT = "Use a model with a larger context, or start a new session with a smaller task."


def runnable(reply: Reply) -> AssistantMessage:
    """The reply with its last call marked as cut where a limit ended it, and oversized arguments left out."""
    message = reply.message
    calls = [_sized(call) for call in message.calls]
    if calls and reply.stop_reason in CUT_STOPS:
        last = calls[-1]
        calls[-1] = ToolCall(
            last.call_id, last.name, last.arguments, last.problem or CUT.format(CUT_BY[reply.stop_reason])
        )
    return AssistantMessage(message.text, tuple(calls), message.blocks, message.provider)


def end_by(reply: Reply, message: AssistantMessage, *, cuts: int, most_tokens: int, before: str) -> Ended | None:
    """How a reply ends the run, None when it goes on. It is the last of `cuts` in a row that were cut in the middle of a
    call; `most_tokens` is the limit of a reply, `before` the last text up to now."""
    if cuts >= MAX_CUTS:
        return _cut_again(reply, cuts, most_tokens, before)
    if message.calls:
        return None
    match reply.stop_reason:
        case "refusal":
            return Ended("failed", message.text, "refused", "The model refused to answer.", "Ask differently.")
        case "max_tokens":
            text = f"The reply was cut off at {most_tokens} tokens."
            return Ended("limit", message.text, "max_output_tokens", text, f"{RAISE_OUTPUT}.")
        case "context_full":
            text = "The reply was cut off where the model's context ends."
            return Ended("limit", message.text, "context", text, CONTEXT_HINT)
        case "pause":
            return None
    if not message.text.strip():
        return Ended("failed", before, "empty_reply", "The model gave an empty reply.", "Send a message to go on.")
    return Ended("completed", message.text)


def _cut_again(reply: Reply, cuts: int, most_tokens: int, answer: str) -> Ended:
    """The limit that cut the last of them is the one to raise."""
    if reply.stop_reason == "context_full":
        text = f"{cuts} replies in a row were cut off in the middle of a call, the last one where the model's context ends."
        return Ended("limit", answer, "context", text, CONTEXT_HINT)
    text = f"{cuts} replies in a row were cut off in the middle of a call, the last one at {most_tokens} tokens."
    return Ended("limit", answer, "max_output_tokens", text, f"{RAISE_OUTPUT}, or ask for smaller steps.")


def _sized(call: ToolCall) -> ToolCall:
    size = len(repr(call.arguments))
    if size <= MAX_ARGUMENT_BYTES:
        return call
    return ToolCall(call.call_id, call.name, {}, f"its arguments have about {size} bytes; at most {MAX_ARGUMENT_BYTES}")
