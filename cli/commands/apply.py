"""`primectl apply`: objects as the files say, and which of them that changed."""

from __future__ import annotations

from typing import Any

import click

from cli import manifest
from cli.app import App
from cli.client import Reply
from cli.command import command
from cli.commands.create import file_option, recursive_option
from cli.errors import ApiError, Exit, UsageError
from cli.invoked import word
from cli.kinds import Ref
from cli.manifest import Document
from cli.present import Batch
from cli.refusals import FIXED, refused, value_at
from cli.schema import KINDS as SCHEMAS
from cli.schema import secret_paths
from cli.text import dig
from cli.validate import Path


@command(
    "apply",
    "primectl apply -f code-runner.yaml",
    "primectl get agent code-runner -o yaml | primectl apply -f -",
    short_help="Make objects be as the files say.",
)
@file_option
@recursive_option
@click.pass_obj
def apply(app: App, *, files: tuple[str, ...], recursive: bool) -> None:
    """Create what is not there, change what differs, and say which of the two it was."""
    style = app.format(("json", "name"), "text")
    if not files:
        raise UsageError("-f PATH is missing", hint="see: primectl apply --help")
    documents = manifest.load(files, app.console.inp, recursive=recursive)
    with Batch(app, many=len(documents) > 1) as batch:
        for document in documents:
            outcome, item = _apply(app, document)
            ref = Ref(document.kind, str(item.get("id")))
            if style == "json":
                batch.add(document.kind, item)
            elif not app.quiet:
                app.console.line(str(ref) if style == "name" else f"{ref} {outcome}")


def _apply(app: App, document: Document) -> tuple[str, dict[str, Any]]:
    before = live(app, document.ref)
    if document.ref is None or before is None:
        try:
            return "created", app.client.post(f"/v1/{document.kind.plural}", document.spec).object
        except ApiError as exc:
            raise refused(app, exc, document.kind, document.spec, document) from exc
    after = replaced(app, document, document.ref, before)
    _warn_dropped(app, document, before.object, after.object)
    return ("unchanged" if same_spec(before, after) else "configured"), after.object


def live(app: App, ref: Ref | None) -> Reply | None:
    """The object as the server has it; None when there is none."""
    if ref is None:
        return None
    try:
        return app.client.get(app.path(ref))
    except ApiError as exc:
        if exc.status != 404:
            raise
    return None


def replaced(app: App, document: Document, ref: Ref, before: Reply, *, dry: bool = False) -> Reply:
    """The object after a PUT that fails when somebody else was faster; a refusal names file, line and field."""
    headers = {"If-Match": before.etag} if before.etag else None
    try:
        after = app.client.put(app.path(ref), document.spec, headers=headers, dry_run="true" if dry else None)
    except ApiError as exc:
        if exc.contradicted and (stored := _stored(app, document, ref)) is not None:
            return stored
        if exc.status == 412:
            exc.lines = [f"{document.file}: {ref} was changed by someone else since you read it"]
            exc.hint = f"look, then apply again: primectl get {word(str(ref))} -o yaml"
            raise
        failure = refused(app, exc, document.kind, document.spec, document)
        if any(FIXED in field.message for field in exc.fields):  # the object stands in the way, not the value
            way = "create another one" if ref.kind.prefix else "delete it first, or give the new one another id"
            failure.exit, failure.hint = Exit.CONFLICT, f"{way}: {ref} stays as it is"
        raise failure from exc
    return after if isinstance(after.body, dict) else app.client.get(app.path(ref))


def _stored(app: App, document: Document, ref: Ref) -> Reply | None:
    """The object, if it is what the document makes of it: a PUT whose answer was lost has come through."""
    now = live(app, ref)
    if now is None or not now.etag:
        return None
    try:
        then = app.client.put(app.path(ref), document.spec, headers={"If-Match": now.etag}, dry_run="true")
    except ApiError:
        return None
    return now if same_spec(now, then) else None


def same_spec(before: Reply, after: Reply) -> bool:
    """Whether a PUT changed nothing that can be written: the part of the ETag before the dot says it."""
    parts = [reply.etag.removeprefix("W/").strip('"').partition(".")[0] for reply in (before, after)]
    return bool(parts[0]) and parts[0] == parts[1]


def _warn_dropped(app: App, document: Document, before: dict[str, Any], after: dict[str, Any]) -> None:
    """A secret goes when the address it was for changes: that must not pass in silence."""
    schema = SCHEMAS[document.kind.name]
    for path in secret_paths(schema, before):
        given = value_at(document.spec, path)
        if dig(value_at(before, path), "set") and given is None and not dig(value_at(after, path), "set"):
            if _is_null(document.spec, path):
                continue
            where = next((n for n in ("base_url", "url", "connection") if n in str(document.spec)), "the address")
            app.console.note(f"warning: {where} changed, the stored {path[-1]} was dropped")


def _is_null(value: Any, path: Path) -> bool:
    parent = value_at(value, path[:-1])
    return isinstance(parent, dict) and path[-1] in parent and parent[path[-1]] is None
