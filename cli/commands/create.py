"""`primectl create` and `primectl apply`: manifests and `--set` into objects."""

from __future__ import annotations

from typing import Any

import click

from cli import manifest, present
from cli.app import App
from cli.assign import build
from cli.client import Client
from cli.command import command
from cli.commands.wait import until_phase
from cli.errors import NOT_THERE, ApiError, CliError, Exit, UsageError
from cli.kinds import BY_NAME, TEMPLATE, WORKSPACE, Kind, Ref, kind_named
from cli.kinds import PROVIDER as WORKSPACE_PROVIDER
from cli.manifest import Document
from cli.schema import KINDS as SCHEMAS
from cli.schema import child, secret_paths
from cli.text import dig, duration, image_hint, nearest
from cli.validate import Path

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
    wait_for: str | None,
) -> None:
    """Create objects from manifests (-f), or one object of a KIND from --set."""
    style = app.format(("json", "yaml", "name"), "text")
    if bool(files) == bool(kind_name):
        raise UsageError("give either -f PATH, or a KIND with --set", hint="see: primectl create --help")
    if files and (plain or strings or jsons or set_files):
        raise UsageError("--set goes with a KIND, not with -f")
    limit_s = duration(wait_for, "--wait") if wait_for else None
    if files:
        for document in manifest.load(files, app.console.inp, recursive=recursive):
            _create_document(app, document, style, limit_s)
        return
    kind = kind_named(kind_name or "")
    if limit_s is not None and kind is not WORKSPACE:
        raise UsageError("--wait is for workspaces")
    spec = build(kind, plain=plain, strings=strings, jsons=jsons, files=set_files)
    try:
        item = app.client.post(f"/v1/{kind.plural}", spec).object
    except ApiError as exc:
        raise refused(app, exc, kind, spec) from exc
    created(app, kind, item, style, from_file=False, wait_s=limit_s)


def _create_document(app: App, document: Document, style: str, limit_s: float | None) -> None:
    kind = document.kind
    try:
        item = app.client.post(f"/v1/{kind.plural}", document.spec).object
    except ApiError as exc:
        raise refused(app, exc, kind, document.spec, document) from exc
    created(app, kind, item, style, from_file=True, wait_s=limit_s if kind is WORKSPACE else None)


def created(app: App, kind: Kind, item: dict[str, Any], style: str, *, from_file: bool, wait_s: float | None) -> None:
    """The result line of a new object, and what people want to know next."""
    console, ref = app.console, Ref(kind, str(item.get("id")))
    if style in ("json", "yaml"):
        present.objects(app, kind, [item], style, one=True)
    elif style == "name" or app.quiet:
        console.line(str(ref))
    else:
        # An id that the server made will be captured by a script: nothing but the reference then.
        bare = bool(kind.prefix) and not from_file and not console.out_tty
        console.line(str(ref) if bare else f"{ref} created")
    if wait_s is not None:
        until_phase(app, ref, "running", wait_s)
    elif console.err_tty and not app.quiet:
        _afterwards(app, ref, item)


def _afterwards(app: App, ref: Ref, item: dict[str, Any]) -> None:
    """Notes for people at a terminal; that one cannot be had is not worth a failure."""
    if ref.kind is WORKSPACE:
        app.console.note(f"booting; wait with: primectl wait {ref} --for=phase=running")
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
    for document in manifest.load(files, app.console.inp, recursive=recursive):
        outcome, item = _apply(app, document)
        ref = Ref(document.kind, str(item.get("id")))
        if style == "json":
            app.console.json({"kind": ref.kind.name, **item})
        elif not app.quiet:
            app.console.line(str(ref) if style == "name" else f"{ref} {outcome}")


def _apply(app: App, document: Document) -> tuple[str, dict[str, Any]]:
    client, kind, ref = app.client, document.kind, document.ref
    try:
        before = client.get(app.path(ref)) if ref is not None else None
    except ApiError as exc:
        if exc.status != 404:
            raise
        before = None
    try:
        if ref is None or before is None:
            return "created", client.post(f"/v1/{kind.plural}", document.spec).object
        after = client.put(app.path(ref), document.spec, headers={"If-Match": before.etag} if before.etag else None)
    except ApiError as exc:
        if exc.status == 412:
            exc.lines = [f"{document.file}: {ref} was changed by someone else since you read it"]
            exc.hint = f"look, then apply again: primectl get {ref} -o yaml"
            raise
        raise refused(app, exc, kind, document.spec, document) from exc
    item = after.object if isinstance(after.body, dict) else client.get(app.path(ref)).object
    _warn_dropped(app, document, before.object, item)
    same = bool(before.etag) and _spec_part(before.etag) == _spec_part(after.etag)
    return ("unchanged" if same else "configured"), item


def _spec_part(etag: str) -> str:
    return etag.removeprefix("W/").strip('"').partition(".")[0]


def _warn_dropped(app: App, document: Document, before: dict[str, Any], after: dict[str, Any]) -> None:
    """A secret goes when the address it was for changes: that must not pass in silence."""
    schema = SCHEMAS[document.kind.name]
    for path in secret_paths(schema, before):
        given = _at(document.spec, path)
        if dig(_at(before, path), "set") and given is None and not dig(_at(after, path), "set"):
            if _is_null(document.spec, path):
                continue
            where = next((n for n in ("base_url", "url", "connection") if n in str(document.spec)), "the address")
            app.console.note(f"warning: {where} changed, the stored {path[-1]} was dropped")


def _at(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def _is_null(value: Any, path: Path) -> bool:
    parent = _at(value, path[:-1])
    return isinstance(parent, dict) and path[-1] in parent and parent[path[-1]] is None


def refused(app: App, exc: ApiError, kind: Kind, spec: dict[str, Any], document: Document | None = None) -> CliError:
    """A refusal of the server in the caller's terms: file and line, the name that does not exist, the way on."""
    ref = Ref(kind, str(spec.get("id", "")))
    if exc.code in NOT_THERE and "workspace_id" in spec:
        return app.explained(exc, Ref(WORKSPACE, str(spec["workspace_id"])))
    if exc.status == 409 and exc.code == "conflict" and "id" in spec and _exists(app.client, app.path(ref)):
        exc.lines = [f"{kind.name} {ref.id} already exists"]
        exc.hint = f"change it with: primectl apply -f {document.file if document else 'FILE'}"
        return exc
    if exc.fields:
        _missing_references(app, exc, kind, spec)
    if document is not None and exc.exit is Exit.USAGE:
        failure = manifest.explained(exc, document)
        failure.hint = failure.hint or f"fix it and run: primectl apply -f {document.file}"
        return failure
    return exc


def _exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except CliError:
        return False
    return True


def _missing_references(app: App, exc: ApiError, kind: Kind, spec: dict[str, Any]) -> None:
    """Where a refused field names another object that is not there: say so, with the names that are."""
    from dataclasses import replace

    for number, field in enumerate(exc.fields):
        path = manifest.field_path(field.field)
        target = _reference(kind, path)
        value = _at(spec, path)
        if target is None or not isinstance(value, str):
            continue
        there = app.ids(target)
        if value in there:
            continue
        message = f'no {target.name} "{value}"'
        exc.fields[number] = replace(field, message=message)
        exc.lines[number] = f"{field.field}: {message}"
        exc.hint = _hint(value, target, there, kind)


def _hint(value: str, target: Kind, there: list[str], kind: Kind) -> str:
    close = nearest(value, there) if not value.startswith("<") else ""
    if close:
        return f'did you mean "{close}"?'
    if not there:
        return f"there is none yet: primectl create -f FILE with kind: {target.name}"
    more = "; samples/code-runner.yaml uses scripted" if kind.name == "agent" and "scripted" in there else ""
    return f"there are: {', '.join(there[:20])}{more}"


def _reference(kind: Kind, path: Path) -> Kind | None:
    schema: Any = SCHEMAS[kind.name]
    for step in path:
        schema = child(schema, step) or {}
    return BY_NAME.get(schema.get("x-ref", ""))
