"""What routes of agents, models and sessions share: parameters of writes, and bodies that have no fields."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request

from accounts.rest import StrictSerializer

DRY = OpenApiParameter("dry_run", bool, description="Run every check and store nothing.")
KEY = OpenApiParameter("Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, description="Makes a repeat safe.")
CHANGES = extend_schema(parameters=[DRY])


class _NoFields(StrictSerializer):
    """Of an action that takes nothing: whatever is sent is unknown."""


def refuse_fields(request: Request) -> None:
    """Raises the 422 that names the fields of a body where none is expected; no body and `{}` are fine."""
    _NoFields(data=request.data).is_valid(raise_exception=True)
