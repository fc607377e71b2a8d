"""Shapes of accounts in the API."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.models import ActorKind, Role, Scope, Token, User
from accounts.rest import StrictSerializer

YEAR_S = 366 * 24 * 3600


class LoginSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=1024, trim_whitespace=False, write_only=True)


class LoginAnswerSerializer(StrictSerializer):
    token = serializers.CharField()
    expires_at = serializers.DateTimeField(allow_null=True)


class PasswordSerializer(StrictSerializer):
    old = serializers.CharField(max_length=1024, trim_whitespace=False, write_only=True)
    new = serializers.CharField(max_length=1024, trim_whitespace=False, write_only=True)


class TokenFactsSerializer(StrictSerializer):
    name = serializers.CharField()
    scope = serializers.ChoiceField(Scope.choices)
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)


class MeSerializer(StrictSerializer):
    username = serializers.CharField()
    role = serializers.ChoiceField(Role.choices)
    token = TokenFactsSerializer(allow_null=True)


class TokenSerializer(StrictSerializer):
    """A token as lists show it; its value is in the answer to POST alone."""

    id = serializers.UUIDField(source="uuid", read_only=True)
    name = serializers.CharField(max_length=100)
    scope = serializers.ChoiceField(Scope.choices, default=Scope.WRITE)
    expires_in_s = serializers.IntegerField(
        min_value=60, max_value=10 * YEAR_S, allow_null=True, required=False, write_only=True,
        help_text="Without it, or null: no end. A token that was made by `POST /v1/tokens` makes none that outlives it.",
    )  # fmt: skip
    user = serializers.CharField(source="user.username", read_only=True)
    made_by = serializers.UUIDField(
        source="made_by_id", read_only=True, allow_null=True,
        help_text="The program's token that made it, whose end is its end too; null when a person did.",
    )  # fmt: skip
    created_at = serializers.DateTimeField(source="created", read_only=True)
    expires_at = serializers.DateTimeField(source="expiry", read_only=True, allow_null=True)
    last_used = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Exact to a minute.")
    last_used_address = serializers.CharField(read_only=True)


class NewTokenSerializer(TokenSerializer):
    """A token with its value, shown this once. A dry run makes neither: the id is null, the value empty."""

    id = serializers.UUIDField(source="uuid", read_only=True, allow_null=True)
    token = serializers.CharField(read_only=True)


class UserSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER)
    password = serializers.CharField(
        max_length=1024, required=False, write_only=True, trim_whitespace=False,
        help_text="Generated, and shown once in the answer, when it is left out.",
    )  # fmt: skip
    active = serializers.BooleanField(source="is_active", read_only=True)
    created_at = serializers.DateTimeField(source="date_joined", read_only=True)
    last_login = serializers.DateTimeField(read_only=True, allow_null=True)
    last_login_address = serializers.CharField(read_only=True)


class UserChangeSerializer(StrictSerializer):
    role = serializers.ChoiceField(Role.choices, required=False)
    active = serializers.BooleanField(source="is_active", required=False)
    reset_password = serializers.BooleanField(required=False)


class NewUserSerializer(UserSerializer):
    """A user with the password that was generated for them, shown this once; null when none was, and of a dry run."""

    password = serializers.CharField(read_only=True, allow_null=True)


class AuditSerializer(StrictSerializer):
    """One change. `before` and `after` hold the changed object as reads show it, secrets masked; null where there is none."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_name")
    actor_kind = serializers.ChoiceField(ActorKind.choices)
    token = serializers.CharField(
        help_text="The name of the token; empty for a browser's sign-in and the server itself."
    )
    action = serializers.CharField(help_text="`<kind>.<verb>`, such as `agent.update`.")
    object_kind = serializers.CharField(source="kind")
    object_id = serializers.CharField()
    address = serializers.CharField(help_text="Where the request came from; empty for the server itself.")
    request_id = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)


def user_with_password(user: User, password: str | None) -> dict[str, Any]:
    return {**UserSerializer(user).data, "password": password}


def token_with_value(token: Token, value: str) -> dict[str, Any]:
    return {**TokenSerializer(token).data, **({} if value else {"id": None}), "token": value}
