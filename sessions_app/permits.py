"""Who may follow a session: checked when a socket opens and once a second from then on. Sync; on the database threads."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http.cookie import parse_cookie
from django.http.request import validate_host
from django.utils import timezone

from accounts.audit import Actor
from accounts.authentication import BadToken, token_alive, token_user
from accounts.models import Token, User
from sessions_app.models import AgentSession
from sessions_app.services import audit_opening

UNAUTHENTICATED, GONE = 4401, 4404


@dataclass(frozen=True, slots=True)
class Permit:
    """What a socket was opened with: a token, or a cookie session and the hash that a new password would change."""

    session_pk: int
    user_pk: int
    last_seq: int  # of the session when the socket opened
    token_pk: str = ""
    cookie_key: str = ""
    cookie_hash: str = ""


class Refused(Exception):
    """The socket is closed with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The bearer token of a handshake; "" for an Authorization header that is none, None without the header."""
    for name, value in headers:
        if name.lower() == b"authorization":
            words = value.decode("latin-1").split()
            return words[1] if len(words) == 2 and words[0].lower() == "bearer" else ""
    return None


def origin_allowed(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the page behind a cookie socket is ours: same host as the request's, or a trusted origin. No Origin, no page."""
    found = {name.lower(): value.decode("latin-1") for name, value in headers}
    origin, host = found.get(b"origin", ""), found.get(b"host", "")
    if not origin:
        return False
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return urlsplit(origin).netloc == host and validate_host(name, settings.ALLOWED_HOSTS)


def open_permit(session_id: str, headers: Sequence[tuple[bytes, bytes]], address: str) -> Permit:
    """The permit of a new socket; raises `Refused` with 4401 (nobody) or 4404 (no such session, or somebody else's)."""
    user, facts, token = _identity(headers, address)
    rows = AgentSession.objects.visible_to(user)
    session = rows.filter(slug=session_id).first()
    if session is None:
        raise Refused(GONE)
    audit_opening(Actor(user, address, token=token), session)
    return Permit(session.pk, user.pk, session.last_seq, **facts)


def _identity(headers: Sequence[tuple[bytes, bytes]], address: str) -> tuple[User, dict[str, str], str]:
    """Who opens the socket, what the permit remembers of it, and the token's name."""
    bearer = bearer_of(headers)
    if bearer is not None:
        try:
            user, token = token_user(bearer, address)
        except BadToken:
            raise Refused(UNAUTHENTICATED) from None
        return user, {"token_pk": token.pk}, token.name
    key = cookie_of(headers)
    if not key:
        raise Refused(UNAUTHENTICATED)
    store = SessionStore(session_key=key)
    found = get_user(SimpleNamespace(session=store))  # type: ignore[arg-type]
    if not isinstance(found, User) or not found.is_active:
        raise Refused(UNAUTHENTICATED)
    return found, {"cookie_key": key, "cookie_hash": found.get_session_auth_hash()}, ""


def cookie_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key of the console's session cookie, "" without one."""
    for name, value in headers:
        if name.lower() == b"cookie":
            return parse_cookie(value.decode("latin-1")).get(settings.SESSION_COOKIE_NAME, "")
    return ""


def verdicts(session_pk: int, permits: Sequence[Permit]) -> list[int | None]:
    """For each permit the code to close its socket with, or None while it holds. Four queries, whatever the number."""
    users = {user.pk: user for user in User.objects.filter(pk__in={permit.user_pk for permit in permits})}
    tokens = {
        token.pk: token
        for token in Token.objects.select_related("user").filter(pk__in={permit.token_pk for permit in permits})
    }
    keys = {permit.cookie_key for permit in permits} - {""}
    cookies = set(
        Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()).values_list(
            "session_key", flat=True
        )
    )
    visible: dict[int, bool] = {}
    for user in users.values():
        visible[user.pk] = AgentSession.objects.visible_to(user).filter(pk=session_pk).exists()
    found: list[int | None] = []
    for permit in permits:
        user_of = users.get(permit.user_pk)
        if user_of is None or not _still_signed_in(permit, user_of, tokens, cookies):
            found.append(UNAUTHENTICATED)
        else:
            found.append(None if visible[permit.user_pk] else GONE)
    return found


def _still_signed_in(permit: Permit, user: User, tokens: dict[str, Token], cookies: set[str]) -> bool:
    if permit.token_pk:
        token = tokens.get(permit.token_pk)
        return token is not None and token_alive(token)
    same = hmac.compare_digest(permit.cookie_hash, user.get_session_auth_hash())
    return user.is_active and same and permit.cookie_key in cookies
