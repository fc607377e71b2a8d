"""Bars of a session's timeline, from events of endpoints that name their calls as they like."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sessions_app.models import AgentSession
from sessions_app.pages import timeline
from sessions_app.pages.endings import _raised

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(seq: int, kind: str, **facts: Any) -> dict[str, Any]:
    keys = ("call_id", "name", "command", "path", "ended_by", "exit_code", "duration_ms", "ok", "turn", "model")
    empty = {f"_{key}": None for key in keys}
    return {"seq": seq, "ts": NOON + timedelta(seconds=seq), "kind": kind, **empty, **facts}


def test_an_id_that_is_used_again_gives_each_call_its_own_end() -> None:
    first, second = event(1, "tool_call", _call_id="call_0"), event(5, "tool_call", _call_id="call_0")
    ends = [event(3, "tool_result", _call_id="call_0"), event(9, "tool_result", _call_id="call_0")]
    bars = timeline._bars([first, second], ends)
    assert [bar.ended for bar in bars] == [end["ts"] for end in ends]


def test_a_limit_is_raised_to_the_digit() -> None:
    session = AgentSession(slug="sess-1", ended_detail={"code": "max_tokens"})
    assert "max_tokens=2469134" in _raised(session, {"max_tokens": 1234567}, {})["raise_url"]
