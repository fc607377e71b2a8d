"""The palette as a plain page: what it finds, for whom, and what it offers in which state; the switch of the keys."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import AuditEntry, Role, User
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_user, make_workspace
from workspaces.models import Workspace

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
MAIN = re.compile(r"<main.*</main>", re.S)


def found(user: User, query: str) -> str:
    """The page's own part, without the navigation that says all the names too."""
    answer = browser(user).get(f"/search/?{query}")
    assert answer.status_code == 200
    part = MAIN.search(answer.content.decode())
    assert part is not None
    return part[0]


def test_somebody_elses_workspace_and_session_are_found_by_neither_id_nor_name(world: dict[str, str]) -> None:
    Workspace.objects.update(name="alices own")
    for query in (
        f"q={world['workspace']}",
        f"q={world['session']}",
        "q=alices",
        f"here=/workspaces/{world['workspace']}/",
    ):
        page = found(make_user("charlie"), query)
        links = re.findall(r'(?:href|action)="([^"]+)"', page)
        assert not [link for link in links if world["workspace"] in link or world["session"] in link], query
    assert f"/workspaces/{world['workspace']}/" in found(make_user("alice"), "q=alices")
    assert f"/sessions/{world['session']}/" in found(make_user("alice"), f"q={world['session'][:9].upper()}")


def test_an_id_comes_first_with_what_its_state_allows(world: dict[str, str]) -> None:
    alice, path = make_user("alice"), f"/workspaces/{world['workspace']}/"
    Workspace.objects.update(phase="running", ref={"id": "x"})
    running = found(alice, f"q={world['workspace']}")
    assert f'action="{path}stop/"' in running
    assert f'action="{path}start/"' not in running
    Workspace.objects.update(phase="lost", ref=None, phase_reason="data_lost")
    lost = found(alice, f"q={world['workspace']}")
    assert f'action="{path}stop/"' not in lost
    assert "its files are gone" in lost
    assert f'action="/sessions/{world["session"]}/cancel/"' in found(alice, f"q={world['session']}")
    AgentSession.objects.update(status="ended", ended_reason="completed", ended_at=timezone.now())
    assert f'action="/sessions/{world["session"]}/rerun/"' in found(alice, f"q={world['session']}")


def test_opened_on_a_page_it_offers_the_actions_of_its_object(world: dict[str, str]) -> None:
    Workspace.objects.update(phase="stopped")
    alice, path = make_user("alice"), f"/workspaces/{world['workspace']}/"
    assert f'action="{path}start/"' in found(alice, f"here={path}activity/")
    assert 'href="/workspaces/new/?template_id=plain"' in found(alice, "here=/workspaces/templates/plain/")
    for odd in (
        "/workspaces/",
        "/workspaces/ws-0000000000000000/",
        "/workspaces/%00/",
        "//evil.example/",
        "/workspaces/%ED%A0%80/",
    ):
        assert "evil" not in found(alice, f"here={odd}").replace("//evil.example/", "")


@pytest.mark.parametrize(("role", "offered"), [
    (Role.VIEWER, set()), (Role.MEMBER, {"session", "workspace", "agent"}),
    (Role.ADMIN, {"session", "workspace", "agent", "template", "provider", "LLM provider"}),
])  # fmt: skip
def test_it_offers_to_make_what_the_role_may_make_and_no_more(role: Role, offered: set[str]) -> None:
    page = found(make_user("someone", role), "q=new ")
    assert set(re.findall(r"New ([A-Za-z ]+)</a>", page)) == offered
    assert ("/admin/users/" in found(make_user("someone", role), "q=users")) == (role == Role.ADMIN)


def test_a_viewer_is_offered_no_change_of_anything(world: dict[str, str]) -> None:
    User.objects.filter(username="alice").update(role=Role.VIEWER)
    alice = User.objects.get(username="alice")
    for name in ("workspace", "session", "agent"):
        page = found(alice, f"q={world[name]}")
        assert world[name] in page
        assert set(re.findall(r'<form method="post" action="([^"]+)"', page)) <= {"/logout/"}
        assert "/edit/" not in page
        assert "/delete/" not in page


def test_it_asks_the_database_as_often_for_many_rows_as_for_few(world: dict[str, str]) -> None:
    client = browser(make_admin())
    client.get("/search/?q=ws-")
    with CaptureQueriesContext(connection) as few:
        client.get("/search/?q=ws-")
    for number in range(12):
        make_workspace(make_user("alice"), name=f"box {number}")
    with CaptureQueriesContext(connection) as many:
        page = client.get("/search/?q=ws-").content.decode()
    assert len(many) == len(few) <= 12
    assert page.count('href="/workspaces/ws-') <= 6, "more than a few of a kind"


def test_hostile_names_and_questions_are_text(world: dict[str, str]) -> None:
    Workspace.objects.update(name='"><script>alert(1)</script>\u202e')
    page = found(make_user("alice"), "q=script")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page
    assert '"><b>' not in found(make_user("alice"), "q=%22%3E%3Cb%3E")


@pytest.mark.parametrize(
    "query", ["q=%00", "q=%ff", "q=" + "x" * 5000, "q=%ED%A0%80", "here=%00", "q=_&here=%2F%2F", "q=%25"]
)
def test_an_odd_question_is_answered(query: str, world: dict[str, str]) -> None:
    found(make_user("alice"), query)


def test_htmx_gets_what_was_found_alone(world: dict[str, str]) -> None:
    answer = browser(make_user("alice")).get("/search/?q=agents", headers={"HX-Request": "true"})
    assert answer.content.decode().strip().startswith('<div id="found" data-q="agents">')
    assert "HX-Request" in answer["Vary"]


def test_every_page_leads_to_the_search_and_says_where_it_was_opened(world: dict[str, str]) -> None:
    page = browser(make_user("alice")).get("/compute/agents/").content.decode()
    assert 'href="/search/?here=/compute/agents/"' in page
    assert "/search/" not in browser().get("/login/").content.decode()


def test_the_switch_of_the_keys_is_each_users_own_and_leaves_no_audit_line() -> None:
    alice, client = make_user("alice"), browser(make_user("alice"))
    assert "<body data-keys" in client.get("/account/").content.decode()
    assert client.post("/account/keys/", {})["Location"] == "/account/"
    off = client.get("/account/").content.decode()
    assert "data-keys" not in off
    assert "Ctrl K" not in off
    assert "They are off." in client.get("/account/keys/").content.decode()
    assert "<body data-keys" in browser(make_user("charlie")).get("/").content.decode()
    client.post("/account/keys/", {"shortcuts": "1"})
    assert "<body data-keys" in client.get("/").content.decode()
    assert not AuditEntry.objects.filter(actor=alice).exists()


def test_the_list_of_keys_names_every_key_that_the_script_knows(world: dict[str, Any]) -> None:
    from tests.live import ROOT

    script = (ROOT / "static" / "console" / "app.js").read_text()
    tables = "".join(re.findall(r"const (?:ACTIONS|KEYS) = \{(.*?)\n? *\};", script, re.S))
    known = set(re.findall(r'(?:^|[{,\s])"?([^\s",{}:]{1})"?: ', tables))
    page = browser(make_user("alice")).get("/account/keys/").content.decode()
    said = set(re.findall(r'<kbd class="tag">(\S)</kbd>', page))
    assert len(known) > 11
    assert {"o", "w", "t", "p", "s", "a", "l", "f"} <= said
    assert known <= said, known - said
