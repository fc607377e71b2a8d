"""/healthz and /readyz: yes or no for anybody, the details for admins."""

from __future__ import annotations

import pytest
from django.db import DatabaseError

from primer_site import health, services
from tests.factories import Api, make_admin, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(services, "_up", {"runner": True})
    monkeypatch.setattr(services, "_beats", {})
    monkeypatch.setattr(health, "_migrated", False)


def test_healthz_answers_anybody(client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


def test_readyz_tells_anybody_yes_and_nothing_more(client):
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


@pytest.mark.parametrize("make", [make_user, lambda: make_user("victor", "viewer")])
def test_readyz_tells_nobody_but_admins_the_parts(make):
    answer = Api(None).client.get("/readyz", headers=Api(make()).headers)
    assert (answer.status_code, answer.json()) == (200, {"ready": True})


def test_readyz_tells_an_admin_the_parts():
    headers = Api(make_admin()).headers
    checks = Api(None).client.get("/readyz", headers=headers).json()["checks"]
    assert checks == {"database": "ok", "migrations": "ok", "channel_layer": "ok", "runner": "ok"}


def test_a_service_that_is_down_makes_it_not_ready(client, monkeypatch):
    monkeypatch.setattr(services, "_up", {"runner": False})
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False})
    assert answer["Retry-After"] == "2"


def test_a_service_that_runs_but_does_not_move_makes_it_not_ready(client, monkeypatch):
    services.beat("runner")
    monkeypatch.setattr(services, "_beats", {"runner": services._beats["runner"] - 3600})
    assert client.get("/readyz").status_code == 503
    checks = client.get("/readyz", headers=Api(make_admin()).headers).json()["checks"]
    assert checks["runner"].startswith("The service has given no sign of life for 36")


def test_a_database_that_does_not_answer_makes_it_not_ready(client, monkeypatch):
    class Broken:
        def cursor(self):
            raise DatabaseError("gone")

    monkeypatch.setattr(health, "connection", Broken())
    monkeypatch.setattr(health, "_migrated", True)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False})


def test_a_channel_layer_that_fails_makes_it_not_ready(client, monkeypatch):
    def broken():
        raise OSError("no such host")

    class Layer:
        async def new_channel(self):
            broken()

    monkeypatch.setattr(health, "get_channel_layer", Layer)
    assert client.get("/readyz").status_code == 503


def test_a_wrong_token_is_refused_here_too(client):
    assert client.get("/readyz", headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["/v1/schema/", "/v1/docs/"])
def test_the_description_of_the_api_needs_a_sign_in(client, path):
    assert client.get(path).status_code == 401


def test_a_signed_in_caller_gets_the_schema():
    answer = Api(make_user()).client.get("/v1/schema/", headers=Api(make_user()).headers)
    assert answer.status_code == 200
    assert b"openapi: 3" in answer.content
