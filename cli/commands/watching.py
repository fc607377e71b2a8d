"""`get -w`: the table, then one new line for each change, for as long as somebody looks."""

from __future__ import annotations

import math
from typing import Any

from cli import jsonpath, tables
from cli.app import App
from cli.commands.get import Listed, Named
from cli.errors import UsageError
from cli.kinds import Kind

Items = list[dict[str, Any]]
_FAST_S, _SLOW_S = 1.0, 5.0


def follow(app: App, kind: Kind, source: Named | Listed, style: str) -> None:
    """Never returns: Ctrl-C ends it. A server that restarts is waited for."""
    screen = _Screen(app, kind, style)
    seen: dict[str, dict[str, Any]] = {}
    pause, first = _FAST_S, True
    while True:
        with app.client.patience.until(math.inf):
            items = source.read()
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
        self._titles: list[str] = []
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
        console, utc = self.app.console, bool(self.app.flags.get("utc"))
        table = tables.fitted(console, tables.rows_of(console, self.kind.name, items, wide=wide, utc=utc))
        header, *lines = table.lines
        if self._titles != header.split():  # of a longer id, there may be no room for a column any more
            console.line(header)
            if table.note:
                console.info(table.note)
            self._titles = header.split()
        return lines
