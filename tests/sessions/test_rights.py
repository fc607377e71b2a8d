"""Rights that go away while sessions live on: a demoted admin runs no more code in other people's workspaces."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.audit import Actor
from accounts.models import AuditEntry, Role, User
from agents.models import Agent
from sessions_app.models import AgentSession, EndedReason
from sessions_app.services import locked, session_end
from tests.eventually import eventually
from tests.factories import Api, api, make_admin
from tests.sessions.cast import call, ended, events_of, make_session, start, until_event
from tests.sessions.conftest import Playing, Process
from tests.sessions.test_api import refused
from workspaces.models import Exec, Workspace


def demote(name: str, role: Role = Role.MEMBER) -> None:
    User.objects.filter(username=name).update(role=role)


@pytest.fixture
def bobs(workspace: Workspace, agent: Agent) -> AgentSession:
    """An ended session of the admin bob in alice's workspace."""
    session = locked(make_session(make_admin(), agent, workspace))
    session_end(session=session, reason=EndedReason.COMPLETED, answer="42")
    return session


@pytest.mark.parametrize(("tail", "body"), [("messages", {"text": "x"}), ("rerun", None)])
def test_a_demoted_admin_neither_goes_on_nor_begins_anew_in_somebody_elses_workspace(
    bobs: AgentSession, workspace: Workspace, bob: Api, tail: str, body: Any
) -> None:
    demote("bob")
    problem = refused(bob.post(f"sessions/{bobs.slug}/{tail}", body), 403, "forbidden")
    assert problem["detail"] == f"bob may not run code in workspace {workspace.slug}: only its owner and admins may."
    bobs.refresh_from_db()
    assert (bobs.status, AgentSession.objects.count()) == ("ended", 1)
    assert bob.get(f"sessions/{bobs.slug}/events").status_code == 200  # the transcript stays theirs


def test_an_admins_message_lends_no_right_to_the_sessions_owner(bobs: AgentSession, workspace: Workspace) -> None:
    demote("bob")
    problem = refused(api(make_admin("ann")).post(f"sessions/{bobs.slug}/messages", {"text": "x"}), 403, "forbidden")
    assert problem["detail"].startswith("bob may not run code")


def test_an_admin_who_runs_code_in_somebody_elses_workspace_is_written_down(
    workspace: Workspace, agent: Agent, bob: Api, alice: Api
) -> None:
    start(alice, workspace, agent)
    assert not AuditEntry.objects.filter(action="workspace.open").exists()
    start(bob, workspace, agent)
    start(bob, workspace, agent)
    (entry,) = AuditEntry.objects.filter(action="workspace.open")
    assert (entry.actor_name, entry.object_id) == ("bob", workspace.slug)


@pytest.mark.parametrize("tail", ["messages", "rerun"])
def test_going_on_and_running_again_count_as_an_opening_too(bobs: AgentSession, bob: Api, tail: str) -> None:
    AuditEntry.objects.all().delete()
    assert bob.post(f"sessions/{bobs.slug}/{tail}", {"text": "x"} if tail == "messages" else None).status_code < 300
    assert AuditEntry.objects.filter(action="workspace.open", actor_name="bob").count() == 1


@pytest.mark.parametrize("role", [Role.MEMBER, Role.VIEWER])
def test_a_queued_session_whose_owner_lost_the_workspace_fails_and_runs_nothing(
    process: Process, workspace: Workspace, agent: Agent, alice: Api, bob: Api, role: Role
) -> None:
    process.stop()
    session_id = start(bob, workspace, agent)
    demote("bob", role)
    process.start()
    item = ended(bob, session_id)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("failed", "forbidden")
    assert item["ended_detail"]["message"].startswith(f"bob may not run code in workspace {workspace.slug}")
    assert [event.kind for event in events_of(session_id)][-2:] == ["error", "session_ended"]
    assert not Exec.objects.filter(session_id=session_id).exists()


def test_a_session_of_a_closed_account_does_not_run(process: Process, workspace: Workspace, agent: Agent) -> None:
    process.stop()
    session = make_session(workspace.owner, agent, workspace)
    User.objects.filter(pk=workspace.owner_id).update(is_active=False)
    process.start()
    item = ended(api(make_admin()), session.slug)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("failed", "forbidden")


def test_a_run_whose_owner_loses_the_workspace_ends_with_its_program(
    process: Process, workspace: Workspace, playing: Playing, bob: Api
) -> None:
    session_id = start(bob, workspace, playing({"calls": [call("echo begun; sleep 600")]}), "go")
    exec_id = until_event(session_id, "tool_output").data["exec_id"]
    demote("bob")
    item = ended(bob, session_id, within=15)
    assert (item["ended_reason"], item["ended_detail"]["code"]) == ("failed", "forbidden")
    eventually(lambda: Exec.objects.get(slug=exec_id).ended_by == "cancelled", within=10)
    (result,) = [event.data for event in events_of(session_id) if event.kind == "tool_result"]
    assert (result["ok"], result["exec_id"], result["ended_by"]) == (False, exec_id, "cancelled")


def test_an_owner_whose_role_shrinks_keeps_their_own_workspace(
    process: Process, workspace: Workspace, agent: Agent, owner: User
) -> None:
    process.stop()
    demote(owner.username, Role.ADMIN)
    session = make_session(User.objects.get(pk=owner.pk), agent, workspace)
    demote(owner.username, Role.MEMBER)
    process.start()
    assert ended(api(User.objects.get(pk=owner.pk)), session.slug)["ended_reason"] == "completed"


def test_the_actor_of_a_service_needs_the_right_as_well(workspace: Workspace, agent: Agent) -> None:
    from primer_site.errors import Forbidden
    from sessions_app.services import session_create
    from tests.factories import make_user

    with pytest.raises(Forbidden):
        session_create(
            by=Actor(make_user("charlie")), agent=agent, workspace=workspace, initial_instructions="print(1)"
        )
