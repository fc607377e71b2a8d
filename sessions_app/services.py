"""What happens to sessions. Functions `session_<verb>`, keyword-only, each in one transaction with its events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.models import AuditEntry, User
from accounts.permissions import may_change
from accounts.quotas import refuse_more
from agents.limits import raised
from agents.messages import INTERRUPTED, open_calls
from agents.models import Agent
from agents.serializers import agent_shown
from agents.tools.base import ToolOutcome
from primer_site.errors import Conflict, FieldError, Forbidden, Invalid
from sessions_app import signals
from sessions_app.events import EventDraft, append
from sessions_app.history import exec_under_way, history_of, used_by
from sessions_app.models import AgentSession, EndedReason, EventKind, Status, advance
from sessions_app.querysets import foreign
from sessions_app.serializers import named
from workspaces import services as workspaces
from workspaces.models import Phase, Workspace, WorkspaceTemplate

OPENING_COUNTS_ONCE = timedelta(minutes=10)
INTERRUPTED_HINT = "Continue with a message; nothing is run again by itself."


class WorkspaceGone(Conflict):
    """The workspace of this session is deleted."""

    hint = "Start a new session in another workspace: primectl session run WS --agent AGENT -i TEXT"


def locked(session: AgentSession) -> AgentSession:
    """The row as it is now, with what events need, read inside the caller's transaction."""
    found: AgentSession = AgentSession.objects.select_related("workspace", "agent__provider", "owner").get(
        pk=session.pk
    )
    return found


@transaction.atomic
def session_create(
    *,
    by: Actor,
    agent: Agent,
    initial_instructions: str,
    workspace: Workspace | None = None,
    template: WorkspaceTemplate | None = None,
    limits: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    rerun_of: str = "",
) -> AgentSession:
    """Queues a session with its first events. With `template` it gets a workspace of its own, removed at its end.

    What it names is looked up again: `Invalid` or `WorkspaceGone` when it was deleted since the caller looked.
    """
    _refuse_more(by.user)
    agent = named(Agent, by.user, "agent", agent.slug)
    _refuse_raised(by.user, agent, limits or {})
    if workspace is None:
        if template is None:
            raise ValueError("a session needs a workspace or a template")
        template = named(WorkspaceTemplate, by.user, "workspace_template", template.slug)
        workspace = workspaces.workspace_create(by=by, template=template, labels=labels)
        throwaway = True
    else:
        workspace = Workspace.objects.get(pk=workspace.pk)
        _take_into_use(by, workspace)
        throwaway = False
    session = AgentSession.objects.create(
        owner=by.user, agent=agent, workspace=workspace, throwaway=throwaway, agent_spec=agent_shown(agent),
        initial_instructions=initial_instructions, limits=limits or {}, labels=labels or {},
    )  # fmt: skip
    _queue_events(session, initial_instructions)
    session.refresh_from_db()
    facts = _facts(session) | {"limits": session.limits} | ({"rerun_of": rerun_of} if rerun_of else {})
    audit_record(by, "session.create", kind=session.KIND, object_id=session.slug, after=facts)
    return session


def _refuse_raised(user: User, agent: Agent, limits: dict[str, Any]) -> None:
    """An agent's limits are what its owner answers for: a run of others may have less, and only theirs or an admin's more."""
    if above := _above(user, agent, limits):
        todo = f"ask its owner ({agent.owner.username}) or an admin"
        errors = [
            FieldError(f"limits.{name}", f"must be at most {most}, the agent's; {todo}") for name, most in above.items()
        ]
        raise Invalid("A session may lower the limits of its agent, not raise them.", errors=errors)


def may_raise(user: User, agent: Agent) -> bool:
    """Whether a session of this user may have higher limits than its agent: they could raise those there, too."""
    return may_change(user, agent)


def _above(user: User, agent: Agent, limits: dict[str, Any]) -> dict[str, Any]:
    """The limits that this user may not ask for, each with the agent's own value."""
    return {} if may_raise(user, agent) else raised(limits, agent.limits)


def _facts(session: AgentSession) -> dict[str, Any]:
    """What the audit log keeps of a session that is made or deleted."""
    return {
        "agent_id": session.agent.slug, "workspace_id": session.workspace.slug, "throwaway": session.throwaway,
        "labels": session.labels, **_state(session),
    }  # fmt: skip


def _state(session: AgentSession) -> dict[str, Any]:
    return {"status": str(session.status), "ended_reason": str(session.ended_reason)}


def _refuse_more(owner: User) -> None:
    refuse_more(
        owner, AgentSession.objects.active(), what="sessions that wait or run", setting="PRIMER_MAX_SESSIONS",
        hint="Wait for one to end, or cancel one: primectl session cancel SESSION",
    )  # fmt: skip


def _queue_events(session: AgentSession, text: str, reason: str = "") -> None:
    status = EventDraft(EventKind.SESSION_STATUS, {"status": Status.QUEUED.value, "reason": reason})
    append(session, status, EventDraft(EventKind.USER_MESSAGE, {"text": text}))
    transaction.on_commit(signals.queued, robust=True)


def _refuse_gone(workspace: Workspace) -> None:
    if workspace.deleted_at is not None or workspace.phase == Phase.DELETING:
        raise WorkspaceGone(f"Workspace {workspace.slug} is deleted.")


def _take_into_use(by: Actor, workspace: Workspace) -> None:
    """Whether `by` may run code there now: who sees the session may have lost the workspace since it began."""
    _refuse_gone(workspace)
    if not Workspace.objects.visible_to(by.user).filter(pk=workspace.pk).exists():
        raise _forbidden(by.user, workspace)
    refuse_use(by.user, workspace)
    workspaces.audit_opening(by, workspace)


def refuse_use(user: User, workspace: Workspace) -> None:
    """Raises `Forbidden` when the user may not run code in the workspace. Needs no query."""
    if not may_change(user, workspace):
        raise _forbidden(user, workspace)


def _forbidden(user: User, workspace: Workspace) -> Forbidden:
    return Forbidden(
        f"{user.username} may not run code in workspace {workspace.slug}: only its owner and admins may.",
        hint="Start a session in a workspace of your own.",
    )


@transaction.atomic
def session_message(*, by: Actor, session: AgentSession, text: str) -> AgentSession:
    """Continues an ended session; `Conflict` while it is queued or runs, or when its workspace is gone."""
    session = locked(session)
    if session.status != Status.ENDED:
        raise Conflict(f"Session {session.slug} is {session.status}.", hint="Wait for its end, or cancel it.")
    _take_into_use(by, session.workspace)
    refuse_use(session.owner, session.workspace)  # whose rights the run has, whoever sends the message
    _refuse_more(session.owner)
    before = _state(session)
    advance(
        session, to=Status.QUEUED, ended_reason="", ended_detail=None, ended_at=None, cancel_requested_by="",
        queued_at=timezone.now(), answer="",
    )  # fmt: skip
    _queue_events(session, text, f"continued by {by.user.username}")
    session.refresh_from_db()
    after = _state(session)
    audit_record(by, "session.message", kind=session.KIND, object_id=session.slug, before=before, after=after)
    return session


@transaction.atomic
def session_cancel(*, by: Actor, session: AgentSession) -> AgentSession:
    """Ends a queued session at once and asks the runner of a running one to end it; an ended one stays as it is."""
    session = locked(session)
    before = _state(session)
    if session.status == Status.QUEUED:
        session_end(session=session, reason=EndedReason.CANCELLED, detail=cancelled_detail(by.user.username))
    elif session.status == Status.RUNNING:
        AgentSession.objects.filter(pk=session.pk).update(cancel_requested_by=by.user.username)
        transaction.on_commit(lambda: signals.cancelled(session.pk), robust=True)
    else:
        return session
    session.refresh_from_db()
    after = _state(session) | {"cancel_requested": True}  # a running one ends only when its runner has heard of it
    audit_record(by, "session.cancel", kind=session.KIND, object_id=session.slug, before=before, after=after)
    return session


def cancelled_detail(name: str, command: str = "") -> dict[str, str]:
    """`command` says what became of the command that ran then, if one did."""
    return {"code": "cancelled", "message": f"Cancelled by {name}.", "hint": command}


@transaction.atomic
def session_rerun(*, by: Actor, session: AgentSession) -> AgentSession:
    """A new session with the same input: the agent as it is now, the same workspace or a fresh throw-away one."""
    session = locked(session)
    if session.agent.deleted_at is not None:
        raise Conflict(f"Agent {session.agent.slug} is deleted.", hint="Start a session with another agent.")
    template = session.workspace.template
    if session.throwaway and template.deleted_at is not None:
        raise Conflict(f"Template {template.slug} is deleted.", hint="Start a session with another template.")
    above = _above(by.user, session.agent, session.limits)  # the agent was lowered meanwhile
    limits = {name: value for name, value in session.limits.items() if name not in above}
    return session_create(
        by=by, agent=session.agent, initial_instructions=session.initial_instructions, limits=limits,
        labels=session.labels, workspace=None if session.throwaway else session.workspace,
        template=template if session.throwaway else None, rerun_of=session.slug,
    )  # fmt: skip


@transaction.atomic
def session_update(*, by: Actor, session: AgentSession, labels: dict[str, str]) -> AgentSession:
    """Changes labels; everything else was fixed at creation."""
    before = {"labels": session.labels}
    if session.write_spec({"labels": labels}):
        audit_record(
            by, "session.update", kind=session.KIND, object_id=session.slug, before=before, after={"labels": labels}
        )
    return session


@transaction.atomic
def session_delete(*, by: Actor, session: AgentSession) -> None:
    """Deletes an ended session with its transcript; `Conflict` while it is queued or runs."""
    session = locked(session)
    if session.status != Status.ENDED:
        raise Conflict(
            f"Session {session.slug} is {session.status}.",
            hint=f"Cancel it first: primectl session cancel {session.slug}",
        )
    audit_record(by, "session.delete", kind=session.KIND, object_id=session.slug, before=_facts(session))
    session.delete()


@transaction.atomic
def session_end(
    *,
    session: AgentSession,
    reason: EndedReason,
    detail: dict[str, str] | None = None,
    answer: str = "",
    close: Callable[[str], ToolOutcome] | None = None,
    drafts: tuple[EventDraft, ...] = (),
    facts: dict[str, Any] | None = None,
) -> AgentSession:
    """The one way a session ends: open calls get results by `close`, then `session_ended`, then the status.

    Fenced by the session's generation: raises `LostLease` or `Conflict` when another runner has it, and writes nothing.
    `facts` are totals to store (turns, tool_calls, usage).
    """
    facts = facts or {}
    closing = [result_of(call, close(call)) for call in _open(session)] if close is not None else []
    totals = {name: facts.get(name, getattr(session, name)) for name in ("turns", "tool_calls", "usage")}
    if session.started_at is not None and session.started_at >= session.queued_at:  # else this run never began
        totals["duration_ms"] = round((timezone.now() - session.started_at).total_seconds() * 1000)
    ended = {"reason": reason.value, "detail": detail, "answer": answer, "totals": totals}
    append(session, *drafts, *closing, EventDraft(EventKind.SESSION_ENDED, ended))
    advance(
        session, to=Status.ENDED, ended_reason=reason, ended_detail=detail, answer=answer, ended_at=timezone.now(),
        lease_holder="", lease_until=None, **facts,
    )  # fmt: skip
    if session.throwaway:
        workspace = Workspace.objects.get(pk=session.workspace_id)
        if workspace.deleted_at is None:
            workspaces.workspace_delete(by=None, row=workspace, reason="session_ended")
    return session


def _open(session: AgentSession) -> list[str]:
    return [call.call_id for call in open_calls(history_of(session))]


def result_of(call_id: str, outcome: ToolOutcome) -> EventDraft:
    return EventDraft(EventKind.TOOL_RESULT, {"call_id": call_id, **outcome.to_dict()})


def session_interrupt(*, session: AgentSession, why: str) -> None:
    """Ends a session whose runner died. The new generation fences out a runner that only seemed dead."""
    with transaction.atomic():
        session = locked(session)
        rows = AgentSession.objects.filter(pk=session.pk, generation=session.generation, status=Status.RUNNING)
        if rows.update(generation=session.generation + 1) != 1:
            return
        session.generation += 1
        running = next(iter(_open(session)), None)  # those behind it were not begun
        facts = used_by(session, calls_running=0 if running is None else 1)

        def close(call_id: str) -> ToolOutcome:
            exec_id = exec_under_way(session, call_id) if call_id == running else None
            return ToolOutcome(INTERRUPTED, ok=False, exec_id=exec_id, duration_ms=None)

        detail = {"code": "interrupted", "message": why, "hint": INTERRUPTED_HINT}
        session_end(session=session, reason=EndedReason.INTERRUPTED, detail=detail, close=close, facts=facts)


def audit_opening(by: Actor, session: AgentSession) -> None:
    """An admin who opens somebody else's session leaves a line, once in ten minutes for each session."""
    if not foreign(by.user, session):
        return
    seen = {"actor": by.user, "action": "session.open", "kind": session.KIND, "object_id": session.slug}
    if not AuditEntry.objects.filter(**seen, at__gt=timezone.now() - OPENING_COUNTS_ONCE).exists():
        audit_record(by, "session.open", kind=session.KIND, object_id=session.slug)
