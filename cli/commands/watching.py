"""`get -w`: the table, then one new line for each change, for as long as somebody looks."""

from __future__ import annotations

from typing import Any

from cli import tables
from cli.app import App
from cli.commands.get import Listed, Named
from cli.errors import CliError, passing
from cli.kinds import Kind

_FAST_S, _SLOW_S = 1.0, 5.0


def follow(app: App, kind: Kind, source: Named | Listed, style: str) -> None:
    """Never returns: Ctrl-C ends it. A server that restarts is waited for."""
    seen: dict[str, dict[str, Any]] = {}
    pause, first, away = _FAST_S, True, False
    while True:
        try:
            items = source.read()
            away = False
        except CliError as exc:
            if first or not passing(exc):
                raise
            if not away:
                app.console.note(f"warning: {exc.lines[0].removesuffix('.')}; still trying")
                pause = _FAST_S
            away = True
            app.sleep(pause)
            pause = min(_SLOW_S, pause * 1.5)
            continue
        changed = [item for item in items if seen.get(str(item.get("id"))) != item]
        for failure in source.failures if first else ():
            app.console.error(failure, as_json=app.wants_json)
        now = {str(item.get("id")): item for item in items}
        removed = [name for name in seen if name not in now]
        _print(app, kind, changed, removed, style, header=first)
        pause = _FAST_S if changed or removed or first else min(_SLOW_S, pause * 1.5)
        seen, first = now, False
        app.sleep(pause)


def _print(app: App, kind: Kind, items: list[dict[str, Any]], removed: list[str], style: str, *, header: bool) -> None:
    if style == "json":
        for item in items:
            app.console.json({"kind": kind.name, **item}, indent=None)
    elif style == "name":
        for item in items:
            app.console.line(f"{kind.name}/{item.get('id')}")
    elif items:
        wide = style == "wide"
        lines = tables.layout(
            app.console, tables.rows_of(kind.name, items, wide=wide, utc=bool(app.flags.get("utc"))), cut=not wide
        )
        for line in lines if header else lines[1:]:
            app.console.line(line)
    for name in removed:
        app.console.line(f"{kind.name}/{name} gone")
