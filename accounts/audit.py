"""The audit log: every change leaves one line, in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from accounts.models import ActorKind, AuditEntry, Token, User
from primer_site.requests import client_address, request_id


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something, and from where: services take this instead of a request."""

    user: User
    address: str = ""
    request_id: str = ""
    token: str = ""  # its name

    @classmethod
    def of(cls, request: HttpRequest) -> Actor:
        """The actor of a request whose user is signed in."""
        user = request.user
        if not isinstance(user, User):
            raise TypeError("an actor is a signed-in user")
        token = getattr(request, "auth", None)
        name = token.name if isinstance(token, Token) else ""
        return cls(user, client_address(request), request_id(getattr(request, "_request", request)), name)


def audit_record(
    by: Actor | None,
    action: str,
    *,
    kind: str,
    object_id: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Writes one line. `before` and `after` hold the changed fields with secrets masked; `by` None is the server itself."""
    return AuditEntry.objects.create(
        actor=by.user if by else None,
        actor_name=by.user.username if by else "primer",
        actor_kind=ActorKind.USER if by else ActorKind.SERVER,
        token=by.token if by else "",
        action=action,
        kind=kind,
        object_id=object_id,
        before=before,
        after=after,
        address=by.address if by else "",
        request_id=by.request_id if by else "",
    )
