"""`primectl diff`: what `apply` would change, decided by the server after it has filled the defaults."""

from __future__ import annotations

import copy
import difflib
from typing import Any

import click

from cli import manifest, present
from cli.app import App
from cli.client import Reply
from cli.command import command
from cli.commands.apply import live, replaced, same_spec
from cli.commands.create import file_option, recursive_option
from cli.errors import ApiError, CliError, Done, Exit, UsageError
from cli.kinds import Kind
from cli.manifest import Document
from cli.refusals import refused, value_at
from cli.schema import KINDS as SCHEMAS
from cli.schema import Schema, properties, secret_paths

_SET, _CHANGED = "(set)", "(set, changed)"
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@command(
    "diff",
    "primectl diff -f code-runner.yaml",
    "primectl diff -f manifests/ -R && echo nothing to do",
    short_help="Show what apply would change.",
)
@file_option
@recursive_option
@click.pass_obj
def diff(app: App, *, files: tuple[str, ...], recursive: bool) -> None:
    """Show, as a unified diff, what apply would change; nothing is stored. Exit 0 same, 1 differs, more than 1 error.

    Secrets are shown as (set). Where the caller may not change an object, defaults are those that this program knows.
    """
    app.format((), "text")
    if not files:
        raise UsageError("-f PATH is missing", hint="see: primectl diff --help")
    differs = False
    try:
        for document in manifest.load(files, app.console.inp, recursive=recursive):
            differs |= _diff(app, document)
    except CliError as exc:
        # 1 says that something differs, and that is not known now.
        exc.exit = Exit.USAGE if exc.exit is Exit.FAILED else exc.exit
        raise
    raise Done(Exit.FAILED if differs else Exit.OK)


def _diff(app: App, document: Document) -> bool:
    before = live(app, document.ref)
    after, same = _proposed(app, document, before)
    old = _spec(document.kind, before.object) if before is not None else {}
    new = _spec(document.kind, after)
    if before is not None and not same:
        _mark_changed(document, old, new, before.object, after)
    was, will = (present.to_yaml(side, None).splitlines() if side else [] for side in (old, new))
    name = str(document.ref or document.kind.name)
    lines = list(difflib.unified_diff(was, will, f"live/{name}", document.file, lineterm=""))
    for line in lines:
        app.console.line(line)
    return bool(lines)


def _proposed(app: App, document: Document, before: Reply | None) -> tuple[dict[str, Any], bool]:
    """The object as it would be after apply, and whether the server calls that the same as before."""
    try:
        if document.ref is not None and before is not None:
            after = replaced(app, document, document.ref, before, dry=True)
            return after.object, same_spec(before, after)
        reply = app.client.post(f"/v1/{document.kind.plural}", document.spec, dry_run="true")
        # What it refers to is what the file names: a throw-away workspace that a dry run made up is nowhere.
        refers = {name for name, below in SCHEMAS[document.kind.name]["properties"].items() if "x-ref" in below}
        named = {name: document.spec[name] for name in refers if name in document.spec}
        return {name: value for name, value in reply.object.items() if name not in refers} | named, False
    except ApiError as exc:
        if exc.exit is not Exit.DENIED:
            raise refused(app, exc, document.kind, document.spec, document) from exc
    stored = before.object if before is not None else {}
    filled: dict[str, Any] = _filled(SCHEMAS[document.kind.name], document.spec, stored)
    return filled, False


def _filled(schema: Schema, given: Any, stored: Any) -> Any:
    """A value with the defaults that are known here; a stored value that is empty is a default as well."""
    if isinstance(given, int) and isinstance(stored, float) and given == stored:
        return stored  # 1 and 1.0 are the same number
    if not isinstance(given, dict) or not properties(schema, given):
        return _with_secrets(schema, given, stored)
    known = properties(schema, given)
    held = stored if isinstance(stored, dict) else {}
    result = {}
    for name, below in known.items():
        if name in given:
            result[name] = _filled(below, given[name], held.get(name))
        elif below.get("x-secret") or held.get(name) in _EMPTY:
            result |= {name: held[name]} if name in held else {}
        elif not properties(below) and secret_paths(below, held[name]):
            result[name] = _with_secrets(below, {}, held[name])
        elif "default" in below:
            result[name] = copy.deepcopy(below["default"])
    return result


def _with_secrets(schema: Schema, given: Any, stored: Any) -> Any:
    """A mapping of the caller's own names, env: stored secrets that it leaves out stay, null removes one."""
    if not isinstance(given, dict) or not isinstance(stored, dict):
        return given
    held = {path[0]: stored[path[0]] for path in secret_paths(schema, stored) if len(path) == 1}
    return {name: value for name, value in (held | given).items() if value is not None or name not in held}


def _spec(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
    """What may be written, secrets shown as set or left out."""
    spec: dict[str, Any] = copy.deepcopy(present.manifest(kind, item)["spec"])
    for path in secret_paths(SCHEMAS[kind.name], spec):
        place = value_at(spec, path[:-1])
        held = place.pop(path[-1])
        if isinstance(held, str) or (isinstance(held, dict) and (held.get("set") or "secret" in held)):
            place[path[-1]] = _SET
    return spec


def _mark_changed(
    document: Document, old: dict[str, Any], new: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A secret that the file gives and that becomes another one looks the same on both sides: say so."""
    given = [p for p in secret_paths(SCHEMAS[document.kind.name], document.spec) if value_at(document.spec, p)]
    other = [path for path in given if value_at(before, path) != value_at(after, path)]
    for path in other or (given if old == new else []):
        if value_at(old, path) == value_at(new, path) == _SET:
            value_at(new, path[:-1])[path[-1]] = _CHANGED
