"""What happens to people and their tokens. Functions `<entity>_<verb>`, keyword-only, each in one transaction with its audit line."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.models import Role, Scope, Token, User
from primer_site.errors import Conflict, FieldError, Invalid, Unauthenticated

INITIAL_PASSWORD_FILE = "initial-password"  # noqa: S105 - a file's name


class BadCredentials(Unauthenticated):
    """The username or the password is wrong, or the user is not active."""


def random_password() -> str:
    """A password of about 100 bits that can be read aloud: four groups of five."""
    alphabet = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKMNPQRSTUVWXYZ23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(4))


@transaction.atomic
def user_create(*, username: str, role: str, password: str = "", by: Actor | None = None) -> tuple[User, str]:
    """Makes a user and returns it with its password, generated when none is given; `Conflict` when the name is taken."""
    password = password or random_password()
    user = User(username=username, role=role)
    _check_name(user)
    _check_password(password, user)
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError:
        raise Conflict(f"There is a user {username} already.") from None
    audit_record(by, "user.create", kind="user", object_id=username, after={"role": role})
    return user, password


def _check_name(user: User) -> None:
    try:
        User.username_validator(user.username)
        user._meta.get_field("username").clean(user.username, user)
    except ValidationError as exc:
        raise Invalid("The username is not valid.", errors=[FieldError("username", m.rstrip(".").lower()) for m in exc.messages]) from None  # fmt: skip


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as exc:
        raise Invalid("The password is not good enough.", errors=[FieldError("password", m) for m in exc.messages]) from None  # fmt: skip


@transaction.atomic
def user_reset_password(*, user: User, password: str = "", by: Actor | None = None) -> str:
    """Sets a new password, generated when none is given, and ends every sign-in and token of the user."""
    password = password or random_password()
    _check_password(password, user)
    user.set_password(password)  # ends cookie sessions too: their hash is made from it
    user.save(update_fields=["password"])
    Token.objects.filter(user=user).delete()
    audit_record(by, "user.reset_password", kind="user", object_id=user.username)
    return password


@transaction.atomic
def user_change_password(*, user: User, old: str, new: str, by: Actor) -> None:
    """Changes one's own password; the old one must be right. Tokens stay."""
    if not user.check_password(old):
        raise Invalid("The old password is wrong.", errors=[FieldError("old", "is wrong")])
    try:
        validate_password(new, user)
    except ValidationError as exc:
        raise Invalid("The new password is not good enough.", errors=[FieldError("new", m) for m in exc.messages]) from None  # fmt: skip
    user.set_password(new)
    user.save(update_fields=["password"])
    audit_record(by, "user.change_password", kind="user", object_id=user.username)
    forget_initial_password(user)


@transaction.atomic
def user_update(*, user: User, by: Actor, role: str | None = None, active: bool | None = None) -> User:
    """Changes role and activity; the last active admin can be neither demoted nor switched off."""
    before = {"role": user.role, "active": user.is_active}
    user.role = user.role if role is None else role
    user.is_active = user.is_active if active is None else active
    if before["role"] == Role.ADMIN and not user.is_admin and not _other_admins(user):
        raise Conflict("This is the last active admin. Make another one first.")
    user.save(update_fields=["role", "is_active"])
    if not user.is_active:
        Token.objects.filter(user=user).delete()
    after = {"role": user.role, "active": user.is_active}
    if after != before:
        audit_record(by, "user.update", kind="user", object_id=user.username, before=before, after=after)
    return user


def _other_admins(user: User) -> bool:
    return User.objects.filter(role=Role.ADMIN, is_active=True).exclude(pk=user.pk).exists()


@transaction.atomic
def token_create(
    *, user: User, name: str, scope: str, expires_in_s: int | None, by: Actor | None = None
) -> tuple[Token, str]:
    """Makes a token and returns it with its value, which is shown this once. `expires_in_s` None never ends."""
    if by is not None and scope == Scope.ADMIN and not user.is_admin:
        raise Invalid("This token cannot be made.", errors=[FieldError("scope", "admin needs the role admin")])
    expiry = None if expires_in_s is None else timedelta(seconds=expires_in_s)
    made: tuple[Any, str] = Token.objects.create(user, expiry=expiry, name=name, scope=scope)
    token, value = made
    audit_record(
        by, "token.create", kind="token", object_id=str(token.uuid),
        after={"user": user.username, "name": name, "scope": scope},
    )  # fmt: skip
    return token, value


@transaction.atomic
def token_revoke(*, token: Token, by: Actor | None = None) -> None:
    """Deletes a token; its sockets notice within a second."""
    audit_record(by, "token.revoke", kind="token", object_id=str(token.uuid), before={"name": token.name})
    token.delete()


def login(*, username: str, password: str, address: str, request_id: str) -> tuple[Token, str]:
    """Buys a token with a password; `BadCredentials` says the same for every reason."""
    user = authenticate(username=username, password=password)
    if not isinstance(user, User):
        raise BadCredentials
    scope = {Role.ADMIN.value: Scope.ADMIN, Role.VIEWER.value: Scope.WRITE}.get(user.role, Scope.WRITE)
    name = f"login {timezone.now():%Y-%m-%d %H:%M}"
    by = Actor(user, address, request_id)
    token, value = token_create(user=user, name=name, scope=scope, expires_in_s=settings.PRIMER_TOKEN_TTL_S, by=by)
    User.objects.filter(pk=user.pk).update(last_login=timezone.now())
    forget_initial_password(user)
    return token, value


def forget_initial_password(user: User) -> None:
    """Removes the file with the first admin's generated password once that admin has signed in."""
    if user.is_admin:
        (settings.PRIMER_HOME / INITIAL_PASSWORD_FILE).unlink(missing_ok=True)
