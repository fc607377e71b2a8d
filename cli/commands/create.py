"""`primectl create` and `primectl apply`: manifests and `--set` into objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from cli import manifest, present
from cli.app import PLAIN, App
from cli.assign import build
from cli.command import command
from cli.commands.wait import until_phase
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.invoked import word
from cli.kinds import PROVIDER as WORKSPACE_PROVIDER
from cli.kinds import TEMPLATE, WORKSPACE, Kind, Ref, kind_named
from cli.manifest import Document
from cli.refusals import refused
from cli.text import dig, duration, image_hint

file_option = click.option(
    "-f", "--file", "files", multiple=True, metavar="PATH", help="A file, -, a directory or a quoted glob; repeatable."
)
recursive_option = click.option("-R", "--recursive", is_flag=True, help="With a directory: also those below it.")


@command(
    "create",
    "primectl create -f docker-provider.yaml",
    "primectl create workspace --set template_id=code-sandbox",
    "primectl create workspace --set template_id=code-sandbox --set labels.team=red --wait",
    short_help="Create objects from files, or one from --set.",
)
@click.argument("kind_name", required=False, metavar="[KIND]")
@file_option
@recursive_option
@click.option("--set", "plain", multiple=True, metavar="PATH=VALUE", help="A value by its path; repeatable.")
@click.option("--set-string", "strings", multiple=True, metavar="PATH=TEXT", help="The same, never anything but text.")
@click.option("--set-json", "jsons", multiple=True, metavar="PATH=JSON", help="The same, the value as JSON.")
@click.option("--set-file", "set_files", multiple=True, metavar="PATH=@FILE", help="The same, the text of a file.")
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    help="Store nothing. client: check it here and send nothing; server: let the server check it too.",
)
@click.option(
    "--wait", "wait_for", is_flag=False, flag_value="120s", metavar="[=120s]", help="Workspaces: until running."
)
@click.pass_obj
def create(
    app: App,
    *,
    kind_name: str | None,
    files: tuple[str, ...],
    recursive: bool,
    plain: tuple[str, ...],
    strings: tuple[str, ...],
    jsons: tuple[str, ...],
    set_files: tuple[str, ...],
    dry_run: str | None,
    wait_for: str | None,
) -> None:
    """Create objects from manifests (-f), or one object of a KIND from --set."""
    style = app.format(("json", "yaml", "name", PLAIN[-1]), "text")
    if bool(files) == bool(kind_name):
        raise UsageError("give either -f PATH, or a KIND with --set", hint="see: primectl create --help")
    if files and (plain or strings or jsons or set_files):
        raise UsageError("--set goes with a KIND, not with -f")
    limit_s = duration(wait_for, "--wait") if wait_for else None
    if limit_s is not None and dry_run:
        raise UsageError("--wait and --dry-run contradict each other: there is nothing to wait for")
    if files:
        documents = manifest.load(files, app.console.inp, recursive=recursive)
        with present.Batch(app, many=len(documents) > 1) as batch:
            order = Order(app, style, dry_run, limit_s, batch)
            for number, document in enumerate(documents):
                try:
                    order.create(document.kind, document.spec, document)
                except CliError as exc:
                    if number and not dry_run:
                        _say_how_to_go_on(exc, documents[: number + 1])
                    raise
        return
    kind = kind_named(kind_name or "")
    if limit_s is not None and kind is not WORKSPACE:
        raise UsageError("--wait is for workspaces")
    spec = build(kind, plain=plain, strings=strings, jsons=jsons, files=set_files)
    with present.Batch(app, many=False) as batch:
        Order(app, style, dry_run, limit_s, batch).create(kind, spec)


def _say_how_to_go_on(exc: CliError, documents: list[Document]) -> None:
    """Those before the last one are there now, so that `create` would stop at the first of them.

    Not where one of them has its id from the server: `apply` would make another of it.
    """
    waited = exc.exit in (Exit.FAILED, Exit.WAITED)  # the last one is there too
    if not waited and "apply -f" not in exc.hint and all(document.ref for document in documents[:-1]):
        way = f"fix it and run: primectl apply -f {word(documents[-1].file)}"
        exc.hint = f"{exc.hint}; {way}" if exc.hint else way


@dataclass(frozen=True)
class Order:
    """How the objects of one call are made and told: format, dry run (client, server or none), seconds to wait."""

    app: App
    style: str
    dry_run: str | None
    wait_s: float | None
    batch: present.Batch

    def create(self, kind: Kind, spec: dict[str, Any], document: Document | None = None) -> None:
        if self.dry_run == "client":
            self._tell(kind, spec)
            return
        try:
            dry = "true" if self.dry_run else None
            item = self.app.client.post(f"/v1/{kind.plural}", spec, dry_run=dry).object
        except ApiError as exc:
            raise refused(self.app, exc, kind, spec, document) from exc
        self._tell(kind, item, from_file=document is not None)
        if self.dry_run:
            return
        ref = Ref(kind, str(item.get("id")))
        if self.wait_s is not None and kind is WORKSPACE:
            until_phase(self.app, ref, "running", self.wait_s)
        elif self.app.console.err_tty and not self.app.quiet:
            _afterwards(self.app, ref, item)

    def _tell(self, kind: Kind, item: dict[str, Any], *, from_file: bool = True) -> None:
        """The result line. An id that the server would make is one that nothing has: a dry run does not show it."""
        if self.dry_run and kind.prefix:
            item = {key: value for key, value in item.items() if key != "id"}
        app, named = self.app, bool(item.get("id"))
        ref = f"{kind.name}/{item.get('id')}" if named else kind.name
        if self.style == "json":
            self.batch.add(kind, item)
        elif self.style == "yaml" or self.style.startswith("jsonpath="):
            present.objects(app, kind, [item], self.style, one=True)
        elif self.style == "name" or app.quiet:
            app.console.line(ref)
        elif self.dry_run:
            app.console.line(f"{ref} created (dry run)")
        else:
            # An id that the server made will be captured by a script: nothing but the reference then.
            bare = bool(kind.prefix) and not from_file and not app.console.out_tty
            app.console.line(ref if bare else f"{ref} created")


def _afterwards(app: App, ref: Ref, item: dict[str, Any]) -> None:
    """Notes for people at a terminal; that one cannot be had is not worth a failure."""
    if ref.kind is WORKSPACE:
        app.console.note(f"booting; wait with: primectl wait {word(str(ref))} --for=phase=running")
        return
    if ref.kind not in (WORKSPACE_PROVIDER, TEMPLATE):
        return
    try:
        checked = app.client.post(app.path(ref, "check")).object
    except CliError:
        return
    if ref.kind is WORKSPACE_PROVIDER:
        app.console.note(present.engine_line(ref.id, checked.get("status", checked)))
    elif present.image_present(checked) is False:
        image = str(dig(item, "backend.image", "its image"))
        app.console.note(f"warning: {image} is not on the engine; {image_hint(image)}")
