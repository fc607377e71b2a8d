"""Following one session to its end: what is shown, how Ctrl-C is taken, and the exit code of each ending."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from cli.app import App
from cli.errors import CliError, Done, Exit, OutputFailed
from cli.kinds import SESSION, Ref
from cli.stream import Event, Follower, StillRunning, merged
from cli.text import dig
from cli.transcript import Transcript, call_line, verdict_line
from cli.wire import segment

_CANCEL_S = 5.0
_SETTLE_S = 5.0

_ENDINGS = {
    "completed": Exit.OK,
    "failed": Exit.SESSION_FAILED,
    "cancelled": Exit.SESSION_CANCELLED,
    "timed_out": Exit.SESSION_LIMIT,
    "limit": Exit.SESSION_LIMIT,
    "interrupted": Exit.SESSION_INTERRUPTED,
}


def exit_of(reason: Any) -> Exit:
    """The exit code of an ending; an unknown one is a failure, never a success."""
    return _ENDINGS.get(str(reason), Exit.SESSION_FAILED)


class Watch:
    """Shows one session in a `style` (text, answer, json, jsonl) and leaves with its exit code."""

    def __init__(self, app: App, session_id: str, style: str, *, cancels: bool = True) -> None:
        self.app, self.id, self.style, self.cancels = app, session_id, style, cancels
        self.ref = Ref(SESSION, session_id)
        live = style == "text" and app.console.out_tty
        self.transcript = Transcript(app.console, session_id, live_text=live)
        self.follower: Follower | None = None

    def to_end(self, *, after: int, settled: int, deadline: float | None) -> NoReturn:
        """Follows, prints the ending, and raises Done with its code."""
        try:
            self._to_end(after, settled, deadline)
        except OutputFailed as exc:
            exc.hint = f"it is all kept; see it with: primectl session attach {self.id}"
            raise

    def _to_end(self, after: int, settled: int, deadline: float | None) -> NoReturn:
        try:
            self._show(self._follow(after, settled, deadline))
        except KeyboardInterrupt:
            if not self.cancels:
                self.app.console.note(f"detached; attach with: primectl session attach {self.id}")
                raise
            self._cancel(settled)
        except StillRunning:
            self.app.console.fresh_line()
            self.app.console.note(f"still running; attach with: primectl session attach {self.id}")
            raise Done(Exit.WAITED) from None
        raise Done(self._ended(self._settled()))

    def replay(self, item: dict[str, Any], after: int, last: int) -> NoReturn:
        """Shows an ended session as it was."""
        self._show(stored(self.app, self.id, after, last))
        raise Done(self._ended(item))

    def _follow(self, after: int, settled: int, deadline: float | None) -> Iterator[Event]:
        self.follower = Follower(self.app, self.id, after=after, settled=settled, deadline=deadline)
        return iter(self.follower)

    def _show(self, events: Iterator[Event]) -> None:
        for event in merged(events) if self.style == "jsonl" else events:
            if self.style == "jsonl":
                self.app.console.json(event, indent=None)
            else:
                self.transcript.show(event)

    def _cancel(self, settled: int) -> NoReturn:
        """Cancels, waits a little for the ending and prints it. Another Ctrl-C leaves at once."""
        app = self.app
        app.console.fresh_line()
        try:
            app.client.post(app.path(self.ref, "cancel"))
            seq = self.follower.seq if self.follower else 0
            self._show(self._follow(seq, settled, app.clock() + _CANCEL_S))
            self._ended(self._settled(), quiet_errors=True)
        except StillRunning:
            app.console.note(f"still running; attach with: primectl session attach {self.id}")
        except CliError as exc:
            app.console.note(f"warning: the cancel is not confirmed: {exc.lines[0]}")
        except KeyboardInterrupt:
            app.console.note(f"detached; attach with: primectl session attach {self.id}")
        raise Done(Exit.CTRL_C)

    def _settled(self) -> dict[str, Any]:
        """The ended session: its row says how it ended, and may be a moment behind the event."""
        deadline = self.app.clock() + _SETTLE_S
        while True:
            item = self.app.fetch(self.ref)
            if item.get("status") == "ended" or self.app.clock() > deadline:
                return item
            self.app.sleep(0.1)

    def _ended(self, item: dict[str, Any], *, quiet_errors: bool = False) -> Exit:
        console, reason = self.app.console, str(item.get("ended_reason"))
        console.fresh_line()
        if self.style == "json":
            console.json({"kind": "session", **item})
        elif self.style in ("text", "answer"):
            answer = item.get("answer")
            if isinstance(answer, str) and answer and not (self.transcript.live_text and self.transcript.said):
                console.text(answer if answer.endswith("\n") else answer + "\n")
            console.fresh_line()
            if self.style == "text":
                console.line(f"ended: {reason}")
        code = exit_of(reason)
        if code is not Exit.OK and not quiet_errors:
            failure = self._failure(item, reason, code)
            console.error(failure, as_json=self.app.wants_json)
        return code

    def _failure(self, item: dict[str, Any], reason: str, code: Exit) -> CliError:
        message = str(dig(item, "ended_detail.message") or "").strip()
        hint = str(dig(item, "ended_detail.hint") or "")
        if reason == "interrupted":
            hint = f'continue with: primectl session send {self.id} -i "go on"'
        line = f"session {self.id} {reason}" if reason != "limit" else f"session {self.id} met a limit"
        line += f": {message}" if message else ""
        return CliError(line, exit=code, hint=hint, code=str(dig(item, "ended_detail.code") or reason))


def last_seq(item: dict[str, Any]) -> int:
    """The number of the last event of a session; 0 where it has none."""
    seq = item.get("last_seq")
    return seq if isinstance(seq, int) else 0


def stored(app: App, session_id: str, after: int, last: int) -> Iterator[Event]:
    """The events that are there, in order, up to `last`."""
    seq = after
    path = f"/v1/sessions/{segment(session_id)}/events"
    while seq < last:
        items = app.client.get(path, after=seq, limit=500).items
        fresh = [e for e in items if isinstance(e.get("seq"), int) and seq < e["seq"] <= last]
        if not fresh:
            return
        for event in fresh:
            if not isinstance(event.get("data"), dict):
                event["data"] = {}
            event.setdefault("kind", "unknown")
            yield event
        seq = fresh[-1]["seq"]


def result_line(event: Event) -> str:
    """One event in a few words."""
    data = event["data"]
    match event["kind"]:
        case "tool_call":
            return call_line(data)
        case "tool_result":
            return verdict_line(data, "-") or ("ok" if data.get("ok") else "")
        case "session_ended":
            return str(data.get("reason") or "")
        case "session_status" | "workspace_phase":
            return str(data.get("status") or data.get("phase") or "")
    return " ".join(str(data.get("text") or data.get("message") or "").split())[:200]
