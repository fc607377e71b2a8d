"""The REST grammar that every kind shares: ETags, preconditions, idempotency, dry runs, strict bodies, visibility."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, cast

from django.core.exceptions import ObjectDoesNotExist
from django.core.validators import RegexValidator
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http.response import HttpResponseBase
from django.utils.functional import cached_property
from rest_framework import serializers, status
from rest_framework.fields import Field, SkipField
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.audit import Actor
from accounts.idempotency import Answer, key_of, once
from accounts.lists import LABEL_KEY, ListOf, StrictQuery, flag
from accounts.models import User
from accounts.permissions import require_change
from primer_site.errors import NotFound, PreconditionFailed, printable
from primer_site.parsing import bad_text
from primer_site.resource import RESERVED_IDS, SLUG_PATTERN

MAX_NAMED = 100  # unknown fields of one object that a refusal names


class Rollback(Exception):
    """Carries the answer of a dry run out of its transaction."""

    def __init__(self, response: HttpResponseBase) -> None:
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
        wrong: dict[str, Any] = {key[:80]: ["unknown field"] for key in unknown[:MAX_NAMED]}
        return checked_beside(wrong, lambda: super(StrictSerializer, self).to_internal_value(data))

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """The same as the parent's: what that finds out for each field of each row, of a list of models is found out once."""
        if not isinstance(instance, Model):
            return super().to_representation(instance)
        shown: dict[str, Any] = {}
        for name, read, field in self._readers:
            try:
                value = read(instance)
                if callable(value):
                    value = field.get_attribute(instance)
            except SkipField:
                continue
            except (AttributeError, ObjectDoesNotExist):  # the field knows whether it may be missing
                try:
                    value = field.get_attribute(instance)
                except SkipField:
                    continue
            shown[name] = None if value is None else field.to_representation(value)
        return shown

    @cached_property
    def _readers(self) -> list[tuple[str, Callable[[Any], Any], Any]]:
        return [(str(field.field_name), _reader(field), field) for field in self._readable_fields]


def _reader(field: Any) -> Callable[[Any], Any]:
    """How a field's value is taken from a model: by its attributes, except where the field has a way of its own."""
    plain = type(field).get_attribute is Field.get_attribute and field.source_attrs
    return attrgetter(".".join(field.source_attrs)) if plain else field.get_attribute


def checked_beside(wrong: dict[str, Any], check: Callable[[], Any]) -> Any:
    """What `check` returns; with what is `wrong` beside it, one refusal names both: nobody corrects a body field by field."""
    try:
        value = check()
    except serializers.ValidationError as exc:
        raise serializers.ValidationError(
            {**wrong, **exc.detail} if isinstance(exc.detail, dict) else exc.detail
        ) from None
    if wrong:
        raise serializers.ValidationError(wrong)
    return value


def refuse_fields(request: Request) -> None:
    """Of an action that takes none: the 422 that names what is sent all the same; no body and `{}` are fine."""
    StrictSerializer(data=request.data).is_valid(raise_exception=True)


# What every kind's id, description and labels mean: in the OpenAPI document, in `primectl explain`, beside the console's fields.
ID_HELP = "The name of the object: lower-case letters, digits and dashes, at most 63. It cannot be changed later."
DESCRIPTION_HELP = "A sentence for people."
LABELS_HELP = "Names and values of your own, to find objects by."


SLUG_RULE = "must be 1 to 63 lower-case letters, digits or '-', not beginning or ending with '-'"


class SlugField(serializers.CharField):
    """An id that the caller gives; one sentence for whatever is wrong with it, of every kind."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            max_length=63, trim_whitespace=False, validators=[RegexValidator(SLUG_PATTERN, SLUG_RULE)], **kwargs
        )


def refuse_reserved(slug: str) -> str:
    """The id of a new object; `ValidationError` for a word that has a page or a route of its own where objects have theirs."""
    if slug in RESERVED_IDS:
        words = ", ".join(sorted(RESERVED_IDS))
        raise serializers.ValidationError(
            f"is one of the words that have a page of their own ({words}): choose another"
        )
    return slug


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


class ResourceViewSet(StrictQuery, ListOf):
    """List, read, create, replace, change, delete of one kind. A subclass names its queryset, serializer and services.

    `service_create(by, data)`, `service_update(by, obj, data)` and `service_delete(by, obj)` do the work; this class does
    what is the same for every kind and compares no owner: rows come from `visible_to`, changes pass `require_change`.
    """

    kind: ClassVar[str] = ""
    etagged: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ()  # actions that add what a user may have a limited number of
    lookup_field = "slug"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[^/]+"
    search_fields: ClassVar[tuple[str, ...]] = ("slug", "description")
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

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        obj = self.get_object()
        return not_modified(request, obj) or self.answer(obj)

    def answer(self, obj: Any, code: int = status.HTTP_200_OK) -> Response:
        data = self.shown(obj)
        if code == status.HTTP_201_CREATED and is_dry(self.request):
            data |= dict.fromkeys(self.made_up(obj), "")
        return Response(data, status=code, headers={"ETag": obj.etag})

    def made_up(self, obj: Any) -> tuple[str, ...]:
        """Fields of a new object that hold ids of the server's own making. A dry run leaves them empty: nobody shall look for
        an object by an id that none will have."""
        return ()

    def shown(self, obj: Any) -> dict[str, Any]:
        return dict(self.get_serializer(obj).data)

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

        return do_once(request, work, storable=self.storable_answers, prepare=prepare)

    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._change(request, partial=False)

    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._change(request, partial=True)

    def _change(self, request: Request, *, partial: bool) -> Response:
        obj = self.get_object()
        require_change(self.actor.user, obj, request.auth)
        check_precondition(request, obj)
        data = self._validated(obj, partial=partial)
        self.check_outside(data, obj)

        def work(row: Any) -> Response:
            # Somebody was faster since: a partial change is made to what they left.
            late = row.spec_rev != obj.spec_rev
            return self.answer(
                self.service_update(self.actor, row, self._validated(row, partial=partial) if late else data)
            )

        return self._locked(request, work)

    def _validated(self, obj: Any, *, partial: bool) -> dict[str, Any]:
        serializer = self.get_serializer(obj, data=self.request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        obj = self.get_object()
        require_change(self.actor.user, obj, request.auth)
        check_precondition(request, obj)

        def work(row: Any) -> Response:
            goes_on = self.service_delete(self.actor, row)
            return Response(status=status.HTTP_202_ACCEPTED if goes_on else status.HTTP_204_NO_CONTENT)

        return self._locked(request, work)

    def _locked(self, request: Request, work: Callable[[Any], Response]) -> Response:
        """Does `work` to the row as it is under the write lock: nobody comes between the comparison and the change."""

        def locked() -> Response:
            with transaction.atomic():
                row = self.get_object()
                check_precondition(request, row)
                return work(row)

        return dry_or(request, locked)

    def once(self, request: Request, work: Callable[[], Response], *, outside: bool = False) -> Response:
        """A POST under its Idempotency-Key, see `do_once`."""
        return do_once(request, work, storable=self.storable_answers, outside=outside)


def do_once(
    request: Request,
    work: Callable[[], Answer],
    *,
    storable: bool = True,
    prepare: Callable[[], None] | None = None,
    outside: bool = False,
) -> Answer:
    """Does a POST under its Idempotency-Key, see `once`; a dry run uses no key up and leaves nothing."""
    if not is_dry(request):
        return once(request, request_user(request), work, storable=storable, prepare=prepare, outside=outside)
    if prepare is not None:
        prepare()
    return dry_or(request, work)


def dry_or(request: Request, work: Callable[[], Answer]) -> Answer:
    """Runs `work`; with `?dry_run=true` inside a transaction that is then undone."""
    if not is_dry(request):
        return work()
    try:
        with transaction.atomic():
            raise Rollback(work())
    except Rollback as undone:
        return cast(Answer, undone.response)


def is_dry(request: Request) -> bool:
    """Whether only checks are asked for. The key of a dry POST is checked like the others, and used for nothing."""
    dry = flag(request, "dry_run")
    if dry and request.method == "POST":
        key_of(request)
    return dry


def check_precondition(request: Request, obj: Any) -> None:
    """`If-Match` compares the part of the ETag before the dot: a phase that moves does not spoil an edit."""
    wanted = request.headers.get("If-Match")
    if wanted is None or wanted.strip() == "*":
        return
    if str(obj.spec_rev) not in {
        part.strip().removeprefix("W/").strip('"').split(".")[0] for part in wanted.split(",")
    }:
        raise PreconditionFailed


def not_modified(request: Request, obj: Any) -> Response | None:
    """The 304 of a caller whose `If-None-Match` names this very state, else None."""
    header = request.headers.get("If-None-Match")
    if header is None:
        return None
    known = [part.strip().removeprefix("W/").strip('"') for part in header.split(",")]
    if obj.etag.strip('"') not in known and known != ["*"]:
        return None
    return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": obj.etag})


def request_user(request: Request) -> User:
    """The signed-in user, typed; the permission class has made sure."""
    if not isinstance(request.user, User):
        raise TypeError("no user")
    return request.user
