"""`primectl explain` and `api-resources`: what the kinds are, and what each of their fields may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import command
from cli.errors import UsageError
from cli.fields import words
from cli.jsonpath import shown
from cli.kinds import BY_NAME, KINDS, kind_named
from cli.schema import KINDS as BUNDLED
from cli.schema import Schema
from cli.text import nearest, size
from cli.validate import NOUNS
from cli.versions import known_version, newer

_DEEPEST = 12
Named = tuple[str, Schema, bool]  # a field, its schema, whether it must be given


@command(
    "explain",
    "primectl explain workspace_template",
    "primectl explain template.backend.network.egress",
    "primectl explain agent --recursive",
    short_help="Explain the fields of a kind.",
)
@click.argument("what", metavar="KIND[.PATH]")
@click.option("--recursive", is_flag=True, help="All fields below it, each on its line; * must be given.")
@click.pass_obj
def explain(app: App, *, what: str, recursive: bool) -> None:
    """Explain a kind or one of its fields: type, whether it must be given, default, what is allowed, an example.

    No server is needed; one that is newer than this program explains its own fields.
    """
    app.format((), "text")
    name, _, path = what.partition(".")
    kind = kind_named(name).name
    schema: Schema = _schemas(app)[kind]
    place, required = "", True
    steps = path.replace("[]", "").split(".") if path else []
    for number, step in enumerate(steps):
        schema, place, required = _below(kind, schema, place, step, ".".join(steps[: number + 1]))
    app.console.line(f"KIND:   {kind}")
    if place:
        app.console.line(f"FIELD:  {place}  <{_type(schema)}>{', required' if required else ''}")
    _explain(app, kind, place, schema)
    for title, fields in _groups(schema):
        app.console.line()
        app.console.line(f"FIELDS{title}")
        for line in _tree(fields, 0) if recursive else _list(app, kind, _inside(place, schema), fields):
            app.console.line(line)


def _explain(app: App, kind: str, place: str, schema: Schema) -> None:
    """The sentence, and what is known of default, allowed values and an example."""
    console = app.console
    about, example = words(kind, place)
    about = about or str(schema.get("description") or "")
    for line in tables.wrapped(console, f"  {about}") if about else ():
        console.line(line)
    facts = [*_facts(schema), *([("example", shown(example))] if example not in (None, "") else [])]
    if place and facts:
        console.line()
        for label, text in facts:
            for line in tables.wrapped(console, f"  {label:<8}  {text}"):
                console.line(line)


def _schemas(app: App) -> dict[str, Schema]:
    """The bundled kinds, or those of a server that is newer; without a token there is nobody to ask."""
    if not app.settings.token.text:
        return BUNDLED
    from cli import published

    version = known_version(app)
    return published.schemas(app, version) if newer(version) else BUNDLED


def _below(kind: str, schema: Schema, place: str, step: str, given: str) -> tuple[Schema, str, bool]:
    """The schema of a step below another, its path, and whether it must be given."""
    place = _inside(place, schema)
    fields = [field for _, group in _groups(schema) for field in group]
    for wanted in (step, "NAME"):
        fitting = [(below, required) for name, below, required in fields if name == wanted]
        if fitting:
            kinds = [
                below for number, (below, _) in enumerate(fitting) if below not in [b for b, _ in fitting[:number]]
            ]
            merged = kinds[0] if len(kinds) == 1 else {"oneOf": kinds}  # the same name in several cases
            return merged, _join(place, wanted), all(required for _, required in fitting)
    names = list(dict.fromkeys(name for name, _, _ in fields))
    close = nearest(step, names)
    hint = f"did you mean {close}?" if close else f"known here: {', '.join(names)}" if names else "it holds no fields"
    raise UsageError(f"{kind} has no field {given}", hint=hint)


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _inside(place: str, schema: Schema) -> str:
    return f"{place}[]" if schema.get("type") == "array" else place


def _groups(schema: Schema) -> Iterator[tuple[str, list[Named]]]:
    """The fields below a schema, by case where one of them chooses the others; a list's are those of its items."""
    if schema.get("type") == "array":
        yield from _groups(schema.get("items") or {})
    elif "x-by" in schema:
        for case, below in schema["x-cases"].items():
            for _, fields in _groups(below):
                yield f" ({schema['x-by']}: {case})", fields
    elif "oneOf" in schema:
        for option in schema["oneOf"]:
            yield from _groups(option)
    elif schema.get("properties"):
        needed = schema.get("required") or ()
        yield "", [(name, below, name in needed) for name, below in schema["properties"].items()]
    elif isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
        yield "", [("NAME", schema["additionalProperties"], False)]


def _list(app: App, kind: str, place: str, fields: list[Named]) -> list[str]:
    lines = []
    for name, schema, required in fields:
        default = f", default {_default(schema)}" if _default(schema) else ""
        lines.append(f"  {name}  <{_type(schema)}>{', required' if required else default}")
        about = words(kind, _join(place, name))[0] or str(schema.get("description") or "")
        lines += tables.wrapped(app.console, f"      {about}") if about else []
    return lines


def _tree(fields: list[Named], depth: int) -> Iterator[str]:
    margin = "  " * (depth + 1)
    for name, schema, required in fields:
        yield f"{margin}{name}{'*' if required else ''}  <{_type(schema)}>"
        if depth >= _DEEPEST:
            continue
        for title, below in _groups(schema):
            if title:
                yield f"{margin}  {title.strip(' ()')}:"
            yield from _tree(below, depth + (2 if title else 1))


def _type(schema: Schema) -> str:
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type(option) for option in schema["oneOf"]))
    kind = schema.get("type")
    if kind == "array":
        inner = schema.get("items") or {}
        return f"list of {_type(inner)}" if inner else "list"
    if kind is None:
        return "secret text" if schema.get("x-secret") or schema.get("x-write-only") else "anything"
    noun = NOUNS.get(str(kind), str(kind)).removeprefix("a ")
    return f"secret {noun}" if schema.get("x-secret") or schema.get("x-write-only") else noun


def _default(schema: Schema) -> str:
    if "default" not in schema or schema["default"] in ("", {}, []):
        return ""
    value = schema["default"]
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _facts(schema: Schema) -> Iterator[tuple[str, str]]:
    """Default and what is allowed, each with its label."""

    def number(value: Any) -> str:
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return f"{text} ({size(value)})" if schema.get("x-bytes") else text

    if default := _default(schema):
        yield "default", number(schema["default"]) if isinstance(schema["default"], int) else default
    allowed = []
    for option in schema.get("oneOf") or (schema,):
        allowed += [str(value) for value in option.get("enum") or ()]
    if schema.get("minimum") is not None or schema.get("maximum") is not None:
        ends = [number(schema[end]) if schema.get(end) is not None else "" for end in ("minimum", "maximum")]
        allowed.append(f"{ends[0]} to {ends[1]}" if all(ends) else f"from {ends[0]}" if ends[0] else f"up to {ends[1]}")
    elif schema.get("exclusiveMinimum") is not None:
        allowed.append(f"more than {number(schema['exclusiveMinimum'])}")
    if schema.get("pattern"):
        allowed.append(str(schema.get("description") or schema["pattern"]))
    if "x-by" in schema:
        allowed.append(f"{schema['x-by']}: {', '.join(schema['x-cases'])}")
    if schema.get("nullable"):
        allowed.append("null" if allowed else f"{_type(schema)} or null")
    if allowed:
        yield "allowed", ", ".join(allowed)
    if schema.get("x-ref"):
        yield "names", f"a {schema['x-ref']}: primectl get {BY_NAME[schema['x-ref']].plural}"


_VERBS = {"session": "create delete describe edit explain get wait"}
_ALL = "apply create delete describe diff edit explain get wait"
_ACTIONS = {
    "workspace_provider": "provider check",
    "workspace_template": "template check",
    "workspace": "workspace exec execs files kill output start stop verify",
    "session": "session attach cancel events rerun run send transcript",
    "llm_provider": "llm-provider models test",
}


@command(
    "api-resources",
    "primectl api-resources",
    "primectl api-resources -o name",
    short_help="List the kinds and what can be done with them.",
)
@click.pass_obj
def api_resources(app: App) -> None:
    """List the kinds: their names, the verbs that take them, and the actions of their own."""
    style = app.format(("json", "name", "table", "wide"), "table")
    rows = [["NAME", "SHORT", "PLURAL", "VERBS", "ACTIONS"]]
    for kind in KINDS:
        verbs = _VERBS.get(kind.name, _ALL)
        rows.append([kind.name, kind.short, kind.plural, ",".join(verbs.split()), _ACTIONS.get(kind.name, "")])
    if style == "json":
        keys = [title.lower() for title in rows[0]]
        app.console.json({"kind": "list", "items": [dict(zip(keys, row, strict=True)) for row in rows[1:]]})
    elif style == "name":
        for row in rows[1:]:
            app.console.line(row[0])
    else:
        tables.write(app.console, rows, fold=True)
