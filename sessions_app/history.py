"""The conversation as the events tell it: what a model is shown when a session starts, goes on, or was cut off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from agents.compaction import compact
from agents.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from agents.redact import MASK
from sessions_app.models import AgentSession, EventKind, SessionEvent
from sessions_app.translate import COMPACTED
from workspaces.models import Exec

KINDS = (
    EventKind.USER_MESSAGE, EventKind.ASSISTANT_MESSAGE, EventKind.TOOL_CALL, EventKind.TOOL_RESULT, EventKind.WARNING,
)  # fmt: skip


def messages_of(events: Iterable[tuple[str, dict[str, Any]]]) -> list[Message]:
    """Messages behind `(kind, data)` pairs in order of seq; other kinds are passed over."""
    messages: list[Message] = []
    reply_at = -1
    for kind, data in events:
        match kind:
            case EventKind.USER_MESSAGE:
                messages.append(UserMessage(data["text"]))
            case EventKind.ASSISTANT_MESSAGE:
                reply_at = len(messages)
                messages.append(AssistantMessage(data["text"], (), _intact(data["blocks"]), data["provider"]))
            case EventKind.TOOL_CALL:
                reply = messages[reply_at]
                if isinstance(reply, AssistantMessage):
                    messages[reply_at] = replace(reply, calls=(*reply.calls, ToolCall.from_dict(data)))
            case EventKind.TOOL_RESULT:
                messages.append(ToolResult(data["call_id"], data["text"], data["ok"]))
            case EventKind.WARNING if data["code"] == COMPACTED and (shorter := compact(messages)) is not None:
                messages = shorter.history
    return messages


def _intact(blocks: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The blocks without thoughts in which a secret was masked: they are signed, and a changed one is refused."""
    return tuple(block for block in blocks if block.get("type") != "thinking" or MASK not in str(block))


def history_of(session: AgentSession) -> list[Message]:
    """Reads a session's conversation from the store."""
    rows = SessionEvent.objects.filter(session_id=session.pk, kind__in=KINDS).order_by("seq")
    return messages_of(rows.values_list("kind", "data"))


def used_by(session: AgentSession, *, calls_running: int) -> dict[str, int]:
    """Turns and calls of a session whose runner died in the middle of a turn. Its row has what was used when that turn
    began, tokens included up to the last reply; the events say what came then."""
    events = SessionEvent.objects.filter(session_id=session.pk)
    began = events.filter(kind__in=(EventKind.TURN_STARTED, EventKind.SESSION_STATUS)).order_by("-seq").first()
    since = 0 if began is None else began.seq
    answered = events.filter(kind=EventKind.TOOL_RESULT, seq__gt=since).count()
    turn = int(began.data["turn"]) if began is not None and began.kind == EventKind.TURN_STARTED else 0
    return {"turns": max(session.turns, turn), "tool_calls": session.tool_calls + answered + calls_running}


def exec_under_way(session: AgentSession, call_id: str) -> str | None:
    """The exec that the session's running call had started, None when it had started none; it may have printed nothing.

    Calls run one after the other, so what began after the last call or result is the running call's.
    """
    printed = SessionEvent.objects.filter(session_id=session.pk, kind=EventKind.TOOL_OUTPUT, data__call_id=call_id)
    last: dict[str, Any] | None = printed.order_by("-seq").values_list("data", flat=True).first()
    if last is not None:
        return str(last["exec_id"])
    since = SessionEvent.objects.filter(
        session_id=session.pk, kind__in=(EventKind.TOOL_CALL, EventKind.TOOL_RESULT)
    ).order_by("-seq")
    began_after = since.values_list("ts", flat=True).first()
    if began_after is None:
        return None
    rows = Exec.objects.filter(session_id=session.slug, workspace_id=session.workspace_id, created_at__gte=began_after)
    found: str | None = rows.order_by("-pk").values_list("slug", flat=True).first()
    return found
