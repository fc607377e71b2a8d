"""Who may do what: one permission class for every route, one function for every object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils import timezone
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from accounts.models import Role, Scope, Token, User
from primer_site.errors import Forbidden, Unauthenticated

if TYPE_CHECKING:  # DRF imports this module while it imports its own views
    from rest_framework.views import APIView

SCOPE_RANK = {Scope.READ.value: 0, Scope.WRITE.value: 1, Scope.ADMIN.value: 2}


class RoleAndScope(BasePermission):
    """Closed by default: signed in, scope `write` for writes, no writes for viewers, admin where the view says so.

    A view may set `admin_only` (True: every method; "write": only writes), `viewer_writes` (own tokens, password) and
    `any_scope` (signing out).
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        if not isinstance(user, User) or not user.is_active:
            raise Unauthenticated
        writes = request.method not in SAFE_METHODS
        if writes and not getattr(view, "any_scope", False):
            require_scope(request.auth, Scope.WRITE)
        if writes and user.role == Role.VIEWER and not getattr(view, "viewer_writes", False):
            raise Forbidden("Your role is viewer, which changes nothing. Ask an admin for the role member.")
        admin_only = getattr(view, "admin_only", False)
        if admin_only is True or (admin_only == "write" and writes):
            require_admin(user, request.auth)
        return True


def require_scope(auth: Any, scope: Scope) -> None:
    """Raises `Forbidden` when the request came with a token of a smaller scope; cookie sign-ins have no scope."""
    if isinstance(auth, Token) and SCOPE_RANK[auth.scope] < SCOPE_RANK[scope]:
        raise Forbidden(f"The token {auth.name!r} has the scope {auth.scope}; this needs {scope.value}.")


def maker_of(auth: Any) -> Token | None:
    """The program's token that a token of this request hangs on: its end, by expiry or revoked, is the other's end too.

    Who finds one could otherwise keep what they found for ever. One that a password has just bought stands for the person,
    as the cookie of the console does: nothing hangs on it, and None is answered.
    """
    return auth if isinstance(auth, Token) and not auth.signed_in else None


def longest_life_s(auth: Any) -> int | None:
    """How long a token may live that this request makes, in seconds; None for as long as is asked for. See `maker_of`."""
    maker = maker_of(auth)
    if maker is None or maker.expiry is None:
        return None
    return max(0, int((maker.expiry - timezone.now()).total_seconds()))


def require_admin(user: User, auth: Any = None) -> None:
    """Raises `Forbidden` naming the role, or the scope, that is missing."""
    if not user.is_admin:
        raise Forbidden(f"This needs the role admin; yours is {user.role}.")
    require_scope(auth, Scope.ADMIN)


def may_change(user: User, obj: Any) -> bool:
    """Whether `user` may change `obj`, which they can see: its owner or an admin; engines and models only an admin.

    The only place beside `visible_to` that looks at `owner`.
    """
    if user.role == Role.VIEWER or not user.is_active:
        return False
    if user.is_admin:
        return True
    return hasattr(obj, "owner_id") and obj.owner_id == user.pk


def require_change(user: User, obj: Any, auth: Any = None) -> None:
    """Raises `Forbidden` with the reason when `may_change` says no."""
    if not may_change(user, obj):
        who = f"its owner ({obj.owner.username}) or an admin" if hasattr(obj, "owner_id") else "an admin"
        raise Forbidden(f"Only {who} may change this {obj.KIND.replace('_', ' ')}.")
    if getattr(obj, "owner_id", None) != user.pk:  # as an admin, then
        require_scope(auth, Scope.ADMIN)


def require_own_or_admin(user: User, token: Token, auth: Any = None) -> None:
    """Raises `Forbidden` when `token` is somebody else's and this is no admin's request."""
    if token.user_id != user.pk:
        require_admin(user, auth)
