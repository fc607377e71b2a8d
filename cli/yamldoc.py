"""YAML read from events: no object is built before it is known to be small, plain and without duplicate keys.

The stock loader takes the last of two equal keys, turns `yes` into true, and follows aliases without end; its composer
recurses as deep as the text asks. So documents are built here, from the parser's events, and each value keeps its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cli.validate import Path

MAX_BYTES = 8 * 1024 * 1024  # a document
MAX_DEPTH = 64
MAX_ALIASES = 100
MAX_DOCUMENTS = 1000
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_INT = re.compile(r"-?(0|[1-9][0-9]{0,300})")
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")

_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def _one_escape(match: re.Match[str]) -> str:
    code = 0x10000 + ((int(match[2], 16) - 0xD800) << 10) + (int(match[3], 16) - 0xDC00)
    return f"{match[1]}\\U{code:08x}"


class YamlError(Exception):
    """A document that is not taken; `line` counts from 1."""

    def __init__(self, line: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.line, self.message, self.hint = line, message, hint


@dataclass
class Tree:
    """One document: its value, and the line of each key and each value by path."""

    value: Any
    line: int
    lines: dict[Path, int] = field(default_factory=dict)
    key_lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path, *, on_key: bool = False) -> int:
        """The line of a path; of the nearest parent where the path does not exist."""
        if on_key and path in self.key_lines:
            return self.key_lines[path]
        while path and path not in self.lines:
            path = path[:-1]
        # A mapping's own line is its first key's; people look for the key that it belongs to.
        return self.key_lines.get(path) or self.lines.get(path, self.line)

    def below(self, path: Path, value: Any) -> Tree:
        """A part of the document as a document of its own."""
        count = len(path)
        return Tree(
            value,
            self.line_of(path),
            {p[count:]: n for p, n in self.lines.items() if p[:count] == path and len(p) > count},
            {p[count:]: n for p, n in self.key_lines.items() if p[:count] == path and len(p) > count},
        )


@dataclass
class _Node:
    kind: str  # scalar, map, seq, alias
    line: int
    text: str = ""
    plain: bool = False
    tag: str = ""
    pairs: list[tuple[_Node, _Node]] = field(default_factory=list)
    items: list[_Node] = field(default_factory=list)
    done: bool = False


def documents(text: str) -> Iterator[Tree]:
    """The documents of a stream, empty ones left out; raises YamlError at the first that is not taken."""
    import yaml

    if text.lstrip()[:1] in ("{", "["):
        # JSON writes a character beyond the BMP as two escapes; YAML knows only the long one.
        text = _PAIR.sub(_one_escape, text)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from _Composer(yaml).run(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        words = getattr(exc, "problem", None) or str(exc).splitlines()[0]
        raise YamlError(mark.line + 1 if mark else 1, f"is not YAML: {words}") from exc


class _Composer:
    def __init__(self, yaml: Any) -> None:
        self.yaml = yaml
        self.anchors: dict[str, _Node] = {}

    def run(self, events: Iterator[Any]) -> Iterator[Tree]:
        yaml, count, start = self.yaml, 0, 0
        root: _Node | None = None
        stack: list[_Node] = []
        keys: list[_Node | None] = []  # for each open collection: the key that waits for its value
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                count, start, root = count + 1, event.start_mark.index, None
                self.anchors.clear()
                if count > MAX_DOCUMENTS:
                    raise YamlError(line, f"more than {MAX_DOCUMENTS} documents in one file")
            elif isinstance(event, yaml.DocumentEndEvent):
                if root is not None and not (root.kind == "scalar" and root.text == "" and root.plain):
                    yield _Builder().tree(root)
            elif isinstance(event, yaml.CollectionEndEvent):
                stack.pop().done = True
                keys.pop()
            elif isinstance(event, yaml.NodeEvent):
                if event.end_mark.index - start > MAX_BYTES:
                    raise YamlError(line, "the document is larger than 8 MiB")
                node = self._node(event, line)
                if not stack:
                    root = node
                else:
                    _attach(stack[-1], keys, node)
                if node.kind in ("map", "seq"):
                    stack.append(node)
                    keys.append(None)
                    if len(stack) > MAX_DEPTH:
                        raise YamlError(line, f"nested deeper than {MAX_DEPTH}")

    def _node(self, event: Any, line: int) -> _Node:
        yaml = self.yaml
        if isinstance(event, yaml.AliasEvent):
            target = self.anchors.get(event.anchor)
            if target is None:
                raise YamlError(line, f"no anchor &{event.anchor} before this alias")
            if not target.done:
                raise YamlError(line, f"the alias *{event.anchor} stands inside itself")
            return _Node("alias", line, items=[target])
        if event.tag and event.tag not in _TAGS and event.tag != "!":
            raise YamlError(line, f"the tag {event.tag} is not allowed here")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node("scalar", line, event.value, plain=bool(event.implicit[0]), tag=event.tag or "", done=True)
        else:
            node = _Node("map" if isinstance(event, yaml.MappingStartEvent) else "seq", line)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node


def _attach(parent: _Node, keys: list[_Node | None], node: _Node) -> None:
    if parent.kind == "seq":
        parent.items.append(node)
    elif keys[-1] is None:
        keys[-1] = node
    else:
        parent.pairs.append((keys[-1], node))
        keys[-1] = None


class _Builder:
    """Values from nodes; aliases are expanded here, where each one costs from the budget."""

    def __init__(self) -> None:
        self.aliases = 0
        self.lines: dict[Path, int] = {}
        self.key_lines: dict[Path, int] = {}

    def tree(self, node: _Node) -> Tree:
        return Tree(self.value(node, (), 0), node.line, self.lines, self.key_lines)

    def value(self, node: _Node, path: Path, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise YamlError(node.line, f"nested deeper than {MAX_DEPTH}")
        self.lines[path] = node.line
        if node.kind == "alias":
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise YamlError(node.line, f"more than {MAX_ALIASES} aliases are expanded")
            return self.value(node.items[0], path, depth + 1)
        if node.kind == "scalar":
            return scalar(node.text, plain=node.plain, tag=node.tag)
        if node.kind == "seq":
            return [self.value(item, (*path, i), depth + 1) for i, item in enumerate(node.items)]
        return self._mapping(node, path, depth)

    def _mapping(self, node: _Node, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key, below in node.pairs:
            name_node = key.items[0] if key.kind == "alias" else key
            if name_node.kind != "scalar":
                raise YamlError(key.line, "a key must be text")
            name = name_node.text
            if name in seen:
                raise YamlError(
                    key.line, f'duplicate key "{name}": first on line {seen[name]}, again on line {key.line}'
                )
            seen[name] = key.line
            result[name] = self.value(below, (*path, name), depth + 1)
            self.key_lines[(*path, name)] = key.line
        return result


def scalar(text: str, *, plain: bool = True, tag: str = "") -> Any:
    """The value of a scalar. Only `true` and `false` are booleans; `0755`, `12:30`, dates and `yes` stay text."""
    if not plain or tag.endswith(":str"):
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
