"""The server's own description of the kinds, for `explain` when the server is newer than this program.

It is kept beside the configuration's cache, one file for each server and version: never the schema of another server.
"""

from __future__ import annotations

from typing import Any

from cli import cache
from cli.app import App
from cli.errors import CliError
from cli.schema import KINDS, Schema

# What a kind's POST takes; the names are those of the published document.
BODIES = {
    "llm_provider": "LLMProviderRequest",
    "workspace_provider": "ProviderRequest",
    "workspace_template": "TemplateRequest",
    "agent": "AgentRequest",
    "workspace": "WorkspaceRequest",
    "session": "NewSessionRequest",
}
_KEPT = ("pattern", "minimum", "maximum", "exclusiveMinimum", "nullable", "default", "enum", "description", "example")
_DEEPEST = 20


def schemas(app: App, version: str) -> dict[str, Schema]:
    """The kinds as the server describes them, asked once a version; the bundled ones where it does not tell."""
    name = cache.name_of("schema", app.client.server, version)
    known = cache.read(app.console.env, name)
    if known is None:
        try:
            document = app.client.call("GET", "/v1/schema/", headers={"Accept": "application/json"}).object
        except CliError as exc:
            app.console.note(f"warning: the server's schema cannot be had, this is ours: {exc.lines[0]}")
            return KINDS
        known = kinds_of(document)
        cache.write(app.console.env, name, known)
    return {kind: known[kind] if isinstance(known.get(kind), dict) else ours for kind, ours in KINDS.items()}


def kinds_of(document: dict[str, Any]) -> dict[str, Schema]:
    """The kinds in our schema words; what the document leaves out is left out."""
    parts = document.get("components")
    named = parts.get("schemas") if isinstance(parts, dict) else None
    known: dict[str, Any] = named if isinstance(named, dict) else {}
    return {kind: _read(known[name], known, 0) for kind, name in BODIES.items() if name in known}


def _read(given: Any, known: dict[str, Any], depth: int) -> Schema:
    """One schema with its references followed; a choice by a field becomes `x-by` with `x-cases`."""
    schema = _followed(given, known, depth)
    if depth > _DEEPEST or not schema:
        return {}
    own: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("writeOnly"):
        own["x-write-only"] = True
    chooser = schema.get("discriminator")
    if isinstance(chooser, dict) and isinstance(chooser.get("mapping"), dict):
        cases = {name: _read({"$ref": ref}, known, depth + 1) for name, ref in chooser["mapping"].items()}
        return {"type": "object", **own, "x-by": chooser.get("propertyName", "kind"), "x-cases": cases}
    options = schema.get("oneOf")
    if isinstance(options, list):
        return {**own, "oneOf": [_read(option, known, depth + 1) for option in options]}
    own |= {"type": schema["type"]} if "type" in schema else {}
    if isinstance(schema.get("properties"), dict):
        own["properties"] = {name: _read(below, known, depth + 1) for name, below in schema["properties"].items()}
        own["required"] = [name for name in schema.get("required", ()) if isinstance(name, str)]
    if isinstance(schema.get("additionalProperties"), dict):
        own["additionalProperties"] = _read(schema["additionalProperties"], known, depth + 1)
    if "items" in schema:
        own["items"] = _read(schema["items"], known, depth + 1)
    return own


def _followed(given: Any, known: dict[str, Any], depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = given if isinstance(given, dict) else {}
    for _ in range(_DEEPEST - depth):
        target = schema.get("$ref")
        if isinstance(target, str):
            found = known.get(target.rpartition("/")[2])
            schema = found if isinstance(found, dict) else {}
            continue
        all_of = schema.get("allOf")
        if not isinstance(all_of, list):
            break
        merged: dict[str, Any] = {}
        for part in all_of:
            merged |= _followed(part, known, depth + 1)
        schema = {**merged, **{key: value for key, value in schema.items() if key != "allOf"}}
    return schema
