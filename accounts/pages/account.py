"""Signing in and out, and what belongs to oneself: password, theme, time zone, tokens."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from typing import Any

from django.contrib.auth import login as start_session
from django.contrib.auth import logout as end_session
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils import timezone

from accounts import services
from accounts.api import LoginView, PasswordView, TokenViewSet
from accounts.models import User
from accounts.pages import once
from accounts.pages.door import Door
from accounts.pages.views import UNPROCESSABLE, back, done, page
from primer_site import problems
from primer_site.errors import FieldError, Invalid, PrimerError
from primer_site.parsing import whole

THEMES = ("system", "light", "dark")
MUST_CHANGE = "must_change_password"
YEAR_S = 365 * 24 * 3600
PASSWORDS = (
    ("old", "Old password", "current-password"),
    ("new", "New password", "new-password"),
    ("again", "New password again", "new-password"),
)
KEYS = (
    (("Ctrl K", "⌘ K"), "search pages, objects and actions"),
    (("?",), "this list"),
    (("/",), "filter the list, search the transcript, or search everything"),
    (("g",), "go, with the next letter, to a page:"),
    (("c",), "create: the button of the page, or the New menu"),
    (("j", "k"), "the next or the previous row"),
    (("Enter",), "open the row"),
    (("x",), "select the row"),
    (("y",), "the YAML of what is shown"),
    (("f",), "follow the transcript"),
    (("e",), "expand everything in the transcript, or collapse it"),
    (("[", "]"), "the previous or the next call of the transcript"),
    (("n", "N"), "the next or the previous place where the transcript holds what is searched"),
    (("Esc",), "close what is open, leave a field"),
)  # fmt: skip
LIFETIMES = ((3600, "1 hour"), (86400, "1 day"), (30 * 86400, "30 days"), (YEAR_S, "1 year"), ("", "never"))


@login_not_required
def sign_in(request: HttpRequest) -> HttpResponse:
    """The form that everybody may see; throttled as the API's door is."""
    if request.user.is_authenticated:
        return HttpResponseRedirect(back(request, "/"))
    error: PrimerError | None = None
    if request.method == "POST":
        given = {name: request.POST.get(name, "") for name in ("username", "password")}
        try:
            Door(LoginView, request).view("POST", "post", data=given)
            user = services.signed_in(**given)
            start_session(request, user, backend="django.contrib.auth.backends.ModelBackend")
            if services.is_generated(given["password"]):
                request.session[MUST_CHANGE] = True
            return HttpResponseRedirect(back(request, "/"), status=303)
        except Exception as exc:
            error = problems.to_error(exc)
            if error.code == "internal":
                raise
    context = {"error": error, "next": back(request, ""), "username": request.POST.get("username", "")[:150]}
    return render(request, "accounts/sign_in.html", context, status=error.status if error else 200)


def sign_out(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        end_session(request)
    return HttpResponseRedirect("/login/", status=303)


def account(request: HttpRequest) -> HttpResponse:
    """Password, looks, time zone and own tokens on one page."""
    made = once.take(request)
    response = _account_page(request, made=made)
    return once.unstored(response) if made else response


def _account_page(request: HttpRequest, *, status: int = 200, **given: Any) -> HttpResponse:
    tokens = list(Door(TokenViewSet, request).view("GET", "list").get_queryset().order_by("-created"))
    zones = sorted(name for name in zoneinfo.available_timezones() if "/" in name or name == "UTC")
    context = {
        "heading": "Account",
        "tokens": tokens,
        "server": request.build_absolute_uri("/").rstrip("/"),
        "zones": zones,
        "zone": timezone.get_current_timezone_name(),
        "lifetimes": LIFETIMES,
        "themes": THEMES,
        **given,
    }
    return render(request, "accounts/account.html", context, status=status)


def password(request: HttpRequest) -> HttpResponse:
    """Changes one's password; this browser stays signed in, every other one is out."""
    error: PrimerError | None = None
    forced = MUST_CHANGE in request.session
    if request.method == "POST":
        given = {name: request.POST.get(name, "") for name in ("old", "new")}
        try:
            if given["new"] != request.POST.get("again", ""):
                raise Invalid(
                    "The new password was typed in two ways.", errors=[FieldError("again", "is not the same")]
                )
            Door(PasswordView, request).call("POST", "post", data=given)
            update_session_auth_hash(request, User.objects.get(username=request.user.get_username()))
            request.session.pop(MUST_CHANGE, None)
            return done(request, "Password changed.", back(request, "/" if forced else "/account/"))
        except Exception as exc:
            error = problems.to_error(exc)
            if error.code == "internal":
                raise
    errors = {one.field: one.message for one in error.errors} if error else {}
    context = {
        "heading": "Change password",
        "error": error,
        "errors": errors,
        "fields": PASSWORDS,
        "forced": forced,
        "next": back(request, ""),
    }
    return render(request, "accounts/password.html", context, status=UNPROCESSABLE if error else 200)


def theme(request: HttpRequest) -> HttpResponse:
    """Kept in a cookie and written on the page by the server: no script, no flash."""
    response = HttpResponseRedirect(back(request, "/account/"), status=303)
    chosen = request.POST.get("theme", "")
    if request.method == "POST" and chosen in THEMES:
        response.set_cookie("primer_theme", chosen, max_age=YEAR_S, samesite="Lax", httponly=True)
    return response


def time_zone(request: HttpRequest) -> HttpResponse:
    chosen = request.POST.get("zone", "")
    if request.method == "POST" and chosen in zoneinfo.available_timezones():
        response = done(request, f"Times are shown in {chosen}.", "/account/")
        response.set_cookie("primer_zone", chosen, max_age=YEAR_S, samesite="Lax", httponly=True)
        return response
    return HttpResponseRedirect("/account/", status=303)


def keys(request: HttpRequest) -> HttpResponse:
    """The list of keys; posted to, the one switch that turns them on or off for this user."""
    if request.method == "POST":
        on = request.POST.get("shortcuts") == "1"
        services.shortcuts_set(username=request.user.get_username(), on=on)
        return done(request, f"Keyboard shortcuts are {'on' if on else 'off'}.", "/account/")
    return render(request, "accounts/keys.html", {"heading": "Keyboard", "keys": KEYS})


def token_new(request: HttpRequest) -> HttpResponse:
    """Makes a token; the page of the account shows its value once."""
    if request.method != "POST":
        return HttpResponseRedirect("/account/")
    lifetime = request.POST.get("expires_in_s", "")
    # Text that is no number goes on as it is, for the API to refuse: none would mean that it never ends.
    seconds = whole(lifetime)
    body: dict[str, Any] = {
        "name": request.POST.get("name", "").strip(),
        "scope": request.POST.get("scope", "write"),
        "expires_in_s": (lifetime or None) if seconds is None else seconds,
    }
    try:
        made = Door(TokenViewSet, request).call("POST", "create", data=body).data
    except Exception as exc:
        error = problems.to_error(exc)
        if error.code == "internal":
            raise
        return _account_page(request, status=UNPROCESSABLE, token_error=error)
    return once.keep(request, "/account/", made, hidden="token")


def token_revoke(request: HttpRequest, id: str) -> HttpResponse:
    target = back(request, "/account/")
    if request.method != "POST":
        return HttpResponseRedirect(target)
    Door(TokenViewSet, request).call("DELETE", "destroy", id=id)
    return done(request, "Token revoked; what it had open is closed within a second.", target)


VIEWS: tuple[tuple[str, Callable[..., HttpResponse], str], ...] = (
    ("logout/", sign_out, "sign-out"),
    ("account/", account, "account"),
    ("account/password/", password, "account-password"),
    ("account/theme/", theme, "account-theme"),
    ("account/zone/", time_zone, "account-zone"),
    ("account/keys/", keys, "account-keys"),
    ("account/tokens/", token_new, "account-token-new"),
    ("account/tokens/<uuid:id>/revoke/", token_revoke, "account-token-revoke"),
)
urls: list[URLPattern] = [
    path("login/", login_not_required(page(sign_in)), name="sign-in"),
    *(path(route, page(view), name=name) for route, view, name in VIEWS),
]
