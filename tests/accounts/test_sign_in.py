"""Tokens, sign-in, roles and scopes, over the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from accounts import services
from accounts.models import AuditEntry, Role, Scope, Token, User
from primer_site.errors import Unauthenticated
from primer_site.people import operator_token

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def _fresh_throttle() -> None:
    cache.clear()


def person(name: str, role: Role = Role.MEMBER) -> User:
    return services.user_create(username=name, role=role, password=PASSWORD)[0]


def bearer(user: User, scope: Scope = Scope.WRITE) -> dict[str, str]:
    _, value = services.token_create(user=user, name="test", scope=scope, expires_in_s=3600)
    return {"Authorization": f"Bearer {value}"}


def send(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    call = getattr(Client(), method)
    if method == "get":
        return call(path, headers=headers)
    return call(path, body, content_type="application/json", headers=headers)


def test_login_buys_a_token_that_opens_me() -> None:
    person("alice")
    answer = send("post", "/v1/auth/login", {"username": "alice", "password": PASSWORD})
    assert answer.status_code == 200
    me = send("get", "/v1/me", headers={"Authorization": f"Bearer {answer.json()['token']}"}).json()
    assert (me["username"], me["role"], me["token"]["scope"]) == ("alice", "member", "write")


def test_only_a_hash_of_the_token_is_stored() -> None:
    _, value = services.token_create(user=person("alice"), name="n", scope=Scope.READ, expires_in_s=None)
    row = Token.objects.get()
    assert value not in {row.digest, row.token_key}
    assert len(value) * 4 >= 160


@pytest.mark.parametrize(
    "body", [{"username": "alice", "password": "wrong"}, {"username": "nobody", "password": PASSWORD}]
)
def test_a_wrong_name_and_a_wrong_password_get_the_same_answer(body: dict[str, str]) -> None:
    person("alice")
    answer = send("post", "/v1/auth/login", body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (401, "unauthenticated")
    assert problem["detail"] == "The username or the password is wrong, or the user is not active."
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_guessing_passwords_is_slowed_down() -> None:
    person("alice")
    codes = [send("post", "/v1/auth/login", {"username": "alice", "password": "no"}).status_code for _ in range(12)]
    assert codes[:10] == [401] * 10
    assert codes[-1] == 429


def revoked(user: User) -> dict[str, str]:
    headers = bearer(user)
    Token.objects.all().delete()
    return headers


def expired(user: User) -> dict[str, str]:
    headers = bearer(user)
    Token.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    return headers


def inactive(user: User) -> dict[str, str]:
    headers = bearer(user)
    User.objects.update(is_active=False)
    return headers


def wrong(user: User) -> dict[str, str]:
    return {"Authorization": "Bearer " + bearer(user)["Authorization"][7:][:-1] + "x"}


@pytest.mark.parametrize("make", [revoked, expired, inactive, wrong], ids=lambda make: make.__name__)
def test_a_token_that_does_not_hold_gets_one_answer(make: Any) -> None:
    answer = send("get", "/v1/me", headers=make(person("alice")))
    assert answer.status_code == 401
    assert answer.json()["detail"].startswith("The token is not valid")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer a b", "Basic YTpi", "Token abc", "Bearer \u00e4\u00f6"])
def test_anything_but_one_bearer_value_is_401(header: str) -> None:
    person("alice")
    assert send("get", "/v1/me", headers={"Authorization": header}).status_code == 401


def test_a_token_in_the_url_opens_nothing() -> None:
    value = bearer(person("alice"))["Authorization"][7:]
    assert send("get", f"/v1/me?token={value}&access_token={value}").status_code == 401


def test_a_read_token_cannot_write_and_the_answer_names_the_scope() -> None:
    headers = bearer(person("alice"), Scope.READ)
    assert send("get", "/v1/tokens", headers=headers).status_code == 200
    answer = send("post", "/v1/tokens", {"name": "x"}, headers)
    assert answer.status_code == 403
    assert "scope read" in answer.json()["detail"]


def test_a_token_buys_no_token_larger_than_itself() -> None:
    headers = bearer(person("bob", Role.ADMIN), Scope.WRITE)
    assert send("post", "/v1/tokens", {"name": "x", "scope": "admin"}, headers).status_code == 403


@pytest.mark.parametrize("asked", [None, 3700, 30 * 24 * 3600])
def test_a_token_of_a_program_buys_none_that_outlives_it(asked: int | None) -> None:
    """Who finds it would otherwise have what they found for ever."""
    headers = bearer(person("alice"))
    answer = send("post", "/v1/tokens", {"name": "x", "expires_in_s": asked}, headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "expires_in_s")
    assert "test" in answer.json()["errors"][0]["message"]
    assert "password" in answer.json()["hint"]
    assert not Token.objects.filter(name="x").exists()


def test_a_token_of_a_program_buys_shorter_ones_and_one_that_ends_with_it() -> None:
    headers = bearer(person("alice"))
    assert send("post", "/v1/tokens", {"name": "short", "expires_in_s": 600}, headers).status_code == 201
    assert send("post", "/v1/tokens", {"name": "same"}, headers).status_code == 201
    own, same = Token.objects.get(name="test"), Token.objects.get(name="same")
    assert own.expiry - timedelta(seconds=5) < same.expiry <= own.expiry
    assert not same.signed_in
    # Nor does it come longer by the way of the one that it made.
    value = send("post", "/v1/tokens", {"name": "next"}, headers).json()["token"]
    answer = send("post", "/v1/tokens", {"name": "x", "expires_in_s": None}, {"Authorization": f"Bearer {value}"})
    assert answer.status_code == 422


def test_a_token_without_end_and_one_that_a_password_bought_make_what_is_asked_for() -> None:
    alice = person("alice")
    _, endless = services.token_create(user=alice, name="endless", scope=Scope.WRITE, expires_in_s=None)
    signed_in = send("post", "/v1/auth/login", {"username": "alice", "password": PASSWORD}).json()["token"]
    for value in (endless, signed_in):
        headers = {"Authorization": f"Bearer {value}"}
        made = send("post", "/v1/tokens", {"name": "x", "expires_in_s": 90 * 24 * 3600}, headers)
        assert made.status_code == 201, made.content
        assert send("post", "/v1/tokens", {"name": "y"}, headers).json()["expires_at"] is None


def test_the_console_makes_tokens_without_end() -> None:
    client = Client()
    client.force_login(person("alice"))
    made = client.post("/v1/tokens", {"name": "x"}, content_type="application/json")
    assert (made.status_code, made.json()["expires_at"]) == (201, None)


def test_a_member_gets_no_admin_token() -> None:
    headers = bearer(person("alice"), Scope.ADMIN)
    answer = send("post", "/v1/tokens", {"name": "x", "scope": "admin"}, headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "scope")


def test_a_new_token_is_shown_once_and_works() -> None:
    headers = bearer(person("alice"))
    made = send("post", "/v1/tokens", {"name": "ci", "scope": "read", "expires_in_s": 600}, headers)
    assert made.status_code == 201
    assert send("get", "/v1/me", headers={"Authorization": f"Bearer {made.json()['token']}"}).status_code == 200
    listed = send("get", "/v1/tokens", headers=headers).json()["items"]
    assert {item["name"] for item in listed} == {"ci", "test"}
    assert made.json()["token"] not in str(listed)


def test_the_repeat_of_a_key_that_showed_a_secret_is_refused() -> None:
    headers = {**bearer(person("alice")), "Idempotency-Key": "abc-1"}
    assert send("post", "/v1/tokens", {"name": "ci"}, headers).status_code == 201
    assert send("post", "/v1/tokens", {"name": "ci"}, headers).status_code == 409
    assert Token.objects.filter(name="ci").count() == 1


def made_with(value: str, name: str) -> str:
    """The value of a token that is made with another one."""
    answer = send("post", "/v1/tokens", {"name": name}, {"Authorization": f"Bearer {value}"})
    assert answer.status_code == 201, answer.content
    return str(answer.json()["token"])


def opens(value: str) -> bool:
    return bool(send("get", "/v1/me", headers={"Authorization": f"Bearer {value}"}).status_code == 200)


def test_with_a_revoked_token_go_those_that_it_made_and_each_leaves_its_line() -> None:
    """Who found a program's token could otherwise make another one and keep what they found."""
    alice = person("alice")
    found = bearer(alice)["Authorization"][7:]
    child = made_with(found, "child")
    grandchild, mine = made_with(child, "grandchild"), bearer(alice)
    listed = {item["name"]: item for item in send("get", "/v1/tokens", headers=mine).json()["items"]}
    assert listed["child"]["made_by"] == str(Token.objects.get(made__name="child").uuid)
    assert listed["grandchild"]["made_by"] == listed["child"]["id"]
    assert listed["test"]["made_by"] is None
    root = Token.objects.get(made__name="child")
    assert send("delete", f"/v1/tokens/{root.uuid}", headers=mine).status_code == 204
    assert [opens(value) for value in (found, child, grandchild, mine["Authorization"][7:])] == [False] * 3 + [True]
    lines = AuditEntry.objects.filter(action="token.revoke").order_by("pk")
    assert [(line.before["name"], line.before.get("made_by")) for line in lines if line.before] == [
        ("test", None), ("child", "test"), ("grandchild", "child"),
    ]  # fmt: skip


def test_what_a_person_made_stays_when_they_sign_out() -> None:
    person("alice")
    signed_in = send("post", "/v1/auth/login", {"username": "alice", "password": PASSWORD}).json()["token"]
    made = made_with(signed_in, "ci")
    assert Token.objects.get(name="ci").made_by is None
    assert send("post", "/v1/auth/logout", headers={"Authorization": f"Bearer {signed_in}"}).status_code == 204
    assert not opens(signed_in)
    assert opens(made)


def test_what_the_operator_made_outlives_a_new_context_of_the_command_line() -> None:
    person("bob", Role.ADMIN)
    value = operator_token("/home/bob/primectl.yaml")
    made = made_with(value, "ci")
    operator_token("/home/bob/primectl.yaml")
    assert not opens(value)
    assert opens(made)


def test_a_token_that_was_revoked_while_it_asks_makes_none() -> None:
    alice = person("alice")
    bearer(alice)
    token = Token.objects.get(user=alice)
    services.token_revoke(token=Token.objects.get(user=alice))
    with pytest.raises(Unauthenticated):
        services.token_create(user=alice, name="late", scope=Scope.WRITE, expires_in_s=None, made_by=token)
    assert not Token.objects.filter(name="late").exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_who_may_have_no_admin_token_is_told_of_the_role_and_not_of_a_scope(role: Role) -> None:
    person("vera", role)
    value = send("post", "/v1/auth/login", {"username": "vera", "password": PASSWORD}).json()["token"]
    answer = send("post", "/v1/tokens", {"name": "x", "scope": "admin"}, {"Authorization": f"Bearer {value}"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "scope")
    assert "role admin" in answer.json()["errors"][0]["message"]
    assert role.value in answer.json()["errors"][0]["message"]


def test_charlie_cannot_revoke_alices_token() -> None:
    alice, charlie = person("alice"), person("charlie")
    bearer(alice)
    token = Token.objects.get(user=alice)
    headers = bearer(charlie)
    assert send("delete", f"/v1/tokens/{token.uuid}", headers=headers).status_code == 404
    assert Token.objects.filter(pk=token.pk).exists()


def test_a_viewer_manages_own_tokens_and_no_users() -> None:
    headers = bearer(person("vera", Role.VIEWER))
    assert send("post", "/v1/tokens", {"name": "mine", "scope": "read"}, headers).status_code == 201
    assert send("get", "/v1/users", headers=headers).status_code == 403


def test_an_admin_makes_a_user_whose_password_is_shown_once() -> None:
    headers = bearer(person("bob", Role.ADMIN), Scope.ADMIN)
    made = send("post", "/v1/users", {"username": "dora", "role": "member"}, headers)
    assert made.status_code == 201
    login = send("post", "/v1/auth/login", {"username": "dora", "password": made.json()["password"]})
    assert login.status_code == 200
    assert "password" not in send("get", "/v1/users/dora", headers=headers).json()
    assert AuditEntry.objects.get(action="user.create", object_id="dora").actor_name == "bob"


def test_the_last_admin_cannot_be_switched_off() -> None:
    headers = bearer(person("bob", Role.ADMIN), Scope.ADMIN)
    answer = send("delete", "/v1/users/bob", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert User.objects.get(username="bob").is_active


def test_a_deactivated_user_is_out_at_once() -> None:
    alice = person("alice")
    headers = bearer(alice)
    admin = bearer(person("bob", Role.ADMIN), Scope.ADMIN)
    assert send("delete", "/v1/users/alice", headers=admin).status_code == 204
    assert send("get", "/v1/me", headers=headers).status_code == 401


def test_changing_the_password_needs_the_old_one() -> None:
    headers = bearer(person("alice"))
    bad = send("post", "/v1/auth/password", {"old": "no", "new": "another good one 9"}, headers)
    assert (bad.status_code, bad.json()["errors"]) == (422, [{"field": "old", "message": "is wrong"}])
    assert send("post", "/v1/auth/password", {"old": PASSWORD, "new": "another good one 9"}, headers).status_code == 204
    assert send("post", "/v1/auth/login", {"username": "alice", "password": "another good one 9"}).status_code == 200


def test_a_cookie_write_without_csrf_is_refused_and_with_a_token_is_not() -> None:
    alice = person("alice")
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    refused = client.post("/v1/tokens", {"name": "x"}, content_type="application/json")
    assert refused.status_code == 403
    allowed = client.post("/v1/tokens", {"name": "x"}, content_type="application/json", headers=bearer(alice))
    assert allowed.status_code == 201


@pytest.mark.parametrize(
    ("raw", "status", "field"),
    [
        (b'{"name": "\\ud83d"}', 422, "name"),
        (b'{"name": "a\\u0000b"}', 422, "name"),
        (b'{"name": "a", "name": "b"}', 422, "name"),
        (b'{"name": "a", "nmae": "b"}', 422, "nmae"),
        (b'{"name": "a", "expires_in_s": 1e400}', 422, None),
        (b'{"name": "a", "expires_in_s": NaN}', 400, None),
        (b'{"name": "a", "expires_in_s": ' + b"9" * 5000 + b"}", 422, None),
        (b'{"name": "a", "expires_in_s": ' + b"9" * 300 + b"}", 422, "expires_in_s"),
        (b"[" * 20000 + b"]" * 20000, 422, None),
        (b'\xff\xfe{"name"', 400, None),
        (b'\xef\xbb\xbf{"name": "a"}', 400, None),
        (b"[1, 2]", 422, None),
        (b'{"name"', 400, None),
        (b"null", 422, None),
    ],
)
def test_a_hostile_body_is_refused_with_its_field(raw: bytes, status: int, field: str | None) -> None:
    answer = Client().post("/v1/tokens", raw, content_type="application/json", headers=bearer(person("alice")))
    assert answer.status_code == status, answer.content
    assert answer.headers["Content-Type"] == "application/problem+json"
    if field:
        assert field in {error["field"] for error in answer.json()["errors"]}


def test_another_content_type_is_415() -> None:
    answer = Client().post("/v1/tokens", "name=x", content_type="text/plain", headers=bearer(person("alice")))
    assert answer.status_code == 415


def test_an_unknown_route_is_a_problem_with_a_request_id() -> None:
    answer = Client().get("/v1/nope", headers={"X-Request-ID": "request-1234"})
    assert (answer.status_code, answer.json()["request_id"]) == (404, "request-1234")


def test_a_foreign_host_is_refused() -> None:
    assert Client().get("/v1/me", headers={"Host": "evil.example"}).status_code == 400


def test_trying_many_names_from_one_address_is_slowed_down() -> None:
    codes = [send("post", "/v1/auth/login", {"username": f"user{i}", "password": "no"}).status_code for i in range(62)]
    assert codes[:60] == [401] * 60
    assert codes[-1] == 429


def test_a_large_body_at_the_open_door_is_refused_unread() -> None:
    answer = send("post", "/v1/auth/login", {"username": "alice", "password": "x" * 100_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_read_token_may_sign_itself_out() -> None:
    headers = bearer(person("alice"), Scope.READ)
    assert send("post", "/v1/auth/logout", {}, headers).status_code == 204
    assert send("get", "/v1/me", headers=headers).status_code == 401
