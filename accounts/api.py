"""Routes of accounts: sign in and out, who am I, tokens, users, and the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from accounts import services
from accounts.audit import Actor
from accounts.idempotency import once
from accounts.lists import ListOf, StrictQuery, flag
from accounts.models import AuditEntry, Scope, Token, User
from accounts.permissions import longest_life_s, maker_of, require_own_or_admin, require_scope
from accounts.rest import (
    check_precondition,
    do_once,
    dry_or,
    is_dry,
    not_modified,
    refuse_fields,
    request_user,
)
from accounts.serializers import (
    AuditSerializer,
    LoginAnswerSerializer,
    LoginSerializer,
    MeSerializer,
    NewTokenSerializer,
    NewUserSerializer,
    PasswordSerializer,
    TokenSerializer,
    UserChangeSerializer,
    UserSerializer,
    token_with_value,
    user_with_password,
)
from primer_site.errors import FieldError, Invalid, NotFound, printable
from primer_site.parsing import bad_text
from primer_site.requests import client_address, request_id


class AddressThrottle(SimpleRateThrottle):
    """One address, whatever names it tries; asked first, since it reads no body."""

    scope = "login_address"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {"scope": self.scope, "ident": client_address(request._request)}


class OldPasswordThrottle(SimpleRateThrottle):
    """One user: with a stolen token or an open console the password could be guessed here as well."""

    scope = "login"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {"scope": "old_password", "ident": request_user(request).pk}


class NameThrottle(SimpleRateThrottle):
    """One name from one address. Not the name alone: a guesser elsewhere must not lock its owner out."""

    scope = "login"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        name = request.data.get("username") if isinstance(request.data, dict) else ""
        ident = f"{client_address(request._request)}|{str(name)[:150]}"
        return self.cache_format % {"scope": self.scope, "ident": ident.encode().hex()}


def _validated(serializer_class: Any, data: Any) -> dict[str, Any]:
    serializer = serializer_class(data=data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


class LoginView(StrictQuery, APIView):
    """Buys a token with username and password. A dry run checks them and answers without a token."""

    authentication_classes: tuple[type[BaseAuthentication], ...] = ()
    permission_classes = (AllowAny,)
    throttle_classes = (AddressThrottle, NameThrottle)
    max_body_bytes = 64 * 1024  # anybody may send one

    @extend_schema(request=LoginSerializer, responses={200: LoginAnswerSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        user = services.signed_in(**_validated(LoginSerializer, request.data))
        by = Actor(user, client_address(request._request), request_id(request._request))

        def work() -> Response:
            token, value = services.login(user=user, by=by)
            return Response({"token": "" if is_dry(request) else value, "expires_at": token.expiry})

        return dry_or(request, work) if is_dry(request) else once(request, user, work, storable=False)


class LogoutView(StrictQuery, APIView):
    """Revokes the token of this request."""

    viewer_writes = any_scope = True

    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request) -> Response:
        refuse_fields(request)

        def work() -> Response:
            if isinstance(request.auth, Token):
                services.token_revoke(token=request.auth, by=Actor.of(request))
            return Response(status=status.HTTP_204_NO_CONTENT)

        return do_once(request, work, storable=False)


class PasswordView(StrictQuery, APIView):
    """Changes one's own password."""

    viewer_writes = True
    throttle_classes = (OldPasswordThrottle,)

    @extend_schema(request=PasswordSerializer, responses={204: None})
    def post(self, request: Request) -> Response:
        data = _validated(PasswordSerializer, request.data)
        user = request_user(request)
        hashed = ""

        def prepare() -> None:  # behind the key: of a repeat the old password is wrong by now
            nonlocal hashed
            services.check_old_password(user=user, old=data["old"])
            hashed = services.password_hash(password=data["new"], user=user, field="new")

        def work() -> Response:
            services.user_change_password(user=user, hashed=hashed, by=Actor.of(request))
            return Response(status=status.HTTP_204_NO_CONTENT)

        return do_once(request, work, storable=False, prepare=prepare)


class MeView(StrictQuery, APIView):
    """Who this request comes from."""

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        user = request_user(request)
        token = request.auth if isinstance(request.auth, Token) else None
        return Response(MeSerializer({"username": user.username, "role": user.role, "token": token}).data)


def _life_of(request: Request, data: dict[str, Any]) -> int | None:
    """The seconds that a new token lives: as asked, at most as long as the token that asks; `Invalid` for more."""
    most = longest_life_s(request.auth)
    if most is None or "expires_in_s" not in data:
        return data.get("expires_in_s", most)
    asked: int | None = data["expires_in_s"]
    if asked is None or asked > most:
        name = getattr(request.auth, "name", "")
        message = f"must be at most {most}: what the token {name!r} makes ends with it"
        hint = "Sign in with your password for one that lives longer: primectl login --username NAME"
        raise Invalid("This token cannot be made.", errors=[FieldError("expires_in_s", message)], hint=hint)
    return asked


@extend_schema_view(
    list=extend_schema(parameters=[OpenApiParameter("all", bool, description="Everybody's tokens (admins).")]),
    create=extend_schema(responses={201: NewTokenSerializer}),
)
class TokenViewSet(StrictQuery, ListOf):
    """One's own tokens; an admin sees all with `?all=true`. With a token go those that it made."""

    serializer_class = TokenSerializer
    model = Token
    queryset = Token.objects.none()
    viewer_writes = True
    lookup_field = "uuid"
    lookup_url_kwarg = "id"
    search_fields = ("name",)
    filters = {"scope": "scope", "user": "user__username"}
    sorts = {"created_at": "created", "name": "name"}
    tie = "uuid"  # the primary key is the token's hash
    flags = ("all",)

    def get_queryset(self) -> QuerySet[Token, Token]:
        wants_all = flag(self.request, "all") if self.action == "list" else True
        if wants_all and self.action == "list" and request_user(self.request).is_admin:
            require_scope(self.request.auth, Scope.ADMIN)
        return Token.objects.visible_to(request_user(self.request), everybody=wants_all).select_related("user")

    def create(self, request: Request) -> Response:
        data = _validated(TokenSerializer, request.data)
        user = request_user(request)
        scope = Scope(data["scope"])
        services.refuse_scope(user=user, scope=scope)  # first: no other token helps whose role is too small
        require_scope(request.auth, scope)  # a token buys no larger one than itself
        life = _life_of(request, data)

        def work() -> Response:
            token, value = services.token_create(
                user=user, name=data["name"], scope=scope, expires_in_s=life, by=Actor.of(request),
                made_by=maker_of(request.auth),
            )  # fmt: skip
            return Response(token_with_value(token, "" if is_dry(request) else value), status=status.HTTP_201_CREATED)

        return do_once(request, work, storable=False)

    def destroy(self, request: Request, id: UUID) -> Response:
        token = self.get_queryset().filter(uuid=id).first()
        if token is None:
            raise NotFound("There is no such token.")
        require_own_or_admin(request_user(request), token, request.auth)

        def work() -> Response:
            services.token_revoke(token=token, by=Actor.of(request))
            return Response(status=status.HTTP_204_NO_CONTENT)

        return dry_or(request, work)


class UserViewSet(StrictQuery, ListOf):
    """Users, for admins; DELETE deactivates, since history names them."""

    admin_only = True
    serializer_class = UserSerializer
    lookup_field = "username"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[^/]+"
    search_fields = ("username",)
    filters = {"role": "role", "active": "is_active"}
    sorts = {"created_at": "date_joined", "username": "username"}
    model = User
    queryset = User.objects.all()
    etagged = True

    def _user(self, name: str) -> User:
        user = None if bad_text(name) else User.objects.filter(username=name).first()
        if user is None:
            raise NotFound(f"There is no user {printable(name)}.")
        return user

    def retrieve(self, request: Request, id: str) -> Response:
        user = self._user(id)
        return not_modified(request, user) or Response(UserSerializer(user).data, headers={"ETag": user.etag})

    @extend_schema(responses={201: NewUserSerializer})
    def create(self, request: Request) -> Response:
        data = _validated(UserSerializer, request.data)
        given = data.get("password", "")
        password = given or services.random_password()
        user = services.user_draft(username=data["username"], role=data["role"], password=password)

        def work() -> Response:
            services.user_insert(user=user, by=Actor.of(request))
            shown = None if given or is_dry(request) else password
            return Response(user_with_password(user, shown), 201, headers={"ETag": user.etag})

        return do_once(request, work, storable=False)

    @extend_schema(request=UserChangeSerializer, responses={200: NewUserSerializer})
    def partial_update(self, request: Request, id: str) -> Response:
        data = _validated(UserChangeSerializer, request.data)
        password = services.random_password() if data.get("reset_password") else None
        hashed = services.password_hash(password=password, user=self._user(id)) if password else None

        def work(user: User, by: Actor) -> Response:
            user = services.user_update(user=user, by=by, role=data.get("role"), active=data.get("is_active"))
            if hashed is not None:
                services.user_store_reset(user=user, hashed=hashed, by=by)
            shown = None if is_dry(request) else password
            return Response(user_with_password(user, shown), headers={"ETag": user.etag})

        return self._change(request, id, work)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        def work(user: User, by: Actor) -> Response:
            services.user_update(user=user, by=by, active=False)
            return Response(status=status.HTTP_204_NO_CONTENT)

        return self._change(request, id, work)

    def _change(self, request: Request, name: str, work: Callable[[User, Actor], Response]) -> Response:
        def locked() -> Response:
            with transaction.atomic():
                user = self._user(name)
                check_precondition(request, user)
                return work(user, Actor.of(request))

        return dry_or(request, locked)


class AuditViewSet(StrictQuery, ListOf):
    """What was changed: who, what, when, from where, before and after. For admins; nothing here can be changed."""

    admin_only = True
    serializer_class = AuditSerializer
    model = AuditEntry
    queryset = AuditEntry.objects.all()
    search_fields = ("actor_name", "action", "object_id")
    filters = {
        "actor": "actor_name", "actor_kind": "actor_kind", "action": "action", "object_kind": "kind",
        "object_id": "object_id", "token": "token", "address": "address", "request_id": "request_id",
    }  # fmt: skip
    times = {"since": "at__gte", "until": "at__lt"}
    sorts = {"created_at": "at", "at": "at"}
