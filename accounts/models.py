"""People, their tokens, what they changed, and what they must not do twice."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.auth.models import UserManager as DjangoUserManager
from django.db import models
from django.db.models import Q
from knox.models import AbstractAuthToken, AuthTokenManager


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"  # sees what a member sees, writes only own tokens and password
    MEMBER = "member", "Member"
    ADMIN = "admin", "Admin"  # may define engines: root on their hosts


class Scope(models.TextChoices):
    READ = "read", "Read"
    WRITE = "write", "Write"
    ADMIN = "admin", "Admin"


class UserManager(DjangoUserManager["User"]):
    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **extra: Any
    ) -> User:
        extra.setdefault("role", Role.ADMIN)
        return super().create_superuser(username, email, password, **extra)


class User(AbstractUser):  # type: ignore[django-manager-missing]  # knox's relation has no types
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)
    last_login_address = models.CharField(max_length=64, blank=True, default="")
    shortcuts = models.BooleanField(default=True)  # whether the console listens to single keys

    objects: ClassVar[UserManager] = UserManager()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(role__in=Role.values), name="user_role_known")]

    @property
    def is_admin(self) -> bool:
        return self.is_active and self.role == Role.ADMIN

    @property
    def spec_rev(self) -> str:
        """What an admin can change, as the first part of the ETag; users have no counter of their own."""
        return _digest(self.role, self.is_active)

    @property
    def etag(self) -> str:
        return f'"{self.spec_rev}.{_digest(self.last_login, self.last_login_address)}"'


def _digest(*values: object) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


class TokenManager(AuthTokenManager):  # type: ignore[misc]  # knox has no types
    def visible_to(self, user: User, *, everybody: bool = False) -> models.QuerySet[Token]:
        """The user's own tokens; with `everybody`, an admin's view of all."""
        rows: models.QuerySet[Token] = self.all()
        return rows if everybody and user.is_admin else rows.filter(user=user)


class Token(AbstractAuthToken):  # type: ignore[misc]  # knox has no types
    """A bearer token: only its SHA-512 is stored. `expiry` None never ends; `last_used` is exact to a minute."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=100)
    scope = models.CharField(max_length=16, choices=Scope.choices, default=Scope.WRITE)
    signed_in = models.BooleanField(default=False)  # bought with a password, see `maker_of`
    # The program's token that made it, and takes it along; None where a person did, by the console or a sign-in.
    made_by = models.ForeignKey(
        "self", to_field="uuid", null=True, blank=True, editable=False, on_delete=models.CASCADE, related_name="made"
    )
    last_used = models.DateTimeField(null=True, blank=True)
    last_used_address = models.CharField(max_length=64, blank=True, default="")

    objects = TokenManager()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(scope__in=Scope.values), name="token_scope_known")]

    def __str__(self) -> str:
        return self.name


class ActorKind(models.TextChoices):
    USER = "user", "User"
    SERVER = "server", "The server itself"  # its own clean-up, and commands on its machine


class AuditEntry(models.Model):
    """One change: who, what, when, from where, before and after. Written in the transaction of the change itself."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)  # outlives the user
    actor_kind = models.CharField(max_length=16, choices=ActorKind.choices, default=ActorKind.USER)
    token = models.CharField(max_length=100, blank=True, default="")  # its name; "" for a browser's sign-in
    action = models.CharField(max_length=64)  # <kind>.<verb>
    kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=150)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    address = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["kind", "object_id"]),
            models.Index(fields=["actor_name", "at"], name="audit_actor"),
            models.Index(fields=["action", "at"], name="audit_action"),
        ]
        constraints = [models.CheckConstraint(condition=Q(actor_kind__in=ActorKind.values), name="audit_actor_known")]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.object_id}"


class IdempotencyKey(models.Model):
    """The first use of a key by a user, and the answer it got; `status` None while the first request still works."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=128)
    route = models.CharField(max_length=300)  # method and path
    body_hash = models.CharField(max_length=64)
    holder = models.CharField(max_length=32, default="")  # the process that works on it
    status = models.PositiveSmallIntegerField(null=True)
    response = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return f"{self.route} {self.key}"
