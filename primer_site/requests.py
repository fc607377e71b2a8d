"""One id and one log line for each request; the id goes into every answer and every error."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils.http import http_date

from primer_site import metrics

log = structlog.get_logger(__name__)
_GIVEN = re.compile(r"[A-Za-z0-9._-]{8,64}")


def request_id(request: HttpRequest | None) -> str:
    """The id of this request, or "" outside one."""
    return getattr(request, "primer_request_id", "") if request is not None else ""


def client_address(request: HttpRequest) -> str:
    """Where the request came from: the peer's address. Forwarded headers are not believed."""
    return str(request.META.get("REMOTE_ADDR") or "")


class RequestMiddleware:
    """Names the request, logs its answer, and keeps errors of pages that DRF never sees in the one shape."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        number = given if _GIVEN.fullmatch(given) else secrets.token_hex(8)
        request.primer_request_id = number  # type: ignore[attr-defined]
        began = time.monotonic()
        response = self.get_response(request)
        response["X-Request-ID"] = number
        response["Date"] = http_date()  # Daphne sends none, and clients compare clocks by it
        metrics.request_seen(request.method, response.status_code, time.monotonic() - began)
        if not request.path.startswith(("/healthz", "/readyz", "/metrics", "/static/")):
            log.info(
                "request", method=request.method, path=request.path, status=response.status_code, request_id=number,
                ms=round((time.monotonic() - began) * 1000, 1),
            )  # fmt: skip
        return response
