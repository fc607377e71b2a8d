"""Lists: a page, a cursor that survives inserts, a total, declared sorts and nothing else."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import DateTimeField, IntegerField, Model, Q
from django.utils.dateparse import parse_datetime
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from primer_site.errors import FieldError, Invalid
from primer_site.parsing import bad_text, whole

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class KeysetPagination(BasePagination):
    """`?limit=&cursor=&sort=` -> `{"items", "next_cursor", "total"}`; a view declares `sorts = {"created_at": "created_at"}`.

    Columns of `sorts` are never null. Rows of equal value are told apart by the view's `tie` ("pk" without one): a unique
    column that may be seen, since it stands in the cursor.
    """

    parameters = ("limit", "cursor", "sort")

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        limit = whole_number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        column, descending = self._sort(request, getattr(view, "sorts", {"created_at": "created_at"}))
        order = Order(column, getattr(view, "tie", "pk"), descending)
        self.total = queryset.order_by().count()
        rows = queryset.order_by(*order.columns())
        if cursor := request.query_params.get("cursor"):
            rows = rows.filter(order.after(cursor, queryset.model))
        page = list(rows[: limit + 1])
        more = len(page) > limit
        page = page[:limit]
        self.next_cursor = order.cursor(page[-1]) if more else None
        return page

    def _sort(self, request: Request, sorts: dict[str, str]) -> tuple[str, bool]:
        asked = request.query_params.get("sort") or "-created_at"
        name = asked.removeprefix("-")
        if name not in sorts:
            allowed = ", ".join(sorted(sorts))
            raise Invalid(
                "This list cannot be sorted by that.", errors=[FieldError("sort", f"must be one of {allowed}")]
            )
        return sorts[name], asked.startswith("-")

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"items": data, "next_cursor": self.next_cursor, "total": self.total})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["items", "next_cursor", "total"],
            "properties": {
                "items": schema,
                "next_cursor": {"type": "string", "nullable": True},
                "total": {"type": "integer"},
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """What the list takes, of what its view declares: the document shows no parameter that is then refused."""
        sorts = sorted(getattr(view, "sorts", {"created_at": "created_at"}))
        found = [
            _parameter("limit", f"Items a page, 1 to {MAX_LIMIT}; {DEFAULT_LIMIT} without it.", LIMIT_SCHEMA),
            _parameter("cursor", "`next_cursor` of the page before.", {"type": "string"}),
            _parameter(
                "sort", "A declared field, `-` in front for descending; `-created_at` without it.",
                {"type": "string", "enum": [*sorts, *[f"-{name}" for name in sorts]]},
            ),
        ]  # fmt: skip
        declared: dict[str, Any] = getattr(view, "declared_filters", dict)()
        return found + [_parameter(name, text, schema) for name, (text, schema) in declared.items()]


LIMIT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}


def _parameter(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def whole_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter as an integer within bounds, or `Invalid` naming it."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    found = whole(text)
    if found is None or not least <= found <= most:
        raise Invalid(
            f"{name} is not valid.", errors=[FieldError(name, f"must be a whole number from {least} to {most}")]
        )
    return found


@dataclass(frozen=True, slots=True)
class Order:
    """How a list is sorted, and the cursor that goes with it."""

    column: str
    tie: str
    descending: bool

    def columns(self) -> tuple[str, str]:
        sign = "-" if self.descending else ""
        return f"{sign}{self.column}", f"{sign}{self.tie}"

    def cursor(self, row: Model) -> str:
        value, tie = getattr(row, self.column), getattr(row, self.tie)
        text = value.isoformat() if hasattr(value, "isoformat") else value
        stored = [self.column, text, tie if isinstance(tie, int) else str(tie)]
        return base64.urlsafe_b64encode(json.dumps(stored).encode()).decode().rstrip("=")

    def after(self, cursor: str, model: type[Model]) -> Q:
        """The rows behind a cursor; raises `Invalid` for one that is not of this list and sort."""
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            stored, value, tie = json.loads(raw)
            if stored != self.column:
                raise ValueError(stored)
            value, tie = _of(model, self.column, value), _of(model, self.tie, tie)
        except (ValueError, TypeError, OverflowError, RecursionError, ValidationError):
            raise Invalid(
                "The cursor does not belong to this list.",
                errors=[FieldError("cursor", "must be a next_cursor of the same list and sort")],
            ) from None
        step = "lt" if self.descending else "gt"
        behind = Q(**{f"{self.column}__{step}": value}) | Q(**{f"{self.tie}__{step}": tie})
        # The first part alone lets an index begin there: a database walks to the place of an OR row by row.
        return Q(**{f"{self.column}__{step}e": value}) & behind


def _of(model: type[Model], column: str, value: Any) -> Any:
    """A value out of a cursor as one that the column can be compared with; raises like `int` when it cannot."""
    field = model._meta.pk if column == "pk" else model._meta.get_field(column)
    if isinstance(field, DateTimeField):
        found = parse_datetime(value)
        if found is None or found.tzinfo is None:
            raise ValueError(value)
        return found.astimezone(UTC)
    if isinstance(field, IntegerField):
        if not isinstance(value, int) or abs(value) >= 2**63:  # SQLite stores no larger one
            raise ValueError(value)
        return value
    if not isinstance(value, str) or bad_text(value):
        raise ValueError(value)
    return field.to_python(value)  # type: ignore[union-attr]
