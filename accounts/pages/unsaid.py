"""What a posted form says that its body cannot: refused here, since the API never sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accounts.pages import rows
from accounts.pages.form import UNITS, Field, Section, dig
from primer_site.errors import FieldError, Invalid


def refuse(
    sections: Sequence[Section], body: Mapping[str, Any], base: Mapping[str, Any], *, whole: bool = True
) -> None:
    """Raises `Invalid` for what a body cannot say of its form: secrets that were typed and are gone, and rows of one name.

    `base` is what is stored; without `whole` the rows are none of the question.
    """
    errors: list[FieldError] = []
    for path, one in fields_of(one for section in sections for one in section.fields).items():
        value = dig(body, path)
        if isinstance(value, rows.Rows) and whole:
            errors += [FieldError(path, f"row {at + 1}: {why}") for at, why in sorted(value.wrong)]
        elif one.control == "secret" and value == "":
            errors.append(FieldError(path, rows.NOT_KEPT if dig(base, f"{path}.set") else rows.AGAIN))
        elif one.control in ("number", *UNITS) and misread(value):
            errors.append(FieldError(path, rows.NO_NUMBER))
        if one.control == "table":
            errors += [
                FieldError(path, f"row {at + 1}: {what} {rows.NO_NUMBER}") for at, what in misread_in(one, value)
            ]
    if errors:
        raise Invalid("The form is not complete.", errors=errors)


def fields_of(fields: Iterable[Field]) -> dict[str, Field]:
    """The fields by their paths, those of every choice included."""
    found: dict[str, Field] = {}
    for one in fields:
        found[one.path] = one
        for option in one.options:
            found |= fields_of(option.fields)
    return found


def misread(text: Any) -> bool:
    """Whether a text that is no number here would pass for one further on: Python reads 1_0, nan, digits of other scripts."""
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            float(text)
            return True
    return False


def misread_in(one: Field, value: Any) -> list[tuple[int, str]]:
    """The rows of a table, from 0, with a part that `misread` tells, and its name."""
    numbers = [part for part in one.parts if part.control == "number"]
    found = value if isinstance(value, list) else [row for _, row in rows.items(value)]
    return [
        (at, part.label) for at, row in enumerate(found) if isinstance(row, Mapping)
        for part in numbers if misread(row.get(part.name))
    ]  # fmt: skip
