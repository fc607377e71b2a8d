"""The console as a whole: its frame, its middleware, its own error pages, and which pages there are."""

from __future__ import annotations

import os
import zoneinfo
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.urls.converters import StringConverter
from django.utils import timezone

from accounts.pages import account, admin
from accounts.pages.views import failed, page
from agents.pages.agents import AGENTS
from agents.pages.llm_providers import LLM_PROVIDERS
from primer_site import deep_page, engine, overview, palette, problems, system
from primer_site.errors import Forbidden, Malformed, NotFound, PrimerError, TooLarge
from primer_site.navigation import makes, role_of, sections
from sessions_app.pages.sessions import SESSIONS
from workspaces.pages import execs, files
from workspaces.pages.providers import PROVIDERS
from workspaces.pages.templates import TEMPLATES
from workspaces.pages.workspaces import WORKSPACES

# Imports go from sessions down; what the pages below show of sessions is put in here.
WORKSPACES.session_pages = AGENTS.session_pages = SESSIONS
PROVIDERS.local_socket = engine.socket_path

FORM_BYTES = 3 * 1024**2
EDITED_BYTES = 8 * 1024**2  # a file of the editor's 2 MiB may be three times as long in a form
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


def body_bytes(request: HttpRequest) -> int:
    """The size of a request's body. One that was sent in chunks names none: what has arrived of it is a file by then."""
    told = str(request.META.get("CONTENT_LENGTH") or "")
    stream = getattr(request, "_stream", None)
    if told or stream is None or not (hasattr(stream, "seekable") and stream.seekable()):
        return int(told) if told.isdigit() else 0
    end: int = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return end


def _refuse_body(request: HttpRequest) -> HttpResponse | None:
    """413 for a form that is larger than any of ours, before the check of its CSRF token would take it apart."""
    if request.method in ("GET", "HEAD") or request.path.startswith(MACHINES):
        return None
    files = request.path.startswith("/files/")
    if files and request.content_type == "multipart/form-data":
        return None  # uploads go to disk, and have a limit of their own
    limit = EDITED_BYTES if files else FORM_BYTES
    if body_bytes(request) <= limit:
        return None
    text = f"The form is larger than {limit // 2**20} MiB, which is the most that this page takes. Nothing was stored."
    return _refused(request, TooLarge(text, hint="Send it with primectl or by the API, whose limit is higher."))


class ConsoleMiddleware:
    """The page's time zone, the forced change of a generated password, the bound of a form's size, and the headers that
    pages and API share.
    """

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = _refuse_body(request) or self._forced(request)
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
        if account.MUST_CHANGE not in request.session:
            return None
        asked = f"?{urlencode({'next': request.get_full_path()})}" if request.method == "GET" else ""
        return HttpResponseRedirect("/account/password/" + asked)


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


class AnyPath(StringConverter):
    """A path in a workspace: whatever a file may be called there, line ends too."""

    regex = r"[\s\S]+"


register_converter(AnyPath, "any")

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
    path("files/<str:id>/<any:path>", page(files.browse), name="files-path"),
    path("admin/system/", page(system.system), name="system"),
    path("admin/system/deep/", page(deep_page.deep_check), name="system-deep"),
    *admin.urls,
]
