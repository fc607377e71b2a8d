"""`primectl get`: lists and single objects, once or watched."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from cli import present
from cli.app import PLAIN, App
from cli.command import command
from cli.errors import CliError, Exit, UsageError
from cli.kinds import Kind, Ref, refs_of

DEFAULT_LIMIT = 500


@command(
    "get",
    "primectl get workspaces",
    "primectl get workspace ws-1a2b3c4d5e6f7081 -o json",
    "primectl get sessions --field status=running --sort -created_at -w",
    short_help="List objects, or show some of them.",
)
@click.argument("words", nargs=-1, required=True, metavar="KIND [ID…]")
@click.option("--search", metavar="TEXT", help="Only objects that hold TEXT.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Filter on the server; repeatable.")
@click.option("-l", "--selector", "labels", multiple=True, metavar="KEY=VALUE", help="Filter by label; repeatable.")
@click.option("--sort", metavar="[-]FIELD", help="Sort by a field, descending with a dash in front.")
@click.option("--limit", type=click.IntRange(min=0), default=DEFAULT_LIMIT, show_default=True, help="0 = all.")
@click.option("-w", "--watch", is_flag=True, help="Then one new line for each change, until Ctrl-C.")
@click.pass_obj
def get(
    app: App,
    *,
    words: tuple[str, ...],
    search: str | None,
    fields: tuple[str, ...],
    labels: tuple[str, ...],
    sort: str | None,
    limit: int,
    watch: bool,
) -> None:
    """List objects of a kind, or show the named ones."""
    style = "name" if app.quiet else app.format(PLAIN, "table")
    kind, refs = refs_of(words)
    if kind is None:
        raise UsageError("one kind at a time", hint="or: primectl get KIND ID ID…")
    filters, wanted = pairs("--field", fields), pairs("-l", labels)
    if refs and (search or filters or wanted):
        raise UsageError("filters select from a list; named ids need none")
    if refs:
        source: Named | Listed = Named(app, [app.full(ref) for ref in refs])
    else:
        source = Listed(app, kind, limit, {"q": search, "sort": sort, **filters}, wanted)
    if watch:
        from cli.commands.watching import follow

        follow(app, kind, source, style)
        return
    show(app, kind, source, style)


class Named:
    """The objects of given references; a missing one is kept as a failure until the others are shown."""

    def __init__(self, app: App, refs: list[Ref]) -> None:
        self.app, self.refs = app, refs
        self.one = len(refs) == 1
        self.failures: list[CliError] = []
        self.more = False

    def read(self) -> list[dict[str, Any]]:
        self.failures = []
        found = []
        for ref in self.refs:
            try:
                found.append(self.app.fetch(ref))
            except CliError as exc:
                if exc.exit is not Exit.NOT_FOUND:
                    raise
                self.failures.append(exc)
        return found


class Listed:
    """A list with the server's filters and, by us, those on labels; `more` says that the limit cut it."""

    def __init__(self, app: App, kind: Kind, limit: int, params: dict[str, Any], labels: dict[str, str]) -> None:
        self.app, self.kind, self.limit, self.params, self.labels = app, kind, limit, params, labels
        self.one, self.more = False, False
        self.failures: list[CliError] = []

    def read(self) -> list[dict[str, Any]]:
        asked = self.limit + 1 if self.limit and not self.labels else 0
        found = self.app.client.pages(f"/v1/{self.kind.plural}", limit=asked, **self.params)
        items = list(islice((i for i in found if has_labels(i, self.labels)), self.limit + 1 if self.limit else None))
        self.more = bool(self.limit) and len(items) > self.limit
        return items[: self.limit] if self.limit else items


def show(app: App, kind: Kind, source: Named | Listed, style: str) -> None:
    items = source.read()
    if items or style in ("json",):
        if not (source.one and not items):
            present.objects(app, kind, items, style, one=source.one)
    elif not source.failures:
        app.console.info(f"No {kind.plural.replace('_', ' ')} found.")
    if source.more:
        app.console.info("more exist: --limit 0 for all")
    app.fail_all(source.failures)


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` options as a mapping; raises UsageError for anything else."""
    result = {}
    for text in texts:
        name, sep, value = text.partition("=")
        if not sep or not name:
            raise UsageError(f"{flag} {text}: write NAME=VALUE")
        result[name] = value
    return result


def has_labels(item: dict[str, Any], labels: dict[str, str]) -> bool:
    held = item.get("labels")
    return not labels or (isinstance(held, dict) and all(str(held.get(k)) == v for k, v in labels.items()))
