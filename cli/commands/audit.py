"""`primectl audit`: who changed what, when and from where; for admins."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import command
from cli.commands.get import DEFAULT_LIMIT, pairs
from cli.errors import UsageError
from cli.text import duration, moment

_HEADER = ["AT", "ACTOR", "ACTION", "OBJECT", "ADDRESS"]
_MORE = ["TOKEN", "REQUEST-ID", "CHANGES"]


@command(
    "audit",
    "primectl audit --since 1h",
    "primectl audit --since 2026-02-01T10:00:00Z --field actor=alice -o json",
    short_help="Show who changed what (admins).",
)
@click.option("--since", metavar="TIME", help="From then on: RFC 3339, or a duration like 2h that means ago.")
@click.option("--until", metavar="TIME", help="Up to then.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Filter on the server; repeatable.")
@click.option("--search", metavar="TEXT", help="Only entries that hold TEXT.")
@click.option("--limit", type=click.IntRange(min=0), default=DEFAULT_LIMIT, show_default=True, help="0 = all.")
@click.pass_obj
def audit(
    app: App, *, since: str | None, until: str | None, fields: tuple[str, ...], search: str | None, limit: int
) -> None:
    """Show the changes that were made, the latest first; -o wide adds token, request and what changed."""
    style = app.format(("json", "jsonl", "table", "wide"), "table")
    params: dict[str, Any] = {**pairs("--field", fields), "q": search}
    for name, given in (("since", since), ("until", until)):
        if given:
            params[name] = instant(given, f"--{name}")
    items = list(app.client.pages("/v1/audit", limit=limit + 1 if limit else 0, **params))
    shown = items[:limit] if limit else items
    if style == "json":
        app.console.json({"kind": "list", "items": shown})
    elif style == "jsonl":
        for item in shown:
            app.console.json(item, indent=None)
    elif shown:
        wide = style == "wide"
        header = [*_HEADER, *_MORE] if wide else _HEADER
        utc = bool(app.flags.get("utc"))
        rows = tables.timed(
            app.console, lambda time: [header, *(_row(item, wide, time) for item in shown)], wide=wide, utc=utc
        )
        tables.write(app.console, rows)
    else:
        app.console.info("No entries found.")
    if len(items) > len(shown):
        app.console.info("more exist: --limit 0 for all")


def instant(text: str, what: str) -> str:
    """A time for the API: RFC 3339 with its offset (UTC without one), or a duration that means ago."""
    found = moment(text.replace("z", "Z"))
    if found is None:
        try:
            found = datetime.now(UTC) - timedelta(seconds=duration(text, what))
        except (UsageError, OverflowError) as exc:
            hint = "write 2026-02-01T10:00:00Z, 2026-02-01, or how long ago: 90s, 10m, 2h, 1d"
            raise UsageError(f'{what}: "{text}" is not a time', hint=hint) from exc
    return found.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _row(item: dict[str, Any], wide: bool, time: tables.Time) -> list[str]:
    kind, name = str(item.get("object_kind") or ""), str(item.get("object_id") or "")
    row = [
        time(item.get("at")),
        str(item.get("actor") or item.get("actor_kind") or ""),
        str(item.get("action") or ""),
        f"{kind}/{name}" if kind and name else kind or name,
        str(item.get("address") or ""),
    ]
    if wide:
        row += [str(item.get("token") or ""), str(item.get("request_id") or ""), _changes(item)]
    return row


def _changes(item: dict[str, Any]) -> str:
    """What differs between before and after: `phase: "running" -> "stopped"`."""
    before, after = item.get("before"), item.get("after")
    old: dict[str, Any] = before if isinstance(before, dict) else {}
    new: dict[str, Any] = after if isinstance(after, dict) else {}
    parts = []
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) != new.get(key):
            sides = [json.dumps(side.get(key), ensure_ascii=False) for side in (old, new)]
            parts.append(f"{key}: {sides[1]}" if not old else f"{key}: {sides[0]} -> {sides[1]}")
    return ", ".join(parts)
