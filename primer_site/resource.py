"""What every stored object of the API has: labels, times, and the two counters behind its ETag."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Self

from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

SLUG_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"
# Words that stand where an id stands, in the API or in the console: an object of that name could not be reached.
RESERVED_IDS = frozenset({"bulk", "check", "new"})


def new_id(prefix: str) -> str:
    """A server-made id: the prefix and 16 hex digits (`ws-5f0c…`)."""
    return f"{prefix}-{secrets.token_hex(8)}"


class Resource(models.Model):
    """Base of the API's objects. `spec_rev` moves with what a user writes, `state_rev` with anything that reads show."""

    # What PUT and PATCH write: only a change of one of these moves `spec_rev` and `updated_at`.
    SPEC_FIELDS: ClassVar[tuple[str, ...]] = ("labels",)
    KIND: ClassVar[str] = ""

    labels = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)
    spec_rev = models.PositiveBigIntegerField(default=1, editable=False)
    state_rev = models.PositiveBigIntegerField(default=1, editable=False)

    class Meta:
        abstract = True

    @property
    def public_id(self) -> str:
        """The id that people see."""
        raise AttributeError(f"{type(self).__name__} names its own public id")

    @property
    def etag(self) -> str:
        return f'"{self.spec_rev}.{self.state_rev}"'

    def write_spec(self, values: dict[str, Any]) -> list[str]:
        """Stores new values of SPEC_FIELDS and returns the names of those that changed; nothing moves when none did."""
        changed = [name for name, value in values.items() if getattr(self, name) != value]
        if not changed:
            return []
        for name in changed:
            setattr(self, name, values[name])
        self.spec_rev += 1
        self.state_rev += 1
        self.updated_at = timezone.now()
        self.save(update_fields=[*changed, "spec_rev", "state_rev", "updated_at"])
        return changed


class LiveQuerySet(models.QuerySet[Any]):
    """Rows that are not deleted; history keeps the others."""

    def live(self) -> Self:
        return self.filter(deleted_at=None)


class SluggedResource(Resource):
    """A resource with the caller's id; a slug is unique among live rows, so a deleted one may be made again."""

    slug = models.CharField(max_length=63, validators=[RegexValidator(SLUG_PATTERN)])
    description = models.TextField(blank=True, default="", max_length=4096)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    SPEC_FIELDS: ClassVar[tuple[str, ...]] = ("labels", "description")

    class Meta:
        abstract = True
        constraints = [
            models.UniqueConstraint(
                fields=["slug"], condition=models.Q(deleted_at=None), name="%(app_label)s_%(class)s_live_slug"
            )
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return self.slug
