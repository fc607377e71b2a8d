"""Lists: columns, filters with counts, sorting and pages, all of it in the URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpRequest, QueryDict
from django.utils import timezone

from accounts.pages.form import Option, dig
from primer_site.errors import FieldError, Invalid
from primer_site.parsing import bad_text, whole

SIZES = (25, 50, 100)
FACETS = 50  # different values that a filter offers at most
SPANS: dict[str, tuple[str, timedelta]] = {
    "1h": ("last hour", timedelta(hours=1)), "24h": ("last 24 hours", timedelta(days=1)),
    "7d": ("last 7 days", timedelta(days=7)), "30d": ("last 30 days", timedelta(days=30)),
}  # fmt: skip
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
    """A filter of the API's list. With `column` the values there are offered with their counts.

    With `by` or `since` it is the page's own: `by` makes an expression that the chosen value is compared with, `since` is
    the column of a moment, and what is offered are stretches of time that end now.
    """

    name: str
    label: str
    column: str = ""
    options: tuple[tuple[str, str], ...] = ()
    admin_only: bool = False
    by: Callable[[], Any] | None = None
    since: str = ""

    @property
    def is_the_pages(self) -> bool:
        return self.by is not None or bool(self.since)


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
    actions: list[dict[str, Any]] = field(default_factory=list)


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
    def acts(self) -> bool:
        """Whether a row has actions of its own, and the table a column for them."""
        return any(row.actions for row in self.rows)

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.page * self.size, self.total)


def api_query(request: HttpRequest, filters: Sequence[Filter]) -> dict[str, str]:
    """The part of the page's query that is the API's: its filters and the search."""
    names = ["q", *(one.name for one in _offered(request, filters) if not one.is_the_pages)]
    return {name: request.GET[name] for name in names if request.GET.get(name)}


def _offered(request: HttpRequest, filters: Sequence[Filter]) -> list[Filter]:
    is_admin = getattr(request.user, "is_admin", False)
    return [one for one in filters if is_admin or not one.admin_only]


def narrowed(request: HttpRequest, rows: Any, filters: Sequence[Filter]) -> Any:
    """The rows that the page's own filters leave; raises `Invalid` for a stretch of time that there is not."""
    for one in _offered(request, filters):
        value = request.GET.get(one.name, "")
        if not value or not one.is_the_pages:
            continue
        if problem := bad_text(value) or (
            "must be one of " + ", ".join(SPANS) if one.since and value not in SPANS else ""
        ):
            raise Invalid(f"{one.label} is not valid.", errors=[FieldError(one.name, problem)])
        if one.since:
            rows = rows.filter(**{f"{one.since}__gt": timezone.now() - SPANS[value][1]})
        elif one.by is not None:
            rows = rows.annotate(**{_facet(one): one.by()}).filter(**{_facet(one): value})
    return rows


def _facet(one: Filter) -> str:
    return f"facet_{one.name}"


def sorted_rows(request: HttpRequest, rows: Any, sorts: Mapping[str, str]) -> tuple[Any, str]:
    """Rows in the order the URL asks for; an unknown one is the default, newest first."""
    asked = request.GET.get("sort", "-created_at")
    name = asked.removeprefix("-")
    if name not in sorts:
        asked, name = "-created_at", "created_at"
    column = sorts.get(name, "created_at")
    sign = "-" if asked.startswith("-") else ""
    return rows.order_by(f"{sign}{column}", f"{sign}pk"), asked


def number(request: HttpRequest, name: str, default: int, most: int, least: int = 1) -> int:
    found = whole(request.GET.get(name, ""))
    return default if found is None else max(least, min(found, most))


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
    choices = [
        Choice(one, request.GET.get(one.name, ""), _options(one, facets_of)) for one in _offered(request, filters)
    ]
    return Listing(
        rows=draw(list(page.object_list)), columns=columns, filters=choices, query=query, total=paginator.count,
        page=page.number, pages=paginator.num_pages, size=paginator.per_page, sort=sort,
        filtered=any(request.GET.get(name) for name in ["q", *(one.name for one in filters)]),
    )  # fmt: skip


def _options(one: Filter, rows: Any) -> list[Option]:
    if one.since:
        now = timezone.now()
        found = rows.aggregate(**{
            f"in_{name}": Count("pk", filter=Q(**{f"{one.since}__gt": now - span})) for name, (_, span) in SPANS.items()
        })  # fmt: skip
        return [Option(name, f"{label} ({found[f'in_{name}']})") for name, (label, _) in SPANS.items()]
    column = one.column
    if one.by is not None:
        column = _facet(one)
        rows = rows.annotate(**{column: one.by()})
    if not column:
        return [Option(value, label) for value, label in one.options]
    counts = rows.order_by().values_list(column).annotate(n=Count("pk")).order_by(column)[:FACETS]
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
