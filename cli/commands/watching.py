"""`get -w`: the table, then one new line for each change, for as long as somebody looks."""

from __future__ import annotations

from typing import Any

from cli import jsonpath, tables
from cli.app import App
from cli.commands.get import Listed, Named
from cli.errors import CliError, UsageError, passing
from cli.kinds import Kind

Items = list[dict[str, Any]]
_FAST_S, _SLOW_S = 1.0, 5.0


def follow(app: App, kind: Kind, source: Named | Listed, style: str) -> None:
    """Never returns: Ctrl-C ends it. A server that restarts is waited for."""
    screen = _Screen(app, kind, style)
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
        for failure in source.failures if first else ():
            app.console.error(failure, as_json=app.wants_json)
        now = {str(item.get("id")): item for item in items}
        changed = {name for name, item in now.items() if seen.get(name) != item}
        removed = [name for name in seen if name not in now]
        screen.show(items, changed, removed)
        pause = _FAST_S if changed or removed or first else min(_SLOW_S, pause * 1.5)
        seen, first = now, False
        app.sleep(pause)


class _Screen:
    """Lines for what changed; a table's columns are as wide as all that is there now needs."""

    def __init__(self, app: App, kind: Kind, style: str) -> None:
        self.app, self.kind, self.style = app, kind, style
        self._headed = False
        self._template = None
        if style.startswith(jsonpath.PREFIX):
            self._template = jsonpath.parse(style.removeprefix(jsonpath.PREFIX))
        elif style not in ("table", "wide", "name", "json"):
            raise UsageError(f"-w with -o {style}: watch with a table, wide, name, json or jsonpath=…")

    def show(self, items: Items, changed: set[str], removed: list[str]) -> None:
        console = self.app.console
        lines = self._table(items) if self.style in ("table", "wide") and changed else []
        for number, item in enumerate(items):
            if str(item.get("id")) not in changed:
                continue
            if lines:
                console.line(lines[number])
            elif self.style == "json":
                console.json({"kind": self.kind.name, **item}, indent=None)
            elif self._template is not None:
                console.text(self._template.render({"kind": self.kind.name, **item}).removesuffix("\n") + "\n")
            else:
                console.line(f"{self.kind.name}/{item.get('id')}")
        for name in removed:
            if self.style == "json":  # each line of it is an object
                console.json({"kind": self.kind.name, "id": name, "gone": True}, indent=None)
            else:
                console.line(f"{self.kind.name}/{name} gone")

    def _table(self, items: Items) -> list[str]:
        wide = self.style == "wide"
        rows = tables.rows_of(self.kind.name, items, wide=wide, utc=bool(self.app.flags.get("utc")))
        header, *lines = tables.layout(self.app.console, rows, cut=not wide)
        if not self._headed:
            self.app.console.line(header)
            self._headed = True
        return lines
