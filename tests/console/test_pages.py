"""Pages by plain HTTP, as a browser without scripts asks for them: who may see what, what a form refuses, what a URL holds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from accounts.models import Role
from sessions_app.models import AgentSession
from tests.console.site import POLICY, browser, filled, no_manifest, pages, world
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_session
from workspaces.models import Workspace

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db


def test_nobody_is_sent_to_sign_in_from_every_page(world: dict[str, str]) -> None:
    answers = {path: browser().get(filled(path, world)) for path in pages() if path != "/login/"}
    assert len(answers) > 50
    wrong = {
        path: answer.status_code
        for path, answer in answers.items()
        if answer.status_code != 302 or not answer["Location"].startswith("/login/")
    }
    assert not wrong


def test_no_page_answers_an_admin_with_a_bug(world: dict[str, str]) -> None:
    client = browser(make_admin())
    codes = {path: client.get(filled(path, world)).status_code for path in pages()}
    assert not {path: code for path, code in codes.items() if code >= 500 and not path.startswith("/files/")}
    assert sum(code == 200 for code in codes.values()) > 35


def test_somebody_elses_workspace_and_session_are_not_found_on_any_page_or_fragment(world: dict[str, str]) -> None:
    client = browser(make_user("charlie"))
    private = [path for path in pages() if path.startswith(("/workspaces/<", "/sessions/<", "/files/<"))]
    assert len(private) > 20
    for path in private:
        for method in ("get", "post"):
            answer = getattr(client, method)(filled(path, world), {"text": "x", "command": "id"})
            assert answer.status_code in (404, 303, 302), (path, method, answer.status_code)
            assert world["workspace"] not in answer.get("Location", "") or method == "get"
    assert Workspace.objects.get().desired == "running"
    assert AgentSession.objects.get().status == "queued"


def test_another_persons_agent_is_shown_without_its_change_actions(world: dict[str, str]) -> None:
    client = browser(make_user("charlie"))
    shown = client.get(f"/compute/agents/{world['agent']}/")
    assert shown.status_code == 200
    assert b"/edit/" not in shown.content
    assert b"/delete/" not in shown.content
    assert client.get(f"/compute/agents/{world['agent']}/edit/").status_code == 403
    assert client.post(f"/compute/agents/{world['agent']}/delete/").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/workspaces/providers/new/",
        "/workspaces/templates/new/",
        "/compute/llm-providers/new/",
        "/admin/users/",
        "/admin/tokens/",
        "/admin/audit/",
        "/admin/system/",
    ],
)
def test_what_is_for_admins_says_so_to_a_member(path: str) -> None:
    answer = browser(make_user()).get(path)
    assert answer.status_code == 403
    assert "admin" in answer.content.decode()


def test_a_viewer_sees_no_button_that_changes_anything(world: dict[str, str]) -> None:
    client = browser(make_user("victor", Role.VIEWER))
    for path in ("/", "/workspaces/", "/sessions/", "/compute/agents/"):
        answer = client.get(path).content.decode()
        assert "/new/" not in answer, path
    assert client.get("/sessions/new/").status_code == 403


def test_every_page_carries_the_policy_and_neither_inline_script_nor_style(world: dict[str, str]) -> None:
    client = browser(make_admin())
    for path in pages():
        answer = client.get(filled(path, world))
        policy = {part.strip() for part in answer["Content-Security-Policy"].split(";")}
        assert policy == POLICY, path
        if not answer.get("Content-Type", "").startswith("text/html"):
            continue
        html = answer.content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", html), path
        assert not re.search(r"<[^>]+\s(style|on\w+)=", html), path
        assert "<style" not in html


def test_the_list_of_a_kind_says_all_of_its_state_in_the_url() -> None:
    alice = make_user("alice")
    for number in range(30):
        make_workspace(alice, name=f"box {number:02}")
    client = browser(alice)
    first = client.get("/workspaces/?q=box&phase=pending&sort=name&size=25").content.decode()
    assert "1–25 of 30" in first
    assert "box 00" in first
    assert "box 29" not in first
    assert "page=2" in first
    second = client.get("/workspaces/?q=box&phase=pending&sort=name&size=25&page=2").content.decode()
    assert "26–30 of 30" in second
    assert "box 29" in second
    assert "Nothing matches" in client.get("/workspaces/?q=zzz").content.decode()


@pytest.mark.parametrize(
    "query",
    [
        "sort=owner__password",
        "page=-1",
        "page=x",
        "size=9999999999999",
        "page=99999999999999999999",
        "q=%00",
        "phase=nowhere",
        "q=%ff",
    ],
)
def test_an_odd_query_is_answered_and_is_no_bug(query: str) -> None:
    make_workspace(make_user())
    assert browser(make_user()).get(f"/workspaces/?{query}").status_code in (200, 422)


@pytest.mark.parametrize(("path", "make"), [
    ("/workspaces/", lambda n: make_workspace(make_user())), ("/sessions/", lambda n: make_session(make_user())),
    ("/compute/agents/", lambda n: make_agent(make_user(), f"agent-{n}")),
    ("/workspaces/templates/", lambda n: make_template(f"template-{n}")),
])  # fmt: skip
def test_a_list_asks_the_database_as_often_for_many_rows_as_for_few(
    path: str, make: Any, django_assert_max_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    make(0)
    client = browser(make_admin())
    client.get(path)
    with CaptureQueriesContext(connection) as few:
        assert client.get(path).status_code == 200
    for number in range(1, 25):
        make(number)
    with CaptureQueriesContext(connection) as many:
        assert client.get(path).status_code == 200
    assert len(many) <= len(few)
    assert len(many) <= 25


def test_htmx_gets_the_table_alone_and_its_errors_as_toasts(world: dict[str, str]) -> None:
    client = browser(make_user("alice"))
    part = client.get("/workspaces/?q=", headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()
    assert "HX-Request" in part["Vary"]
    gone = client.get("/workspaces/ws-0000000000000000/row/", headers={"HX-Request": "true"})
    assert gone.status_code == 404
    assert "toast" in gone["HX-Trigger"]


def test_a_row_at_rest_ends_its_polling(world: dict[str, str]) -> None:
    client, path = browser(make_user("alice")), f"/workspaces/{world['workspace']}/row/"
    assert client.get(path).status_code == 200
    Workspace.objects.update(phase="stopped", desired="stopped")
    assert client.get(path).status_code == 286


def test_a_page_that_is_not_there_is_a_page_for_people_and_a_problem_for_machines() -> None:
    client = browser(make_user())
    page = client.get("/nowhere/")
    assert (page.status_code, page["Content-Type"].split(";")[0]) == (404, "text/html")
    assert "Not found" in page.content.decode()
    assert client.get("/v1/nowhere")["Content-Type"] == "application/problem+json"


def test_a_local_workspace_is_marked_not_isolated_everywhere(settings: Any) -> None:
    settings.PRIMER_ALLOW_LOCAL = True
    alice = make_user("alice")
    provider = make_provider("host", "local", {"root_path": "/srv/primer"})
    workspace = make_workspace(alice, make_template("bare", provider))
    session = make_session(alice, make_agent(alice), workspace)
    client = browser(alice)
    for path in ("/workspaces/", f"/workspaces/{workspace.slug}/", f"/workspaces/{workspace.slug}/confinement/", f"/files/{workspace.slug}/",
                 f"/sessions/{session.slug}/", "/workspaces/providers/", "/workspaces/providers/host/", "/workspaces/templates/bare/"):  # fmt: skip
        assert "not isolated" in client.get(path).content.decode().lower().replace("not_isolated", "not isolated"), path
    new = client.get(f"/sessions/new/?workspace_id={workspace.slug}").content.decode()
    assert "Nothing is isolated" in new


def test_a_deleted_workspace_says_so_to_whoever_has_transcripts_of_it(world: dict[str, str]) -> None:
    from django.utils import timezone

    path = f"/workspaces/{world['workspace']}/"
    browser(make_user("alice")).post(f"{path}delete/", {"confirm": world["workspace"]})
    Workspace.objects.update(deleted_at=timezone.now())
    hers = browser(make_user("alice")).get(path)
    assert hers.status_code == 404
    assert "its transcripts and what its commands printed stay" in hers.content.decode()
    assert world["session"] in hers.content.decode()
    his = browser(make_user("charlie")).get(path)
    assert his.status_code == 404
    assert "transcripts" not in his.content.decode()
