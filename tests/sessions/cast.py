"""Agents, sessions and what their transcripts say."""

from __future__ import annotations

from typing import Any

from accounts.audit import Actor
from accounts.models import User
from agents import services as agents
from agents.limits import DEFAULTS
from agents.models import Agent, LLMProvider
from sessions_app import services
from sessions_app.models import AgentSession, SessionEvent
from tests.eventually import eventually
from tests.factories import Api, make_admin, make_user, make_workspace
from workspaces.models import Workspace

EXEC = "workspace__exec"


def make_llm_provider(slug: str = "scripted", turns: list[dict[str, Any]] | None = None) -> LLMProvider:
    found: LLMProvider | None = LLMProvider.objects.live().filter(slug=slug).first()
    config: dict[str, Any] = {"kind": "scripted", **({"turns": turns} if turns else {})}
    data = {"slug": slug, "provider": "scripted", "config": config}
    return found or agents.llm_provider_create(by=Actor(make_admin()), data=data)


def make_agent(
    owner: User | None = None, slug: str = "code-runner", llm: LLMProvider | None = None, **over: Any
) -> Agent:
    limits = {**DEFAULTS, **over.pop("limits", {})}
    data = {"slug": slug, "provider": llm or make_llm_provider(), "model_name": "scripted", "limits": limits, **over}
    return agents.agent_create(by=Actor(owner or make_user()), data=data)


def make_session(
    owner: User | None = None,
    agent: Agent | None = None,
    workspace: Workspace | None = None,
    text: str = "Run this code: print(6 * 7)",
    **over: Any,
) -> AgentSession:
    """A queued session; who runs it is the test's process."""
    owner = owner or make_user()
    agent = agent or Agent.objects.live().first() or make_agent(owner)
    return services.session_create(
        by=Actor(owner), agent=agent, workspace=workspace or make_workspace(owner), initial_instructions=text, **over
    )


def start(
    person: Api, workspace: Workspace, agent: Agent, text: str = "Run this code: print(6 * 7)", **body: Any
) -> str:
    """The id of a session made over the API."""
    body = {"agent_id": agent.slug, "workspace_id": workspace.slug, "initial_instructions": text, **body}
    answer = person.post("sessions", body)
    assert answer.status_code == 201, answer.content
    assert answer.json()["status"] == "queued"
    return str(answer.json()["id"])


def ended(person: Api, session_id: str, within: float = 30) -> dict[str, Any]:
    """Waits for the end of a session and returns it."""

    def check() -> Any:
        item = person.get(f"sessions/{session_id}").json()
        assert item["status"] == "ended", item
        return item

    return dict(eventually(check, within=within, message=f"{session_id} ends"))


def events_of(session_id: str) -> list[SessionEvent]:
    """The stored transcript, checked to be dense."""
    events = list(SessionEvent.objects.filter(session__slug=session_id).order_by("seq"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return events


def until_event(session_id: str, kind: str, within: float = 30) -> SessionEvent:
    """Waits for the first event of a kind."""

    def check() -> Any:
        return SessionEvent.objects.filter(session__slug=session_id, kind=kind).order_by("seq").first()

    found = eventually(check, within=within, message=f"{session_id} has {kind}")
    assert isinstance(found, SessionEvent)
    return found


def call(command: str, **arguments: Any) -> dict[str, Any]:
    """A scripted call of workspace__exec."""
    return {"name": EXEC, "arguments": {"command": command, **arguments}}
