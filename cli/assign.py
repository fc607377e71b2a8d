"""`--set a.b[0]=x`: paths and values of the command line into a spec, typed by the bundled schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

from cli.errors import UsageError
from cli.kinds import BY_NAME, Kind, ref_of
from cli.schema import KINDS as SCHEMAS
from cli.schema import Schema, child, properties
from cli.text import nearest
from cli.validate import check, shown
from cli.yamldoc import YamlError, documents, scalar

_STEP = re.compile(r"\.?(?:'([^']*)'|([^.\[\]'=]+))|\[(\d{1,4}|\+)\]")
APPEND = "+"


def build(
    kind: Kind,
    *,
    plain: Sequence[str] = (),
    strings: Sequence[str] = (),
    jsons: Sequence[str] = (),
    files: Sequence[str] = (),
) -> dict[str, Any]:
    """The spec that all assignments make together; raises UsageError with everything that is wrong with it."""
    spec: dict[str, Any] = {}
    for flag, given in (("--set", plain), ("--set-string", strings), ("--set-json", jsons), ("--set-file", files)):
        for text in given:
            steps, value = split_assignment(flag, text)
            schema = _schema_at(kind, steps, spec, flag)
            put_path(spec, steps, _value(flag, value, schema, text), text)
    findings = list(check(SCHEMAS[kind.name], spec))
    if findings:
        hint = next((f.hint for f in findings if f.hint), "")
        missing = [f"{shown(f.path)}: {f.message}" for f in findings]
        raise UsageError(*missing, hint=hint or f"give values with --set {shown(findings[0].path)}=…")
    return spec


def split_assignment(flag: str, text: str) -> tuple[list[str | int], str]:
    """`a.b[0]=x` as its steps and the text behind the sign; raises UsageError naming the flag."""
    position, steps = 0, list[str | int]()
    while position < len(text) and text[position] != "=":
        match = _STEP.match(text, position)
        if match is None or (position == 0 and match[3] is not None):
            break
        index = match[3]
        steps.append((match[1] or match[2] or "") if index is None else APPEND if index == "+" else int(index))
        position = match.end()
    if position >= len(text) or text[position] != "=" or not steps:
        raise UsageError(
            f"{flag} {text}: write path=value", hint="for example: --set labels.team=red, --set tools[+]=x"
        )
    return steps, text[position + 1 :]


def _schema_at(kind: Kind, steps: list[str | int], spec: Any, flag: str) -> Schema:
    schema, value = SCHEMAS[kind.name], spec
    for number, step in enumerate(steps):
        index = 0 if step == APPEND and schema.get("type") == "array" else step
        below = child(schema, index, value)
        if below is None:
            known = properties(schema, value) if schema.get("type") == "object" else {}
            close = nearest(str(step), known)
            path = shown(tuple(s for s in steps[: number + 1]))
            hint = f"did you mean {close}?" if close else f"known here: {', '.join(known)}" if known else ""
            raise UsageError(f"{flag} {path}: {kind.name} has no such field", hint=hint)
        value = value.get(step) if isinstance(value, dict) else None
        schema = below
    return schema


def _value(flag: str, text: str, schema: Schema, given: str) -> Any:
    if flag == "--set-string":
        return text
    if flag == "--set-json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{flag} {given}: the value is not JSON") from exc
    if flag == "--set-file":
        if not text.startswith("@"):
            raise UsageError(f"{flag} {given}: write path=@FILE")
        try:
            return FilePath(text[1:]).read_bytes().decode("utf-8")
        except OSError as exc:
            raise UsageError(f"{text[1:]}: {(exc.strerror or 'cannot be read').lower()}") from exc
        except UnicodeDecodeError as exc:
            raise UsageError(f"{text[1:]}: is not UTF-8 text") from exc
    if "x-ref" in schema and "/" in text:  # what a command printed: workspace/ws-…
        return ref_of(BY_NAME[schema["x-ref"]], text).id
    if schema.get("type") == "string":
        return text
    if schema.get("type") in ("array", "object"):
        return _flow(text, given)
    return text if "oneOf" in schema and schema["oneOf"][0].get("type") == "string" else scalar(text)


def _flow(text: str, given: str) -> Any:
    try:
        trees = list(documents(text))
    except YamlError as exc:
        raise UsageError(f"--set {given}: {exc.message}", hint="or give it as --set-json") from exc
    return trees[0].value if trees else None


def put_path(spec: dict[str, Any], steps: list[str | int], value: Any, text: str) -> None:
    """Sets one value, making what lies on the way; raises UsageError where something else is in the way."""
    place: Any = spec
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fresh: Any = value if following is None else [] if isinstance(following, int) or following == APPEND else {}
        if isinstance(place, list):
            index = len(place) if step == APPEND else step
            if not isinstance(index, int) or index > len(place):
                raise UsageError(f"--set {text}: the list has {len(place)} items; append with [+]")
            if index == len(place):
                place.append(fresh)
            elif following is None:
                place[index] = value
            place = place[index]
        elif isinstance(place, dict) and isinstance(step, str):
            if following is None:
                place[step] = value
            place = place.setdefault(step, fresh)
        else:
            raise UsageError(f"--set {text}: another --set gave this path a plain value")
