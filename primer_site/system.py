"""Admin > System: the report of `primer doctor`, versions, and the state of this process."""

from __future__ import annotations

import platform
from typing import Any

import django
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from accounts.models import User
from accounts.permissions import require_admin
from primer_site import doctor, health
from primer_site.capabilities import server_version
from sessions_app.models import AgentSession, Status


def system(request: HttpRequest) -> HttpResponse:
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - the login middleware made sure
    require_admin(user)
    found = list(doctor.examine())
    context = {"heading": "System", "findings": found, "parts": health.measure(), "facts": _facts()}
    return render(request, "system.html", context)


def _facts() -> list[tuple[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        pages = cursor.fetchone()[0]
        cursor.execute("PRAGMA page_size")
        size = cursor.fetchone()[0]
    waiting = AgentSession.objects.filter(status=Status.QUEUED).order_by("queued_at").first()
    return [
        ("Primer", server_version()),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        ("Instance", settings.PRIMER_INSTANCE_ID),
        ("Data directory", str(settings.PRIMER_HOME)),
        ("Database", f"{pages * size / 1024**2:.1f} MiB"),
        ("Oldest queued session", waiting.queued_at if waiting else "none waits"),
    ]
