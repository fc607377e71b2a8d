"""Lists: declared filters, labels, owners and a search, the same for every kind. What a list does not know is refused by name."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import unquote_plus, unquote_to_bytes

from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models import BooleanField, Func, Model, Q, QuerySet
from django.db.models.lookups import Exact, IsNull
from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.mixins import ListModelMixin
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.viewsets import GenericViewSet

from accounts.models import User
from primer_site.errors import FieldError, Invalid, printable
from primer_site.pagination import KeysetPagination
from primer_site.parsing import bad_text

LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
MAX_FILTER = 255  # characters
REPEATABLE = frozenset({"label"})
MAX_KEYS = 1000  # rows of one slug: the live one and those that were deleted under the same name


class LabelValue(Func):
    """The text under one key of a JSON column, null without it. A key transform would split keys at their dots and slashes."""

    output_field = models.TextField()

    def __init__(self, column: str, key: str) -> None:
        self.key = key
        super().__init__(column)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        column, params = compiler.compile(self.source_expressions[0])
        return f"JSON_EXTRACT({column}, %s)", [*params, f"$.{json.dumps(self.key)}"]

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        column, params = compiler.compile(self.source_expressions[0])
        return f"({column} ->> %s::text)", [*params, self.key]


class StrictQuery:
    """A view whose routes, lists apart, take the query parameters that it names, and `dry_run` where they write."""

    takes: ClassVar[dict[str, tuple[str, ...]]] = {}  # action, or method of a view without actions -> parameters
    dry: ClassVar[bool] = True

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        refuse_method(self, request)
        action = getattr(self, "action", None) or (request.method or "").lower()
        if action != "list":
            writes = self.dry and request.method not in SAFE_METHODS
            refuse_unknown(request, [*self.takes.get(action, ()), *(["dry_run"] if writes else [])])


def refuse_method(view: Any, request: Request) -> None:
    """The 405 of a method that a route does not have, before anything that it sends is found wrong."""
    if not hasattr(view, (request.method or "").lower()):
        raise MethodNotAllowed(str(request.method))


class ListOf(ListModelMixin, GenericViewSet[Any]):
    """The list of one kind. A subclass declares what it can be filtered by, searched in and sorted by."""

    search_fields: ClassVar[tuple[str, ...]] = ()  # of `q`: text that one of them holds, whatever its case
    filters: ClassVar[dict[str, str]] = {}  # query parameter -> ORM look-up
    times: ClassVar[dict[str, str]] = {}  # the same, of a moment (RFC 3339)
    sorts: ClassVar[dict[str, str]] = {"created_at": "created_at"}
    flags: ClassVar[tuple[str, ...]] = ()  # further parameters that the view itself reads
    model: ClassVar[type[Model]]

    @classmethod
    def list_parameters(cls, model: type[Model]) -> list[str]:
        """The query parameters that the list takes."""
        names = [*KeysetPagination.parameters, *cls.flags, *cls.filters, *cls.times]
        names += ["q"] if cls.search_fields else []
        names += ["label"] if _has(model, "labels") else []
        return names + (["owner"] if _has(model, "owner") else [])

    def declared_filters(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Of each filter what it does and its schema, for the OpenAPI document."""
        model = self.model
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        for name, lookup in self.filters.items():
            known = choices_of(model, lookup)
            schema = {"type": "boolean"} if True in known else {"type": "string", **({"enum": known} if known else {})}
            found[name] = (f"Only those with this {name}.", schema)
        for name in self.times:
            found[name] = ("A moment, RFC 3339.", {"type": "string", "format": "date-time"})
        words = {
            "q": f"Text that {' or '.join(self.search_fields)} holds, whatever its case.",
            "label": "`key=value`, or `key` alone for any value; repeatable, and all have to hold.",
            "owner": "A username: narrows an admin's list; ignored for others.",
        }
        named = {name: (words[name], {"type": "string"}) for name in self.list_parameters(model) if name in words}
        return found | named

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        params = self.request.query_params
        refuse_unknown(self.request, self.list_parameters(self.model), "This list does not know that filter.")
        refuse_bytes(self.request)
        for name, lookup in self.filters.items():
            if value := params.get(name):
                chosen = _choice(queryset.model, lookup, name, _clean(name, value))
                queryset = queryset.filter(**by_key(queryset.model, lookup, chosen))
        for name, lookup in self.times.items():
            if (value := params.get(name)) is not None:
                queryset = queryset.filter(**{lookup: moment(name, value)})
        for label in params.getlist("label"):
            queryset = _with_label(queryset, _clean("label", label))
        if owner := params.get("owner"):
            queryset = self._owned_by(queryset, _clean("owner", owner))
        if text := params.get("q"):
            text = _clean("q", text)
            queryset = queryset.filter(_any_of({f"{name}__icontains": text for name in self.search_fields}))
        return queryset

    def _owned_by(self, queryset: QuerySet[Any], owner: str) -> QuerySet[Any]:
        """`?owner=` narrows an admin's list; others see only what is theirs to see, with or without it."""
        user = self.request.user
        return queryset.filter(owner__username=owner) if isinstance(user, User) and user.is_admin else queryset


def refuse_unknown(
    request: Request, known: list[str], detail: str = "This route does not know that parameter."
) -> None:
    """Refuses query parameters by name: one that is accepted and ignored is a lie, and `dryrun=true` would be a deed."""
    if unknown := [name for name in request.query_params if name not in known]:
        message = f"must be one of {', '.join(sorted(known))}" if known else "unknown parameter; this route takes none"
        raise Invalid(detail, errors=[FieldError(printable(name), message) for name in unknown])
    if twice := [name for name, values in request.query_params.lists() if len(values) > 1 and name not in REPEATABLE]:
        raise Invalid("A parameter stands twice.", errors=[FieldError(name, "must be given once") for name in twice])


def refuse_bytes(request: Request) -> None:
    """Refuses what is not UTF-8 in a query: with a mark in place of it, something else would be looked for."""
    for pair in request.META.get("QUERY_STRING", "").split("&"):
        name, _, value = pair.partition("=")
        try:
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError:
            name = printable(unquote_plus(name))
            raise Invalid(f"{name} is not valid.", errors=[FieldError(name, "must be UTF-8")]) from None


def flag(request: Request, name: str) -> bool:
    """A query parameter that is true or false; false without it."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise Invalid(f"{name} is not valid.", errors=[FieldError(name, "must be true or false")])
    return value == "true"


def moment(name: str, text: str) -> datetime:
    """A query parameter as a moment; without an offset it is UTC. A `+` that became a space is put back."""
    try:
        found = parse_datetime(re.sub(r" (?=\d\d:?\d\d$)", "+", text))
        if found is None:
            raise ValueError(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        message = "must be a moment such as 2026-01-31T12:00:00Z"
        raise Invalid(f"{name} is not valid.", errors=[FieldError(name, message)]) from None


def _has(model: type[Model], column: str) -> bool:
    return any(field.name == column for field in model._meta.fields)


def _clean(name: str, value: str) -> str:
    problem = bad_text(value) or (f"must have at most {MAX_FILTER} characters" if len(value) > MAX_FILTER else "")
    if problem:
        raise Invalid(f"{name} is not valid.", errors=[FieldError(name, problem)])
    return value


def choices_of(model: type[Model], lookup: str) -> list[Any]:
    """The values that a look-up's column can have, [] where it can have any."""
    try:
        field = model._meta.get_field(lookup)
    except FieldDoesNotExist:  # it leads to another model
        return []
    if isinstance(field, BooleanField):
        return [True, False]
    return [value for value, _ in getattr(field, "choices", None) or []]


def by_key(model: type[Model], lookup: str, value: Any) -> dict[str, Any]:
    """A look-up of another model's column as one of its keys: over a join, a database counts every row of the list."""
    first, _, rest = lookup.partition("__")
    field = model._meta.get_field(first)
    if not rest or not isinstance(field, models.ForeignKey):
        return {lookup: value}
    keys = field.related_model._default_manager.filter(**{rest: value}).values_list("pk", flat=True)
    return {f"{first}__in": list(keys[:MAX_KEYS])}


def _choice(model: type[Model], lookup: str, name: str, text: str) -> Any:
    """The value that a filter's text stands for; raises `Invalid` naming those there are."""
    known = {
        str(value).lower() if isinstance(value, bool) else str(value): value for value in choices_of(model, lookup)
    }
    if known and text not in known:
        raise Invalid(f"{name} is not valid.", errors=[FieldError(name, f"must be one of {', '.join(known)}")])
    return known.get(text, text)


def _any_of(lookups: dict[str, str]) -> Q:
    condition = Q()
    for name, value in lookups.items():
        condition |= Q(**{name: value})
    return condition


def _with_label(queryset: QuerySet[Any], label: str) -> QuerySet[Any]:
    """`key=value`, or `key` alone for any value."""
    key, equals, value = label.partition("=")
    if not LABEL_KEY.fullmatch(key):
        raise Invalid("label is not valid.", errors=[FieldError("label", "must be key=value")])
    found = LabelValue("labels", key)
    return queryset.filter(Exact(found, value) if equals else IsNull(found, False))
