"""The first page: what to do first, what needs attention, what runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Count, Q, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone

from accounts import services as accounts
from accounts.models import User
from primer_site import engine
from primer_site.first_run import checklist
from sessions_app.models import AgentSession, EndedReason, Status
from sessions_app.pages.sessions import SESSIONS
from workspaces import unowned
from workspaces.models import Health, Phase, Workspace, WorkspaceProvider
from workspaces.providers.base import ImageNotFound

RECENT = 10
LISTED = 20
YEAR_S = 365 * 24 * 3600
DISMISSED = "primer_first_run"


def overview(request: HttpRequest) -> HttpResponse:
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - the login middleware made sure
    sessions = AgentSession.objects.visible_to(user)
    workspaces = Workspace.objects.visible_to(user)
    recent = sessions.select_related("owner", "agent", "workspace").order_by("-created_at")[:RECENT]
    steps = checklist(user)
    context = {
        "heading": "Overview", "cards": cards(sessions, workspaces), "attention": attention(user, workspaces),
        "recent": SESSIONS.draw(request, list(recent)), "pages": SESSIONS, "columns": SESSIONS.columns,
        "steps": steps if request.COOKIES.get(DISMISSED) != "done" and not all(s["done"] for s in steps) else [],
    }  # fmt: skip
    return render(request, "overview.html", context)


def dismiss(request: HttpRequest) -> HttpResponse:
    response = HttpResponseRedirect("/", status=303)
    if request.method == "POST":
        response.set_cookie(DISMISSED, "done", max_age=YEAR_S, samesite="Lax", httponly=True)
    return response


def cards(sessions: Any, workspaces: Any) -> list[dict[str, Any]]:
    day = timezone.now() - timedelta(days=1)
    providers = WorkspaceProvider.objects.live().aggregate(
        n=Count("pk"), good=Count("pk", filter=Q(health=Health.HEALTHY))
    )
    used = sessions.filter(created_at__gt=day).aggregate(
        running=Count("pk"), failed=Count("pk", filter=Q(ended_reason=EndedReason.FAILED)), given=_sum("input_tokens"), made=_sum("output_tokens")
    )  # fmt: skip
    running = sessions.filter(status=Status.RUNNING).count()
    alive = workspaces.filter(phase=Phase.RUNNING).count()
    return [
        {
            "label": "Providers healthy",
            "value": f"{providers['good']} / {providers['n']}",
            "url": "/workspaces/providers/",
        },
        {"label": "Workspaces running", "value": alive, "url": "/workspaces/?phase=running"},
        {"label": "Sessions running", "value": running, "url": "/sessions/?status=running"},
        {"label": "Failures, 24 h", "value": used["failed"], "url": "/sessions/?ended_reason=failed&time=24h"},
        {
            "label": "Tokens in → out, 24 h",
            "value": f"{used['given']:,} → {used['made']:,}",
            "url": "/sessions/?time=24h",
        },
    ]


def _sum(name: str) -> Any:
    return Coalesce(Sum(Cast(KeyTextTransform(name, "usage"), models.BigIntegerField())), 0)


def attention(user: User, workspaces: Any) -> list[dict[str, str]]:
    """What somebody should look at, worst first."""
    found: list[dict[str, str]] = []
    for row in workspaces.filter(confinement__verdict="failed").exclude(provider__provider="local")[:LISTED]:
        wrong = [check for check in row.confinement.get("checks", []) if check.get("ok") is False]
        shown = [
            f"{one['name'].replace('_', ' ')}: asked for {one['expected']}, the sandbox shows {one['observed']}"
            for one in wrong
        ]
        found.append(
            {
                "level": "fail",
                "text": f"{row.slug}: {'; '.join(shown) or 'the probes contradict what was asked'}"[:300],
                "url": f"/workspaces/{row.slug}/confinement/",
            }
        )
    for row in workspaces.filter(phase__in=[Phase.FAILED, Phase.LOST])[:LISTED]:
        why = row.phase_detail or row.phase_reason.replace("_", " ")
        found.append(
            {"level": "fail", "text": f"{row.slug} {row.phase}: {why}"[:300], "url": f"/workspaces/{row.slug}/"}
        )
    without = workspaces.filter(phase=Phase.FAILED, phase_reason=ImageNotFound.code, template__deleted_at=None)
    for slug in without.order_by("template__slug").values_list("template__slug", flat=True).distinct()[:LISTED]:
        text = f"Template {slug}: its image was not on the engine"
        found.append({"level": "fail", "text": text, "url": f"/workspaces/templates/{slug}/"})
    for provider in WorkspaceProvider.objects.live().exclude(health__in=[Health.HEALTHY, Health.UNKNOWN])[:LISTED]:
        level = "fail" if provider.health == Health.UNREACHABLE else "warn"
        found.append(
            {
                "level": level,
                "text": f"Provider {provider.slug} is {provider.health}",
                "url": f"/workspaces/providers/{provider.slug}/",
            }
        )
    for provider in WorkspaceProvider.objects.live().filter(provider="local")[:LISTED]:
        found.append(
            {
                "level": "fail",
                "text": f"Provider {provider.slug} is local: what runs there is not isolated",
                "url": f"/workspaces/providers/{provider.slug}/",
            }
        )
    return [*found, *(_for_admins() if user.is_admin else [])]


def _for_admins() -> list[dict[str, str]]:
    found = []
    if (settings.PRIMER_HOME / accounts.INITIAL_PASSWORD_FILE).exists():
        found.append(
            {"level": "warn", "text": "The first admin's generated password is still set", "url": "/account/password/"}
        )
    if not WorkspaceProvider.objects.live().exists() and Path(engine.socket_path()).is_socket():
        found.append(
            {
                "level": "warn",
                "text": f"An engine answers at {engine.socket_path()} and no provider uses it",
                "url": "/workspaces/providers/new/",
            }
        )
    return [*found, *unowned.attention()]
