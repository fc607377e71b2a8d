"""Signing in by the page: wrong words, too many of them, a generated password, and what belongs to oneself."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from django.conf import settings as site
from django.core.cache import cache
from django.test import Client

from accounts import services
from accounts.models import AuditEntry, Role, Token, User
from tests.factories import make_admin, make_user

pytestmark = pytest.mark.django_db
OWN = "a-password-of-my-own"


@pytest.fixture(autouse=True)
def quiet(settings: Any) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
    cache.clear()


def browser() -> Client:
    return Client(raise_request_exception=False, headers={"Accept": "text/html"})


def sign_in(client: Client, name: str, password: str, **more: str) -> Any:
    return client.post("/login/", {"username": name, "password": password, **more})


def test_a_wrong_password_and_an_unknown_name_get_the_same_words() -> None:
    services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    answers = [sign_in(browser(), name, "wrong-wrong-wrong") for name in ("alice", "nobody")]
    assert {answer.status_code for answer in answers} == {401}
    words = {answer.content.decode().split('role="alert"')[1].split("</div>")[0] for answer in answers}
    assert len(words) == 1


def test_sign_in_leads_to_where_one_wanted_to_go_and_nowhere_else() -> None:
    services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    assert sign_in(browser(), "alice", OWN, next="/sessions/")["Location"] == "/sessions/"
    for elsewhere in ("https://evil.example/", "//evil.example/", "javascript:alert(1)", "/\\evil.example"):
        assert sign_in(browser(), "alice", OWN, next=elsewhere)["Location"] == "/", elsewhere


def test_guessing_is_throttled_at_the_page_as_at_the_api() -> None:
    services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    codes = [sign_in(browser(), "alice", "wrong-wrong-wrong").status_code for _ in range(12)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert sign_in(browser(), "alice", OWN).status_code == 429


def test_a_disabled_user_does_not_get_in() -> None:
    user, _ = services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert sign_in(browser(), "alice", OWN).status_code == 401


def test_a_generated_password_opens_nothing_but_its_own_change() -> None:
    _, password = services.user_create(username="alice", role=Role.MEMBER)
    client = browser()
    sign_in(client, "alice", password)
    for path in ("/", "/sessions/", "/account/", "/files/"):
        assert client.get(path)["Location"].startswith("/account/password/"), path
    form = {"old": password, "new": OWN, "again": OWN}
    assert client.post("/account/password/", {**form, "again": "something-else"}).status_code == 422
    assert client.post("/account/password/", {**form, "old": "wrong"}).status_code == 422
    assert client.post("/account/password/", {**form, "new": "short", "again": "short"}).status_code == 422
    assert client.get("/")["Location"].startswith("/account/password/")
    assert client.post("/account/password/", form).status_code == 303
    assert client.get("/").status_code == 200


def test_a_password_that_somebody_chose_asks_for_no_other() -> None:
    services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    client = browser()
    sign_in(client, "alice", OWN)
    assert client.get("/").status_code == 200


def test_changing_the_password_ends_every_other_browser() -> None:
    services.user_create(username="alice", role=Role.MEMBER, password=OWN)
    here, there = browser(), browser()
    for client in (here, there):
        sign_in(client, "alice", OWN)
    here.post("/account/password/", {"old": OWN, "new": OWN + "-2", "again": OWN + "-2"})
    assert here.get("/").status_code == 200
    assert there.get("/")["Location"].startswith("/login/")


def test_a_form_without_its_csrf_token_changes_nothing() -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False, headers={"Accept": "text/html"})
    client.force_login(make_user())
    answer = client.post("/account/tokens/", {"name": "mine", "scope": "write"})
    assert answer.status_code == 403
    assert "Reload the page" in answer.content.decode()
    assert not Token.objects.exists()


def test_the_value_of_a_token_is_shown_once_and_works() -> None:
    client = browser()
    client.force_login(make_user())
    answer = client.post("/account/tokens/", {"name": "laptop", "scope": "read", "expires_in_s": "3600"}, follow=True)
    value = answer.content.decode().split('id="token-value">')[1].split("<")[0]
    assert Client().get("/v1/me", headers={"Authorization": f"Bearer {value}"}).json()["token"]["scope"] == "read"
    assert value not in client.get("/account/").content.decode()
    token = Token.objects.get()
    assert client.post(f"/account/tokens/{token.uuid}/revoke/").status_code == 303
    assert not Token.objects.exists()


MAKERS = (
    ("/account/tokens/", {"name": "laptop", "scope": "read"}, "/account/", 'id="token-value">'),
    ("/admin/users/new/", {"username": "dora", "role": "member"}, "/admin/users/", 'id="new-password">'),
    ("/admin/users/erin/", {"reset_password": "1", "sure": "1"}, "/admin/users/", 'id="new-password">'),
)


@pytest.mark.parametrize(("path", "form", "shown_at", "mark"), MAKERS)
def test_a_reload_behind_a_secret_that_is_shown_once_makes_no_second_one(
    path: str, form: dict[str, str], shown_at: str, mark: str
) -> None:
    client = browser()
    client.force_login(make_admin())
    make_user("erin")
    answer = client.post(path, form)
    assert (answer.status_code, answer["Location"]) == (303, shown_at), "a reload of the answer would send it again"
    stored = str(dict(client.session))
    assert mark not in client.get("/sessions/").content.decode(), "another page showed it"
    shown = client.get(shown_at)
    value = shown.content.decode().split(mark)[1].split("<")[0]
    assert len(value) > 20
    assert value not in stored, "it lay in the database as it is"
    assert shown["Cache-Control"] == "no-store", "the way back would show it again"
    assert mark not in client.get(shown_at).content.decode()
    assert client.get(path).status_code in (200, 302)
    assert AuditEntry.objects.filter(action__in=("token.create", "user.reset_password")).count() <= 1
    assert User.objects.filter(username="dora").count() <= 1


def test_a_secret_that_nobody_fetched_in_time_is_not_shown_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from accounts.pages import once

    client = browser()
    client.force_login(make_user())
    monkeypatch.setattr(once, "KEPT_S", -1)
    client.post("/account/tokens/", {"name": "laptop", "scope": "read"})
    assert 'id="token-value"' not in client.get("/account/").content.decode()


@pytest.mark.parametrize("form", [{"active": "0"}, {"reset_password": "1"}])
def test_what_shuts_somebody_out_is_asked_before_it_is_done(form: dict[str, str]) -> None:
    client, erin = browser(), make_user("erin")
    client.force_login(make_admin())
    before = erin.password
    asked = client.post("/admin/users/erin/", form)
    assert asked.status_code == 200
    assert 'name="sure" value="1"' in asked.content.decode()
    erin.refresh_from_db()
    assert (erin.is_active, erin.password) == (True, before)
    assert client.post("/admin/users/nobody/", form).status_code == 404
    client.force_login(make_user("dave"))
    assert client.post("/admin/users/erin/", form).status_code == 403
    client.force_login(make_admin())
    assert client.post("/admin/users/erin/", {**form, "sure": "1"}).status_code == 303
    erin.refresh_from_db()
    assert (erin.is_active, erin.password) != (True, before)


def test_after_the_forced_change_one_is_where_one_wanted_to_go() -> None:
    _, password = services.user_create(username="alice", role=Role.MEMBER)
    client = browser()
    sign_in(client, "alice", password, next="/sessions/?status=ended")
    there = client.get("/sessions/?status=ended")["Location"]
    page = client.get(there).content.decode()
    assert 'name="next" value="/sessions/?status=ended"' in page
    form = {"old": password, "new": OWN, "again": OWN}
    answer = client.post(there, {**form, "next": "/sessions/?status=ended"})
    assert answer["Location"] == "/sessions/?status=ended"


def test_after_a_forced_change_that_nobody_was_led_to_the_overview_comes() -> None:
    _, password = services.user_create(username="alice", role=Role.MEMBER)
    client = browser()
    sign_in(client, "alice", password)
    form = {"old": password, "new": OWN, "again": OWN}
    assert client.post("/account/password/", form)["Location"] == "/"
    again = {"old": OWN, "new": OWN + "-2", "again": OWN + "-2"}
    assert client.post("/account/password/", again)["Location"] == "/account/", (
        "one's own wish leads back to the account"
    )


@pytest.mark.parametrize("lifetime", ["9" * 4400, "\u00b2", "soon", "0"])
def test_a_lifetime_that_is_none_makes_no_token(lifetime: str) -> None:
    client = browser()
    client.force_login(make_user())
    answer = client.post("/account/tokens/", {"name": "laptop", "scope": "read", "expires_in_s": lifetime})
    assert answer.status_code == 422
    assert "expires_in_s" in answer.content.decode()
    assert not Token.objects.exists()


def test_nobody_revokes_somebody_elses_token() -> None:
    client = browser()
    client.force_login(make_user("charlie"))
    token, _ = services.token_create(user=make_user("alice"), name="laptop", scope="write", expires_in_s=None)
    assert client.post(f"/account/tokens/{token.uuid}/revoke/").status_code in (403, 404)
    assert Token.objects.exists()


def test_a_member_gets_no_token_of_an_admin() -> None:
    client = browser()
    client.force_login(make_user())
    assert client.post("/account/tokens/", {"name": "x", "scope": "admin"}).status_code == 422


def test_theme_and_time_zone_are_written_on_the_page_by_the_server() -> None:
    client = browser()
    client.force_login(make_user())
    client.post("/account/theme/", {"theme": "dark"})
    client.post("/account/zone/", {"zone": "Asia/Tokyo"})
    page = client.get("/account/").content.decode()
    assert '<html lang="en" data-theme="dark">' in page
    assert "<option selected>Asia/Tokyo</option>" in page
    client.post("/account/theme/", {"theme": '"><script>'})
    client.cookies["primer_zone"] = "../../etc/passwd"
    assert '<html lang="en" data-theme="dark">' in client.get("/account/").content.decode()


def test_an_admin_makes_changes_and_disables_users_and_the_log_says_so() -> None:
    client = browser()
    client.force_login(make_admin())
    made = client.post("/admin/users/new/", {"username": "dora", "role": "member"}, follow=True).content.decode()
    password = made.split('id="new-password">')[1].split("<")[0]
    assert services.is_generated(password)
    assert client.post("/admin/users/dora/", {"role": "viewer"}).status_code == 303
    assert client.post("/admin/users/dora/", {"active": "0", "sure": "1"}).status_code == 303
    dora = User.objects.get(username="dora")
    assert (dora.role, dora.is_active) == ("viewer", False)
    log = client.get("/admin/audit/?q=dora").content.decode()
    assert "user.create" in log
    assert "user.update" in log
    assert client.get("/admin/audit/?q=dora&action=user.create").content.decode().count("<code>user.") == 1


def test_the_last_admin_cannot_be_disabled() -> None:
    client = browser()
    client.force_login(make_admin("bob"))
    answer = client.post("/admin/users/bob/", {"active": "0", "sure": "1"})
    assert answer.status_code == 422
    assert "last active admin" in answer.content.decode()


def test_the_audit_log_as_csv_holds_no_formula() -> None:
    client = browser()
    client.force_login(make_admin())
    AuditEntry.objects.create(actor_name='=HYPERLINK("http://evil")', action="x.y", kind="x", object_id="-1+1")
    lines = client.get("/admin/audit/?format=csv&q=HYPERLINK").content.decode().splitlines()
    assert "\"'=HYPERLINK" in lines[1]
    assert "'-1+1" in lines[1]
    assert client.get("/admin/audit/?format=jsonl").content.decode().count("\n") >= 1


def test_the_audit_log_as_csv_says_by_which_token_and_what_changed() -> None:
    client = browser()
    client.force_login(make_admin())
    AuditEntry.objects.create(
        actor_name="bob", token="=cmd()", action="x.update", kind="x", object_id="one", before={"a": 1}, after={"a": "ü"}
    )  # fmt: skip
    head, line = csv.reader(client.get("/admin/audit/?format=csv&q=x.update").content.decode().splitlines())
    told = dict(zip(head, line, strict=True))
    assert (told["token"], told["actor_kind"]) == ("'=cmd()", "user")
    assert (json.loads(told["before"]), json.loads(told["after"])) == ({"a": 1}, {"a": "ü"})
    row = json.loads(client.get("/admin/audit/?format=jsonl&q=x.update").content.decode())
    assert (row["token"], row["before"], row["after"]) == ("=cmd()", {"a": 1}, {"a": "ü"})


def test_a_sign_out_ends_the_session() -> None:
    client = browser()
    client.force_login(make_user())
    assert client.get("/logout/").status_code in (302, 303)
    assert client.get("/").status_code == 200, "a link signed somebody out"
    client.post("/logout/")
    assert client.get("/")["Location"].startswith(site.LOGIN_URL)
