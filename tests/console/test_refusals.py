"""What a form says when it is not taken: every field by its name, in words that fit the form, and nothing lost in silence."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client, RequestFactory

from accounts.models import User
from accounts.pages.door import Door
from agents.api import AgentViewSet
from agents.models import Agent, LLMProvider
from primer_site.errors import Invalid
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest, world
from tests.factories import Api, make_admin, make_provider, make_user, make_workspace
from tests.sessions.cast import make_agent
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
TEMPLATE = {
    "id": "box", "provider_id": "docker", "backend.kind": "container", "backend.image": "primer/workspace-runtime:1.0",
    "backend.cpu_cores": "1", "backend.memory_bytes": "256", "backend.pids_limit": "128", "backend.disk_bytes": "100",
    "backend.network.egress": "deny_all", "backend.network.mode": "none", "backend.disk_medium": "volume",
    "backend.workdir": "/workspace", "require": "best_effort",
}  # fmt: skip
AGENT = {"id": "mine", "model.provider_id": "scripted", "model.model_name": "scripted"}
LLM = {"id": "mine", "config.kind": "openai", "config.api_key": "k" * 30}
PROVIDER = {"id": "mine", "config.kind": "container", "config.runtime": "docker", "config.reachability.kind": "engine"}
SOCKET = {"config.connection.kind": "socket", "config.connection.socket_path": "/run/docker.sock"}
NEW = {
    "template": "/workspaces/templates/new/", "agent": "/compute/agents/new/", "llm": "/compute/llm-providers/new/",
    "provider": "/workspaces/providers/new/", "session": "/sessions/new/", "workspace": "/workspaces/new/",
}  # fmt: skip


def summary(html: str) -> str:
    """The list of refusals on top of a form."""
    return html.split('role="alert"')[1].split("</div></div>", maxsplit=1)[0]


def test_an_empty_session_names_everything_that_it_needs(world: dict[str, str]) -> None:
    html = browser(make_user("alice")).post(NEW["session"], {}).content.decode()
    for field in ("agent_id", "workspace_id", "initial_instructions"):
        assert f'href="#f-{field}"' in summary(html), field
    assert "is required, or template_id" in summary(html)


def test_a_refusal_is_escaped_once(world: dict[str, str]) -> None:
    html = browser(make_user("alice")).post(NEW["agent"], {**AGENT, "model.provider_id": "<b>\"'"}).content.decode()
    assert "<b>" not in summary(html)
    assert "&amp;" not in summary(html)
    assert html.count("&lt;b&gt;&quot;&#x27;") >= 1


NUL = "a\x00b"
TEXTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("template", TEMPLATE, {"init_commands": f"echo {NUL}"}, "init_commands"),
    ("template", TEMPLATE, {"description": NUL}, "description"),
    ("template", TEMPLATE, {"env.key": ["A"], "env.value": [NUL], "env.kind": ["text"]}, "env"),
    ("template", TEMPLATE, {"env.key": ["A"], "env.value": [NUL], "env.kind": ["secret"]}, "env"),
    ("template", TEMPLATE, {"env.key": [NUL], "env.value": ["x"], "env.kind": ["text"]}, "env"),
    ("template", TEMPLATE, {"labels.key": ["a"], "labels.value": [NUL]}, "labels"),
    ("template", TEMPLATE, {"labels.key": [NUL], "labels.value": ["a"]}, "labels"),
    ("template", TEMPLATE, {"files.path": [NUL], "files.content": ["x"]}, "files"),
    ("template", TEMPLATE, {"files.path": ["a"], "files.content": [NUL]}, "files"),
    ("template", TEMPLATE, {"backend.image": NUL}, "backend-image"),
    ("agent", AGENT, {"system_prompt": [NUL]}, "system_prompt"),
    ("agent", AGENT, {"description": NUL}, "description"),
    ("agent", AGENT, {"model.model_name": NUL}, "model-model_name"),
    ("llm", LLM, {"config.default_model": NUL}, "config-default_model"),
    ("llm", LLM, {"config.api_key": NUL}, "config-api_key"),
    ("llm", {"id": "s", "config.kind": "scripted"}, {"config.turns": '- {text: "a\\0b"}'}, "config-turns"),
    ("provider", PROVIDER | SOCKET, {"config.connection.socket_path": f"/run/{NUL}"}, "config-connection-socket_path"),
    ("workspace", {"template_id": "plain"}, {"name": NUL}, "name"),
    ("workspace", {"template_id": "plain"}, {"env.key": ["A"], "env.value": [NUL], "env.kind": ["secret"]}, "env"),
    ("session", {"agent_id": "code-runner"}, {"initial_instructions": NUL}, "initial_instructions"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "form", "bad", "field"), TEXTS)
def test_text_that_cannot_be_stored_is_refused_beside_its_field(
    kind: str, form: dict[str, Any], bad: dict[str, Any], field: str, world: dict[str, str]
) -> None:
    make_provider("docker", "container")
    client = browser(make_admin())
    place = {"workspace_id": world["workspace"]} if kind == "session" else {}
    before = [model.objects.count() for model in (WorkspaceTemplate, WorkspaceProvider, Workspace, Agent, LLMProvider)]
    answer = client.post(NEW[kind], {**form, **place, **bad})
    assert answer.status_code == 422, answer.content.decode()[:500]
    assert f'href="#f-{field}"' in summary(answer.content.decode())
    assert "NUL" in summary(answer.content.decode())
    assert before == [m.objects.count() for m in (WorkspaceTemplate, WorkspaceProvider, Workspace, Agent, LLMProvider)]
    assert AgentSession.objects.count() == 1


@pytest.mark.parametrize("where", ["description", "env.A", "init_commands", "labels.a"])
def test_half_a_surrogate_pair_in_yaml_is_refused_with_its_line(where: str, world: dict[str, str]) -> None:
    name, _, key = where.partition(".")
    value = f"{{{key}: @}}" if key else "[@]" if name == "init_commands" else "@"
    text = (
        "kind: workspace_template\nspec:\n  id: box\n  provider_id: fake\n"
        "  backend: {kind: container, image: primer/workspace-runtime:1.0}\n"
        f"  {name}: {value}\n".replace("@", '"\\ud800"')
    )
    answer = browser(make_admin()).post(NEW["template"], {"_form": "yaml", "yaml": text})
    assert answer.status_code == 422
    assert "line 6" in summary(answer.content.decode())
    assert not WorkspaceTemplate.objects.filter(slug="box").exists()


def test_the_door_of_the_pages_refuses_what_the_parser_of_the_api_does() -> None:
    """A form cannot send half a surrogate pair, and YAML refuses one: whatever comes after them is caught here."""
    request = RequestFactory().post("/")
    request.user = make_admin()
    with pytest.raises(Invalid) as refused:
        Door(AgentViewSet, request).create({"id": "a", "system_prompt": ["fine", "\ud800"]})
    assert [(one.field, one.message) for one in refused.value.errors] == [
        ("system_prompt[1]", "must not contain a lone surrogate")
    ]


def test_a_secret_that_a_refused_form_does_not_carry_back_is_asked_for_again(world: dict[str, str]) -> None:
    client = browser(make_admin())
    key = "sk-of-mine-0123456789"
    html = client.post(NEW["llm"], {**LLM, "id": "Not A Slug", "config.api_key": key}).content.decode()
    assert key not in html
    assert 'id="f-config-api_key-typed"' in html
    assert "type it once more" in html
    assert 'aria-describedby="f-config-api_key-help f-config-api_key-typed"' in html
    env = {"env.key": ["KEY"], "env.value": [key], "env.kind": ["secret"]}
    html = client.post(NEW["template"], {**TEMPLATE, "id": "Not A Slug", **env}).content.decode()
    assert key not in html
    assert 'id="f-env-typed"' in html
    plain = client.post(NEW["template"], {**TEMPLATE, "id": "No", **env, "env.kind": ["text"]}).content.decode()
    assert "-typed" not in plain, "nothing was lost"


def test_a_size_is_refused_in_the_units_that_the_form_asks_in(world: dict[str, str]) -> None:
    make_provider("docker", "container")
    client = browser(make_admin())
    html = client.post(NEW["template"], {**TEMPLATE, "backend.memory_bytes": "0"}).content.decode()
    assert "must be at least 64 MiB (67108864 bytes)" in summary(html)
    html = client.post(NEW["template"], {**TEMPLATE, "backend.disk_bytes": "999999999999999"}).content.decode()
    assert "must be at most 64 TiB (70368744177664 bytes)" in summary(html)


@pytest.mark.parametrize("kind", ["template", "agent", "llm", "provider"])
def test_an_id_is_explained_in_the_same_words_for_every_kind(kind: str, world: dict[str, str]) -> None:
    html = browser(make_admin()).post(NEW[kind], {"id": "Not OK"}).content.decode()
    assert "must be 1 to 63 lower-case letters, digits or" in summary(html)


def test_a_manifest_of_another_kind_is_named_as_that(world: dict[str, str]) -> None:
    text = "kind: agent\nspec:\n  id: a\n  model: {provider_id: scripted}\n"
    answer = browser(make_admin()).post(NEW["llm"], {"_form": "yaml", "yaml": text})
    said = summary(answer.content.decode())
    assert answer.status_code == 422
    assert "line 1" in said
    assert "here it must be llm_provider" in said
    assert "is required" not in said


def test_a_model_behind_an_endpoint_needs_a_key_or_an_address_of_its_own(world: dict[str, str]) -> None:
    client = browser(make_admin())
    refused = client.post(NEW["llm"], {**LLM, "config.api_key": ""})
    assert 'href="#f-config-api_key"' in summary(refused.content.decode())
    assert client.post(NEW["llm"], LLM).status_code == 303
    assert "has no key yet" not in client.get("/compute/llm-providers/mine/").content.decode()
    taken_away = {"config.kind": "openai", "config.api_key.remove": "1", "_rev": "1"}
    assert client.post("/compute/llm-providers/mine/edit/", taken_away).status_code == 303
    assert "has no key yet" in client.get("/compute/llm-providers/mine/").content.decode()
    assert "has no key yet" not in client.get("/compute/llm-providers/scripted/").content.decode()


def test_made_and_saved_objects_are_named_as_people_write_them(world: dict[str, str]) -> None:
    client = browser(make_admin())
    assert "LLM provider mine created." in client.post(NEW["llm"], LLM, follow=True).content.decode()
    deleted = client.post("/compute/llm-providers/mine/delete/", follow=True).content.decode()
    assert "LLM provider mine deleted." in deleted


def test_a_test_swaps_what_the_head_of_the_page_says(world: dict[str, str]) -> None:
    client, path = browser(make_admin()), "/compute/llm-providers/scripted/"
    before = client.get(path).content.decode()
    assert "never tested" in before
    for name in ("health-chip", "health-when", "health-why"):
        assert before.count(f'id="{name}"') == 1
    html = client.post(f"{path}test/", headers={"HX-Request": "true"}).content.decode()
    for name in ("health-chip", "health-when", "health-why"):
        assert f'id="{name}" hx-swap-oob="true"' in html
    assert "healthy" in html
    assert "never tested" not in html
    assert "hx-swap-oob" not in client.post(f"{path}test/").content.decode(), "without scripts it is a page of its own"


def test_who_may_not_test_is_offered_no_test(world: dict[str, str]) -> None:
    path = "/compute/llm-providers/scripted/"
    assert "One tiny call" in browser(make_admin()).get(path).content.decode()
    assert "One tiny call" not in browser(make_user("alice")).get(path).content.decode()


@pytest.mark.parametrize("path", [NEW["session"], NEW["agent"], "/account/tokens/", "/login/"])
def test_a_form_that_is_larger_than_any_of_ours_is_refused_before_it_is_read(
    path: str, world: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.http import HttpRequest

    client = browser(make_user("alice"))
    monkeypatch.setattr(HttpRequest, "_load_post_and_files", lambda self: pytest.fail("it was taken apart"))
    body = b"initial_instructions=" + b"%41" * (1024 * 1024)
    answer = client.generic("POST", path, body, content_type="application/x-www-form-urlencoded")
    assert answer.status_code == 413
    assert "larger than 3 MiB" in answer.content.decode()
    assert "<html" in answer.content.decode()


def test_a_form_below_the_bound_and_a_larger_body_of_the_api_are_taken(world: dict[str, str]) -> None:
    client = browser(make_user("alice"))
    form = {"agent_id": world["agent"], "workspace_id": world["workspace"]}
    assert client.post(NEW["session"], {**form, "initial_instructions": "x" * 900_000}).status_code == 303
    answer = Api(make_admin("bob")).post("agents", {"id": "x", "system_prompt": ["x" * (4 * 1024 * 1024)]})
    assert answer.status_code == 422
    assert "system_prompt[0]" in {one["field"] for one in answer.json()["errors"]}


def test_a_body_in_chunks_is_measured_by_what_has_arrived() -> None:
    from io import BytesIO

    from django.core.handlers.asgi import ASGIRequest

    from primer_site.console import FORM_BYTES, body_bytes

    scope = {"type": "http", "method": "POST", "path": "/sessions/new/", "headers": []}
    request = ASGIRequest(scope, BytesIO(b"x" * (FORM_BYTES + 1)))
    assert body_bytes(request) == FORM_BYTES + 1
    assert request.read(1) == b"x", "the body was moved on"


def limited(person: User, agent: Agent, **limits: Any) -> Any:
    workspace = make_workspace(person)
    body = {"agent_id": agent.slug, "workspace_id": workspace.slug, "initial_instructions": "x", "limits": limits}
    return Api(person).post("sessions", body)


@pytest.mark.parametrize(
    ("limits", "field", "most"),
    [
        ({"max_turns": 6}, "max_turns", "5"), ({"timeout_s": 1801}, "timeout_s", "1800"),
        ({"max_tool_calls": 201, "max_turns": 4}, "max_tool_calls", "200"), ({"max_tokens": None}, "max_tokens", "900"),
    ],
)  # fmt: skip
def test_limits_of_an_agent_are_lowered_by_anybody_and_raised_by_its_owner_and_admins(
    limits: dict[str, Any], field: str, most: str
) -> None:
    alice, owner = make_user("alice"), make_user("charlie")
    agent = make_agent(owner, limits={"max_turns": 5, "max_tokens": 900})
    answer = limited(alice, agent, **limits)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == f"limits.{field}"
    assert f"at most {most}, the agent's" in error["message"]
    assert "ask its owner (charlie) or an admin" in error["message"]
    assert not AgentSession.objects.exists()
    assert limited(alice, agent, max_turns=5, max_tokens=10).status_code == 201
    assert limited(owner, agent, **limits).status_code == 201
    assert limited(make_admin(), agent, **limits).status_code == 201


def test_a_limit_that_is_too_high_stands_beside_its_field_of_the_form() -> None:
    alice = make_user("alice")
    agent, workspace = make_agent(make_user("charlie"), limits={"max_turns": 5}), make_workspace(alice)
    form = {
        "agent_id": agent.slug,
        "workspace_id": workspace.slug,
        "initial_instructions": "x",
        "limits.max_turns": "9",
    }
    html = browser(alice).post(NEW["session"], form).content.decode()
    assert 'href="#f-limits-max_turns"' in summary(html)


def test_a_rerun_keeps_to_an_agent_that_was_lowered_meanwhile() -> None:
    alice = make_user("alice")
    agent = make_agent(make_user("charlie"), limits={"max_turns": 5})
    made = limited(alice, agent, max_turns=4, max_tool_calls=3).json()
    agent.write_spec({"limits": {**agent.limits, "max_turns": 2}})
    again = Api(alice).post(f"sessions/{made['id']}/rerun")
    assert again.status_code == 201
    assert (again.json()["limits"]["max_turns"], again.json()["limits"]["max_tool_calls"]) == (2, 3)


def test_a_higher_limit_is_offered_up_to_what_one_may_have() -> None:
    from sessions_app.pages.endings import ending

    alice = make_user("alice")
    agent = make_agent(alice, limits={"max_turns": 5})
    slug = limited(alice, agent, max_turns=3).json()["id"]
    session = AgentSession.objects.get(slug=slug)
    session.ended_reason, session.ended_detail = "limit", {"code": "max_turns", "message": "", "hint": ""}
    assert ending(session, {"max_turns": 3})["raise_to"] == 6
    assert ending(session, {"max_turns": 3}, agent.limits)["raise_to"] == 5
    at_the_most = ending(session, {"max_turns": 5}, agent.limits)
    assert "raise_url" not in at_the_most
    assert at_the_most["raise_agent"] == agent.slug


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 7}, {"input_tokens": None, "prompt": 3}, None])
def test_usage_that_an_earlier_version_stored_breaks_neither_lists_nor_the_overview(
    usage: Any, world: dict[str, str]
) -> None:
    AgentSession.objects.update(usage=usage if usage is not None else {}, ended_detail={"message": "old"})
    alice = make_user("alice")
    (item,) = Api(alice).get("sessions").json()["items"]
    given = (usage or {}).get("input_tokens") or 0
    assert item["usage"] == {
        "input_tokens": given, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost": None,
    }  # fmt: skip
    assert item["ended_detail"] == {"code": "", "message": "old", "hint": ""}
    client: Client = browser(alice)
    for path in ("/", "/sessions/", f"/sessions/{world['session']}/", f"/compute/agents/{world['agent']}/sessions/"):
        assert client.get(path).status_code == 200, path


def test_while_it_is_tried_again_no_hint_says_that_somebody_should() -> None:
    from sessions_app.fragments import Fragments
    from tests.sessions.test_fragments import event

    data = {"code": "llm_unavailable", "message": "It is busy.", "hint": "Try again later.", "attempt": 2}
    pending = Fragments().of(event("error", {**data, "retry_in_s": 4}))
    assert "Try again later" not in pending
    assert "It is busy." in pending
    final = Fragments().of(event("error", {**data, "retry_in_s": None}))
    assert "Try again later." in final


def test_a_number_and_its_noun_agree() -> None:
    from agents.budget import Limits
    from primer_site.words import counted, kind_words

    assert [counted(n, "process", "processes") for n in (0, 1, 2)] == ["0 processes", "1 process", "2 processes"]
    assert (kind_words("llm_provider"), kind_words("workspace_template")) == ("LLM provider", "Workspace template")
    assert "after 1 turn, 1 tool call or 2 s" in Limits(max_turns=1, max_tool_calls=1, timeout_s=2).told()


def test_a_sentence_about_a_path_does_not_end_in_three_dots() -> None:
    from workspaces.sandbox_errors import file_error

    assert file_error("invalid", "the path goes up with ..").detail == 'The path goes up with "..".'
    assert file_error("invalid", "something of its own ..").detail == "The request is not valid."
