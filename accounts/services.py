"""What happens to people and their tokens. Functions `<entity>_<verb>`, keyword-only, each in one transaction with its audit line."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import make_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.idempotency import KEPT
from accounts.models import IdempotencyKey, Role, Scope, Token, User
from primer_site.errors import Conflict, FieldError, Invalid, Unauthenticated

INITIAL_PASSWORD_FILE = "initial-password"  # noqa: S105 - a file's name
GENERATED_FROM = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKMNPQRSTUVWXYZ23456789"

MOST_LEVELS = 16  # of tokens that were made by tokens: programs hand on to programs, a chain without end is a fault


class BadCredentials(Unauthenticated):
    """The username or the password is wrong, or the user is not active."""


def random_password() -> str:
    """A password of about 100 bits that can be read aloud: four groups of five."""
    return "-".join("".join(secrets.choice(GENERATED_FROM) for _ in range(5)) for _ in range(4))


def is_generated(password: str) -> bool:
    """Whether a password is one of ours, by its shape: the console asks for another one, whoever handed it out."""
    groups = password.split("-")
    return len(groups) == 4 and all(len(group) == 5 and set(group) <= set(GENERATED_FROM) for group in groups)


def password_hash(*, password: str, user: User, field: str = "password") -> str:
    """The hash of a password that is good enough for the user; raises `Invalid` naming `field`.

    Slow on purpose, so it is made before a transaction: its write lock must not wait for it.
    """
    try:
        validate_password(password, user)
    except ValidationError as exc:
        raise Invalid("The password is not good enough.", errors=[FieldError(field, m) for m in exc.messages]) from None
    return make_password(password)


def user_create(*, username: str, role: str, password: str = "", by: Actor | None = None) -> tuple[User, str]:
    """Makes a user and returns it with its password, generated when none is given; `Conflict` when the name is taken."""
    password = password or random_password()
    user = user_draft(username=username, role=role, password=password)
    user_insert(user=user, by=by)
    return user, password


def user_draft(*, username: str, role: str, password: str) -> User:
    """A checked user that is not stored yet; raises `Invalid` naming what is wrong with the name or the password."""
    user = User(username=username, role=role)
    try:
        User.username_validator(username)
        user._meta.get_field("username").clean(username, user)
    except ValidationError as exc:
        errors = [FieldError("username", m.rstrip(".").lower()) for m in exc.messages]
        raise Invalid("The username is not valid.", errors=errors) from None
    user.password = password_hash(password=password, user=user)
    return user


@transaction.atomic
def user_insert(*, user: User, by: Actor | None = None) -> None:
    """Stores a draft; `Conflict` when the name is taken."""
    try:
        with transaction.atomic():
            user.save(force_insert=True)
    except IntegrityError:
        errors = [FieldError("username", "is taken")]
        raise Conflict(f"There is a user {user.username} already.", errors=errors) from None
    audit_record(by, "user.create", kind="user", object_id=user.username, after={"role": user.role})


def user_reset_password(*, user: User, password: str = "", by: Actor | None = None) -> str:
    """Sets a new password, generated when none is given, and ends every sign-in and token of the user."""
    password = password or random_password()
    user_store_reset(user=user, hashed=password_hash(password=password, user=user), by=by)
    return password


@transaction.atomic
def user_store_reset(*, user: User, hashed: str, by: Actor | None = None) -> None:
    """Stores the hash of a new password, which ends cookie sessions too: theirs is made from it."""
    user.password = hashed
    user.save(update_fields=["password"])
    tokens = Token.objects.filter(user=user)
    after = {"password": "reset", "tokens_ended": tokens.count()}
    tokens.delete()
    audit_record(by, "user.reset_password", kind="user", object_id=user.username, after=after)


def check_old_password(*, user: User, old: str) -> None:
    """Raises `Invalid` unless `old` is the user's password. Takes its time: it hashes."""
    if not user.check_password(old):
        raise Invalid("The old password is wrong.", errors=[FieldError("old", "is wrong")])


@transaction.atomic
def user_change_password(*, user: User, hashed: str, by: Actor) -> None:
    """Stores the hash of one's own new password, once the old one was checked. Tokens stay."""
    user.password = hashed
    user.save(update_fields=["password"])
    audit_record(by, "user.change_password", kind="user", object_id=user.username, after={"password": "changed"})
    transaction.on_commit(lambda: forget_initial_password(user))


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


def refuse_scope(*, user: User, scope: str) -> None:
    """Raises `Invalid` for a token that could do more than its owner's role."""
    if scope == Scope.ADMIN and not user.is_admin:
        message = f"admin needs the role admin; yours is {user.role}"
        raise Invalid("This token cannot be made.", errors=[FieldError("scope", message)])


@transaction.atomic
def token_create(
    *,
    user: User,
    name: str,
    scope: str,
    expires_in_s: int | None,
    by: Actor | None = None,
    signed_in: bool = False,
    made_by: Token | None = None,
) -> tuple[Token, str]:
    """Makes a token and returns it with its value, which is shown this once. `expires_in_s` None never ends.

    `made_by` is the program's token that asks for it; `Unauthenticated` when that was revoked since it was looked at.
    """
    if by is not None:
        refuse_scope(user=user, scope=scope)
    if made_by is not None:
        _check_maker(made_by)
    expiry = None if expires_in_s is None else timedelta(seconds=expires_in_s)
    made: tuple[Any, str] = Token.objects.create(
        user, expiry=expiry, name=name, scope=scope, signed_in=signed_in, made_by=made_by
    )
    token, value = made
    after = {"user": user.username, "name": name, "scope": scope, "expires_in_s": expires_in_s}
    audit_record(by, "token.create", kind="token", object_id=str(token.uuid), after=after)
    return token, value


def _check_maker(maker: Token) -> None:
    """Raises `Unauthenticated` when it is gone, and `Conflict` where a token that it made would be too far from a person."""
    found = Token.objects.select_for_update().filter(pk=maker.pk).first()
    if found is None:
        raise Unauthenticated
    above, depth = found.made_by_id, 1
    while above is not None and depth <= MOST_LEVELS:
        above, depth = Token.objects.values_list("made_by_id", flat=True).get(uuid=above), depth + 1
    if depth > MOST_LEVELS:
        raise Conflict(
            f"A token makes tokens, and those make others, over at most {MOST_LEVELS} levels; this would be one more.",
            hint="Make it with an earlier token, or sign in with your password: primectl login --username NAME",
        )


@transaction.atomic
def token_revoke(*, token: Token, by: Actor | None = None) -> None:
    """Deletes a token and those that it made, directly or not; their sockets notice within a second."""
    rows = Token.objects.all()
    family = rows.filter(pk=token.pk).family() or [token]  # gone meanwhile: it was asked for all the same
    for one in family:
        _audit_revoked(one, by)
    rows.remove(family)


def _audit_revoked(token: Token, by: Actor | None) -> None:
    before = {"user": token.user.username, "name": token.name, "scope": token.scope}
    if token.made_by is not None:
        before["made_by"] = token.made_by.name
    audit_record(by, "token.revoke", kind="token", object_id=str(token.uuid), before=before)


def signed_in(*, username: str, password: str) -> User:
    """The user behind a name and a password; `BadCredentials` says the same for every reason. Takes its time: it hashes."""
    user = authenticate(username=username, password=password)
    if not isinstance(user, User):
        raise BadCredentials
    return user


@transaction.atomic
def login(*, user: User, by: Actor) -> tuple[Token, str]:
    """Gives a user whose password was right a token of their role's scope, and notes when and from where."""
    scope = Scope.ADMIN if user.is_admin else Scope.WRITE
    name = f"login {timezone.now():%Y-%m-%d %H:%M}"
    token, value = token_create(
        user=user, name=name, scope=scope, expires_in_s=settings.PRIMER_TOKEN_TTL_S, by=by, signed_in=True
    )
    User.objects.filter(pk=user.pk).update(last_login=timezone.now(), last_login_address=by.address)
    transaction.on_commit(lambda: forget_initial_password(user))
    return token, value


def prune_idempotency() -> int:
    """Removes the keys of all users whose day is over, with the answers kept under them, and returns how many."""
    removed, _ = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return removed


def forget_initial_password(user: User) -> None:
    """Removes the file with the first admin's generated password once that admin has signed in."""
    if user.is_admin:
        (settings.PRIMER_HOME / INITIAL_PASSWORD_FILE).unlink(missing_ok=True)


def shortcuts_set(*, username: str, on: bool) -> None:
    """Whether the console listens to single keys for this user. A matter of taste: it leaves no audit line."""
    User.objects.filter(username=username).update(shortcuts=on)
