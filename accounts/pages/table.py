"""Lists: columns, filters with counts, sorting and pages, all of it in the URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpRequest, QueryDict

from accounts.pages.form import Option, dig

SIZES = (25, 50, 100)
FACETS = 50  # different values that a filter offers at most
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is a path into the item as the API shows it. `kind` names the partial that draws it: text, link, chip, time, …"""

    title: str
    key: str
    kind: str = "text"
    sort: str = ""
    href: str = ""  # of a link, with the value in place of {}
    vocabulary: str = ""  # of a chip
    value: Callable[[Any, Any], Any] | None = None  # of item and row; the key's value without it
    narrow: bool = False  # left out where there is little room


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of the API's list. With `column` the values there are offered with their counts."""

    name: str
    label: str
    column: str = ""
    options: tuple[tuple[str, str], ...] = ()
    admin_only: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    column: Column
    value: Any
    href: str


@dataclass(slots=True)
class Row:
    id: str
    href: str
    item: Item
    obj: Any
    cells: list[Cell]
    refresh: str = ""  # where the row asks for itself while something moves


@dataclass(frozen=True, slots=True)
class Choice:
    filter: Filter
    value: str
    options: list[Option]


@dataclass(slots=True)
class Listing:
    rows: list[Row]
    columns: Sequence[Column]
    filters: list[Choice]
    query: QueryDict
    total: int
    page: int
    pages: int
    size: int
    sort: str
    filtered: bool
    sizes: tuple[int, ...] = SIZES

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.page * self.size, self.total)


def api_query(request: HttpRequest, filters: Sequence[Filter]) -> dict[str, str]:
    """The part of the page's query that is the API's: its filters and the search."""
    names = ["q", *(one.name for one in filters if not one.admin_only or getattr(request.user, "is_admin", False))]
    return {name: request.GET[name] for name in names if request.GET.get(name)}


def sorted_rows(request: HttpRequest, rows: Any, sorts: Mapping[str, str]) -> tuple[Any, str]:
    """Rows in the order the URL asks for; an unknown one is the default, newest first."""
    asked = request.GET.get("sort", "-created_at")
    name = asked.removeprefix("-")
    if name not in sorts:
        asked, name = "-created_at", "created_at"
    column = sorts.get(name, "created_at")
    sign = "-" if asked.startswith("-") else ""
    return rows.order_by(f"{sign}{column}", f"{sign}pk"), asked


def number(request: HttpRequest, name: str, default: int, most: int) -> int:
    text = request.GET.get(name, "")
    return max(1, min(int(text), most)) if text.isascii() and text.isdigit() and len(text) < 10 else default


def listing(
    request: HttpRequest,
    rows: Any,
    *,
    columns: Sequence[Column],
    filters: Sequence[Filter],
    facets_of: Any,
    sorts: Mapping[str, str],
    draw: Callable[[Sequence[Any]], list[Row]],
) -> Listing:
    """One page of `rows`; `facets_of` are the visible rows before filtering, whose values the filters offer."""
    size = number(request, "size", SIZES[0], SIZES[-1])
    ordered, sort = sorted_rows(request, rows, sorts)
    paginator = Paginator(ordered, size if size in SIZES else SIZES[0])
    page = paginator.get_page(number(request, "page", 1, 10**9))
    query = request.GET.copy()
    query.pop("page", None)
    is_admin = getattr(request.user, "is_admin", False)
    choices = [
        Choice(one, request.GET.get(one.name, ""), _options(one, facets_of))
        for one in filters
        if is_admin or not one.admin_only
    ]
    return Listing(
        rows=draw(list(page.object_list)), columns=columns, filters=choices, query=query, total=paginator.count,
        page=page.number, pages=paginator.num_pages, size=paginator.per_page, sort=sort,
        filtered=any(request.GET.get(name) for name in ["q", *(one.name for one in filters)]),
    )  # fmt: skip


def _options(one: Filter, rows: Any) -> list[Option]:
    if not one.column:
        return [Option(value, label) for value, label in one.options]
    counts = rows.order_by().values_list(one.column).annotate(n=Count("pk")).order_by(one.column)[:FACETS]
    names = dict(one.options)
    return [
        Option(str(value), f"{names.get(str(value), value)} ({n})") for value, n in counts if value not in ("", None)
    ]


def cells(columns: Sequence[Column], item: Item, obj: Any, href: str) -> list[Cell]:
    found = []
    for column in columns:
        value = column.value(item, obj) if column.value is not None else dig(item, column.key)
        target = href if column.kind == "id" else column.href.replace("{}", str(value)) if column.href and value else ""
        found.append(Cell(column, value, target))
    return found
