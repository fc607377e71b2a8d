"""Admin > System: the report of `primer doctor`, versions, and the state of this process."""

from __future__ import annotations

import platform
import shutil
from typing import Any

import django
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.models import User
from accounts.pages.views import is_fragment
from accounts.permissions import require_admin
from primer_site import deep_page, doctor, health, services
from primer_site.capabilities import server_version
from sessions_app.models import AgentSession, Status
from workspaces import image


def system(request: HttpRequest) -> HttpResponse:
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - the login middleware made sure
    require_admin(user)
    check = deep_page.latest()
    # A part that asks for the lines of a check needs no report again.
    found = [] if is_fragment(request) else list(doctor.examine())
    context = {"heading": "System", "findings": found, "parts": _parts(), "facts": _facts(), "check": check}
    return render(request, "system.html", context)


def _parts() -> list[dict[str, str]]:
    """Each part of this process, its state, and for a service that looks for work when it last did."""
    running, found = services.states(), []
    for name, state in health.measure().items():
        silent_s = services.silence(name) if name in running else 0.0
        note = f"last sign of life {silent_s:.1f} s ago" if silent_s else ""
        found.append({"name": name, "state": state, "note": note})
    return found


def _facts() -> list[tuple[str, Any]]:
    waiting = AgentSession.objects.filter(status=Status.QUEUED)
    oldest = waiting.order_by("queued_at").first()
    free = shutil.disk_usage(settings.PRIMER_HOME).free
    return [
        ("Primer", server_version()),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        ("Instance", settings.PRIMER_INSTANCE_ID),
        ("Data directory", str(settings.PRIMER_HOME)),
        ("Free there", f"{free / 1024**3:.1f} GiB"),
        ("Database", f"{connection.vendor}, {_database_bytes() / 1024**2:.1f} MiB"),
        ("Channel layer", type(get_channel_layer()).__name__),
        ("Sandbox image", image.TAG),
        ("Queued sessions", waiting.count()),
        ("Oldest of them", oldest.queued_at if oldest else "none waits"),
        ("Running sessions", AgentSession.objects.filter(status=Status.RUNNING).count()),
    ]


def _database_bytes() -> int:
    if connection.vendor != "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        pages = int(cursor.fetchone()[0])
        cursor.execute("PRAGMA page_size")
        return pages * int(cursor.fetchone()[0])
