"""Every mutating route of models, agents and sessions: a dry run changes nothing, an unknown field is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from accounts.models import AuditEntry, IdempotencyKey
from agents.models import Agent, LLMProvider
from agents.urls import urlpatterns as agent_routes
from sessions_app.models import AgentSession, EndedReason, SessionEvent
from sessions_app.services import locked, session_end
from sessions_app.urls import urlpatterns as session_routes
from tests.factories import Api, make_user
from tests.sessions.cast import make_agent, make_llm_provider, make_session
from workspaces.models import Workspace

SCRIPTED: dict[str, Any] = {"id": "spare", "provider": "scripted", "config": {"kind": "scripted"}}
RUNNER: dict[str, Any] = {"id": "idle", "model": {"provider_id": "scripted"}}
# (method, route) -> (id to act on, body, status that its dry run has in common with the real one)
WRITES: dict[tuple[str, str], tuple[str, Any, int]] = {
    ("post", "llm_providers"): ("", {**SCRIPTED, "id": "another"}, 201),
    ("put", "llm_providers/<id>"): ("spare", {**SCRIPTED, "description": "changed"}, 200),
    ("patch", "llm_providers/<id>"): ("spare", {"description": "changed"}, 200),
    ("delete", "llm_providers/<id>"): ("spare", None, 204),
    ("post", "llm_providers/<id>/test"): ("spare", None, 200),
    ("post", "agents"): ("", {**RUNNER, "id": "another"}, 201),
    ("put", "agents/<id>"): ("idle", {**RUNNER, "description": "changed"}, 200),
    ("patch", "agents/<id>"): ("idle", {"description": "changed"}, 200),
    ("delete", "agents/<id>"): ("idle", None, 204),
    ("post", "sessions"): ("", {"agent_id": "idle", "workspace_id": "<ws>", "initial_instructions": "x"}, 201),
    ("patch", "sessions/<id>"): ("<over>", {"labels": {"a": "b"}}, 200),
    ("delete", "sessions/<id>"): ("<over>", None, 204),
    ("post", "sessions/<id>/messages"): ("<over>", {"text": "more"}, 200),
    ("post", "sessions/<id>/cancel"): ("<queued>", None, 200),
    ("post", "sessions/<id>/rerun"): ("<over>", None, 201),
}
WITHOUT_FIELDS = [where for where, (_, body, _) in WRITES.items() if where[0] == "post" and body is None]
TABLES: tuple[Any, ...] = (LLMProvider, Agent, AgentSession, SessionEvent, Workspace, AuditEntry, IdempotencyKey)

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def ids(workspace: Workspace) -> dict[str, str]:
    owner = make_user("alice")
    make_llm_provider("spare")
    agent = make_agent(owner, "idle")
    runner = make_agent(owner, "busy")
    over, queued = (locked(make_session(owner, one, workspace)) for one in (agent, runner))
    session_end(session=over, reason=EndedReason.COMPLETED, answer="42")
    return {"<over>": over.slug, "<queued>": queued.slug, "<ws>": workspace.slug}


def send(person: Api, where: tuple[str, str], ids: dict[str, str], body: Any = None, **query: Any) -> Any:
    method, route = where
    target, usual, _ = WRITES[where]
    path = route.replace("<id>", ids.get(target, target))
    body = usual if body is None else body
    if isinstance(body, dict):
        body = {name: ids.get(value, value) if isinstance(value, str) else value for name, value in body.items()}
    return person.call(method.upper(), path, body, {"Idempotency-Key": "k"} if method == "post" else None, **query)


def stored() -> dict[str, list[dict[str, Any]]]:
    return {table.__name__: list(table.objects.order_by("pk").values()) for table in TABLES}


def test_the_list_of_writes_is_complete() -> None:
    found = {
        (method, re.sub(r"<str:id>", "<id>", str(pattern.pattern)))
        for pattern in [*agent_routes, *session_routes]
        for method in pattern.callback.actions  # type: ignore[attr-defined]
        if method not in ("get", "head")
    }
    assert found == set(WRITES)


@pytest.mark.parametrize("where", WRITES, ids=" ".join)
def test_a_dry_run_answers_like_the_write_and_changes_nothing(
    where: tuple[str, str], ids: dict[str, str], bob: Api
) -> None:
    before = stored()
    answer = send(bob, where, ids, dry_run="true")
    assert answer.status_code == WRITES[where][2], answer.content
    assert stored() == before
    assert send(bob, where, ids).status_code == WRITES[where][2]
    assert stored() != before, "the same request without dry_run writes"


@pytest.mark.parametrize("where", WRITES, ids=" ".join)
def test_a_dry_run_that_is_neither_true_nor_false_is_refused(
    where: tuple[str, str], ids: dict[str, str], bob: Api
) -> None:
    before = stored()
    answer = send(bob, where, ids, dry_run="perhaps")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "dry_run"
    assert stored() == before


@pytest.mark.parametrize("where", WITHOUT_FIELDS, ids=" ".join)
def test_an_action_without_fields_names_those_it_was_sent(
    where: tuple[str, str], ids: dict[str, str], bob: Api
) -> None:
    before = stored()
    answer = send(bob, where, ids, {"reason": "x", "force": True})
    assert answer.status_code == 422
    assert {error["field"]: error["message"] for error in answer.json()["errors"]} == {
        "reason": "unknown field",
        "force": "unknown field",
    }
    assert stored() == before
    assert send(bob, where, ids, {}).status_code == WRITES[where][2]


def test_a_dry_test_of_a_model_asks_it_nothing_and_claims_nothing(ids: dict[str, str], bob: Api) -> None:
    dry = bob.post("llm_providers/spare/test", dry_run="true").json()
    assert (dry["ok"], dry["code"]) == (None, "")
    assert bob.get("llm_providers/spare").json()["status"]["health"] == "unknown"
    assert bob.post("llm_providers/spare/test").json()["ok"] is True
    assert bob.get("llm_providers/spare").json()["status"]["health"] == "healthy"
