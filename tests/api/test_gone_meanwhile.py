"""What a body names is deleted, or becomes another kind, after the body was checked and before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from accounts.rest import ResourceViewSet
from agents.models import Agent
from sessions_app.models import AgentSession
from tests.api.conftest import World
from tests.factories import Api
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

LOCAL = {"kind": "local"}
TOLD = {"initial_instructions": "x"}
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {  # request, body, what is deleted, field of the error
    "template, provider": (
        "POST workspace_templates", {"id": "late", "provider_id": "spare", "backend": LOCAL},
        "workspace_providers/spare", "provider_id",
    ),
    "moved template, provider": (
        "PATCH workspace_templates/unused", {"provider_id": "spare"}, "workspace_providers/spare", "provider_id",
    ),
    "workspace, template": (
        "POST workspaces", {"template_id": "unused"}, "workspace_templates/unused", "template_id",
    ),
    "session, agent": (
        "POST sessions", {"agent_id": "free", "template_id": "unused", **TOLD}, "agents/free", "agent_id",
    ),
    "session, template": (
        "POST sessions", {"agent_id": "free", "template_id": "unused", **TOLD},
        "workspace_templates/unused", "template_id",
    ),
    "agent, model": (
        "POST agents", {"id": "late", "model": {"provider_id": "unused-model"}}, "llm_providers/unused-model",
        "model.provider_id",
    ),
    "moved agent, model": (
        "PATCH agents/free", {"model": {"provider_id": "unused-model"}}, "llm_providers/unused-model",
        "model.provider_id",
    ),
}  # fmt: skip


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Does something once, where a request asks an engine: behind its checks and before its transaction."""

    def arrange(deed: Callable[[], Any]) -> None:
        deeds = [deed]
        for cls in (ResourceViewSet, *ResourceViewSet.__subclasses__()):
            if "check_outside" in vars(cls):
                monkeypatch.setattr(cls, "check_outside", lambda *_: deeds.pop()() if deeds else None)

    return arrange


def rows() -> list[Any]:
    return [
        sorted(model.objects.values_list("pk", "spec_rev", "deleted_at"))
        for model in (Agent, WorkspaceTemplate, Workspace)
    ] + [sorted(AgentSession.objects.values_list("pk", "spec_rev"))]


@pytest.mark.parametrize("case", CASES)
def test_what_was_deleted_meanwhile_is_refused_like_what_never_was(
    case: str, world: World, bob: Api, meanwhile: Any
) -> None:
    request, body, deleted, field = CASES[case]
    method, path = request.split()
    found: list[Any] = []

    def delete() -> None:
        assert bob.delete(deleted).status_code == 204
        found.append(rows())

    meanwhile(delete)
    late = bob.call(method, path, body)
    assert late.status_code == 422, late.content
    assert [error["field"] for error in late.json()["errors"]] == [field]
    assert [rows()] == found
    never = bob.call(method, path, body)
    assert {**never.json(), "request_id": ""} == {**late.json(), "request_id": ""}


@pytest.mark.parametrize("gone", [False, True])
def test_a_session_is_not_made_in_a_workspace_that_is_being_deleted_or_gone(
    gone: bool, world: World, alice: Api, meanwhile: Any
) -> None:
    def delete() -> None:
        assert alice.delete(f"workspaces/{world.workspace.slug}").status_code == 202
        if gone:
            Workspace.objects.filter(pk=world.workspace.pk).update(deleted_at=timezone.now())

    meanwhile(delete)
    before = AgentSession.objects.count()
    answer = alice.post("sessions", {"agent_id": "free", "workspace_id": world.workspace.slug, **TOLD})
    assert answer.status_code == 409, answer.content
    assert answer.json()["detail"] == f"Workspace {world.workspace.slug} is deleted."
    assert AgentSession.objects.count() == before


@pytest.mark.parametrize("case", ["template, provider", "moved template, provider"])
def test_a_template_is_not_written_for_a_provider_that_became_another_kind(
    case: str, world: World, bob: Api, meanwhile: Any
) -> None:
    request, body, _, _ = CASES[case]
    meanwhile(lambda: WorkspaceProvider.objects.filter(slug="spare").update(provider="container"))
    before = rows()
    method, path = request.split()
    answer = bob.call(method, path, body)
    assert answer.status_code == 422, answer.content
    message = "must be container, the kind of provider spare"
    assert answer.json()["errors"] == [{"field": "backend.kind", "message": message}]
    assert rows() == before


def test_a_workspace_is_made_of_the_template_as_it_is_at_the_writing(world: World, bob: Api, meanwhile: Any) -> None:
    def change() -> None:
        assert bob.patch("workspace_templates/unused", {"init_commands": ["true"]}).status_code == 200

    meanwhile(change)
    made = bob.post("workspaces", {"template_id": "unused"}).json()
    row = Workspace.objects.get(slug=made["id"])
    assert (row.spec["init_commands"], row.spec["template_version"]) == ([["sh", "-c", "true"]], 2)
