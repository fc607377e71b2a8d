"""Users and tokens from the server's own command line: no sign-in, since whoever runs this owns the data directory."""

from __future__ import annotations

import click

from primer_site.variables import value

MIN_TOKEN = 40  # characters: 160 bits in hex
TOKEN_NAME_CHARS = 100


def create_user(name: str, role: str) -> None:
    """`primer admin create-user`: stdout is the password alone, so that it can be piped."""
    _django()
    from accounts import services

    user, password = services.user_create(username=name, role=role)
    click.echo(f"user {user.username} ({user.role}) created; the password is shown once", err=True)
    click.echo(password)


def reset_password(name: str) -> None:
    """`primer admin reset-password`."""
    _django()
    from accounts import services
    from accounts.models import User
    from primer_site.errors import NotFound

    user = User.objects.filter(username=name).first()
    if user is None:
        raise NotFound(f"There is no user {name}.", hint=f"Make one: primer admin create-user {name}")
    password = services.user_reset_password(user=user)
    click.echo(f"new password of {name}, shown once; earlier sign-ins and tokens have ended", err=True)
    click.echo(password)


def ensure_admin() -> tuple[str, str]:
    """The first admin: (name, password) when made now, (name, "") when there is one; a generated password is kept in a file.

    `PRIMER_INIT_ADMIN_PASSWORD` is taken for a new admin and not kept.
    """
    from django.conf import settings

    from accounts import services
    from accounts.models import Role, User
    from primer_site.home import write_private

    if existing := User.objects.filter(role=Role.ADMIN, is_active=True).order_by("pk").first():
        return existing.username, ""
    given = value("PRIMER_INIT_ADMIN_PASSWORD")
    user, password = services.user_create(username="admin", role=Role.ADMIN, password=given)
    if given:
        return user.username, ""
    write_private(settings.PRIMER_HOME / services.INITIAL_PASSWORD_FILE, password)
    return user.username, password


def ensure_init_token() -> bool:
    """Makes `PRIMER_INIT_TOKEN` a token of the first admin, for installs that no person attends; False without it."""
    from knox.crypto import hash_token
    from knox.settings import CONSTANTS

    from accounts.models import Role, Scope, Token, User
    from primer_site.errors import Invalid

    given = value("PRIMER_INIT_TOKEN")
    if not given:
        return False
    if len(given) < MIN_TOKEN or not given.isascii() or not given.isalnum():
        raise Invalid(f"PRIMER_INIT_TOKEN must be {MIN_TOKEN} or more letters and digits.", hint="openssl rand -hex 32")
    digest = hash_token(given)
    if not Token.objects.filter(digest=digest).exists():
        admin = User.objects.filter(role=Role.ADMIN, is_active=True).order_by("pk")[0]
        Token(
            digest=digest, token_key=given[: CONSTANTS.TOKEN_KEY_LENGTH], user=admin, expiry=None,
            name="PRIMER_INIT_TOKEN", scope=Scope.ADMIN,
        ).save()  # fmt: skip
    return True


def operator_token(place: str) -> str:
    """A new admin token for the CLI context of the person who runs the server, named after the file it is for.

    The one made before for that file is revoked; those of other files stay, their contexts are still in use.
    """
    from accounts import services
    from accounts.models import Role, Scope, Token, User

    admin = User.objects.filter(role=Role.ADMIN, is_active=True).order_by("pk")[0]
    name = f"primer up: {place[-TOKEN_NAME_CHARS + 11 :]}"
    for token in Token.objects.filter(user=admin, name=name):
        services.token_revoke(token=token)
    # It stands for the person at the terminal, like one that a password bought: what they make with it outlives it.
    _, value = services.token_create(user=admin, name=name, scope=Scope.ADMIN, expires_in_s=None, signed_in=True)
    return value


def _django() -> None:
    from primer_site.setup import configure

    configure()
