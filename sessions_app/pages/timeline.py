"""When the model and the tools worked: a bar for each call, on a scale that leaves idle hours out. Reads times and names only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models.fields.json import KT
from django.http import HttpRequest
from django.utils import timezone

from accounts.pages.table import number
from sessions_app.fragments import seconds_shown
from sessions_app.models import AgentSession, EventKind, SessionEvent, Status
from workspaces.pages.verdicts import verdict

PAGE: Final = 100  # calls of one page
WIDTH: Final = 1000  # of a bar's own scale
THIN: Final = 3.0  # the least that can be seen of a bar
IDLE: Final = timedelta(seconds=5)  # a longer pause between calls is drawn as long as this
STARTS = (EventKind.TURN_STARTED, EventKind.TOOL_CALL)
ENDS = (EventKind.ASSISTANT_MESSAGE, EventKind.TURN_ENDED, EventKind.TOOL_RESULT, EventKind.SESSION_ENDED)
# Everything else of an event, and it may be a megabyte, stays in the database.
READ = {
    name: KT(f"data__{name}")
    for name in ("call_id", "name", "turn", "model", "ended_by", "exit_code", "duration_ms", "ok")
}
COMMAND = KT("data__arguments__command"), KT("data__arguments__path")


@dataclass(slots=True)
class Bar:
    """One call: `kind` is model or tool; x and width are of WIDTH. `ended` is None while it runs."""

    seq: int
    kind: str
    name: str
    detail: str
    began: datetime
    ended: datetime | None = None
    chip: tuple[str, str, str] | None = None  # vocabulary, word, label
    x: float = 0.0
    width: float = 0.0
    pause_s: float = 0.0  # before it, where nothing worked

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else max(0.0, (self.ended - self.began).total_seconds())

    @property
    def took(self) -> str:
        return "" if self.seconds is None else seconds_shown(self.seconds * 1000)

    @property
    def bad(self) -> bool:
        return self.chip is not None and self.chip[1] not in ("exit", "cancelled")


def timeline(request: HttpRequest, session: AgentSession) -> dict[str, Any]:
    """One page of bars, with the totals of the page; `?after=` is the seq behind which it begins."""
    after = number(request, "after", 1, 10**15) if request.GET.get("after") else 0
    of_session = SessionEvent.objects.filter(session=session)
    starts: list[Any] = list(of_session.filter(kind__in=STARTS, seq__gt=after).order_by("seq")
                  .values("seq", "ts", "kind", **_read("call_id", "name", "turn", "model"), **_named())[: PAGE + 1])  # fmt: skip
    shown = starts[:PAGE]
    ends = _ends(of_session, shown) if shown else []
    bars = _bars(shown, ends)
    _place(bars, None if session.status == Status.ENDED else timezone.now())
    spent = {kind: sum(bar.seconds or 0 for bar in bars if bar.kind == kind) for kind in ("model", "tool")}
    calls = {kind: sum(bar.kind == kind for bar in bars) for kind in spent}
    return {
        "bars": bars, "spent": spent, "calls": calls, "scale": WIDTH, "after": after,
        "next_after": shown[-1]["seq"] if len(starts) > PAGE else None,
    }  # fmt: skip


def _read(*names: str) -> dict[str, Any]:
    return {f"_{name}": READ[name] for name in names}


def _named() -> dict[str, Any]:
    return {"_command": COMMAND[0], "_path": COMMAND[1]}


def _ends(rows: Any, starts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ends that may belong to these starts: each has at most three, and calls of one reply end after the last began."""
    facts = _read("call_id", "ended_by", "exit_code", "duration_ms", "ok", "turn")
    found = rows.filter(kind__in=ENDS, seq__gt=starts[0]["seq"]).order_by("seq").values("seq", "ts", "kind", **facts)
    return list(found[: PAGE * 4])


def _bars(starts: Iterable[dict[str, Any]], ends: Sequence[dict[str, Any]]) -> list[Bar]:
    results: dict[Any, list[dict[str, Any]]] = {}
    for one in ends:
        if one["kind"] == EventKind.TOOL_RESULT:
            results.setdefault(one["_call_id"], []).append(one)

    def result_of(start: dict[str, Any]) -> dict[str, Any] | None:
        """The next one of its id: an endpoint may use an id again in a later reply."""
        return next((end for end in results.get(start["_call_id"], []) if end["seq"] > start["seq"]), None)

    return [
        _model(one, ends) if one["kind"] == EventKind.TURN_STARTED else _tool(one, result_of(one)) for one in starts
    ]


def _model(start: dict[str, Any], ends: Sequence[dict[str, Any]]) -> Bar:
    """From the question to the reply: the turn itself goes on until its tools are done."""
    end = next((one for one in ends if one["seq"] > start["seq"] and one["kind"] != EventKind.TOOL_RESULT), None)
    name, model = f"Turn {start['_turn']}", str(start["_model"] or "")
    bar = Bar(start["seq"], "model", name, model, start["ts"], end["ts"] if end else None)
    if end is not None and end["kind"] == EventKind.SESSION_ENDED:
        bar.chip = ("session", "failed", "no reply")
    return bar


def _tool(start: dict[str, Any], result: dict[str, Any] | None) -> Bar:
    """A call of a reply waits for those before it: it began as long before its end as it took."""
    name = str(start["_name"] or "").removeprefix("workspace__")
    detail = str(start["_command"] or start["_path"] or "")[:160]
    bar = Bar(start["seq"], "tool", name, detail, start["ts"])
    if result is None:
        return bar
    bar.ended = result["ts"]
    took = timedelta(milliseconds=_float(result["_duration_ms"]))
    bar.began = max(start["ts"], result["ts"] - took)
    ok = str(result["_ok"]).lower() in ("1", "true")
    bar.chip = verdict({"ended_by": result["_ended_by"], "exit_code": _whole(result["_exit_code"]), "ok": ok})
    return bar


def _place(bars: Sequence[Bar], now: datetime | None) -> None:
    """Puts the bars on one scale, on which a long pause is as short as IDLE. `now` is the end of what still runs."""
    cut = timedelta(0)
    busy: datetime | None = None
    places: list[tuple[Bar, datetime, datetime]] = []
    for bar in sorted(bars, key=lambda one: (one.began, one.seq)):
        if busy is not None and bar.began - busy > IDLE:
            bar.pause_s = (bar.began - busy).total_seconds()
            cut += bar.began - busy - IDLE
        end = bar.ended or max(bar.began, now or busy or bar.began)
        busy = end if busy is None else max(busy, end)
        places.append((bar, bar.began - cut, end - cut))
    if not places:
        return
    first, whole = min(a for _, a, _ in places), max(b for _, _, b in places)
    span = max((whole - first).total_seconds(), 0.001)
    for bar, begin, end in places:
        bar.width = max(THIN, round((end - begin).total_seconds() / span * WIDTH, 1))
        bar.x = min(round((begin - first).total_seconds() / span * WIDTH, 1), WIDTH - bar.width)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
