"""Routes of accounts: sign in and out, who am I, tokens, users."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.authentication import BaseAuthentication
from rest_framework.mixins import ListModelMixin
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from accounts import services
from accounts.audit import Actor
from accounts.idempotency import once
from accounts.models import Scope, Token, User
from accounts.permissions import require_scope
from accounts.rest import printable, request_user
from accounts.serializers import (
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
from primer_site.errors import FieldError, Invalid, NotFound
from primer_site.parsing import bad_text
from primer_site.requests import client_address, request_id


class AddressThrottle(SimpleRateThrottle):
    """One address, whatever names it tries; asked first, since it reads no body."""

    scope = "login_address"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {"scope": self.scope, "ident": client_address(request._request)}


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


class LoginView(APIView):
    """Buys a token with username and password."""

    authentication_classes: tuple[type[BaseAuthentication], ...] = ()
    permission_classes = (AllowAny,)
    throttle_classes = (AddressThrottle, NameThrottle)
    max_body_bytes = 64 * 1024  # anybody may send one

    @extend_schema(request=LoginSerializer, responses={200: LoginAnswerSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        data = _validated(LoginSerializer, request.data)
        where = client_address(request._request)
        token, value = services.login(**data, address=where, request_id=request_id(request._request))
        return Response({"token": value, "expires_at": token.expiry})


class LogoutView(APIView):
    """Revokes the token of this request."""

    viewer_writes = any_scope = True

    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request) -> Response:
        if isinstance(request.auth, Token):
            services.token_revoke(token=request.auth, by=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class PasswordView(APIView):
    """Changes one's own password."""

    viewer_writes = True

    @extend_schema(request=PasswordSerializer, responses={204: None})
    def post(self, request: Request) -> Response:
        data = _validated(PasswordSerializer, request.data)
        services.user_change_password(user=request_user(request), by=Actor.of(request), **data)
        return Response(status=status.HTTP_204_NO_CONTENT)


class MeView(APIView):
    """Who this request comes from."""

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        user = request_user(request)
        token = request.auth if isinstance(request.auth, Token) else None
        return Response(MeSerializer({"username": user.username, "role": user.role, "token": token}).data)


@extend_schema_view(
    list=extend_schema(parameters=[OpenApiParameter("all", bool, description="Everybody's tokens (admins).")]),
    create=extend_schema(responses={201: NewTokenSerializer}),
)
class TokenViewSet(ListModelMixin, GenericViewSet[Token]):
    """One's own tokens; an admin sees all with `?all=true`."""

    serializer_class = TokenSerializer
    viewer_writes = True
    lookup_field = "uuid"
    lookup_url_kwarg = "id"
    sorts = {"created_at": "created", "name": "name"}

    def get_queryset(self) -> QuerySet[Token, Token]:
        if getattr(self, "swagger_fake_view", False):
            return Token.objects.none()  # type: ignore[no-any-return]
        user = request_user(self.request)
        rows: QuerySet[Token, Token] = Token.objects.select_related("user")
        wants_all = self.request.query_params.get("all") == "true" or self.action == "destroy"
        return rows if wants_all and user.is_admin else rows.filter(user=user)

    def filter_queryset(self, queryset: Any) -> Any:
        return queryset

    def create(self, request: Request) -> Response:
        data = _validated(TokenSerializer, request.data)
        user = request_user(request)
        scope = Scope(data["scope"])
        require_scope(request.auth, scope)  # a token buys no larger one than itself

        def work() -> Response:
            token, value = services.token_create(
                user=user, name=data["name"], scope=scope, expires_in_s=data.get("expires_in_s"), by=Actor.of(request)
            )
            return Response(token_with_value(token, value), status=status.HTTP_201_CREATED)

        return once(request, user, work, storable=False)

    def destroy(self, request: Request, id: UUID) -> Response:
        token = self.get_queryset().filter(uuid=id).first()
        if token is None:
            raise NotFound("There is no such token.")
        services.token_revoke(token=token, by=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class UserViewSet(ListModelMixin, GenericViewSet[User]):
    """Users, for admins; DELETE deactivates, since history names them."""

    admin_only = True
    serializer_class = UserSerializer
    lookup_field = "username"
    lookup_url_kwarg = "id"
    lookup_value_regex = "[^/]+"
    sorts = {"created_at": "date_joined", "username": "username"}
    queryset = User.objects.all()

    def filter_queryset(self, queryset: Any) -> Any:
        if text := self.request.query_params.get("q"):
            if problem := bad_text(text):
                raise Invalid("q is not valid.", errors=[FieldError("q", problem)])
            queryset = queryset.filter(username__icontains=text)
        return queryset

    def _user(self, name: str) -> User:
        user = None if bad_text(name) else User.objects.filter(username=name).first()
        if user is None:
            raise NotFound(f"There is no user {printable(name)}.")
        return user

    def retrieve(self, request: Request, id: str) -> Response:
        return Response(UserSerializer(self._user(id)).data)

    @extend_schema(responses={201: NewUserSerializer})
    def create(self, request: Request) -> Response:
        data = _validated(UserSerializer, request.data)

        def work() -> Response:
            user, password = services.user_create(
                username=data["username"], role=data["role"], password=data.get("password", ""), by=Actor.of(request)
            )
            shown = None if data.get("password") else password
            return Response(user_with_password(user, shown), status=status.HTTP_201_CREATED)

        return once(request, request_user(request), work, storable=False)

    @extend_schema(request=UserChangeSerializer, responses={200: NewUserSerializer})
    def partial_update(self, request: Request, id: str) -> Response:
        data = _validated(UserChangeSerializer, request.data)
        user = self._user(id)
        by = Actor.of(request)
        user = services.user_update(user=user, by=by, role=data.get("role"), active=data.get("active"))
        password = services.user_reset_password(user=user, by=by) if data.get("reset_password") else None
        return Response(user_with_password(user, password))

    def destroy(self, request: Request, id: str) -> Response:
        services.user_update(user=self._user(id), by=Actor.of(request), active=False)
        return Response(status=status.HTTP_204_NO_CONTENT)
