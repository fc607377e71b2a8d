"""The REST grammar that every kind shares: ETags, preconditions, idempotency, dry runs, strict bodies, visibility."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import Model, Q, QuerySet
from rest_framework import serializers, status
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from accounts.audit import Actor
from accounts.idempotency import once
from accounts.models import User
from accounts.permissions import require_change
from primer_site.errors import FieldError, Invalid, NotFound, PreconditionFailed
from primer_site.parsing import bad_text

LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


class Rollback(Exception):
    """Carries the answer of a dry run out of its transaction."""

    def __init__(self, response: Response) -> None:
        self.response = response


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses unknown fields by name, at every level: a setting that is accepted and ignored is a lie."""

    # Fields that reads show and writes may carry back unchanged (a manifest that was read and is applied again).
    read_back: ClassVar[frozenset[str]] = frozenset()

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise serializers.ValidationError({"non_field_errors": ["must be an object"]})
        writable = {name for name, field in self.fields.items() if not field.read_only}
        unknown = [str(key) for key in data if key not in writable and key not in self.read_back]
        if unknown:
            raise serializers.ValidationError({key[:80]: ["unknown field"] for key in unknown})
        return super().to_internal_value(data)


class LabelsField(serializers.DictField):
    """Up to 32 labels; keys are short names, values text of at most 255 characters."""

    child = serializers.CharField(max_length=255, allow_blank=True)

    def to_internal_value(self, data: Any) -> Any:
        labels = super().to_internal_value(data)
        if len(labels) > 32:
            raise serializers.ValidationError("must have at most 32 entries")
        for key in labels:
            if not LABEL_KEY.fullmatch(str(key)) or bad_text(str(key)):
                raise serializers.ValidationError(
                    f"key {key[:80]!r} must be 1 to 63 letters, digits, '.', '_', '/' or '-' between two letters or digits"
                )
        return labels


class ResourceViewSet(ListModelMixin, GenericViewSet[Any]):
    """List, read, create, replace, change, delete of one kind. A subclass names its queryset, serializer and services.

    `service_create(by, data)`, `service_update(by, obj, data)` and `service_delete(by, obj)` do the work; this class does
    what is the same for every kind and compares no owner: rows come from `visible_to`, changes pass `require_change`.
    """

    kind: ClassVar[str] = ""
    lookup_field = "slug"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[^/]+"
    search_fields: ClassVar[tuple[str, ...]] = ("slug", "description")
    filters: ClassVar[dict[str, str]] = {}  # query parameter -> ORM look-up
    sorts: ClassVar[dict[str, str]] = {"created_at": "created_at", "updated_at": "updated_at", "id": "slug"}
    storable_answers: ClassVar[bool] = True  # False where an answer shows a secret once

    def base_queryset(self) -> QuerySet[Any]:
        """All rows of the kind with `visible_to`, related rows joined."""
        raise NotImplementedError

    def service_create(self, by: Actor, data: dict[str, Any]) -> Model:
        raise NotImplementedError

    def service_update(self, by: Actor, obj: Any, data: dict[str, Any]) -> Model:
        raise NotImplementedError

    def service_delete(self, by: Actor, obj: Any) -> bool:
        """Deletes, and returns whether work still goes on (202) or everything is gone (204)."""
        raise NotImplementedError

    # -- reads

    def get_queryset(self) -> QuerySet[Any]:
        return self.base_queryset().visible_to(self.actor.user)  # type: ignore[attr-defined, no-any-return]

    @property
    def actor(self) -> Actor:
        return Actor.of(self.request)

    def get_object(self) -> Any:
        value = self.kwargs[self.lookup_url_kwarg]
        row = None if bad_text(value) else self.get_queryset().filter(**{self.lookup_field: value}).first()
        if row is None:
            raise NotFound(f"There is no {self.kind.replace('_', ' ')} {printable(value)}.")
        return row

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        known = {"limit", "cursor", "sort", "q", "owner", "label", "format", *self.filters}
        params = self.request.query_params
        if unknown := [name for name in params if name not in known]:
            raise Invalid(
                "This list does not know that filter.",
                errors=[FieldError(printable(name), f"must be one of {', '.join(sorted(known))}") for name in unknown],
            )
        for name, lookup in self.filters.items():
            if (value := params.get(name)) not in (None, ""):
                queryset = queryset.filter(**{lookup: _clean(name, value)})
        for label in params.getlist("label"):
            key, _, value = _clean("label", label).partition("=")
            queryset = _with_label(queryset, key, value)
        if owner := params.get("owner"):
            queryset = self._owned_by(queryset, _clean("owner", owner))
        if text := params.get("q"):
            text = _clean("q", text)
            queryset = queryset.filter(_any_of({f"{name}__icontains": text for name in self.search_fields}))
        return queryset

    def _owned_by(self, queryset: QuerySet[Any], owner: str) -> QuerySet[Any]:
        """`?owner=` narrows an admin's list; others see only what is theirs to see, with or without it."""
        if self.actor.user.is_admin and any(field.name == "owner" for field in queryset.model._meta.fields):
            return queryset.filter(owner__username=owner)
        return queryset

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        obj = self.get_object()
        if _matches(request.headers.get("If-None-Match"), obj.etag):
            return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": obj.etag})
        return self.answer(obj)

    def answer(self, obj: Any, code: int = status.HTTP_200_OK) -> Response:
        return Response(self.get_serializer(obj).data, status=code, headers={"ETag": obj.etag})

    # -- writes

    def check_outside(self, data: dict[str, Any], obj: Any = None) -> None:
        """Checks that ask an engine or another service. Runs before the transaction: its write lock must not wait for them."""

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        serializer = self.get_serializer(data=request.data)

        def prepare() -> None:
            serializer.is_valid(raise_exception=True)
            self.check_outside(serializer.validated_data)

        def work() -> Response:
            return self.answer(self.service_create(self.actor, serializer.validated_data), 201)

        if is_dry(request):
            prepare()
            return self.dry(request, work)
        return once(request, self.actor.user, work, storable=self.storable_answers, prepare=prepare)

    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._change(request, partial=False)

    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._change(request, partial=True)

    def _change(self, request: Request, *, partial: bool) -> Response:
        obj = self.get_object()
        require_change(self.actor.user, obj, request.auth)
        check_precondition(request, obj)
        serializer = self.get_serializer(obj, data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        self.check_outside(serializer.validated_data, obj)
        return self.dry(request, lambda: self.answer(self.service_update(self.actor, obj, serializer.validated_data)))

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        obj = self.get_object()
        require_change(self.actor.user, obj, request.auth)
        check_precondition(request, obj)

        def work() -> Response:
            goes_on = self.service_delete(self.actor, obj)
            return Response(status=status.HTTP_202_ACCEPTED if goes_on else status.HTTP_204_NO_CONTENT)

        return self.dry(request, work)

    def once(self, request: Request, work: Callable[[], Response]) -> Response:
        """Runs a POST under its Idempotency-Key; a dry run uses no key up."""
        if is_dry(request):
            return self.dry(request, work)
        return once(request, self.actor.user, work, storable=self.storable_answers)

    @staticmethod
    def dry(request: Request, work: Callable[[], Response]) -> Response:
        """Runs `work`; with `?dry_run=true` inside a transaction that is then undone."""
        if not is_dry(request):
            return work()
        try:
            with transaction.atomic():
                raise Rollback(work())
        except Rollback as undone:
            return undone.response


def is_dry(request: Request) -> bool:
    value = request.query_params.get("dry_run", "false")
    if value not in ("true", "false"):
        raise Invalid("dry_run is not valid.", errors=[FieldError("dry_run", "must be true or false")])
    return value == "true"


def check_precondition(request: Request, obj: Any) -> None:
    """`If-Match` compares the part of the ETag before the dot: a phase that moves does not spoil an edit."""
    wanted = request.headers.get("If-Match")
    if wanted is None or wanted.strip() == "*":
        return
    if str(obj.spec_rev) not in {
        part.strip().removeprefix("W/").strip('"').split(".")[0] for part in wanted.split(",")
    }:
        raise PreconditionFailed


def _matches(header: str | None, etag: str) -> bool:
    return header is not None and (header.strip() == "*" or etag in [part.strip() for part in header.split(",")])


def _clean(name: str, value: str) -> str:
    if problem := bad_text(value):
        raise Invalid(f"{name} is not valid.", errors=[FieldError(name, problem)])
    return value


def _any_of(lookups: dict[str, str]) -> Q:
    condition = Q()
    for name, value in lookups.items():
        condition |= Q(**{name: value})
    return condition


def _with_label(queryset: QuerySet[Any], key: str, value: str) -> QuerySet[Any]:
    if not LABEL_KEY.fullmatch(key):
        raise Invalid("label is not valid.", errors=[FieldError("label", "must be key=value")])
    # A key transform would split at the dots and slashes a label may have, and SQLite has no `contains`.
    rows = [pk for pk, labels in queryset.values_list("pk", "labels") if labels.get(key) == value]
    return queryset.filter(pk__in=rows)


def printable(value: str) -> str:
    """Caller's text as it may stand in a sentence: short, on one line, no control characters."""
    return value[:100].encode("unicode_escape").decode() if not value.isprintable() or len(value) > 100 else value


def request_user(request: Request) -> User:
    """The signed-in user, typed; the permission class has made sure."""
    if not isinstance(request.user, User):
        raise TypeError("no user")
    return request.user
