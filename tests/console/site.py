"""What tests of pages share: a browser without scripts, every route of the console, one of everything."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from accounts.models import User
from tests.factories import make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_llm_provider, make_session

POLICY = {
    "default-src 'self'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:", "worker-src 'self'",
    "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "form-action 'self'",
}  # fmt: skip
MACHINES = ("/v1/", "/healthz", "/readyz", "/metrics")


@pytest.fixture(autouse=True)
def no_manifest(settings: Any) -> None:
    """Static files are collected by a server's start, which these tests have none of."""
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}


def browser(user: User | None = None) -> Client:
    client = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    if user is not None:
        client.force_login(user)
    return client


def pages(patterns: list[Any] | None = None, prefix: str = "/") -> list[str]:
    """Every route of the console, from the URL table."""
    found: list[str] = []
    for pattern in patterns if patterns is not None else get_resolver().url_patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found += pages(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern) and not path.startswith(MACHINES):
            found.append(path)
    return found


@pytest.fixture
def world() -> dict[str, str]:
    """One of everything, alice's where it has an owner."""
    alice = make_user("alice")
    make_provider(), make_template(), make_llm_provider()
    workspace, agent = make_workspace(alice), make_agent(alice)
    session = make_session(alice, agent, workspace)
    return {"workspace": workspace.slug, "session": session.slug, "agent": agent.slug}


def filled(path: str, world: dict[str, str]) -> str:
    """A route with ids that exist."""
    kind = next(
        (
            name
            for part, name in (("/sessions/", "session"), ("/agents/", "agent"))
            if path.startswith(part) or part in path
        ),
        "workspace",
    )
    ids = {"workspace": world["workspace"], "session": world["session"], "agent": world["agent"]}
    value = (
        "fake"
        if "/providers/" in path and "llm" not in path
        else "plain"
        if "/templates/" in path
        else "scripted"
        if "llm-providers" in path
        else ids[kind]
    )
    path = path.replace("<uuid:id>", "0b9a0a30-0000-4000-8000-000000000000").replace(
        "<str:exec_id>", "exec-0123456789abcdef"
    )
    path = path.replace("<slug:tab>", "yaml").replace("<any:path>", "out.txt").replace("<str:name>", "alice")
    return re.sub(r"<str:id>", value, path)
