"""Every route of the API, found in the URL table: closed to nobody in particular, described in the committed schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

SCHEMA = Path(__file__).resolve().parent.parent / "docs" / "openapi.yaml"
OPEN = {"/v1/auth/login"}  # the one door without a token
METHODS = ("get", "post", "put", "patch", "delete")


def routes(patterns: list[Any], prefix: str = "/") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern):
            yield path, pattern.callback


def api_routes() -> list[tuple[str, str]]:
    """(path with placeholders filled in, method) of everything below /v1/."""
    found = []
    for path, view in routes(get_resolver().url_patterns):
        if not path.startswith("/v1/"):
            continue
        filled = re.sub(r"<uuid:\w+>", "0b9a0a30-0000-4000-8000-000000000000", path)
        filled = re.sub(r"<(?:\w+:)?\w+>", "ws-0123456789abcdef", filled)
        actions = getattr(view, "actions", None)
        allowed = (
            list(actions) if actions else [m for m in METHODS if hasattr(getattr(view, "view_class", view.cls), m)]
        )
        found += [(filled, method) for method in allowed if method in METHODS]
    return found


@pytest.mark.django_db
def test_nobody_gets_401_on_every_route_and_learns_nothing() -> None:
    answers = {
        (path, method): getattr(Client(), method)(path, content_type="application/json")
        if method != "get"
        else Client().get(path)
        for path, method in api_routes()
        if path not in OPEN
    }
    assert len(answers) > 30
    wrong = {where: answer.status_code for where, answer in answers.items() if answer.status_code != 401}
    assert not wrong
    assert len({answer.json()["detail"] for answer in answers.values()}) == 1


@pytest.mark.django_db
def test_a_token_in_the_query_string_is_no_token(django_user_model: Any) -> None:
    from accounts.services import token_create, user_create

    user, _ = user_create(username="bob", role="admin")
    _, value = token_create(user=user, name="n", scope="admin", expires_in_s=None)
    reads = [path for path, method in api_routes() if method == "get"]
    assert {Client().get(f"{path}?token={value}").status_code for path in reads} == {401}


def test_the_committed_schema_is_what_the_code_says() -> None:
    """`make docs` writes it anew."""
    from primer_site.openapi import schema_text

    assert SCHEMA.read_text() == schema_text()


def test_every_route_is_in_the_schema() -> None:
    described = {
        (re.sub(r"\{\w+\}", "*", path), method)
        for path, methods in yaml.safe_load(SCHEMA.read_text())["paths"].items()
        for method in methods
        if method in METHODS
    }
    hidden = {"/v1/schema/", "/v1/docs/"}
    table = {
        (re.sub(r"0b9a0a30-0000-4000-8000-000000000000|ws-0123456789abcdef", "*", path), method)
        for path, method in api_routes()
        if path not in hidden
    }
    assert table <= described, sorted(table - described)
