"""What a page offers below an ended session, for each reason to end: what is known of the end, and the next step."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from sessions_app.models import AgentSession, EndedReason, EventKind, SessionEvent
from workspaces.models import Exec, ExecState

CONTINUE: Final = "Continue where you were interrupted. Look first at what has been done already."
LOUDER: Final = 2  # a limit that was met is offered again so many times as high
RAISED: Final = ("max_turns", "max_tool_calls", "timeout_s", "max_tokens")


def ending(session: AgentSession, limits: dict[str, Any], most: dict[str, Any] | None = None) -> dict[str, Any]:
    """`{reason, failing, raise_url, raise_name, raise_to, alive, message}`; {} while it goes on.

    `limits` are those that held, `most` those that a new session of this person may have, None for any. At most one query.
    """
    reason = session.ended_reason
    if not reason:
        return {}
    found: dict[str, Any] = {"reason": reason, "message": CONTINUE if reason == EndedReason.INTERRUPTED else ""}
    if reason == EndedReason.FAILED:
        found["failing"] = _failing(session)
    elif reason in (EndedReason.CANCELLED, EndedReason.INTERRUPTED):
        runs = Exec.objects.filter(workspace=session.workspace_id, session_id=session.slug, state=ExecState.RUNNING)
        found["alive"] = runs.exists()
    elif reason in (EndedReason.LIMIT, EndedReason.TIMED_OUT):
        found |= _raised(session, limits, most or {})
    return found


def _failing(session: AgentSession) -> int:
    """The seq of the last error, or of the last call that failed; 0 without one."""
    rows = SessionEvent.objects.filter(session=session)
    errors = rows.filter(kind=EventKind.ERROR) | rows.filter(kind=EventKind.TOOL_RESULT, data__ok=False)
    return errors.order_by("-seq").values_list("seq", flat=True).first() or 0


def _raised(session: AgentSession, limits: dict[str, Any], most: dict[str, Any]) -> dict[str, Any]:
    """Where a new session with the same input and the met limit raised is written; {} for a limit that is not the session's.

    At the most that this person may have it is `raise_agent` alone: the limit is the agent's, and raised there.
    """
    name = (session.ended_detail or {}).get("code")
    value = limits.get(str(name))
    if name not in RAISED or not isinstance(value, int | float):
        return {}
    more = value * LOUDER
    if isinstance(top := most.get(str(name)), int | float):
        if value >= top:
            return {"raise_agent": session.agent.slug, "raise_name": name}
        more = min(more, top)
    return {
        "raise_url": f"/sessions/new/?{urlencode({'again': session.slug, name: f'{more:.15g}'})}",
        "raise_name": name,
        "raise_to": more,
    }


def again(session: AgentSession, asked: dict[str, str]) -> dict[str, Any]:
    """The body of a new session with the input of this one, and the limits of `asked` in place of its own."""
    limits = {**session.limits, **{name: _number(asked[name]) for name in RAISED if _number(asked.get(name, ""))}}
    return {
        "agent_id": session.agent.slug, "workspace_id": session.workspace.slug, "labels": session.labels,
        "initial_instructions": session.initial_instructions, "limits": limits,
    }  # fmt: skip


def _number(text: str) -> int | float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not 0 < value < 10**12:
        return None
    return int(value) if value.is_integer() else value
