"""Checks a value against the bundled schema and says everything that is wrong with it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.schema import Schema, properties
from cli.text import nearest, size

Path = tuple[str | int, ...]

NOUNS = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
NOUNS |= {"object": "a mapping", "array": "a list"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One wrong place; `on_key` says that the key itself is wrong, not its value."""

    path: Path
    message: str
    hint: str = ""
    on_key: bool = False


def shown(path: Path) -> str:
    """`backend.network.egress`, `tools[0]`; keys with dots are quoted as `--set` takes them."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (f"'{step}'" if "." in step else step)
    return text


def check(schema: Schema, value: Any, path: Path = ()) -> Iterator[Finding]:
    """All findings, in the order of the document."""
    if not schema:
        return
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-secret") and is_mask(value):
        yield Finding(path, "is a mask, not a secret", "leave the field out to keep the stored one; null removes it")
        return
    if "oneOf" in schema:
        yield from _one_of(schema["oneOf"], value, path)
        return
    kind = schema.get("type")
    if not _is(kind, value):
        yield Finding(path, f"must be {NOUNS[str(kind)]}, not {_got(value)}", _quote_hint(kind, value))
    elif kind == "object":
        yield from _mapping(schema, value, path)
    elif kind == "array":
        for index, item in enumerate(value):
            yield from check(schema.get("items", {}), item, (*path, index))
    elif kind == "string":
        yield from _string(schema, value, path)
    elif kind in ("integer", "number"):
        yield from _number(schema, value, path)


def is_mask(value: Any) -> bool:
    """Whether a value is what a read shows in place of a secret: stars, dots or `{set, last4}`."""
    if isinstance(value, str):
        return bool(value) and not value.strip("*•")
    return isinstance(value, dict) and "set" in value and set(value) <= {"set", "last4"}


def _one_of(options: list[Schema], value: Any, path: Path) -> Iterator[Finding]:
    fitting = [option for option in options if not option or _is(option.get("type"), value)]
    if not fitting:
        nouns = " or ".join(NOUNS[str(option["type"])] for option in options)
        yield Finding(path, f"must be {nouns}, not {_got(value)}")
        return
    yield from check(fitting[0], value, path)


def _mapping(schema: Schema, value: dict[str, Any], path: Path) -> Iterator[Finding]:
    if "x-by" in schema:
        by, cases = schema["x-by"], schema["x-cases"]
        if by not in value:
            yield Finding(path, f"{by} is required: {', '.join(cases)}")
            return
        if value[by] not in list(cases):
            yield _not_among((*path, by), value[by], list(cases))
            return
        schema = cases[value[by]]
    known, extra = properties(schema), schema.get("additionalProperties")
    for key in schema.get("required", ()):
        if key not in value:
            yield Finding((*path, key), "is required")
    for key, below in value.items():
        if key in known:
            yield from check(known[key], below, (*path, key))
        elif isinstance(extra, dict):
            yield from check(extra, below, (*path, key))
        else:
            close = nearest(str(key), known)
            hint = f"did you mean {close}?" if close else f"known here: {', '.join(known)}"
            yield Finding((*path, key), "unknown field", hint, on_key=True)


def _string(schema: Schema, value: str, path: Path) -> Iterator[Finding]:
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        yield Finding(path, "must not hold NUL characters or halves of characters")
    elif "enum" in schema and value not in schema["enum"]:
        yield _not_among(path, value, schema["enum"])
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        yield Finding(path, f'"{value[:80]}" is not valid: {schema.get("description", schema["pattern"])}')


def _number(schema: Schema, value: float, path: Path) -> Iterator[Finding]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Finding(path, "must be a finite number")
    elif abs(value) >= 2**63:
        yield Finding(path, "is too large")
    elif "minimum" in schema and value < schema["minimum"]:
        least = schema["minimum"]
        yield Finding(path, f"must be at least {least}", f"{size(least)} is {least}" if schema.get("x-bytes") else "")
    elif "maximum" in schema and value > schema["maximum"]:
        most = schema["maximum"]
        yield Finding(path, f"must be at most {most}", f"{size(most)} is {most}" if schema.get("x-bytes") else "")
    elif "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield Finding(path, f"must be more than {schema['exclusiveMinimum']}")


def _not_among(path: Path, value: Any, allowed: list[str]) -> Finding:
    close = nearest(str(value), allowed)
    choice = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    return Finding(path, f"{choice}, not {_got(value)}", f'did you mean "{close}"?' if close else "")


def _is(kind: Any, value: Any) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
    return True


def _got(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return "a number" if abs(value) > 10**20 else str(value)
        case str():
            return f'"{value[:80]}"'
        case list():
            return "a list"
    return "a mapping"


def _quote_hint(kind: Any, value: Any) -> str:
    scalar = isinstance(value, int | float)  # bool is an int
    return f'write it in quotes: "{_got(value)}"' if kind == "string" and scalar else ""
