"""Forms: the fields of a body as controls, a posted form back as that body, and refusals beside their fields.

No rule about a value stands here. A text that is no number is sent on as it is, and the API's serializer says so.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from accounts.pages import rows
from primer_site import documents
from primer_site.errors import FieldError, PrimerError

Body = dict[str, Any]
UNITS: dict[str, dict[str, int]] = {  # of a control; the first is that of an empty field
    "bytes": {"MiB": 1024**2, "GiB": 1024**3},
    "span": {"s": 1, "min": 60, "h": 3600, "d": 86400},
}


@dataclass(frozen=True, slots=True)
class Worth:
    """What a limit is worth on an engine: enforced, soft or unavailable, and why where it is not enforced."""

    word: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One control of a row. `control`: text area number hidden."""

    name: str
    label: str
    control: str = "text"
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One choice; a disabled one carries the sentence that says why."""

    value: str
    label: str
    note: str = ""
    disabled: bool = False
    fields: tuple[Field, ...] = ()  # what is asked when it is chosen


@dataclass(frozen=True, slots=True)
class Field:
    """One value of the body. `control`: text area number bytes span select cards pairs env texts lines table secret yaml tick."""

    path: str
    label: str
    control: str = "text"
    help: str = ""  # filled in from the API's own words, see meanings.py
    options: tuple[Option, ...] = ()
    suggestions: tuple[str, ...] = ()
    default: Any = None
    empty: Any = ""  # what an empty control sends; LEFT_OUT sends nothing
    required: bool = False
    fixed: bool = False  # only at creation
    also: str = ""  # a second path that gets the same value
    placeholder: str = ""
    rows: int = 4
    warn: str = ""
    redraw: bool = False  # other fields depend on it
    parts: tuple[Part, ...] = ()  # of each row of a table
    drawn: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None  # a row of a table as it is shown
    keyed: bool = False  # rows are a mapping by their first part, not a list
    worth: Worth | None = None  # of a limit, on the provider that is chosen
    fetch: str = ""  # where a page with scripts asks for further suggestions
    fetch_with: str = ""  # the field whose change asks again

    @property
    def name(self) -> str:
        return self.path

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(UNITS[self.control])


LEFT_OUT = object()
ROW = re.compile(r"\[?([0-9]{1,6})\]?(?:\.|$)(.*)")  # what follows a list's name where one of its items is meant


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    fields: tuple[Field, ...]
    advanced: bool = False
    id: str = ""


@dataclass(slots=True)
class Bound:
    """A field with its value and what is wrong with it, as a template draws it."""

    field: Field
    value: Any
    errors: list[str] = dataclasses.field(default_factory=list)
    fixed: bool = False
    cases: list[tuple[str, list[Bound]]] = dataclasses.field(
        default_factory=list
    )  # classes of the options that show them
    error_id: str = ""
    typed: bool = False  # a secret was typed, and is not shown again

    @property
    def id(self) -> str:
        return "f-" + self.field.path.replace(".", "-")

    @property
    def described_by(self) -> str:
        return " ".join(
            [
                *([self.id + "-help"] if self.field.help or self.field.worth else []),
                *([self.id + "-error"] if self.errors else []),
                *([self.id + "-typed"] if self.typed else []),
            ]
        )


@dataclass(slots=True)
class Form:
    """A whole form; `others` are refusals of what has no field of its own."""

    sections: list[tuple[Section, list[Bound]]]
    others: list[FieldError] = dataclasses.field(default_factory=list)
    at: str = ""  # the field whose rows were just changed
    detail: str = ""
    hint: str = ""

    def bound(self) -> Iterator[Bound]:
        for _, fields in self.sections:
            yield from _flat(fields)

    @property
    def failed(self) -> list[Bound]:
        return [one for one in self.bound() if one.errors]

    @property
    def open_sections(self) -> set[str]:
        """Sections that must not stay folded: something in them is wrong, or was just changed."""
        return {
            section.id for section, fields in self.sections
            if any(one.errors or one.field.path == self.at for one in _flat(fields))
        }  # fmt: skip


def _flat(fields: Iterable[Bound]) -> Iterator[Bound]:
    for one in fields:
        yield one
        for _, inner in one.cases:
            yield from _flat(inner)


# -- the posted form as a body


def read(sections: Sequence[Section], post: QueryDict, base: Mapping[str, Any] | None = None) -> Body:
    """The body of a posted form, laid over `base`: what the form does not show stays as it was read."""
    body: Body = copied(base or {})
    for section in sections:
        for one in section.fields:
            _take(one, post, body)
    return body


def copied(value: Any) -> Any:
    """Mappings all the way down as dicts of their own."""
    return {key: copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _take(one: Field, post: QueryDict, body: Body) -> None:
    if one.fixed and one.name not in post:
        return
    value = READERS.get(one.control, _text)(one, post, dig(body, one.path))
    chosen = next((option for option in one.options if option.value == value), None)
    if chosen is not None and chosen.fields:
        # Another shape was chosen: what belongs to the one before must not stay behind.
        parent = one.path.rpartition(".")[0]
        if parent and dig(body, one.path) not in (None, value):
            put(body, parent, {})
    if value is not LEFT_OUT:
        put(body, one.path, value)
        if one.also:
            put(body, one.also, value)
    elif one.empty is LEFT_OUT and rows.keys(post, one.name):
        drop(body, one.path)  # it was emptied: what was read must not come back
    for inner in chosen.fields if chosen is not None else ():
        _take(inner, post, body)


def _text(one: Field, post: QueryDict, kept: Any) -> Any:
    value = rows.typed(post.get(one.name, ""), kept, area=one.control == "area")
    return one.empty if value == "" else value


def _number(one: Field, post: QueryDict, _: Any) -> Any:
    text = post.get(one.name, "").strip()
    return one.empty if text == "" else rows.number(text)


def _quantity(one: Field, post: QueryDict, kept: Any) -> Any:
    """A number and its unit as the number of the smallest: bytes, or seconds."""
    number, units = _number(one, post, kept), UNITS[one.control]
    unit = units.get(post.get(f"{one.name}.unit", ""), units[one.units[0]])
    if not isinstance(number, int | float):
        return number
    whole = number * unit
    if isinstance(whole, float) and not math.isfinite(whole):
        return post.get(one.name, "").strip()  # no number of seconds or bytes
    return int(whole) if one.control == "bytes" or whole == int(whole) else whole


def _secret(one: Field, post: QueryDict, kept: Any) -> Any:
    if post.get(f"{one.name}.remove"):
        return None
    value = post.get(one.name, "")
    if value or post.get(f"{one.name}.lost"):
        return value  # "" is one that was typed and came back without it: what is stored must not pass for it
    return {"set": True} if isinstance(kept, Mapping) and kept.get("set") else LEFT_OUT


def _yaml(one: Field, post: QueryDict, _: Any) -> Any:
    text = post.get(one.name, "").replace("\r\n", "\n")
    if not text.strip():
        return one.empty
    try:
        return documents.read("value:\n" + "\n".join(f"  {line}" for line in text.split("\n"))).value["value"]
    except PrimerError:
        return text  # the serializer says that text is not what it takes


def _unsent(one: Field, post: QueryDict, _: Any) -> Any:
    """What is asked of a person and is no part of the object."""
    return LEFT_OUT


READERS: dict[str, Callable[[Field, QueryDict, Any], Any]] = {
    "tick": _unsent,
    "number": _number, "bytes": _quantity, "span": _quantity, "pairs": rows.pairs, "env": rows.env, "texts": rows.texts,
    "lines": rows.lines, "table": rows.table, "secret": _secret, "yaml": _yaml,
}  # fmt: skip


# -- a body as a form


def bind(
    sections: Sequence[Section], body: Mapping[str, Any], error: PrimerError | None = None, *, editing: bool = False
) -> Form:
    """The form of a body. Of an error each refusal goes to the nearest field above it, the rest on top."""
    drawn = [(section, [_bind(one, body, editing) for one in section.fields]) for section in sections]
    form = Form(drawn)
    if error is not None:
        form.detail, form.hint = error.detail, error.hint_text
        _place(form, error.errors)
    return form


def _bind(one: Field, body: Mapping[str, Any], editing: bool) -> Bound:
    value = dig(body, one.path)
    value = one.default if value is None else value
    if one.options and isinstance(value, Mapping):  # a choice that is stored as what it asks for
        value = next((o.value for o in one.options if any(f.path.rpartition(".")[2] in value for f in o.fields)), "")
    bound = Bound(
        one, DRAWERS.get(one.control, _as_is)(one, value), fixed=one.fixed and editing, typed=_holds_typed(one, value)
    )
    bound.cases = _cases(one, body, editing)
    return bound


def _holds_typed(one: Field, value: Any) -> bool:
    """Whether a secret stands in the body as it was typed: the form that comes back does not carry it."""
    if one.control == "secret":
        return isinstance(value, str)
    return one.control == "env" and any(row["kind"] == rows.LOST for row in rows.draw_env(value))


def _cases(one: Field, body: Mapping[str, Any], editing: bool) -> list[tuple[str, list[Bound]]]:
    """The fields below a choice, each drawn once however many options ask for it: a form that has a name twice posts both."""
    asked: dict[str, tuple[Field, list[str]]] = {}
    for number, option in enumerate(one.options, 1):
        for inner in option.fields:
            asked.setdefault(inner.path, (inner, []))[1].append(f"c{number}")
    found: list[tuple[str, list[Bound]]] = []
    for inner, classes in asked.values():
        shown = " ".join(classes)
        if not found or found[-1][0] != shown:
            found.append((shown, []))
        found[-1][1].append(_bind(inner, body, editing))
    return found


def _as_is(_: Field, value: Any) -> Any:
    return "" if value is None else value


def _draw_quantity(one: Field, value: Any) -> tuple[Any, str, Any]:
    """Number, unit, and how many of the smallest they are."""
    units = UNITS[one.control]
    first, *larger = one.units
    if not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        return ("" if value is None else value), first, ""
    unit = next((name for name in reversed(larger) if value >= units[name] and value % units[name] == 0), first)
    whole, rest = divmod(value, units[unit])  # never as a fraction of a whole number, which may be too large for one
    return (int(whole) if rest == 0 else value / units[unit]), unit, value


def _draw_yaml(_: Field, value: Any) -> str:
    return "" if value in (None, [], {}, "") else value if isinstance(value, str) else documents.write(value)


DRAWERS: dict[str, Callable[[Field, Any], Any]] = {
    "bytes": _draw_quantity,
    "span": _draw_quantity,
    "pairs": lambda _, value: rows.draw_pairs(value),
    "env": lambda _, value: rows.draw_env(value),
    "texts": lambda _, value: rows.draw_texts(value),
    "table": rows.draw_table,
    "lines": lambda _, value: "\n".join(map(rows.line, value or [])),
    "secret": lambda _, value: value if isinstance(value, Mapping) else {},
    "yaml": _draw_yaml,
}


def _place(form: Form, errors: Sequence[FieldError]) -> None:
    known = {one.field.path: one for one in form.bound()}
    for error in errors:
        path = error.field.replace("[", ".").replace("]", "")
        while path and path not in known:
            path = path.rpartition(".")[0]
        if path:
            rest = error.field[len(path) :].lstrip(".")
            at = ROW.match(rest) if _is_list(known[path].field) else None
            rest = f"row {int(at[1]) + 1}: {at[2]}".strip() if at else rest  # people count from one
            known[path].errors.append(f"{rest} {error.message}".strip())
        else:
            form.others.append(error)


def _is_list(one: Field) -> bool:
    """Whether a number behind the field's name means a row: elsewhere it may be somebody's name for something."""
    return one.control in ("texts", "lines", "yaml") or (one.control == "table" and not one.keyed)


def dig(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def put(body: Body, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        inner = body.get(name)
        if not isinstance(inner, dict):
            inner = body[name] = {}
        body = inner
    body[last] = value


def drop(body: Body, path: str) -> None:
    """Takes a value out of a body, if it is there."""
    above, _, last = path.rpartition(".")
    inner = dig(body, above) if above else body
    if isinstance(inner, dict):
        inner.pop(last, None)
