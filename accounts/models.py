"""People, their tokens, what they changed, and what they must not do twice."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.auth.models import UserManager as DjangoUserManager
from django.db import models, transaction
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


class TokenQuerySet(models.QuerySet["Token"]):
    """Tokens; with those that are deleted go those that they made, however long the chain is."""

    def family(self) -> list[Token]:
        """These and those that they made, directly or not: makers before what they made."""
        found = level = list(self.select_related("user", "made_by"))
        known = {token.pk for token in found}
        while level:
            made: list[Token] = []
            for makers in batched([token.uuid for token in level]):
                made += self.model._base_manager.select_related("user", "made_by").filter(made_by__in=makers)
            level = [token for token in made if token.pk not in known]
            known.update(token.pk for token in level)
            found = found + level
        return found

    def delete(self) -> tuple[int, dict[str, int]]:
        """Flat: Django's own cascade calls itself for each level, and a chain of a thousand would be one that stays."""
        with transaction.atomic(using=self.db):
            return self.remove(self.family())

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def remove(self, tokens: list[Token]) -> tuple[int, dict[str, int]]:
        """Deletes a `family`, last those that made the others; what `delete` of any queryset returns."""
        count = 0
        for digests in batched([token.pk for token in reversed(tokens)]):
            count += self.model._base_manager.using(self.db).filter(pk__in=digests)._raw_delete(self.db)
        return count, {self.model._meta.label: count} if count else {}


def batched(values: list[Any], size: int = 500) -> Iterator[list[Any]]:
    """Pieces that fit into the variables of one statement of SQLite."""
    return (values[at : at + size] for at in range(0, len(values), size))


class TokenManager(AuthTokenManager):  # type: ignore[misc]  # knox has no types
    def get_queryset(self) -> TokenQuerySet:
        return TokenQuerySet(self.model, using=self._db)

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

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """As of a queryset, with those that it made."""
        rows: TokenQuerySet = Token.objects.get_queryset().filter(pk=self.pk)
        return rows.delete()


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
