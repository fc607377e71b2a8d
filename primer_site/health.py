"""`/healthz` (the process answers) and `/readyz` (it can work). Everyone gets yes or no, admins the details."""

from __future__ import annotations

from collections.abc import Callable

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.contrib.auth.decorators import login_not_required
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import api_view, permission_classes
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from primer_site import services

SILENCE_S = 30.0  # services look for work each second; a database that is slow for a moment is no reason
_migrated = False


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"ok": True})


@extend_schema(exclude=True)
@api_view(["GET"])
@permission_classes([AllowAny])
def readyz(request: Request) -> Response:
    """200 when everything works, else 503. `checks` names each part and is "ok" or a sentence; only admins see it."""
    checks = measure()
    ready = all(state == "ok" for state in checks.values())
    body: dict[str, object] = {"ready": ready}
    if getattr(request.user, "is_admin", False):
        body["checks"] = checks
    return Response(body, status=200 if ready else 503, headers={} if ready else {"Retry-After": "2"})


def measure() -> dict[str, str]:
    """Each part of this process and its state: "ok" or a sentence."""
    parts: dict[str, Callable[[], str]] = {
        "database": _database,
        "migrations": _migrations,
        "channel_layer": _channel_layer,
    }
    found = {name: part() for name, part in parts.items()}
    for name, runs in services.states().items():
        found[name] = _service(name, runs)
    return found


def _service(name: str, runs: bool) -> str:
    if not runs:
        return "The service failed and is being started again; the log has the reason."
    if (silent_s := services.silence(name)) > SILENCE_S:
        return f"The service has given no sign of life for {silent_s:.0f} s."
    return "ok"


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "The database does not answer."
    return "ok"


def _migrations() -> str:
    """Looked at until they are complete: nothing undoes them while the process runs."""
    global _migrated
    if not _migrated:
        try:
            executor = MigrationExecutor(connection)
        except DatabaseError:
            return "The database does not answer."
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return "ok" if _migrated else f"The database {DEFAULT_DB_ALIAS!r} lacks migrations. Run: primer up --prepare-only"


def _channel_layer() -> str:
    layer = get_channel_layer()
    if layer is None:
        return "No channel layer is configured."

    async def echo() -> bool:
        name = await layer.new_channel()
        await layer.send(name, {"type": "health.echo"})
        return bool((await layer.receive(name))["type"] == "health.echo")

    try:
        return "ok" if async_to_sync(echo)() else "The channel layer returned something else."
    except Exception as exc:  # any driver, any failure: the answer is the same
        return f"The channel layer does not work ({type(exc).__name__})."
