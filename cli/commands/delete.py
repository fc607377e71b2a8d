"""`primectl delete`: by name, by file, by label; done when nothing is left."""

from __future__ import annotations

from typing import Any

import click

from cli import manifest
from cli.app import App
from cli.command import command
from cli.commands.create import file_option, recursive_option
from cli.commands.get import selector
from cli.commands.wait import until_gone
from cli.errors import ApiError, CliError, Exit, UsageError, passing
from cli.kinds import SERVER_ID, WORKSPACE, Kind, Ref, refs_of
from cli.text import duration

_NOTE_AFTER_S = 0.3


@command(
    "delete",
    "primectl delete workspace ws-1a2b3c4d5e6f7081",
    "primectl delete -f samples/",
    "primectl delete workspaces -l team=red -y",
    short_help="Delete objects and wait until they are gone.",
)
@click.argument("words", nargs=-1, metavar="KIND ID…")
@file_option
@recursive_option
@click.option("-l", "--selector", "labels", multiple=True, metavar="KEY=VALUE", help="All of KIND with this label.")
@click.option("--all", "everything", is_flag=True, help="All of KIND.")
@click.option("--timeout", default="120s", show_default=True, metavar="DURATION", help="How long to wait for the end.")
@click.option("--no-wait", is_flag=True, help="Return when the server has taken the order.")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no failure.")
@click.pass_obj
def delete(
    app: App,
    *,
    words: tuple[str, ...],
    files: tuple[str, ...],
    recursive: bool,
    labels: tuple[str, ...],
    everything: bool,
    timeout: str,
    no_wait: bool,
    ignore_not_found: bool,
) -> None:
    """Delete objects; returns when they and what they held are gone."""
    limit_s = duration(timeout, "--timeout")
    if bool(files) + bool(words) != 1:
        raise UsageError("give either KIND ID…, or -f PATH", hint="see: primectl delete --help")
    wanted = selector(labels)
    if files:
        refs = _refs_of_files(app, files, recursive)
    else:
        kind, refs = refs_of(words)
        if wanted or everything:
            refs = _selected(app, kind, refs, wanted)
        elif not refs:
            raise UsageError("an id is missing", hint="give ids, -l KEY=VALUE or --all")
        else:
            _named(app, refs)
    failures = []
    for ref in refs:
        try:
            _delete(app, ref, limit_s, timeout, wait=not no_wait, ignore=ignore_not_found)
        except CliError as exc:
            failures.append(exc)
    app.fail_all(failures)


def _refs_of_files(app: App, files: tuple[str, ...], recursive: bool) -> list[Ref]:
    refs = []
    for document in reversed(manifest.load(files, app.console.inp, recursive=recursive)):
        if document.ref is None:
            raise UsageError(f"{document.file}: a {document.kind.name} has no id in a file; delete it by its id")
        refs.append(document.ref)
    return refs


def _named(app: App, refs: list[Ref]) -> None:
    for ref in refs:
        if ref.kind.prefix and not SERVER_ID.fullmatch(ref.id):
            raise UsageError(f'"{ref.id}" is cut: delete takes full ids', hint=f"primectl get {ref.kind.plural}")
    busy = [ref for ref in refs if app.console.can_ask and not app.yes and _worth_asking(app, ref)]
    if busy and not app.confirm(f"delete {', '.join(map(str, refs))} with the files and sessions in it?"):
        raise CliError("nothing was deleted", exit=Exit.FAILED, hint="-y answers the question")


def _worth_asking(app: App, ref: Ref) -> bool:
    """Whether a workspace runs a session or holds files; when it cannot be told, the delete itself will say why."""
    if ref.kind is not WORKSPACE:
        return False
    try:
        running = app.client.get("/v1/sessions", workspace_id=ref.id, status="running", limit=1).items
        return bool(running) or bool(app.client.get(app.path(ref, "files"), path="").items)
    except CliError:
        return False


def _selected(app: App, kind: Kind | None, refs: list[Ref], labels: list[str]) -> list[Ref]:
    if refs or kind is None:
        raise UsageError("give either ids, or -l / --all with a KIND")
    refs = [Ref(kind, str(item.get("id"))) for item in app.client.pages(f"/v1/{kind.plural}", label=labels)]
    if not refs:
        app.console.info(f"No {kind.plural.replace('_', ' ')} found.")
        return []
    if not app.yes:
        if not app.console.can_ask:
            raise UsageError(f"{len(refs)} {kind.plural} would go: -l and --all need -y here")
        for ref in refs:
            app.console.note(f"  {ref}")
        if not app.confirm(f"delete these {len(refs)}?"):
            raise CliError("nothing was deleted", exit=Exit.FAILED)
    return refs


def _delete(app: App, ref: Ref, limit_s: float, limit: str, *, wait: bool, ignore: bool) -> None:
    started = app.clock()
    try:
        app.client.delete(app.path(ref))
    except ApiError as exc:
        if exc.status == 404 and ignore:
            return
        if exc.code == "in_use":
            exc.lines = [exc.detail, *_users(exc)]
            raise
        raise app.explained(exc, ref) from exc
    if wait:
        _until_gone(app, ref, started, limit_s, limit)
    if not app.quiet:
        app.console.line(f"{ref} deleted")


def _until_gone(app: App, ref: Ref, started: float, limit_s: float, limit: str) -> None:
    early = min(started + _NOTE_AFTER_S, started + limit_s)
    try:
        until_gone(app, ref, early, limit)
        return
    except CliError as exc:
        if exc.exit is not Exit.WAITED and not passing(exc):
            raise
    if app.console.err_tty:
        app.console.info(f"deleting{app.console.ellipsis}")
    until_gone(app, ref, started + limit_s, limit)


def _users(exc: ApiError) -> list[Any]:
    return [f"used by {f.message}" for f in exc.fields]
