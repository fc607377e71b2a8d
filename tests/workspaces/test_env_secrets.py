"""Secrets of environments through the API: left out they stay, null removes them; what is fixed is refused by name."""

from __future__ import annotations

import io
from typing import Any

import pytest

from cli.kinds import kind_named
from cli.manifest import load
from cli.present import editable
from primer_site import vault
from tests.factories import Api, make_provider, make_template, make_workspace
from workspaces.models import Workspace, WorkspaceTemplate

URL = "workspace_templates/boxed"
STORED = "s3cret-value-of-mine"


@pytest.fixture
def boxed(db: Any) -> WorkspaceTemplate:
    provider = make_provider("docker-local", "container")
    return make_template("boxed", provider=provider, env={"PLAIN": "1", "KEY": {"secret": STORED}}, max_age_s=7200)


def held(row: WorkspaceTemplate) -> tuple[dict[str, Any], dict[str, Any]]:
    row.refresh_from_db()
    return row.env, vault.unseal(row.secrets)


def body(person: Api, **over: Any) -> dict[str, Any]:
    return {**person.get(URL).json(), **over}


@pytest.mark.parametrize(
    "env", [{}, {"KEY": {"set": True}}, {"KEY": {"set": True, "last4": "mine"}}, {"KEY": {"secret": STORED}}]
)
@pytest.mark.parametrize("verb", ["put", "patch"])
def test_a_secret_that_is_left_out_or_masked_stays_and_plain_names_are_replaced(
    env: Any, verb: str, boxed: WorkspaceTemplate, bob: Api
) -> None:
    answer = getattr(bob, verb)(URL, body(bob, env={**env, "NEW": "2"}))
    assert answer.status_code == 200, answer.content
    assert answer.json()["env"] == {"NEW": "2", "KEY": {"set": True, "last4": "mine"}}
    assert held(boxed) == ({"NEW": "2", "KEY": None}, {"KEY": STORED})


def test_an_env_that_is_left_out_of_a_put_keeps_secrets_and_of_a_patch_all(boxed: WorkspaceTemplate, bob: Api) -> None:
    assert bob.patch(URL, {"description": "x"}).status_code == 200
    assert held(boxed) == ({"PLAIN": "1", "KEY": None}, {"KEY": STORED})
    put = body(bob)
    del put["env"]
    assert bob.put(URL, put).status_code == 200
    assert held(boxed) == ({"KEY": None}, {"KEY": STORED})


@pytest.mark.parametrize("verb", ["put", "patch"])
def test_null_removes_a_secret_and_its_bytes(verb: str, boxed: WorkspaceTemplate, bob: Api) -> None:
    answer = getattr(bob, verb)(URL, body(bob, env={"KEY": None, "NEVER_THERE": None}))
    assert answer.status_code == 200, answer.content
    assert held(boxed) == ({}, {})
    assert boxed.secrets == ""


def test_text_in_the_place_of_a_secret_is_no_secret_any_more(boxed: WorkspaceTemplate, bob: Api) -> None:
    assert bob.put(URL, body(bob, env={"KEY": "open"})).json()["env"] == {"KEY": "open"}
    assert held(boxed)[1] == {}


def test_secrets_that_are_kept_count_as_well_so_puts_cannot_pile_them_up(boxed: WorkspaceTemplate, bob: Api) -> None:
    answer = bob.put(URL, body(bob, env={f"N{i}": "x" for i in range(256)}))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "env")
    assert held(boxed)[1] == {"KEY": STORED}


def test_what_the_client_prints_as_yaml_is_put_back_and_nothing_moves(boxed: WorkspaceTemplate, bob: Api) -> None:
    first = bob.get(URL)
    text = editable(kind_named("workspace_template"), first.json())
    assert STORED not in text
    (document,) = load(["-"], io.BytesIO(text.encode()))
    assert document.spec["env"] == {"PLAIN": "1"}
    again = bob.put(URL, document.spec)
    assert (again.status_code, again.headers["ETag"]) == (200, first.headers["ETag"])
    assert held(boxed) == ({"PLAIN": "1", "KEY": None}, {"KEY": STORED})


PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nabcdefghWXYZ\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("secret", "last4"),
    [
        (PEM, "WXYZ"), (PEM.replace("\n", "\r\n"), "WXYZ"), ("0123456789ab\n", "89ab"), ("0123456789ab  \t", "89ab"),
        ("0123456789\x00\x1b\u202eab", "89ab"), ("short\n\n\n\n\n\n\n\n\n", None), ("-----\n" * 9, None), ("\n" * 20, None),
    ],
)  # fmt: skip
def test_the_end_that_is_shown_of_a_secret_is_four_characters_that_print(secret: str, last4: str | None) -> None:
    assert vault.mask(secret) == {"set": True, "last4": last4}


# -- workspaces


@pytest.fixture
def made(boxed: WorkspaceTemplate, owner: Any) -> Workspace:
    return make_workspace(owner, boxed, env={"OWN": {"secret": "0123456789-own"}}, ttl_s=3600)


def test_what_was_read_of_a_workspace_is_put_back(made: Workspace, alice: Api) -> None:
    read = alice.get(f"workspaces/{made.slug}")
    for env in (read.json()["env"], {"PLAIN": "1"}, {"PLAIN": "1", "OWN": {"set": True}, "GONE": None}):
        answer = alice.put(f"workspaces/{made.slug}", {**read.json(), "env": env, "ttl_s": 3600})
        assert answer.status_code == 200, answer.content
        assert answer.headers["ETag"] == read.headers["ETag"]
    bare = alice.put(f"workspaces/{made.slug}", {"name": "new"})
    assert (bare.status_code, bare.json()["name"]) == (200, "new")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ttl_s", 86400), ("ttl_s", 60), ("ttl_s", None), ("env", {}), ("env", {"PLAIN": "2"}), ("env", {"PLAIN": "1", "OWN": None}),
        ("env", {"PLAIN": "1", "OWN": {"secret": "another"}}), ("env", {"PLAIN": "1", "OWN": "text"}), ("env", {"PLAIN": "1", "MORE": "x"}),
        ("env", {"PLAIN": "1", "MORE": {"set": True}}), ("env", {"PLAIN": {"set": True}}), ("env", {"PLAIN": "1", "KEY": ""}),
        ("provider_id", "other"), ("owner", "bob"), ("id", "ws-0000000000000000"), ("isolates", "x"), ("phase", "running"),
        ("spec", {}), ("expires_at", None), ("expires_at", "2099-01-01T00:00:00Z"), ("created_at", "yesterday"),
        ("created_at", "2099-01-01T00:00:00"), ("template_id", "another"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["put", "patch"])
def test_what_is_fixed_in_a_workspace_is_refused_by_name(
    field: str, value: Any, verb: str, made: Workspace, alice: Api
) -> None:
    read = alice.get(f"workspaces/{made.slug}").json()
    sent = {**read, "name": "new", field: value} if verb == "put" else {"name": "new", field: value}
    answer = getattr(alice, verb)(f"workspaces/{made.slug}", sent)
    assert answer.status_code == 422, answer.content
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert answer.json()["errors"][0]["message"].startswith("cannot be changed")
    assert alice.get(f"workspaces/{made.slug}").json()["name"] == ""


def test_a_phase_that_moved_since_it_was_read_spoils_no_edit(made: Workspace, alice: Api) -> None:
    read = alice.get(f"workspaces/{made.slug}").json()
    Workspace.objects.filter(pk=made.pk).update(
        phase="starting", phases=[*made.phases, {"phase": "starting", "at": "2026-02-01T10:00:00+00:00", "reason": ""}]
    )
    assert alice.put(f"workspaces/{made.slug}", {**read, "name": "new"}).status_code == 200


def test_a_time_to_live_beyond_the_age_that_the_template_sets_is_the_same_end(
    boxed: Any, owner: Any, alice: Api
) -> None:
    row = make_workspace(owner, boxed)
    assert alice.patch(f"workspaces/{row.slug}", {"ttl_s": 86400}).status_code == 200
    assert alice.patch(f"workspaces/{row.slug}", {"ttl_s": None}).status_code == 200
    assert alice.patch(f"workspaces/{row.slug}", {"ttl_s": 60}).status_code == 422
