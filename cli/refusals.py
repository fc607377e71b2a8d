"""A refusal of the server in the caller's terms: file and line, the name that does not exist, the way on."""

from __future__ import annotations

from typing import Any

from cli import manifest
from cli.app import App
from cli.client import Client
from cli.errors import NOT_THERE, ApiError, CliError, Exit
from cli.invoked import word
from cli.kinds import BY_NAME, WORKSPACE, Kind, Ref
from cli.manifest import Document
from cli.schema import KINDS as SCHEMAS
from cli.schema import child
from cli.text import nearest
from cli.validate import Path

FIXED = "cannot be changed"  # the server's words for a field that was fixed when the object was made


def refused(app: App, exc: ApiError, kind: Kind, spec: dict[str, Any], document: Document | None = None) -> CliError:
    """A refusal of the server in the caller's terms: file and line, the name that does not exist, the way on."""
    ref = Ref(kind, str(spec.get("id", "")))
    if exc.code in NOT_THERE and "workspace_id" in spec:
        return app.explained(exc, Ref(WORKSPACE, str(spec["workspace_id"])))
    if exc.status == 409 and exc.code == "conflict" and "id" in spec and _exists(app.client, app.path(ref)):
        exc.lines = [f"{kind.name} {ref.id} already exists"]
        exc.hint = f"change it with: primectl apply -f {word(document.file) if document else 'FILE'}"
        return exc
    if exc.fields:
        _missing_references(app, exc, kind, spec)
    if document is not None and exc.exit is Exit.USAGE:
        failure = manifest.explained(exc, document)
        failure.hint = failure.hint or f"fix it and run: primectl apply -f {word(document.file)}"
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
        value = value_at(spec, path)
        if target is None or not isinstance(value, str) or FIXED in field.message:
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


def value_at(value: Any, path: Path) -> Any:
    """What stands at a path; None where it leads nowhere."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value
