"""Manifests: files into documents of `kind` and `spec`, all of them checked before the first request."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, BinaryIO

from cli.errors import ApiError, CliError, FieldError, UsageError
from cli.kinds import BY_NAME, KINDS, Kind, Ref, kind_named
from cli.schema import KINDS as SCHEMAS
from cli.text import nearest
from cli.validate import Finding, Path, check, shown
from cli.yamldoc import MAX_BYTES, MAX_DOCUMENTS, Tree, YamlError, documents

_SUFFIXES = (".yaml", ".yml", ".json")
_TOP = ("kind", "spec", "status")
_NOT_OURS = {"apiVersion", "metadata", "apiversion"}


@dataclass(frozen=True)
class Document:
    """One object of a file; `tree` has the line of each value of `spec`."""

    file: str
    kind: Kind
    spec: dict[str, Any]
    tree: Tree

    @property
    def ref(self) -> Ref | None:
        name = self.spec.get("id")
        return Ref(self.kind, name) if isinstance(name, str) else None

    def place(self, path: Path, *, on_key: bool = False) -> str:
        """`FILE:LINE: spec.path`."""
        line = self.tree.line_of(path, on_key=on_key)
        return f"{self.file}:{line}: {shown(('spec', *path))}"


@dataclass(frozen=True, slots=True)
class _Wrong:
    file: str
    line: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        middle = f" {self.path}:" if self.path else ""
        return f"{self.file}:{self.line}:{middle} {self.message}"


def load(paths: Sequence[str], stdin: BinaryIO, *, recursive: bool = False) -> list[Document]:
    """All documents of all paths in the order of need; raises UsageError with every mistake of every file."""
    wrong: list[_Wrong] = []
    found: list[Document] = []
    for name, text in _texts(paths, stdin, recursive, wrong):
        try:
            for tree in documents(text):
                found += _documents(name, tree, wrong)
        except YamlError as exc:
            wrong.append(_Wrong(name, exc.line, "", exc.message, exc.hint))
    if len(found) > MAX_DOCUMENTS:
        raise UsageError(f"more than {MAX_DOCUMENTS} documents")
    if wrong:
        fields = [FieldError(item.path, item.message) for item in wrong]
        hint = next((item.hint for item in wrong if item.hint), "")
        raise UsageError(*map(str, wrong), hint=hint, fields=fields)
    if not found:
        raise UsageError(f"nothing in {', '.join(paths)}", hint="a manifest has kind and spec")
    return sorted(found, key=lambda document: KINDS.index(document.kind))


def explained(exc: ApiError, document: Document) -> CliError:
    """A refusal of the server with its fields as places in the file."""
    if not exc.fields:
        return exc
    exc.lines = [
        f"{document.place(_steps(f.field, document.spec))}: {f.message}" if f.field else f.message for f in exc.fields
    ]
    return exc


def field_path(text: str) -> Path:
    """The steps of a server's field name: `backend.memory_bytes`, `files[0].path`, `tools.0`."""
    return _steps(text, None)


def _steps(text: str, value: Any) -> Path:
    steps: list[str | int] = []
    for part in text.removeprefix("spec.").replace("[", ".").replace("]", "").split("."):
        step: str | int = int(part) if part.isdigit() and not isinstance(value, dict) else part
        steps.append(step)
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            value = None
    return tuple(steps)


def _documents(name: str, tree: Tree, wrong: list[_Wrong]) -> Iterator[Document]:
    if isinstance(tree.value, list):
        for index, item in enumerate(tree.value):
            yield from _documents(name, tree.below((index,), item), wrong)
        return
    if not isinstance(tree.value, dict):
        wrong.append(_Wrong(name, tree.line, "", "a document has kind and spec"))
        return
    if tree.value.get("kind") == "list" and isinstance(tree.value.get("items"), list):
        for index, item in enumerate(tree.value["items"]):
            yield from _documents(name, tree.below(("items", index), item), wrong)
        return
    document = _document(name, tree, wrong)
    if document is not None:
        yield document


def _document(name: str, tree: Tree, wrong: list[_Wrong]) -> Document | None:
    before = len(wrong)
    value: dict[str, Any] = tree.value
    for key in value:
        if key not in _TOP:
            line = tree.line_of((key,), on_key=True)
            hint = "manifests here have kind and spec only" if key in _NOT_OURS else _top_hint(key, value.get("kind"))
            wrong.append(_Wrong(name, line, key, "unknown key", hint))
    kind = _kind(name, tree, wrong)
    spec = value.get("spec")
    if not isinstance(spec, dict):
        wrong.append(
            _Wrong(name, tree.line_of(("spec",)), "spec", "must be a mapping" if "spec" in value else "is required")
        )
    if kind is None or not isinstance(spec, dict):
        return None
    document = Document(name, kind, spec, tree.below(("spec",), spec))
    wrong += [_placed(document, finding) for finding in check(SCHEMAS[kind.name], spec)]
    return document if len(wrong) == before else None


def _placed(document: Document, finding: Finding) -> _Wrong:
    line = document.tree.line_of(finding.path, on_key=finding.on_key)
    return _Wrong(document.file, line, shown(("spec", *finding.path)), finding.message, finding.hint)


def _kind(name: str, tree: Tree, wrong: list[_Wrong]) -> Kind | None:
    text = tree.value.get("kind")
    if not isinstance(text, str):
        wrong.append(_Wrong(name, tree.line_of(("kind",)), "kind", "is required: " + ", ".join(BY_NAME)))
        return None
    try:
        return kind_named(text)
    except UsageError as exc:
        wrong.append(_Wrong(name, tree.line_of(("kind",)), "kind", exc.lines[0], exc.hint))
        return None


def _top_hint(key: str, kind: Any) -> str:
    schemas = [SCHEMAS[kind]] if isinstance(kind, str) and kind in SCHEMAS else SCHEMAS.values()
    if any(key in schema["properties"] for schema in schemas):
        return f"put {key} below spec"
    close = nearest(key, _TOP)
    return f"did you mean {close}?" if close else "a document has kind and spec"


def _texts(paths: Sequence[str], stdin: BinaryIO, recursive: bool, wrong: list[_Wrong]) -> Iterator[tuple[str, str]]:
    for path in paths:
        if "://" in path:
            raise UsageError(f"{path}: addresses are not read", hint="download it, look at it, then use the file")
        for name in _files(path, recursive):
            raw = stdin.read(MAX_DOCUMENTS * 64 * 1024 + 1) if name == "-" else _bytes(name)
            label = "stdin" if name == "-" else name
            try:
                yield label, raw.decode("utf-8-sig")
            except UnicodeDecodeError as exc:
                line = raw[: exc.start].count(b"\n") + 1
                wrong.append(_Wrong(label, line, "", "is not UTF-8 text"))


def _files(path: str, recursive: bool) -> list[str]:
    if path == "-":
        return [path]
    place = FilePath(path)
    if place.is_dir():
        pattern = "**/*" if recursive else "*"
        names = sorted(str(p) for p in place.glob(pattern) if p.suffix in _SUFFIXES and p.is_file())
        if not names:
            raise UsageError(f"{path}: no .yaml, .yml or .json file in it")
        return names
    if place.exists() or not glob.has_magic(path):
        return [path]
    names = sorted(name for name in glob.glob(path, recursive=recursive) if FilePath(name).is_file())
    if not names:
        raise UsageError(f"{path}: no file matches")
    return names


def _bytes(name: str) -> bytes:
    limit = 8 * MAX_BYTES
    try:
        with open(name, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as exc:
        raise UsageError(f"{name}: {(exc.strerror or 'cannot be read').lower()}") from exc
    if len(raw) > limit:
        raise UsageError(f"{name}: is larger than 64 MiB")
    return raw
