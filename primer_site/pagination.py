"""Lists: a page, a cursor that survives inserts, a total, declared sorts and nothing else."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from django.db.models import Model, Q
from django.utils.dateparse import parse_datetime
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from primer_site.errors import FieldError, Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class KeysetPagination(BasePagination):
    """`?limit=&cursor=&sort=` -> `{"items", "next_cursor", "total"}`; a view declares `sorts = {"created_at": "created_at"}`."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        limit = whole_number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        column, descending = self._sort(request, getattr(view, "sorts", {"created_at": "created_at"}))
        self.total = queryset.order_by().count()
        rows = queryset.order_by(f"-{column}" if descending else column, "-pk" if descending else "pk")
        if cursor := request.query_params.get("cursor"):
            rows = rows.filter(_after(cursor, column, descending, queryset.model))
        page = list(rows[: limit + 1])
        more = len(page) > limit
        page = page[:limit]
        self.next_cursor = _encode(column, page[-1]) if more else None
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
        def query(name: str, kind: str, text: str) -> dict[str, Any]:
            return {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": kind}}

        return [
            query("limit", "integer", f"Items a page, 1 to {MAX_LIMIT}; {DEFAULT_LIMIT} without it."),
            query("cursor", "string", "`next_cursor` of the page before."),
            query("sort", "string", "A declared field, `-` in front for descending; `-created_at` without it."),
        ]


def whole_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A query parameter as an integer within bounds, or `Invalid` naming it."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise Invalid(
            f"{name} is not valid.", errors=[FieldError(name, f"must be a whole number from {least} to {most}")]
        )
    return int(text)


def _encode(column: str, row: Model) -> str:
    value = getattr(row, column)
    text = value.isoformat() if hasattr(value, "isoformat") else value
    return base64.urlsafe_b64encode(json.dumps([column, text, row.pk]).encode()).decode().rstrip("=")


def _after(cursor: str, column: str, descending: bool, model: type[Model]) -> Q:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        stored, value, pk = json.loads(raw)
        if stored != column or not isinstance(pk, int) or not isinstance(value, str | int | float):
            raise ValueError(stored)
        if model._meta.get_field(column).get_internal_type() == "DateTimeField":
            value = parse_datetime(str(value))
            if value is None:
                raise ValueError(cursor)
    except (ValueError, TypeError, binascii.Error, UnicodeDecodeError):
        raise Invalid(
            "The cursor does not belong to this list.",
            errors=[FieldError("cursor", "must be a next_cursor of the same list and sort")],
        ) from None
    step = "lt" if descending else "gt"
    return Q(**{f"{column}__{step}": value}) | Q(**{column: value, f"pk__{step}": pk})
