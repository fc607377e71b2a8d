"""Every failure of the API as one `application/problem+json`; what is not our error type is a bug and says only its id."""

from __future__ import annotations

import errno
import sqlite3
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, TooManyFieldsSent
from django.core.exceptions import ValidationError as ModelInvalid
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions as drf
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from primer_site.errors import (
    FieldError,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    PrimerError,
    RateLimited,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMedia,
)
from primer_site.requests import request_id

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"


class Bug(PrimerError):
    """The server met an error of its own. Nothing you sent explains it; the log has the details under this request id."""

    code, status = "internal", 500


class MethodNotAllowed(PrimerError):
    """This route does not take that method."""

    code, status = "method_not_allowed", 405


class StorageFull(PrimerError):
    """The disk of this server is full: nothing was stored."""

    code, status, retryable = "disk_full", 507, True
    hint = "Free space on the server's disk: primer doctor says how much is left."


class Negotiation(DefaultContentNegotiation):
    """DRF's own; a `?format=` that there is not is a wrong parameter, and no object that is missing."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        try:
            return super().filter_renderers(renderers, format)
        except Http404:
            known = ", ".join(sorted({str(renderer.format) for renderer in renderers}))
            raise Invalid("format is not valid.", errors=[FieldError("format", f"must be one of {known}")]) from None


def handle(exc: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler."""
    request = context.get("request")
    error = to_error(exc)
    if request is not None:
        # Otherwise the view's own renderer would write the body: YAML or HTML under a JSON content type.
        request.accepted_renderer, request.accepted_media_type = JSONRenderer(), "application/json"
    body = error.to_problem(request_id(getattr(request, "_request", request)))
    response = Response(body, status=error.status, content_type=CONTENT_TYPE)
    _headers(response, error)
    return response


def respond(request: HttpRequest, error: PrimerError) -> JsonResponse:
    """The same answer outside DRF: unknown routes, wrong hosts, middleware."""
    response = JsonResponse(error.to_problem(request_id(request)), status=error.status, content_type=CONTENT_TYPE)
    _headers(response, error)
    return response


def _headers(response: Response | JsonResponse, error: PrimerError) -> None:
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None or error.status == 503:
        response["Retry-After"] = str(error.retry_after_s or 5)


def to_error(exc: Exception) -> PrimerError:
    """The error of ours that stands for any exception; an unknown one is logged whole and becomes `Bug`."""
    if isinstance(exc, PrimerError):
        if exc.log:
            log.warning("refused", code=exc.code, detail=exc.detail, cause=exc.log)
        return exc
    if (known := _from_framework(exc)) is not None:
        return known
    log.error("bug", exc_info=exc)
    return Bug()


def _from_framework(exc: Exception) -> PrimerError | None:
    match exc:
        case drf.ValidationError():
            return Invalid("The request is not valid.", errors=field_errors(exc.detail))
        case ModelInvalid():
            return Invalid("The request is not valid.", errors=field_errors(getattr(exc, "message_dict", exc.messages)))
        case drf.ParseError():
            return Malformed()
        case drf.NotAuthenticated() | drf.AuthenticationFailed():
            return Unauthenticated()
        case drf.PermissionDenied() | PermissionDenied():
            return Forbidden(str(exc.detail) if isinstance(exc, drf.PermissionDenied) else "")
        case drf.NotFound() | Http404():
            return NotFound()
        case drf.MethodNotAllowed():
            return MethodNotAllowed()
        case drf.UnsupportedMediaType():
            return UnsupportedMedia()
        case drf.NotAcceptable():
            return Invalid("No representation fits the Accept header. Ask for application/json.")
        case drf.Throttled():
            wait = int(getattr(exc, "wait", None) or 1) + 1
            return RateLimited(f"Too many requests. Try again in {wait} s.", retry_after_s=wait)
        case RequestDataTooBig() | TooManyFieldsSent():
            return TooLarge()
        case OperationalError() | InterfaceError() | OSError():
            return _from_storage(exc)
    return None


def _from_storage(exc: Exception) -> PrimerError | None:
    if _disk_is_full(exc):
        log.error("disk full", exc_info=exc)
        return StorageFull()
    if isinstance(exc, OSError):
        return None
    log.error("database", exc_info=exc)
    return Unavailable("The database did not answer in time. Try again.", retry_after_s=2)


def _disk_is_full(exc: Exception) -> bool:
    """Of the database (Django keeps SQLite's own error as the cause) or of a file."""
    if isinstance(exc, OSError):
        return exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(exc.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def field_errors(detail: Any, prefix: str = "") -> list[FieldError]:
    """Flattens DRF's nested errors to dotted fields: `{"backend": {"image": ["…"]}}` is `backend.image`."""
    if isinstance(detail, dict):
        found: list[FieldError] = []
        for key, value in detail.items():
            if isinstance(key, int):  # an item of a list
                name = f"{prefix}[{key}]"
            else:
                name = prefix if key == "non_field_errors" else f"{prefix}.{key}" if prefix else str(key)
            found += field_errors(value, name)
        return found
    if isinstance(detail, list | tuple):
        if all(not isinstance(item, dict | list) for item in detail):
            return [FieldError(prefix, _sentence_part(item)) for item in detail]
        return [error for index, item in enumerate(detail) for error in field_errors(item, f"{prefix}[{index}]")]
    return [FieldError(prefix, _sentence_part(detail))]


def _sentence_part(message: Any) -> str:
    """DRF's sentences as the end of one that begins with the field's name."""
    text = str(message).strip()
    text = text if text.endswith("..") else text.removesuffix(".")  # a path's dots are no end of a sentence
    known = {"This field is required": "is required", "This field may not be null": "must not be null",
             "This field may not be blank": "must not be empty"}  # fmt: skip
    return known.get(text, text[:1].lower() + text[1:] if text[:2].istitle() else text)


def page_not_found(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    return respond(request, NotFound(f"There is no such route: {request.path[:200]}"))


def page_bad_request(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    return respond(request, Malformed("The request cannot be understood, or names a host this server does not serve."))


def page_forbidden(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    return respond(request, Forbidden())


def page_error(request: HttpRequest) -> JsonResponse:
    return respond(request, Bug())


def csrf_failure(request: HttpRequest, reason: str = "") -> JsonResponse:
    return respond(request, Forbidden("The request carries the sign-in cookie but no valid CSRF token."))
