"""What a field means, in the words of the API: the help text of the serializer's field, which OpenAPI and `explain` show too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from accounts.pages.form import Field, Section

_known: dict[tuple[type[Any], str], str] = {}  # serializers are made anew at each look, which costs more than the form


def described(sections: Sequence[Section], shape: type[Any]) -> list[Section]:
    """The sections with each field's help taken from `shape`, the serializer of the body."""
    return [replace(section, fields=tuple(_described(one, shape) for one in section.fields)) for section in sections]


def _described(field: Field, shape: type[Any]) -> Field:
    options = tuple(
        replace(option, fields=tuple(_described(inner, shape) for inner in option.fields)) for option in field.options
    )
    return replace(field, options=options, help=meaning(shape, field.path))


def meaning(shape: type[Any], path: str) -> str:
    """The help text at a path of a serializer, "" where there is none; of a choice by kind, the first that has the field."""
    known = _known.get((shape, path))
    if known is None:
        known = _known[shape, path] = next((text for text in _texts(shape(), path.split(".")) if text), "")
    return known


def _texts(place: Any, names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield str(getattr(place, "help_text", "") or "")
        return
    shapes = getattr(place, "shapes", None)
    for holder in [shape() for shape in shapes.values()] if shapes else [place]:
        inner = getattr(holder, "fields", {}).get(names[0])
        if inner is not None:
            yield from _texts(inner, names[1:])
