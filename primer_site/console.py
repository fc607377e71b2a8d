"""The console as a whole: its frame, its middleware, its own error pages, and which pages there are."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, URLResolver, include, path
from django.utils import timezone

from accounts.pages import account, admin
from accounts.pages.views import failed, page
from agents.pages.agents import AGENTS
from agents.pages.llm_providers import LLM_PROVIDERS
from primer_site import deep_page, overview, palette, problems, system
from primer_site.errors import Forbidden, Malformed, NotFound, PrimerError
from primer_site.navigation import makes, role_of, sections
from sessions_app.pages.sessions import SESSIONS
from workspaces.pages import execs, files
from workspaces.pages.providers import PROVIDERS
from workspaces.pages.templates import TEMPLATES
from workspaces.pages.workspaces import WORKSPACES

# Imports go from sessions down; what the pages below show of sessions is put in here.
WORKSPACES.session_pages = AGENTS.session_pages = SESSIONS

MACHINES = ("/v1/", "/healthz", "/readyz", "/metrics", "/static/", "/ws/")
BEFORE_THE_CHANGE = ("/account/password/", "/account/theme/", "/logout/", "/login/")
HTMX_CONFIG = (
    '{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,'
    '"historyCacheSize":0,"historyRestoreAsHxRequest":false,"responseHandling":['
    '{"code":"204","swap":false},{"code":"[23]..","swap":true},{"code":"422","swap":true},'
    '{"code":"[45]..","swap":false,"error":true}]}'
)


def frame(request: HttpRequest) -> dict[str, Any]:
    """What every page's frame needs. A context processor; asks the database nothing."""
    theme = request.COOKIES.get("primer_theme", "system")
    found = sections(request)
    entries = [entry.url for _, group in found for entry in group]
    here = max(
        (url for url in entries if request.path.startswith(url) and (url != "/" or request.path == "/")),
        key=len,
        default="",
    )
    return {
        "nav": found, "here": here, "theme": theme if theme in account.THEMES else "system", "role": role_of(request),
        "new_menu": makes(request), "htmx_config": HTMX_CONFIG,
    }  # fmt: skip


class ConsoleMiddleware:
    """The page's time zone, the forced change of a generated password, and the headers that pages and API share."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._forced(request)
        if response is None:
            with timezone.override(_zone(request)):
                response = self.get_response(request)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        return response

    @staticmethod
    def _forced(request: HttpRequest) -> HttpResponse | None:
        """Only the console insists: a token bought with a generated password works."""
        if request.path.startswith((*MACHINES, *BEFORE_THE_CHANGE)):
            return None
        return HttpResponseRedirect("/account/password/") if account.MUST_CHANGE in request.session else None


def _zone(request: HttpRequest) -> zoneinfo.ZoneInfo | None:
    name = request.COOKIES.get("primer_zone", "")
    try:
        return zoneinfo.ZoneInfo(name) if name and name in zoneinfo.available_timezones() else None
    except (ValueError, OSError):
        return None


def _refused(request: HttpRequest, error: PrimerError) -> HttpResponse:
    """Machines get problem+json, people a page."""
    wants_page = "text/html" in request.headers.get("Accept", "") and not request.path.startswith(MACHINES)
    return failed(request, error) if wants_page and hasattr(request, "user") else problems.respond(request, error)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return (
        _refused(request, NotFound(f"There is no such page: {request.path[:200]}"))
        if _is_page(request)
        else problems.page_not_found(request)
    )


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _refused(request, Malformed("The request cannot be understood, or names a host this server does not serve."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _refused(request, Forbidden())


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    text = "The form was opened before the last sign-in, or by another page."
    return _refused(request, Forbidden(text, hint="Reload the page and send it again."))


def error(request: HttpRequest) -> HttpResponse:
    return _refused(request, problems.Bug())


def _is_page(request: HttpRequest) -> bool:
    return "text/html" in request.headers.get("Accept", "") and not request.path.startswith(MACHINES)


urls: list[URLPattern | URLResolver] = [
    path("", page(overview.overview), name="overview"),
    path("dismiss/", page(overview.dismiss), name="overview-dismiss"),
    path("search/", page(palette.search), name="search"),
    *account.urls,
    path("workspaces/templates/", include(TEMPLATES.urls)),
    path("workspaces/providers/", include(PROVIDERS.urls)),
    path("workspaces/<str:id>/exec/", page(execs.console), name="workspace-exec"),
    path("workspaces/<str:id>/exec/<str:exec_id>/", page(execs.one), name="workspace-exec-one"),
    path("workspaces/<str:id>/exec/<str:exec_id>/stop/", page(execs.stop), name="workspace-exec-stop"),
    path("workspaces/<str:id>/exec/<str:exec_id>/raw/", page(execs.raw), name="workspace-exec-raw"),
    path("workspaces/", include(WORKSPACES.urls)),
    path("sessions/", include(SESSIONS.urls)),
    path("compute/agents/", include(AGENTS.urls)),
    path("compute/llm-providers/", include(LLM_PROVIDERS.urls)),
    path("files/", page(files.index), name="files"),
    path("files/<str:id>/", page(files.browse), name="files-root"),
    path("files/<str:id>/<path:path>", page(files.browse), name="files-path"),
    path("admin/system/", page(system.system), name="system"),
    path("admin/system/deep/", page(deep_page.deep_check), name="system-deep"),
    *admin.urls,
]
