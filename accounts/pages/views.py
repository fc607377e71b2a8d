"""What every page does: errors become pages, fragments answer htmx, and toasts travel with both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme

from primer_site import problems
from primer_site.errors import Forbidden, NotFound, PrimerError
from primer_site.requests import request_id

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
UNPROCESSABLE = 422
STOP_POLLING = 286  # htmx: swap this and ask no more
SUGGESTED = 500


def page(view: View[P]) -> View[P]:
    """A view whose every failure is a page of its own (for htmx: a toast), with the request's id."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            response = view(request, *args, **kwargs)
        except Exception as exc:
            response = failed(request, problems.to_error(exc))
        response.headers.setdefault("Cache-Control", "private, no-cache")
        patch_vary_headers(response, ("HX-Request",))  # a fragment and its page have one address
        return response

    return guarded


def failed(request: HttpRequest, error: PrimerError) -> HttpResponse:
    """The page of an error; htmx gets a toast and keeps what it shows."""
    if is_fragment(request):
        response = HttpResponse(status=error.status)
        return toast(response, error.detail, level="error", hint=error.hint_text, request_id=request_id(request))
    state = "gone" if isinstance(error, NotFound) else "forbidden" if isinstance(error, Forbidden) else "failed"
    context = {"error": error, "state": state, "request_id": request_id(request)}
    response = render(request, "state.html", context, status=error.status)
    if error.retry_after_s is not None:
        response["Retry-After"] = str(error.retry_after_s)
    return response


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for a part of the page; what it puts back from the history is a whole one."""
    return bool(request.headers.get("HX-Request")) and not request.headers.get("HX-History-Restore-Request")


def toast(response: HttpResponse, text: str, *, level: str = "info", **more: str) -> HttpResponse:
    # ASCII: a header carries nothing else.
    response["HX-Trigger"] = json.dumps({"toast": {"text": text, "level": level, **more}})
    return response


def done(request: HttpRequest, text: str, to: str) -> HttpResponse:
    """After a change: a message, and the way on; what was typed is never sent twice."""
    messages.success(request, text)
    return HttpResponseRedirect(to, status=303)


def back(request: HttpRequest, otherwise: str) -> str:
    """Where a form says it came from, if that is here."""
    asked = request.POST.get("next") or request.GET.get("next") or ""
    safe = url_has_allowed_host_and_scheme(asked, allowed_hosts=None, require_https=False)
    return asked if asked.startswith("/") and safe else otherwise


def suggestions(request: HttpRequest, ask: Callable[[], Iterable[str]]) -> HttpResponse:
    """Options of a field's list, fetched by the page when it is there; what cannot be asked leaves the field as it is."""
    try:
        found = list(ask())[:SUGGESTED]
    except Exception as exc:
        if isinstance(problems.to_error(exc), problems.Bug):
            raise
        found = []
    return render(request, "partials/suggestions.html", {"found": found}) if found else HttpResponse(status=204)


def part(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """An answer that htmx puts into the page; without scripts it is a page of its own, with the way back."""
    if is_fragment(request):
        return render(request, template, context)
    return render(request, "part.html", {**context, "part": template, "heading": "Result"})
