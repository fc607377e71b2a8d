"""Sessions and their events. The events are the truth; everything a page or a client shows comes from them."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from accounts.models import User
from agents.messages import Usage
from agents.models import Agent
from primer_site.errors import Conflict
from primer_site.resource import Resource, new_id
from sessions_app.querysets import SessionQuerySet
from workspaces.models import Workspace


def new_session_id() -> str:
    return new_id("sess")


def no_usage() -> dict[str, Any]:
    return {**Usage().to_dict(), "cost": None}


class Status(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    ENDED = "ended", "Ended"


class EndedReason(models.TextChoices):
    COMPLETED = "completed", "Completed"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    TIMED_OUT = "timed_out", "Timed out"
    LIMIT = "limit", "Limit"
    INTERRUPTED = "interrupted", "Interrupted"


class EventKind(models.TextChoices):
    SESSION_STATUS = "session_status"
    WORKSPACE_PHASE = "workspace_phase"
    USER_MESSAGE = "user_message"
    TURN_STARTED = "turn_started"
    TURN_ENDED = "turn_ended"
    THINKING_DELTA = "thinking_delta"
    TEXT_DELTA = "text_delta"
    ASSISTANT_MESSAGE = "assistant_message"
    TOOL_CALL = "tool_call"
    TOOL_OUTPUT = "tool_output"
    TOOL_RESULT = "tool_result"
    WARNING = "warning"
    ERROR = "error"
    SESSION_ENDED = "session_ended"


class AgentSession(Resource):
    """One agent at work in one workspace. Ended is not over: a message queues it again.

    `generation` grows with each claim and fences out a runner that lost its lease.
    """

    KIND = "session"
    SPEC_FIELDS = ("labels",)

    slug = models.CharField(max_length=32, unique=True, default=new_session_id, editable=False)
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="sessions")
    workspace = models.ForeignKey(Workspace, on_delete=models.PROTECT, related_name="sessions")
    throwaway = models.BooleanField(default=False)  # the workspace was made for this session and goes at its end
    agent_spec = models.JSONField()  # the agent as it was
    initial_instructions = models.TextField()
    limits = models.JSONField(default=dict)  # on top of the agent's

    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    ended_reason = models.CharField(max_length=16, choices=EndedReason.choices, blank=True, default="")
    ended_detail = models.JSONField(null=True)  # code message hint
    answer = models.TextField(blank=True, default="")
    turns = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    usage = models.JSONField(default=no_usage)
    confinement = models.CharField(max_length=16, blank=True, default="")  # the workspace's verdict at the start
    last_seq = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    queued_at = models.DateTimeField(default=timezone.now)

    generation = models.PositiveBigIntegerField(default=0)
    lease_holder = models.CharField(max_length=32, blank=True, default="")  # the process that runs it
    lease_until = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=150, blank=True, default="")

    objects: ClassVar[Any] = SessionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=(Status.QUEUED, Status.RUNNING), ended_reason="", ended_at=None)
                | Q(status=Status.ENDED, ended_reason__in=EndedReason.values, ended_at__isnull=False),
                name="session_ended_has_reason",
            ),
            models.CheckConstraint(
                condition=~Q(status=Status.RUNNING) | (~Q(lease_holder="") & Q(lease_until__isnull=False)),
                name="session_running_has_lease",
            ),
        ]
        indexes = [
            models.Index(fields=["status", "queued_at"], condition=~Q(status=Status.ENDED), name="session_active"),
            # Lists: each can be counted and read in order from one of these, whatever the number of sessions.
            models.Index(fields=["owner", "created_at"], name="session_owner"),
            models.Index(fields=["created_at"], name="session_created"),
            models.Index(fields=["owner", "status", "created_at"], name="session_owner_status"),
            models.Index(fields=["owner", "ended_reason", "created_at"], name="session_owner_reason"),
            models.Index(fields=["agent", "owner", "created_at"], name="session_agent_owner"),
            models.Index(fields=["workspace", "owner", "created_at"], name="session_workspace_owner"),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return self.slug


class SessionEvent(models.Model):
    """One line of the transcript. `seq` is dense per session, from 1; it is the only cursor."""

    session = models.ForeignKey(AgentSession, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    ts = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=24, choices=EventKind.choices)
    data = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "seq"], name="event_seq_once"),
            models.CheckConstraint(condition=Q(seq__gte=1), name="event_seq_from_one"),
            models.CheckConstraint(condition=Q(kind__in=EventKind.values), name="event_kind_known"),
        ]

    def __str__(self) -> str:
        return f"{self.session_id}#{self.seq} {self.kind}"


SOURCES: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.ENDED}),
    Status.RUNNING: frozenset({Status.QUEUED}),
    Status.ENDED: frozenset({Status.QUEUED, Status.RUNNING}),
}


def advance(session: AgentSession, *, to: Status, **facts: Any) -> None:
    """Moves a session to another status, or raises `Conflict` when the move is not in `SOURCES` or somebody was faster.

    Fenced by the generation that `session` was read with. `facts` are further columns.
    """
    rows = AgentSession.objects.filter(pk=session.pk, generation=session.generation, status__in=SOURCES[to])
    if rows.update(status=to, state_rev=F("state_rev") + 1, **facts) != 1:
        raise Conflict(f"Session {session.slug} cannot become {to.value} now.")
    session.refresh_from_db()
