"""Objects as `-o` asks for them: table, wide, json, yaml fit for `apply`, name."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Sequence
from typing import Any

from cli import jsonpath, tables
from cli.app import App
from cli.kinds import Kind
from cli.output import Console, inert
from cli.schema import KINDS as SCHEMAS
from cli.schema import secret_paths
from cli.text import dig, mapping, size

Item = dict[str, Any]


def objects(app: App, kind: Kind, items: Sequence[Item], style: str, *, one: bool) -> None:
    """Writes objects to stdout; `one` is a single named object, whose JSON is the object and not a list."""
    console = app.console
    listed = [{"kind": kind.name, **item} for item in items]
    if style == "json":
        console.json(listed[0] if one else {"kind": "list", "items": listed})
    elif style.startswith(jsonpath.PREFIX):
        template = jsonpath.parse(style.removeprefix(jsonpath.PREFIX))
        console.text(template.render(listed[0] if one else {"kind": "list", "items": listed}))
        console.fresh_line()
    elif style == "yaml":
        bare = bool(app.flags.get("raw_output"))
        texts = [to_yaml(item, None) if bare else editable(kind, item) for item in items]
        console.text("---\n".join(texts))
    elif style == "name":
        for item in items:
            console.line(f"{kind.name}/{item.get('id')}")
    elif items:
        wide = style == "wide"
        utc = bool(app.flags.get("utc"))
        tables.write(console, tables.rows_of(console, kind.name, items, wide=wide, utc=utc))


class Batch:
    """The objects that one call makes, for `-o json`: one as it is, several as a list, also when a later one fails."""

    def __init__(self, app: App, *, many: bool) -> None:
        self.app, self.many = app, many
        self._items: list[Item] = []

    def __enter__(self) -> Batch:
        return self

    def add(self, kind: Kind, item: Item) -> None:
        self._items.append({"kind": kind.name, **item})

    def __exit__(self, *_: object) -> None:
        if self._items:
            self.app.console.json({"kind": "list", "items": self._items} if self.many else self._items[0])


def manifest(kind: Kind, item: Item) -> Item:
    """`kind`, `spec` (what may be written) and `status` (what only the server writes)."""
    writable = SCHEMAS[kind.name]["properties"]
    spec = {key: item[key] for key in writable if item.get(key) is not None}
    status = {key: value for key, value in item.items() if key not in writable and value is not None}
    if isinstance(status.get("status"), dict):  # of a provider: no `status` within `status`
        status |= status.pop("status")
    return {"kind": kind.name, "spec": spec, "status": status}


def editable(kind: Kind, item: Item) -> str:
    """An object as YAML that `apply` takes."""
    if not kind.prefix:
        return to_yaml(manifest(kind, item), kind)
    note = f"# apply makes a new {kind.name} of this: the server gives the ids\n"
    return note + to_yaml(manifest(kind, item), kind, why="left out; a new one has it only from its template")


def to_yaml(value: Item, kind: Kind | None, width: int = 110, why: str = "left out; apply keeps it") -> str:
    """YAML text in lines of about `width`; with a kind, secrets of its spec become comments, so that `apply` keeps what is
    stored; `why` says in them what becomes of it."""
    import yaml

    from cli.yamldoc import scalar

    class Dumper(yaml.SafeDumper):
        """Own class: representers are class-wide."""

    def text(dumper: Any, data: str) -> Any:
        block = "\n" in data and not re.search(r"[ \t]\n|^[ \n]|[^\x20-\x7e\n\xa0-\ud7ff\ue000-\ufffd]", data)
        # PyYAML leaves 1e5 plain, since YAML 1.1 reads it as text; ours, and YAML 1.2, read a number.
        quoted = None if isinstance(scalar(data), str) else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if block else quoted)

    Dumper.add_representer(str, text)
    value, notes = copy.deepcopy(value), dict[str, str]()
    if kind is not None:
        _mark_secrets(kind, value["spec"], notes, why)
    dumped = str(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width))
    lines = [_comment(line, notes) for line in dumped.removesuffix("\n").split("\n")]
    return "".join(line + "\n" for line in lines)


def _mark_secrets(kind: Kind, spec: Item, notes: dict[str, str], why: str) -> None:
    """Puts marks where secrets stand, `mark: mark`; a mapping of nothing else becomes a mark, as it must not be null."""
    found = secret_paths(SCHEMAS[kind.name], spec)
    for *above, name in found:
        place = _at(spec, above)
        stored = place[name]
        if not isinstance(stored, dict) or not stored.get("set"):
            place.pop(name)
            continue
        # Random, and the key too: no text of the server can stand where a mark does, nor bend the line it is on.
        mark = "secret" + secrets.token_hex(16)
        ends = f", ends in {last4(stored)}" if stored.get("last4") else ""
        notes[mark] = f"# {inert(str(name), lines=False)}: set{ends} ({why})"
        items = [(mark, mark) if key == name else (key, value) for key, value in place.items()]
        place.clear()
        place.update(items)
    for holder in {path[:-1]: None for path in found if len(path) > 1}:
        *above, name = holder
        place = _at(spec, holder)
        if place and all(key in notes for key in place):
            mark = "secret" + secrets.token_hex(16)
            notes[mark] = "\n".join(notes[key] for key in place)
            _at(spec, above)[name] = mark


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def last4(stored: Item) -> str:
    """The end of a secret as a server tells it, on one line, whatever the server says."""
    return inert(str(stored["last4"])[:4], lines=False)


def _comment(line: str, notes: dict[str, str]) -> str:
    """The line, or the comments that stand for it."""
    bare = line.lstrip(" ")
    indent = line[: len(line) - len(bare)]
    if (alone := notes.get(bare.partition(":")[0])) is not None:
        return indent + alone
    for mark, several in notes.items():
        if line.endswith(mark):
            return "\n".join([line.removesuffix(mark) + "{}", *(f"{indent}  {note}" for note in several.split("\n"))])
    return line


def engine_line(name: str, status: Any) -> str:
    """`docker-local: healthy (engine 20.10.24)`, or why it is not."""
    health = dig(status, "health", "unknown")
    reasons = dig(status, "reasons", [])
    version = dig(status, "engine.version")
    if health == "healthy":
        return f"{name}: healthy" + (f" (engine {version})" if version else "")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else str(reasons)
    return f"{name}: {health}" + (f": {why}" if why else "")


def confinement(console: Console, workspace: Item, *, indent: int | None = None) -> list[str]:
    """The Confinement table: what was asked, what is applied, what was proven.

    With an `indent` it stands below a heading, that far in, and is cut to the terminal there.
    """
    cut, deep = indent is not None, indent or 0
    applied, proof = mapping(workspace.get("applied")), mapping(workspace.get("confinement"))
    lines = [f"verdict: {proof.get('verdict') or 'unknown'}"]
    limits = applied.get("limits")
    rows = [["LIMIT", "ASKED", "APPLIED", "ENFORCED"]]
    for name, limit in limits.items() if isinstance(limits, dict) else ():
        amount = _amount if name in ("memory", "disk") else _word
        rows.append(
            [str(name), *(amount(dig(limit, key)) for key in ("asked", "applied")), _word(dig(limit, "enforced"))]
        )
    for key in ("egress", "network"):
        if applied.get(key) is not None and key not in mapping(limits):
            value = applied[key]
            asked = _word(dig(value, "asked")) if isinstance(value, dict) else ""
            now = _word(dig(value, "applied")) if isinstance(value, dict) else _word(value)
            rows.append([key, asked, now, _word(dig(value, "enforced")) if isinstance(value, dict) else ""])
    if len(rows) > 1:
        lines += tables.layout(console, rows, cut=cut, indent=deep)
    rows = [["CHECK", "EXPECTED", "OBSERVED", "RESULT"]]
    for check in proof.get("checks") or []:
        if isinstance(check, dict):
            verdict = {True: "ok", False: "CONTRADICTED"}.get(check.get("ok"), "not proven")  # type: ignore[arg-type]
            amount = _amount if check.get("name") in ("limit_memory", "limit_file_size") else _word
            rows.append(
                [_word(check.get("name")), *(amount(check.get(key)) for key in ("expected", "observed")), verdict]
            )
    if len(rows) > 1:
        lines += tables.layout(console, rows, cut=cut, indent=deep)
    return lines


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value)


def _amount(value: Any) -> str:
    """Bytes for people; whatever is not a number stays as it is."""
    text = _word(value)
    return size(int(text)) if text.isascii() and text.isdigit() else text


def image_present(checked: Item) -> bool | None:
    """What a template's check says about its image; None when it does not say."""
    value = checked.get("image_present")
    return value if isinstance(value, bool) else None
