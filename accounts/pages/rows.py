"""Fields that hold several values: a row of controls for each, read back from what was posted and drawn from the body.

A row that is left empty is none. With scripts a page adds, removes and moves rows itself; without them `changed` does it
to what was posted, and the form is drawn anew.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.http import QueryDict

if TYPE_CHECKING:
    from accounts.pages.form import Field

SPARE_ROWS = 2
CHANGE = "_rows"  # the control whose value says `drop NAME AT` or `up NAME AT`


def changed(post: QueryDict) -> tuple[QueryDict, str]:
    """What was posted with one row removed or moved up, and the name of its field; "" where no row is asked for."""
    verb, _, rest = post.get(CHANGE, "").partition(" ")
    name, _, text = rest.rpartition(" ")
    if verb not in ("drop", "up") or not name or not text.isdecimal() or len(text) > 4:
        return post, ""
    at, after = int(text), post.copy()
    for key in keys(post, name):
        values = post.getlist(key)
        if at < len(values):
            moved = values.pop(at)
            if verb == "up":
                values.insert(max(at - 1, 0), moved)
            after.setlist(key, values)
    return after, name


def keys(post: QueryDict, name: str) -> list[str]:
    """The controls of a field that were posted."""
    return [one for one in post if one == name or one.startswith(f"{name}.")]


# -- what was posted


def pairs(one: Field, post: QueryDict, _: Any) -> Any:
    keys, values = post.getlist(f"{one.name}.key"), post.getlist(f"{one.name}.value")
    return {key.strip(): value for key, value in zip(keys, values, strict=False) if key.strip()}


def env(one: Field, post: QueryDict, kept: Any) -> Any:
    """Names with text or a secret; a secret whose value is left empty stays as it is stored."""
    found: dict[str, Any] = {}
    kinds = post.getlist(f"{one.name}.kind")
    for index, (name, value) in enumerate(
        zip(post.getlist(f"{one.name}.key"), post.getlist(f"{one.name}.value"), strict=False)
    ):
        if not name.strip():
            continue
        secret = index < len(kinds) and kinds[index] == "secret"
        stored = isinstance(kept, Mapping) and isinstance(kept.get(name.strip()), Mapping)
        found[name.strip()] = ({"set": True} if stored and not value else {"secret": value}) if secret else value
    stored_ones = kept.items() if isinstance(kept, Mapping) else ()
    gone = {name: None for name, inner in stored_ones if isinstance(inner, Mapping) and name not in found}
    return found | gone  # a secret that is merely left out would stay


def texts(one: Field, post: QueryDict, kept: Any) -> Any:
    """Texts in order; one that was read as a list (a command's arguments) stays one while its text is unchanged."""
    before = {line(entry): entry for entry in kept or []}
    found = [text.replace("\r\n", "\n") for text in post.getlist(one.name)]
    return [before.get(text, text) for text in found if text.strip()]


def lines(one: Field, post: QueryDict, kept: Any) -> Any:
    return [text for found in post.get(one.name, "").splitlines() if (text := found.strip())]


def line(entry: Any) -> str:
    return " ".join(map(str, entry)) if isinstance(entry, list) else str(entry)


def table(one: Field, post: QueryDict, _: Any) -> Any:
    """A list of mappings, or a mapping by the first part; an empty cell is left out, a row of empty cells is none."""
    cells = [[_cell(part.control, text) for text in post.getlist(f"{one.name}.{part.name}")] for part in one.parts]
    names = [part.name for part in one.parts]
    found = [
        {name: value for name, value in zip(names, row, strict=True) if value != ""}
        for row in itertools.zip_longest(*cells, fillvalue="")
    ]
    found = [row for row in found if row]
    if not one.keyed:
        return found
    return {str(row.pop(names[0], "")): row for row in found} or one.empty


def number(text: str) -> Any:
    """The number that a text is; any other text as it is, for the API to refuse."""
    text = text.strip()
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def _cell(control: str, text: str) -> Any:
    if control == "number":
        return number(text)
    return text.replace("\r\n", "\n") if control == "area" else text.strip()


# -- what is drawn


def draw_pairs(value: Any) -> list[tuple[str, Any]]:
    known = list(value.items()) if isinstance(value, Mapping) else []
    return [*known, *[("", "")] * SPARE_ROWS]


def draw_env(value: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, inner in value.items() if isinstance(value, Mapping) else []:
        if inner is None:
            continue  # taken out in the form that comes back with an error
        secret = isinstance(inner, Mapping)
        last = inner.get("last4") if isinstance(inner, Mapping) else None
        stored = isinstance(inner, Mapping) and inner.get("set")
        rows.append({"name": name, "value": "" if secret else inner, "secret": secret, "stored": stored, "last4": last})
    return [*rows, *[{"name": "", "value": "", "secret": False}] * SPARE_ROWS]


def draw_texts(value: Any) -> list[str]:
    return [*(map(line, value) if isinstance(value, list) else []), ""]


def draw_table(one: Field, value: Any) -> list[list[tuple[Any, Any]]]:
    """Rows of (part, text), one of them spare."""
    if isinstance(value, Mapping):
        first = one.parts[0].name
        value = [{first: key, **(inner if isinstance(inner, Mapping) else {})} for key, inner in value.items()]
    known = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    return [[(part, row.get(part.name, "")) for part in one.parts] for row in [*known, {}]]
