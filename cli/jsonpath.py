"""`jsonpath`: the part of kubectl's dialect that scripts use. Pure.

Paths `{.a.b[0]}`, `{['a.b']}`, `[-1]`, `[0:2]`, `[*]`, `{range .items[*]}…{end}`, literals `{"\\n"}`, and text between the
braces as it is. A path that leads nowhere gives nothing; several results have a space between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cli.errors import UsageError

PREFIX: Final = "jsonpath="
_HINT: Final = "for example: -o jsonpath='{.items[*].id}', or '{range .items[*]}{.id}{\"\\n\"}{end}'"
_MOST_NODES: Final = 1000
_TOKEN = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]{}'"\\\s,?()@$*]|\*)+)      # .name, .*, with a backslash before a dot
      | \[\s*(?P<star>\*)\s*\]
      | \[\s*'(?P<single>(?:\\.|[^'\\])*)'\s*\]
      | \[\s*"(?P<double>(?:\\.|[^"\\])*)"\s*\]
      | \[\s*(?P<from>-?\d{1,9})?\s*(?P<colon>:)?\s*(?P<to>-?\d{1,9})?\s*\]""",
    re.X,
)
_WILD = object()
Step = Any  # a name, an index, a slice, or _WILD


@dataclass(frozen=True, slots=True)
class Path:
    """Steps below a value."""

    steps: tuple[Step, ...]

    def find(self, value: Any) -> list[Any]:
        """What the path leads to, in order; empty when it leads nowhere."""
        found = [value]
        for step in self.steps:
            found = [below for item in found for below in _below(item, step)]
        return found


@dataclass
class _Range:
    path: Path
    body: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Template:
    """A parsed expression: text, paths and ranges."""

    nodes: tuple[Any, ...]

    def render(self, value: Any) -> str:
        """The text for one value. Text stays as it is, everything else is compact JSON."""
        return "".join(_rendered(self.nodes, value))


def parse(text: str) -> Template:
    """A template; raises UsageError for what is not in the subset. Without braces the whole text is one path."""
    if "{" not in text:
        return Template((_path(text if text.startswith((".", "[", "$")) else "." + text, text),))
    root: list[Any] = []
    open_ranges: list[_Range] = []
    place, position, count = root, 0, 0
    while position < len(text):
        start = text.find("{", position)
        literal = text[position:] if start < 0 else text[position:start]
        if literal:
            place.append(literal)
        if start < 0:
            break
        inner, position = _inner(text, start)
        count += 1
        if count > _MOST_NODES:
            raise UsageError("jsonpath: the expression is too long")
        if inner == "end":
            if not open_ranges:
                raise UsageError("jsonpath: {end} without {range …}", hint=_HINT)
            open_ranges.pop()
            place = open_ranges[-1].body if open_ranges else root
        elif inner.startswith("range ") or inner == "range":
            block = _Range(_path(inner[5:].strip(), text))
            place.append(block)
            open_ranges.append(block)
            place = block.body
        else:
            place += _parts(inner, text)
    if open_ranges:
        raise UsageError("jsonpath: {range …} without {end}", hint=_HINT)
    return Template(tuple(root))


def path(text: str) -> Path:
    """One path, with or without its braces: what `wait --for=jsonpath=…` compares."""
    bare = text.strip()
    bare = bare[1:-1].strip() if bare.startswith("{") and bare.endswith("}") else bare
    return _path(bare if bare.startswith((".", "[", "$")) else "." + bare, text)


def shown(value: Any) -> str:
    """A value as a script reads it: text bare, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _inner(text: str, start: int) -> tuple[str, int]:
    """What stands in the braces that open at `start`, and the position behind them; quotes may hold braces."""
    quote, position = "", start + 1
    while position < len(text):
        char = text[position]
        if quote:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "}":
            return text[start + 1 : position].strip(), position + 1
        elif char == "{":
            break
        position += 1
    raise UsageError(f"jsonpath: a brace is not closed: {text[start : start + 40]}", hint=_HINT)


def _parts(inner: str, whole: str) -> Iterator[Any]:
    """A literal, or paths that stand beside each other: `{.a}{"x"}` and `{.a}` alike."""
    if inner[:1] in ("'", '"'):
        if len(inner) < 2 or inner[-1] != inner[0]:
            raise UsageError(f"jsonpath: {inner[:40]}: a quote is not closed", hint=_HINT)
        yield _unescaped(inner[1:-1])
        return
    if not inner:
        raise UsageError("jsonpath: empty braces", hint=_HINT)
    yield _path(inner, whole)


def _path(text: str, whole: str) -> Path:
    body = text[1:] if text[:1] in ("$", "@") else text
    if body in ("", "."):
        return Path(())
    if body.startswith(".["):
        body = body[1:]
    steps: list[Step] = []
    position = 0
    while position < len(body):
        match = _TOKEN.match(body, position)
        if match is None or match.group() == "[]":
            rest = body[position : position + 40]
            why = "filters are not offered" if "?" in rest else "a path was due"
            why = "recursive descent is not offered" if rest.startswith("..") else why
            raise UsageError(f"jsonpath: {rest}: {why}", hint=_HINT)
        steps.append(_step(match))
        position = match.end()
    return Path(tuple(steps))


def _step(match: re.Match[str]) -> Step:
    found = match.groupdict()
    if found["star"] or found["name"] == "*":
        return _WILD
    if found["name"] is not None:
        return re.sub(r"\\(.)", r"\1", found["name"])
    for quoted in (found["single"], found["double"]):
        if quoted is not None:
            return re.sub(r"\\(.)", r"\1", quoted)
    if found["colon"]:
        return slice(*(int(n) if n else None for n in (found["from"], found["to"])))
    return int(found["from"] or 0)


def _below(value: Any, step: Step) -> list[Any]:
    if step is _WILD:
        if isinstance(value, dict):
            return list(value.values())
        return list(value) if isinstance(value, list) else []
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    if not isinstance(value, list):
        return []
    if isinstance(step, slice):
        return value[step]
    return [value[step]] if -len(value) <= step < len(value) else []


def _rendered(nodes: Any, value: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, Path):
            yield " ".join(shown(found) for found in node.find(value) if found is not None)
        else:
            for item in node.path.find(value):
                yield from _rendered(node.body, item)


def _unescaped(text: str) -> str:
    names = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda m: names.get(m[1], m[1]), text)
