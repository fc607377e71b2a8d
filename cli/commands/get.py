"""`primectl get`: lists and single objects, once or watched."""

from __future__ import annotations

from typing import Any

import click

from cli import present
from cli.app import PLAIN, App
from cli.client import Reply
from cli.command import command
from cli.errors import ApiError, CliError, Exit, UsageError
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
    filters, wanted = pairs("--field", fields), selector(labels)
    if refs and (search or filters or wanted):
        raise UsageError("filters select from a list; named ids need none")
    if refs:
        source: Named | Listed = Named(app, [app.full(ref) for ref in refs])
    else:
        source = Listed(app, kind, limit, {**filters, "q": search, "sort": sort, "label": wanted})
    if watch:
        from cli.commands.watching import follow

        follow(app, kind, source, style)
        return
    show(app, kind, source, style)


class Named:
    """The objects of given references; a missing one is kept as a failure until the others are shown.

    Read again, only what has changed is sent: each object is asked for by its last ETag.
    """

    def __init__(self, app: App, refs: list[Ref]) -> None:
        self.app, self.refs = app, refs
        self.one = len(refs) == 1
        self.failures: list[CliError] = []
        self.more = False
        self._known: dict[Ref, Reply] = {}

    def read(self) -> list[dict[str, Any]]:
        self.failures = []
        found = []
        for ref in self.refs:
            try:
                found.append(self._one(ref))
            except CliError as exc:
                if exc.exit is not Exit.NOT_FOUND:
                    raise
                self.failures.append(exc)
        return found

    def _one(self, ref: Ref) -> dict[str, Any]:
        known = self._known.get(ref)
        headers = {"If-None-Match": known.etag} if known and known.etag else None
        try:
            reply = self.app.client.call("GET", self.app.path(ref), headers=headers)
        except ApiError as exc:
            if exc.status == 404 and ref in self._known:  # it was there: no other name was meant
                del self._known[ref]
                raise CliError(f"{ref.kind.name} {ref.id} not found", exit=Exit.NOT_FOUND, code="not_found") from exc
            raise self.app.explained(exc, ref) from exc
        if reply.status == 304 and known is not None:
            return known.object
        self._known[ref] = reply
        return reply.object


class Listed:
    """A list with the server's filters; `more` says that the limit cut it."""

    def __init__(self, app: App, kind: Kind, limit: int, params: dict[str, Any]) -> None:
        self.app, self.kind, self.limit, self.params = app, kind, limit, params
        self.one, self.more = False, False
        self.failures: list[CliError] = []

    def read(self) -> list[dict[str, Any]]:
        asked = self.limit + 1 if self.limit else 0
        items = list(self.app.client.pages(f"/v1/{self.kind.plural}", limit=asked, **self.params))
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


def selector(texts: tuple[str, ...]) -> list[str]:
    """`-l KEY=VALUE` options as the server's `label` filter takes them."""
    return [f"{key}={value}" for key, value in pairs("-l", texts).items()]
