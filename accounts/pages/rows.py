"""Fields that hold several values: a row of controls for each, read back from what was posted and drawn from the body.

A row that is left empty is none. With scripts a page adds, removes and moves rows itself; without them `changed` does it
to what was posted, and the form is drawn anew.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.http import QueryDict

from primer_site.errors import printable

if TYPE_CHECKING:
    from accounts.pages.form import Field

SPARE_ROWS = 2
DIGITS = 300  # of a whole number that is kept as one: longer ones are of the size where floats end
CHANGE = "_rows"  # the control whose value says `drop NAME AT` or `up NAME AT`
LOST = "lost"  # the kind of a row whose secret was typed, and which came back without it
ENDS = re.compile(r"\r\n|\r|\n")
# Python's own reading would take 1_0, nan and the digits of other scripts.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NO_VALUE = "needs its value: a secret is not shown again, and one under another name has to be typed once more"
NO_NUMBER = "must be a finite number in plain digits"
AGAIN = "was typed and is not shown again: type it once more"
NOT_KEPT = f"{AGAIN}, or open the form anew to keep the stored one"
NOT_TEXT = "is stored as a secret, which is not shown: type its text, or leave it a secret"


class Rows(dict[str, Any]):
    """A mapping with the rows that it was typed in, and what is wrong with them that the mapping cannot tell."""

    def __init__(self, typed: Iterable[tuple[str, Any]], wrong: Iterable[tuple[int, str]] = ()) -> None:
        """`typed`: name and value of each row; `wrong`: where, from 0, and why. A name that stands twice is wrong, too."""
        self.typed = list(typed)
        super().__init__(self.typed)
        first: dict[str, int] = {}
        self.wrong = list(wrong)
        for at, (name, _) in enumerate(self.typed):
            if first.setdefault(name, at) != at:
                self.wrong.append((at, f'"{printable(name)}" is there already, in row {first[name] + 1}'))


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


def typed(text: str, stored: Any, *, area: bool = False) -> str:
    """What was typed into a control; what is stored, where the control sends no more of it than it sends untouched.

    A browser sends the line ends of an area as `\\r\\n`, and drops those of a control of one line.
    """
    text = ENDS.sub("\n", text) if area else text.strip()
    if isinstance(stored, str) and text == (ENDS.sub("\n", stored) if area else ENDS.sub("", stored).strip()):
        return stored
    return text


def pairs(one: Field, post: QueryDict, kept: Any) -> Any:
    keys, values = post.getlist(f"{one.name}.key"), post.getlist(f"{one.name}.value")
    before = kept if isinstance(kept, Mapping) else {}
    return Rows(
        (key.strip(), _value(text, before.get(key.strip())))
        for key, text in zip(keys, values, strict=False) if key.strip()
    )  # fmt: skip


def _value(text: str, stored: Any) -> str:
    """A value of one line as it was typed, outer spaces included, or as it is stored where it is untouched."""
    return stored if isinstance(stored, str) and ENDS.sub("", stored) == text else text


def env(one: Field, post: QueryDict, kept: Any) -> Any:
    """Names with text or a secret; a secret whose value is left empty stays as it is stored, under its own name only."""
    before = kept if isinstance(kept, Mapping) else {}
    names, values, kinds = (post.getlist(f"{one.name}.{part}") for part in ("key", "value", "kind"))
    found: list[tuple[str, Any]] = []
    wrong: list[tuple[int, str]] = []
    for raw, text, kind in itertools.zip_longest(names, values, kinds[: len(names)], fillvalue=""):
        if not (name := raw.strip()):
            continue
        value, why = _variable(text, kind, before.get(name))
        if why:
            wrong.append((len(found), f"{printable(name)} {why}"))
        found.append((name, value))
    known = {name for name, _ in found}
    gone = [(name, None) for name, inner in before.items() if isinstance(inner, Mapping) and name not in known]
    return Rows([*found, *gone], wrong)  # a secret that is merely left out would stay


def _variable(text: str, kind: str, stored: Any) -> tuple[Any, str]:
    """The value of a row, and what is wrong with it."""
    masked = isinstance(stored, Mapping)
    if kind not in ("secret", LOST):
        return (_value(text, stored), "") if text or not masked else ("", NOT_TEXT)
    if text:
        return {"secret": text}, ""
    if kind == LOST:
        return {"secret": "", LOST: True}, NOT_KEPT if masked else NO_VALUE
    return ({"set": True}, "") if masked else ({"secret": ""}, NO_VALUE)


def texts(one: Field, post: QueryDict, kept: Any) -> Any:
    """Texts in order; one whose text is unchanged stays what it is stored as: its line ends, a list of a command's words."""
    before = {ENDS.sub("\n", line(entry)): entry for entry in kept or []}
    found = [ENDS.sub("\n", text) for text in post.getlist(one.name)]
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
    return Rows([(str(row.pop(names[0], "")), row) for row in found]) or one.empty


def number(text: str) -> Any:
    """The finite number that a text is; any other text as it is, for the API to refuse."""
    text = text.strip()
    if not NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        return text
    return int(text) if text.lstrip("+-").isdigit() and len(text) < DIGITS else value


def _cell(control: str, text: str) -> Any:
    if control == "number":
        return number(text)
    return ENDS.sub("\n", text) if control == "area" else text.strip()


# -- what is drawn


def draw_pairs(value: Any) -> list[tuple[str, Any]]:
    return [*items(value), *[("", "")] * SPARE_ROWS]


def items(value: Any) -> list[tuple[str, Any]]:
    """Name and value of each row."""
    return value.typed if isinstance(value, Rows) else list(value.items()) if isinstance(value, Mapping) else []


def draw_env(value: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, inner in items(value):
        if inner is None:
            continue  # taken out in the form that comes back with an error
        secret = isinstance(inner, Mapping)
        last = inner.get("last4") if isinstance(inner, Mapping) else None
        stored = isinstance(inner, Mapping) and inner.get("set")
        lost = isinstance(inner, Mapping) and bool(inner.get("secret") or inner.get(LOST))
        kind = LOST if lost else "secret" if secret else "text"
        rows.append({"name": name, "value": "" if secret else inner, "kind": kind, "stored": stored, "last4": last})
    return [*rows, *[{"name": "", "value": "", "kind": "text"}] * SPARE_ROWS]


def draw_texts(value: Any) -> list[str]:
    return [*(map(line, value) if isinstance(value, list) else []), ""]


def draw_table(one: Field, value: Any) -> list[list[tuple[Any, Any]]]:
    """Rows of (part, text), one of them spare."""
    if isinstance(value, Mapping):
        first = one.parts[0].name
        value = [{first: key, **(inner if isinstance(inner, Mapping) else {})} for key, inner in items(value)]
    known = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    if one.drawn is not None:
        known = [one.drawn(row) for row in known]
    return [[(part, row.get(part.name, "")) for part in one.parts] for row in [*known, {}]]
