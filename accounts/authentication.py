"""One way in: `token_user` checks a bearer token for REST and for sockets."""

from __future__ import annotations

import hmac
from datetime import timedelta

from django.utils import timezone
from knox.crypto import hash_token
from knox.settings import CONSTANTS
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.request import Request

from accounts.models import Token, User
from primer_site.errors import Unauthenticated
from primer_site.prepared import Prepared
from primer_site.requests import client_address

LAST_USED_STEP = timedelta(minutes=1)
_by_key: Prepared[Token] = Prepared(lambda key: Token.objects.select_related("user").filter(token_key=key), key=str)


class BadToken(Unauthenticated):
    """The token is not valid: wrong, expired, revoked, or its user is not active."""

    hint = "Sign in again: primectl login"


def token_user(value: str, address: str = "") -> tuple[User, Token]:
    """The user and the token behind a bearer value; raises `BadToken` with one sentence for every reason.

    Once a minute its use is written down, with the address it came from.
    """
    now = timezone.now()
    digest = _digest(value)
    for token in _by_key.all(key=value[: CONSTANTS.TOKEN_KEY_LENGTH]):
        if not hmac.compare_digest(digest, token.digest):
            continue
        if not token_alive(token):
            break
        if token.last_used is None or now - token.last_used > LAST_USED_STEP:
            Token.objects.filter(pk=token.pk).update(last_used=now, last_used_address=address)
        return token.user, token
    raise BadToken


def token_alive(token: Token) -> bool:
    """Whether a token (with its user loaded) still opens anything; sockets ask again once a second."""
    return token.user.is_active and (token.expiry is None or token.expiry > timezone.now())


def still_signed_in(user_pk: int, token_pk: str | None) -> bool:
    """Whether who began a long answer may still have it: the token lives (without one: a cookie), and so does the user."""
    if token_pk is None:
        return User.objects.filter(pk=user_pk, is_active=True).exists()
    token = Token.objects.select_related("user").filter(pk=token_pk).first()
    return token is not None and token_alive(token)


def _digest(value: str) -> str:
    try:
        return str(hash_token(value))
    except ValueError:  # not even encodable
        raise BadToken from None


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`; a token anywhere else is not looked at."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != b"bearer":
            return None
        if len(words) != 2:
            raise BadToken
        return token_user(words[1].decode("latin-1"), client_address(request._request))

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class CookieAuthentication(SessionAuthentication):
    """The console's session cookie, with CSRF on every write."""

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"
