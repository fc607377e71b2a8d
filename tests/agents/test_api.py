"""Models and agents over the API: who may, what is refused and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import AuditEntry, Role, Scope
from agents.models import Agent, LLMProvider
from tests.factories import Api, api, make_admin, make_user

pytestmark = pytest.mark.django_db

SCRIPTED = {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
RUNNER: dict[str, Any] = {
    "id": "code-runner",
    "description": "Runs untrusted code in the sandbox.",
    "model": {"provider_id": "scripted", "model_name": "scripted"},
    "tools": [],
    "system_prompt": ["You run untrusted user code in the sandbox."],
}


@pytest.fixture
def alice() -> Api:
    return api(make_user("alice"))


@pytest.fixture
def bob() -> Api:
    return api(make_admin("bob"))


@pytest.fixture
def charlie() -> Api:
    return api(make_user("charlie"))


@pytest.fixture
def scripted(bob: Api) -> dict[str, Any]:
    answer = bob.post("llm_providers", SCRIPTED)
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


@pytest.fixture
def runner(alice: Api, scripted: dict[str, Any]) -> dict[str, Any]:
    answer = alice.post("agents", RUNNER)
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def refused(answer: Any, status: int, code: str, field: str = "", words: str = "") -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert answer["Content-Type"] == "application/problem+json"
    if field:
        messages = [error["message"] for error in body["errors"] if error["field"] == field]
        assert messages, body
        assert words in messages[0], messages
    return body


def test_the_recipes_agent_is_accepted_and_read_back_with_defaults(runner: dict[str, Any], alice: Api) -> None:
    assert runner["owner"] == "alice"
    assert runner["limits"] == {"max_turns": 50, "max_tool_calls": 200, "timeout_s": 1800, "max_tokens": None}
    assert (runner["temperature"], runner["max_output_tokens"], runner["thinking"]) == (None, 8192, "off")
    assert alice.get("agents/code-runner").json() == runner
    assert alice.get("agents").json()["items"] == [runner]


@pytest.mark.parametrize("names", [["workspace"], ["workspace__exec"], ["workspace__nonsense", "x"]])
def test_listing_the_workspaces_tools_is_refused_with_the_reason(
    alice: Api, scripted: dict[str, Any], names: list[str]
) -> None:
    refused(
        alice.post("agents", {**RUNNER, "tools": names}), 422, "invalid", "tools", "come with the session's binding"
    )
    assert not Agent.objects.exists()


def test_a_tool_that_does_not_exist_is_refused(alice: Api, scripted: dict[str, Any]) -> None:
    refused(alice.post("agents", {**RUNNER, "tools": ["web"]}), 422, "invalid", "tools", "no tool 'web'")


def test_a_placeholder_for_the_model_is_refused_with_what_there_is(alice: Api, scripted: dict[str, Any]) -> None:
    body = {**RUNNER, "model": {"provider_id": "<llm>", "model_name": "<model>"}}
    problem = refused(alice.post("agents", body), 422, "invalid", "model.provider_id", 'no llm_provider "<llm>"')
    assert problem["hint"] == "there are: scripted"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tempreature": 1}, "tempreature"), ({"model": {"provider_id": "scripted", "x": 1}}, "model.x"),
        ({"model": {}}, "model.provider_id"), ({"id": "Not A Slug"}, "id"), ({"id": "a" * 64}, "id"), ({"id": "a\n"}, "id"),
        ({"temperature": 3}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"thinking": "maybe"}, "thinking"),
        ({"thinking": {"budget_tokens": 0}}, "thinking"), ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"limits": {"max_turns": 0}}, "limits.max_turns"), ({"limits": {"turns": 1}}, "limits.turns"),
        ({"system_prompt": "text"}, "system_prompt"), ({"labels": {"a b": "c"}}, "labels"), ({"owner": "bob"}, ""),
        ({"description": "\ud83d"}, "description"), ({"description": "a\x00"}, "description"),
        ({"max_output_tokens": 10**30}, "max_output_tokens"), ({"thinking": {"budget_tokens": 8192}}, "thinking"),
        ({"thinking": {"budget_tokens": 2000}, "max_output_tokens": 2000}, "thinking"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(alice: Api, scripted: dict[str, Any], change: dict[str, Any], field: str) -> None:
    answer = alice.post("agents", {**RUNNER, **change})
    if field:
        refused(answer, 422, "invalid", field)
    else:  # what reads show may be sent back, and changes nothing
        assert answer.json()["owner"] == "alice"


def test_everybody_sees_agents_and_only_owner_and_admin_change_them(
    runner: dict[str, Any], alice: Api, bob: Api, charlie: Api
) -> None:
    assert charlie.get("agents/code-runner").status_code == 200
    body = refused(charlie.patch("agents/code-runner", {"description": "mine"}), 403, "forbidden")
    assert "alice" in body["detail"]
    refused(charlie.delete("agents/code-runner"), 403, "forbidden")
    assert alice.patch("agents/code-runner", {"description": "a"}).status_code == 200
    assert bob.patch("agents/code-runner", {"description": "b"}).status_code == 200
    viewer = api(make_user("victor", Role.VIEWER))
    assert viewer.get("agents/code-runner").status_code == 200
    refused(viewer.post("agents", {**RUNNER, "id": "x"}), 403, "forbidden")
    assert AuditEntry.objects.filter(action="agent.update").count() == 2


def test_a_put_of_what_was_read_changes_nothing(runner: dict[str, Any], alice: Api) -> None:
    etag = alice.get("agents/code-runner")["ETag"]
    answer = alice.put("agents/code-runner", runner, headers={"If-Match": etag})
    assert answer.status_code == 200, answer.content
    assert (answer.json(), answer["ETag"]) == (runner, etag)
    assert not AuditEntry.objects.filter(action="agent.update").exists()


def test_a_put_replaces_everything_and_a_patch_only_what_it_names(runner: dict[str, Any], alice: Api) -> None:
    alice.patch("agents/code-runner", {"limits": {"max_turns": 3}, "temperature": 0.5, "labels": {"a": "b"}})
    patched = alice.patch("agents/code-runner", {"limits": {"max_tokens": 9}}).json()
    assert (patched["limits"]["max_turns"], patched["limits"]["max_tokens"], patched["temperature"]) == (3, 9, 0.5)
    replaced = alice.put("agents/code-runner", RUNNER).json()
    assert (replaced["limits"]["max_turns"], replaced["temperature"], replaced["labels"]) == (50, None, {})
    refused(alice.patch("agents/code-runner", {"id": "other"}), 422, "invalid", "id", "cannot change")
    refused(alice.put("agents/code-runner", RUNNER, headers={"If-Match": '"1.1"'}), 412, "precondition_failed")


def test_a_taken_id_is_409_until_it_is_deleted(runner: dict[str, Any], alice: Api) -> None:
    refused(alice.post("agents", RUNNER), 409, "conflict", "id", "is taken")
    assert alice.delete("agents/code-runner").status_code == 204
    refused(alice.get("agents/code-runner"), 404, "not_found")
    assert alice.post("agents", RUNNER).status_code == 201


def test_a_dry_run_stores_nothing_and_the_same_key_makes_one(scripted: dict[str, Any], alice: Api) -> None:
    assert alice.post("agents", RUNNER, dry_run="true").status_code == 201
    assert not Agent.objects.exists()
    answers = [alice.post("agents", RUNNER, headers={"Idempotency-Key": "k1"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()


def test_models_are_the_admins_to_write(alice: Api, bob: Api) -> None:
    body = refused(alice.post("llm_providers", SCRIPTED), 403, "forbidden")
    assert "admin" in body["detail"]
    small = api(make_admin(), scope=Scope.WRITE)
    refused(small.post("llm_providers", SCRIPTED), 403, "forbidden")
    assert bob.post("llm_providers", SCRIPTED).status_code == 201


def test_only_admins_see_a_models_configuration(alice: Api, bob: Api) -> None:
    config = {"kind": "scripted", "default_model": "m1", "turns": [{"text": "hi"}]}
    assert bob.post("llm_providers", {**SCRIPTED, "config": config}).json()["config"] == config
    assert alice.get("llm_providers/scripted").json()["config"] == {"kind": "scripted", "default_model": "m1"}
    assert alice.get("llm_providers").json()["items"][0]["config"] == {"kind": "scripted", "default_model": "m1"}


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({**SCRIPTED, "provider": "magic"}, "provider", ""),
        ({**SCRIPTED, "config": {"kind": "anthropic"}}, "config.kind", "must be scripted"),
        ({**SCRIPTED, "config": {}}, "config.kind", ""),
        ({**SCRIPTED, "config": {"kind": "scripted", "api_key": "sk-1"}}, "config.api_key", "unknown field"),
        ({**SCRIPTED, "config": {"kind": "scripted", "turns": [{"txt": 1}]}}, "config.turns", "[0].txt unknown field"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_work_is_refused(bob: Api, body: dict[str, Any], field: str, words: str) -> None:
    refused(bob.post("llm_providers", body), 422, "invalid", field, words)
    assert not LLMProvider.objects.exists()


def test_a_model_in_use_is_kept(bob: Api, runner: dict[str, Any]) -> None:
    body = refused(bob.delete("llm_providers/scripted"), 409, "in_use")
    assert "code-runner" in body["detail"]
    assert bob.delete("agents/code-runner").status_code == 204
    assert bob.delete("llm_providers/scripted").status_code == 204


def test_a_test_makes_one_call_and_stores_what_it_said(bob: Api, alice: Api, scripted: dict[str, Any]) -> None:
    assert scripted["status"]["health"] == "unknown"
    answer = bob.post("llm_providers/scripted/test")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["ok"], answer.json()["message"]) == (True, "")
    assert bob.get("llm_providers/scripted").json()["status"]["health"] == "healthy"
    refused(alice.post("llm_providers/scripted/test"), 403, "forbidden")
    assert alice.get("llm_providers/scripted/models").json() == {"items": ["scripted"]}


def test_a_failing_test_is_a_sentence_and_a_change_forgets_it(bob: Api) -> None:
    bob.post("llm_providers", {**SCRIPTED, "config": {"kind": "scripted", "turns": [{"error": "llm_config"}]}})
    answer = bob.post("llm_providers/scripted/test").json()
    assert (answer["ok"], answer["code"]) == (False, "llm_config")
    assert answer["message"].endswith(".")
    status = bob.get("llm_providers/scripted").json()["status"]
    assert (status["health"], status["reasons"]) == ("unreachable", [answer["message"]])
    changed = bob.patch("llm_providers/scripted", {"config": {"kind": "scripted"}}).json()
    assert changed["status"]["health"] == "unknown"


def test_lists_are_filtered_sorted_and_paged_by_what_is_declared(bob: Api, scripted: dict[str, Any]) -> None:
    for name in ("a1", "a2", "b1"):
        assert bob.post("agents", {**RUNNER, "id": name, "labels": {"team": name[0]}}).status_code == 201
    page = bob.get("agents", limit=2, sort="id").json()
    assert ([item["id"] for item in page["items"]], page["total"]) == (["a1", "a2"], 3)
    rest = bob.get("agents", limit=2, sort="id", cursor=page["next_cursor"]).json()
    assert [item["id"] for item in rest["items"]] == ["b1"]
    assert [item["id"] for item in bob.get("agents", label="team=b").json()["items"]] == ["b1"]
    assert bob.get("agents", provider_id="nope").json()["items"] == []
    refused(bob.get("agents", tools="x"), 422, "invalid", "tools")


def test_a_list_of_agents_needs_few_queries(
    bob: Api, scripted: dict[str, Any], django_assert_max_num_queries: Any
) -> None:
    for number in range(15):
        bob.post("agents", {**RUNNER, "id": f"a{number}"})
    with django_assert_max_num_queries(6):
        assert len(bob.get("agents").json()["items"]) == 15


def test_a_model_keeps_its_kind_while_agents_have_a_setting_that_the_other_kind_lacks(
    alice: Api, bob: Api, runner: dict[str, Any]
) -> None:
    assert alice.patch("agents/code-runner", {"thinking": "auto"}).status_code == 200
    config = {"kind": "openai", "base_url": "https://models.example/v1", "default_model": "m", "api_key": "k" * 20}
    other = {"provider": "openai", "config": config}
    body = refused(bob.patch("llm_providers/scripted", other), 409, "in_use")
    assert body["detail"].endswith("agents ask LLM provider scripted for it: code-runner.")
    assert alice.patch("agents/code-runner", {"thinking": "off"}).status_code == 200
    changed = bob.patch("llm_providers/scripted", other)
    assert changed.status_code == 200, changed.content


def test_an_agent_that_thinks_is_not_written_for_a_model_that_became_another_kind(
    alice: Api, scripted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(*_: Any) -> None:
        LLMProvider.objects.update(provider="openai")

    monkeypatch.setattr("agents.api.AgentViewSet.check_outside", change)
    refused(alice.post("agents", {**RUNNER, "thinking": "auto"}), 422, "invalid", "thinking", "must be off")
    assert not Agent.objects.exists()
