"""What an admin does as an admin needs a token of that scope; what is one's own does not."""

from __future__ import annotations

import pytest

from accounts.models import Scope
from tests.factories import Api, make_admin, make_user, make_workspace

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("scope", [Scope.READ, Scope.WRITE])
def test_everybodys_tokens_are_shown_to_an_admins_token_of_that_scope_alone(scope: Scope) -> None:
    make_user("alice")
    answer = Api(make_admin(), scope).call("GET", "tokens?all=true")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert Api(make_admin(), scope).call("GET", "tokens").status_code == 200
    assert Api(make_admin()).call("GET", "tokens?all=true").status_code == 200


def test_a_members_all_is_their_own() -> None:
    Api(make_user("charlie"))
    alice = Api(make_user("alice"))
    assert {row["user"] for row in alice.call("GET", "tokens?all=true").json()["items"]} == {"alice"}


def test_an_admins_write_token_changes_nothing_of_others() -> None:
    workspace = make_workspace(make_user("alice"))
    refused = Api(make_admin(), Scope.WRITE).call("DELETE", f"workspaces/{workspace.slug}")
    assert refused.status_code == 403
    assert "admin" in refused.json()["detail"]
    assert Api(make_admin()).call("DELETE", f"workspaces/{workspace.slug}").status_code == 202


def test_an_admins_write_token_is_enough_for_what_is_the_admins_own() -> None:
    workspace = make_workspace(make_admin())
    assert Api(make_admin(), Scope.WRITE).call("DELETE", f"workspaces/{workspace.slug}").status_code == 202


def test_the_old_password_cannot_be_tried_without_end() -> None:
    alice = Api(make_user("alice"))
    body = {"old": "wrong, and wrong again", "new": "a long enough new one"}
    codes = [alice.call("POST", "auth/password", body).status_code for _ in range(12)]
    assert codes[0] == 422
    assert codes[-1] == 429
    assert Api(make_user("charlie")).call("POST", "auth/password", body).status_code == 422
