"""`primectl workspace execs`, `output` and `kill`: what ran in a workspace, what it printed, and an end to what runs."""

from __future__ import annotations

import shlex
from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import command
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.execution import Execution, Screen
from cli.kinds import WORKSPACE, Ref, ref_of
from cli.tables import Item
from cli.text import age, duration, seconds, size
from cli.verdict import how_many, kept_words
from cli.wire import segment

DEFAULT_LIMIT = 500
COMMAND_CHARS = 120
_LOOK_S = 0.25
_HEADER = ["ID", "COMMAND", "ENDED", "EXIT", "TOOK", "BYTES", "SURVIVORS"]
_MORE = ["STARTED", "SESSION", "CWD"]


@command(
    "execs",
    "primectl workspace execs ws-1a2b3c4d5e6f7081",
    "primectl workspace execs ws-1a2b --running -o name",
    short_help="List the commands that ran or still run.",
)
@click.argument("name", metavar="WORKSPACE")
@click.option("--running", is_flag=True, help="Only those that still run.")
@click.option("--limit", type=click.IntRange(min=0), default=DEFAULT_LIMIT, show_default=True, help="0 = all.")
@click.pass_obj
def workspace_execs(app: App, *, name: str, running: bool, limit: int) -> None:
    """List the commands of a workspace, the latest first: how each ended, how long it took, what it printed and left."""
    style = "name" if app.quiet else app.format(("json", "name", "table", "wide"), "table")
    ref = app.full(ref_of(WORKSPACE, name))
    state = "running" if running else None
    try:
        asked = limit + 1 if limit else 0
        items = list(app.client.pages(app.path(ref, "exec"), limit=asked, state=state, sort="-started_at"))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    shown = items[:limit] if limit else items
    if style == "json":
        app.console.json({"kind": "list", "items": shown})
    elif style == "name":
        for item in shown:
            app.console.line(str(item.get("id")))
    elif shown:
        wide = style == "wide"
        header = [*_HEADER, *_MORE] if wide else _HEADER
        utc = bool(app.flags.get("utc"))
        rows = tables.timed(
            app.console, lambda time: [header, *(_row(item, wide, time) for item in shown)], wide=wide, utc=utc
        )
        tables.write(app.console, rows)
    else:
        app.console.info("No execs found.")
    if len(items) > len(shown):
        app.console.info("more exist: --limit 0 for all")


def _words(argv: list[Any]) -> str:
    """The command as one would type it; its beginning where it is a whole program: `-o json` has all of it."""
    text = shlex.join(str(one)[: 2 * COMMAND_CHARS] for one in argv[:COMMAND_CHARS])
    return text if len(text) <= COMMAND_CHARS else text[:COMMAND_CHARS] + "…"


def _row(item: Item, wide: bool, time: tables.Time) -> list[str]:
    argv, survivors = item.get("argv"), item.get("survivors")
    ended = item.get("ended_by") or ("running" if item.get("state") == "running" else "")
    code, took = item.get("exit_code"), item.get("duration_ms")
    if not isinstance(took, int | float):
        took_words = f"{age(item.get('started_at'))}+" if ended == "running" else ""
    else:
        took_words = seconds(took / 1000)
    counts = [item.get(key) for key in ("stdout_bytes", "stderr_bytes")]
    row = [
        str(item.get("id")),
        _words(argv) if isinstance(argv, list) else "",
        str(ended),
        "" if code is None else str(code),
        took_words,
        size(sum(count for count in counts if isinstance(count, int))),
        how_many(survivors) if isinstance(survivors, list) and ended != "running" else "",
    ]
    if wide:
        row += [time(item.get("started_at")), str(item.get("session_id") or ""), str(item.get("cwd") or "")]
    return row


@command(
    "output",
    "primectl workspace output ws-1a2b3c4d5e6f7081 exec-0f1e2d3c4b5a6978",
    "primectl workspace output ws-1a2b exec-0f1e2d3c4b5a6978 --stream stderr > errors.txt",
    short_help="Print the kept output of a command.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("exec_id", metavar="EXEC")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), default="stdout", show_default=True, help="Which.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="From this byte of the stream on.")
@click.option("--raw", is_flag=True, help="On a terminal: the bytes as they are. They can do anything to it.")
@click.pass_obj
def workspace_output(app: App, *, name: str, exec_id: str, stream: str, offset: int, raw: bool) -> None:
    """Print what is kept of one stream, byte by byte; of a command that runs, what it has printed so far.

    Works also after the workspace was deleted: give its full id then.
    """
    ref = app.full(ref_of(WORKSPACE, name))
    _require_exec(ref, exec_id)
    state = _state(app, ref, exec_id)
    sink = _OnStdout(Screen(app.console, raw=raw))
    execution = Execution(app, ref.id, sink)
    execution.id, execution.offset[stream] = exec_id, offset
    execution.page_all(stream)
    sink.close()
    app.console.fresh_line()
    if state.get("state") == "ended":
        execution.leave(stream, state.get(f"{stream}_bytes"))
    total, lost = state.get(f"{stream}_bytes"), execution.lost[stream]
    if lost and isinstance(total, int):
        app.console.note(f"primectl: {kept_words(total - lost, total)} of {stream} kept")


@command(
    "kill",
    "primectl workspace kill ws-1a2b3c4d5e6f7081 exec-0f1e2d3c4b5a6978",
    "primectl workspace kill ws-1a2b exec-0f1e2d3c4b5a6978 --timeout 10s",
    short_help="End a command and all it started.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("exec_id", metavar="EXEC")
@click.option("--timeout", default="60s", show_default=True, metavar="DURATION", help="How long to wait for its end.")
@click.pass_obj
def workspace_kill(app: App, *, name: str, exec_id: str, timeout: str) -> None:
    """End a command that runs, or the processes that an ended one left behind, and wait until they are gone."""
    limit_s = duration(timeout, "--timeout")
    ref = app.full(ref_of(WORKSPACE, name))
    _require_exec(ref, exec_id)
    ran = _runs(_state(app, ref, exec_id))
    deadline = app.clock() + limit_s
    try:
        app.client.delete(app.path(ref, "exec", segment(exec_id)))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    while _runs(state := _state(app, ref, exec_id)):
        if app.clock() >= deadline:
            raise CliError(f"{exec_id} of {ref.id} still runs after {timeout}", exit=Exit.WAITED)
        app.sleep(_LOOK_S)
    if not app.quiet:
        app.console.line(f"{exec_id} {state.get('ended_by') if ran else 'had ended; nothing it left runs any more'}")


def _runs(state: dict[str, Any]) -> bool:
    return state.get("state") != "ended" and not state.get("ended_by")


def _require_exec(ref: Ref, exec_id: str) -> None:
    if not exec_id.startswith("exec-"):
        raise UsageError(f'"{exec_id}" is not the id of an exec', hint=f"primectl workspace execs {ref.id}")


class _OnStdout:
    """Either stream of the program on our standard output."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def write(self, stream: str, data: bytes) -> None:
        self.screen.write("stdout", data)

    def close(self) -> None:
        self.screen.close()


def _state(app: App, ref: Ref, exec_id: str) -> dict[str, Any]:
    try:
        return app.client.get(app.path(ref, "exec", segment(exec_id))).object
    except ApiError as exc:
        if exc.status != 404:
            raise app.explained(exc, ref) from exc
        line = f"exec {exec_id} of {ref.id} not found"
        hint = f"primectl workspace execs {ref.id}"
        raise CliError(line, exit=Exit.NOT_FOUND, hint=hint, code="not_found", request_id=exc.request_id) from exc
