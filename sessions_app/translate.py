"""Events of the agent loop as events of the transcript. Pure but for the names of kinds."""

from __future__ import annotations

from typing import Any

from agents import events as agent
from agents.llm.base import TextDelta, ThinkingDelta
from sessions_app.events import EventDraft
from sessions_app.models import EventKind

COMPACTED = "compacted"  # the code of the warning; history is made shorter at the same place when it is read again


def drafts_of(event: agent.LoopEvent, *, turns_before: int = 0) -> tuple[EventDraft, ...]:
    """What the transcript says of a loop event; () for what it leaves to a later one."""
    match event:
        case TextDelta(text):
            return (EventDraft(EventKind.TEXT_DELTA, {"text": text}),)
        case ThinkingDelta(text):
            return (EventDraft(EventKind.THINKING_DELTA, {"text": text}),)
        case agent.TurnStarted(turn, model):
            return (EventDraft(EventKind.TURN_STARTED, {"turn": turns_before + turn, "model": model}),)
        case agent.TurnEnded():
            return (EventDraft(EventKind.TURN_ENDED, _turn_ended(event, turns_before)),)
        case agent.Replied(message):
            said = {"text": message.text, "blocks": list(message.blocks), "provider": message.provider}
            # One batch: a crash leaves either no reply or a reply with all its calls, never half of it.
            calls = (EventDraft(EventKind.TOOL_CALL, call.to_dict()) for call in message.calls)
            return (EventDraft(EventKind.ASSISTANT_MESSAGE, said), *calls)
        case agent.CallOutput(call, output):
            data: dict[str, Any] = {"call_id": call.call_id, "exec_id": output.exec_id, "stream": output.stream}
            data |= {"gap": list(output.gap)} if output.gap else {"offset": output.offset, "text": output.text}
            return (EventDraft(EventKind.TOOL_OUTPUT, data),)
        case agent.CallEnded(call, outcome):
            return (EventDraft(EventKind.TOOL_RESULT, {"call_id": call.call_id, **outcome.to_dict()}),)
        case agent.Retrying(error, retry_in_s, attempt, attempts):
            told = f"{error.detail} Retrying in {retry_in_s:.0f} s ({attempt} of {attempts})."
            data = {"code": error.code, "message": told, "hint": ""}  # it is being done already
            data |= {"retry_in_s": round(retry_in_s, 1), "attempt": attempt, "attempts": attempts}
            return (EventDraft(EventKind.WARNING, data),)
        case agent.WaitsForPlace(provider, places):
            return (EventDraft(EventKind.WARNING, _waits(provider, places)),)
        case agent.Compacted(left_out, shortened):
            return (EventDraft(EventKind.WARNING, _compacted(left_out, shortened)),)
    return ()


def _turn_ended(event: agent.TurnEnded, turns_before: int) -> dict[str, Any]:
    return {
        "turn": turns_before + event.turn,
        "stop_reason": event.stop_reason,
        "usage": {**event.usage.to_dict(), "cost": event.cost},
        "duration_ms": event.duration_ms,
    }


def _waits(provider: str, places: int) -> dict[str, Any]:
    others = "another session" if places == 1 else f"{places} questions of other sessions"
    message = f"Waiting for a free place at the LLM provider {provider}, which answers {others} now."
    hint = f"Its max_concurrency is {places}; nothing needs to be done."
    return {"code": "llm_busy", "message": message, "hint": hint, "retry_in_s": None, "attempt": None}


def _compacted(left_out: int, shortened: int) -> dict[str, Any]:
    parts = [f"{left_out} messages are left out"] if left_out else []
    parts += [f"{shortened} results are shortened"] if shortened else []
    message = f"The conversation became too long for the model: {' and '.join(parts)} in what it is shown."
    hint = "The transcript and the kept output stay complete."
    return {"code": COMPACTED, "message": message, "hint": hint, "retry_in_s": None, "attempt": None}
