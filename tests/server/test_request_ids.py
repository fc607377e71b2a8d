"""Every answer has a request id; every error says it, and the log line of the request has the same."""

from __future__ import annotations

import json
import re

import pytest

from accounts.models import AuditEntry
from tests.factories import Api, make_admin, make_user

pytestmark = pytest.mark.django_db
MADE = re.compile(r"[0-9a-f]{16}")


def ask(api: Api, method: str, path: str, body: bytes = b"", **headers: str):
    return api.client.generic(method, path, body, content_type="application/json", headers={**api.headers, **headers})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/healthz", b"", 200),
        ("GET", "/readyz", b"", 200),
        ("GET", "/metrics", b"", 403),
        ("GET", "/v1/me", b"", 200),
        ("GET", "/v1/capabilities", b"", 200),
        ("GET", "/v1/workspaces/ws-0123456789abcdef", b"", 404),
        ("GET", "/v1/no-such-route", b"", 404),
        ("GET", "/no-such-page", b"", 404),
        ("POST", "/v1/workspaces", b"{", 400),
        ("POST", "/v1/workspaces", b"{}", 422),
        ("POST", "/v1/workspace_providers", b"{}", 403),
        ("DELETE", "/v1/capabilities", b"", 405),
        ("OPTIONS", "/v1/workspaces", b"", 200),
    ],
)
def test_every_answer_carries_one_and_every_error_says_it(method, path, body, status):
    answer = ask(Api(make_user()), method, path, body)
    number = answer["X-Request-ID"]
    assert MADE.fullmatch(number)
    if path.startswith("/v1/") or path == "/metrics":
        assert answer.status_code == status
    if answer["Content-Type"].startswith("application/problem+json"):
        assert answer.json()["request_id"] == number
    else:
        assert answer.status_code < 400 or "text/html" in answer["Content-Type"]


def test_a_server_error_says_it_too(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("primer_site.capabilities.limits", broken)
    answer = ask(Api(make_user()), "GET", "/v1/capabilities")
    assert answer.status_code == 500
    assert answer.json()["request_id"] == answer["X-Request-ID"]
    assert "a mistake of ours" not in answer.content.decode()


def test_the_callers_own_id_is_kept_through_answer_log_and_audit(caplog):
    admin = Api(make_admin())
    body = json.dumps({"username": "carol", "role": "member"}).encode()
    answer = ask(admin, "POST", "/v1/users", body, **{"X-Request-ID": "from-the-proxy.42"})
    assert answer.status_code == 201
    assert answer["X-Request-ID"] == "from-the-proxy.42"
    assert AuditEntry.objects.get(action="user.create", object_id="carol").request_id == "from-the-proxy.42"
    assert "'request_id': 'from-the-proxy.42'" in caplog.text


@pytest.mark.parametrize("given", ["", "short", "x" * 65, "with space", "a\nlevel=error", "<script>", "ünicode-id"])
def test_an_id_that_could_do_harm_is_replaced(given):
    answer = ask(Api(make_user()), "GET", "/v1/me", **{"X-Request-ID": given})
    assert MADE.fullmatch(answer["X-Request-ID"])
