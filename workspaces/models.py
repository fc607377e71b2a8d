"""Engines, templates, workspaces, and what ran in them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from accounts.models import User
from primer_site.errors import Conflict
from primer_site.resource import Resource, SluggedResource, new_id
from workspaces.querysets import ExecQuerySet, SharedQuerySet, WorkspaceQuerySet

HISTORY = 50  # phases kept on a row
OUTPUT_ROW_BYTES = 64 * 1024


def new_workspace_id() -> str:
    return new_id("ws")


def new_exec_id() -> str:
    return new_id("exec")


class ProviderKind(models.TextChoices):
    CONTAINER = "container", "Container engine"
    KUBERNETES = "kubernetes", "Kubernetes"
    LOCAL = "local", "Local directory (not isolated)"
    FAKE = "fake", "Fake engine (tests)"


class Health(models.TextChoices):
    HEALTHY = "healthy", "Healthy"
    DEGRADED = "degraded", "Degraded"
    UNREACHABLE = "unreachable", "Unreachable"
    UNKNOWN = "unknown", "Not checked yet"


class WorkspaceProvider(SluggedResource):
    """An engine that can hold sandboxes. Who may define one is an administrator of the engine's host."""

    KIND = "workspace_provider"
    SPEC_FIELDS = ("labels", "description", "provider", "config", "secrets")

    provider = models.CharField(max_length=16, choices=ProviderKind.choices)
    config = models.JSONField(default=dict)
    secrets = models.TextField(blank=True, default="", editable=False)  # sealed; same shape as config
    health = models.CharField(max_length=16, choices=Health.choices, default=Health.UNKNOWN, editable=False)
    checked_at = models.DateTimeField(null=True, editable=False)
    reasons = models.JSONField(default=list, editable=False)
    engine = models.JSONField(default=dict, editable=False)
    enforces = models.JSONField(default=dict, editable=False)

    objects: ClassVar[Any] = SharedQuerySet.as_manager()

    class Meta(SluggedResource.Meta):
        constraints = [
            *SluggedResource.Meta.constraints,
            models.CheckConstraint(condition=Q(provider__in=ProviderKind.values), name="provider_kind_known"),
            models.CheckConstraint(condition=Q(health__in=Health.values), name="provider_health_known"),
        ]


class Require(models.TextChoices):
    BEST_EFFORT = "best_effort", "Best effort"
    ENFORCED = "enforced", "Enforced"


class WorkspaceTemplate(SluggedResource):
    """Settings of new workspaces. Running ones keep what they were made with."""

    KIND = "workspace_template"
    SPEC_FIELDS = (
        "labels", "description", "provider", "backend", "env", "secrets", "files", "init_commands",
        "idle_timeout_s", "max_age_s", "require",
    )  # fmt: skip

    provider = models.ForeignKey(WorkspaceProvider, on_delete=models.PROTECT, related_name="templates")
    backend = models.JSONField(default=dict)
    env = models.JSONField(default=dict)  # name -> text, None where the value is a secret
    secrets = models.TextField(blank=True, default="", editable=False)  # sealed: name -> text
    files = models.JSONField(default=list)  # {path, content_base64, mode}
    init_commands = models.JSONField(default=list)  # argv lists
    idle_timeout_s = models.PositiveIntegerField(null=True, blank=True)
    max_age_s = models.PositiveIntegerField(null=True, blank=True)
    require = models.CharField(max_length=16, choices=Require.choices, default=Require.BEST_EFFORT)

    objects: ClassVar[Any] = SharedQuerySet.as_manager()

    class Meta(SluggedResource.Meta):
        constraints = [
            *SluggedResource.Meta.constraints,
            models.CheckConstraint(condition=Q(require__in=Require.values), name="template_require_known"),
        ]


class TemplateVersion(models.Model):
    """What a template said before and now; secrets are left out."""

    template = models.ForeignKey(WorkspaceTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()  # the template's spec_rev
    spec = models.JSONField()
    by_name = models.CharField(max_length=150)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["template", "number"], name="template_version_once")]

    def __str__(self) -> str:
        return f"{self.template_id}@{self.number}"


class Desired(models.TextChoices):
    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    GONE = "gone", "Gone"


class Phase(models.TextChoices):
    PENDING = "pending", "Pending"
    PULLING = "pulling", "Pulling the image"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
    LOST = "lost", "Lost"  # vanished behind our back
    DELETING = "deleting", "Deleting"


COMING = frozenset({Phase.PENDING, Phase.PULLING, Phase.STARTING})  # on the way to running
AT_REST = frozenset({Phase.STOPPED, Phase.FAILED, Phase.LOST})
_ALL = frozenset(Phase)
SOURCES: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: AT_REST,
    Phase.PULLING: frozenset({Phase.PENDING}),
    Phase.STARTING: frozenset({Phase.PENDING, Phase.PULLING}),
    Phase.RUNNING: frozenset({Phase.STARTING}),
    Phase.STOPPED: COMING | {Phase.RUNNING},
    Phase.FAILED: COMING,
    Phase.LOST: COMING | {Phase.RUNNING, Phase.STOPPED},
    Phase.DELETING: _ALL - {Phase.DELETING},
}


class Workspace(Resource):
    """One sandbox and its files. `desired` is what people want, `phase` what the reconciler last saw."""

    KIND = "workspace"
    SPEC_FIELDS = ("labels", "name")

    slug = models.CharField(max_length=32, unique=True, default=new_workspace_id, editable=False)
    name = models.CharField(max_length=100, blank=True, default="")
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    template = models.ForeignKey(WorkspaceTemplate, on_delete=models.PROTECT, related_name="workspaces")
    provider = models.ForeignKey(WorkspaceProvider, on_delete=models.PROTECT, related_name="workspaces")
    spec = models.JSONField(default=dict)  # the template as it was: backend, files, init_commands, limits in time
    env = models.JSONField(default=dict)  # name -> text, None where the value is a secret
    secrets = models.TextField(blank=True, default="", editable=False)  # sealed: name -> text

    desired = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    phase = models.CharField(max_length=16, choices=Phase.choices, default=Phase.PENDING)
    phase_since = models.DateTimeField(default=timezone.now)
    phase_reason = models.CharField(max_length=64, blank=True, default="")  # a stable word
    phase_detail = models.TextField(blank=True, default="")  # a sentence
    boot_lines = models.JSONField(default=list)  # last lines of the sandbox's own log: hostile text
    phases = models.JSONField(default=list)  # {phase, at, reason}
    unknown_since = models.DateTimeField(null=True)  # the engine does not answer since then

    generation = models.PositiveIntegerField(default=1)  # of the container; grows with each fresh start
    ref = models.JSONField(null=True)
    prepared = models.BooleanField(default=False)  # the template's files and commands are done: the volume holds data
    image_digest = models.CharField(max_length=128, blank=True, default="")
    applied = models.JSONField(null=True)
    confinement = models.JSONField(null=True)
    channel = models.JSONField(default=dict)

    lease_holder = models.CharField(max_length=32, blank=True, default="")  # the process that reconciles it now
    lease_until = models.DateTimeField(null=True)
    last_activity_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)

    objects: ClassVar[Any] = WorkspaceQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(desired__in=Desired.values), name="workspace_desired_known"),
            models.CheckConstraint(condition=Q(phase__in=Phase.values), name="workspace_phase_known"),
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(phase=Phase.DELETING), name="workspace_deleted_after_deleting"
            ),
            models.CheckConstraint(
                condition=~Q(phase=Phase.RUNNING) | Q(ref__isnull=False), name="workspace_running_has_ref"
            ),
        ]
        indexes = [
            models.Index(fields=["phase"], condition=Q(deleted_at=None), name="workspace_live_phase"),
            # Lists are of the living; throw-away ones leave their rows behind in great number.
            models.Index(fields=["created_at"], condition=Q(deleted_at=None), name="workspace_live_created"),
            models.Index(fields=["owner", "created_at"], condition=Q(deleted_at=None), name="workspace_live_owner"),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return self.slug


class Moved(Conflict):
    """The workspace was moved to another phase meanwhile."""


def advance(workspace: Workspace, *, to: Phase, holder: str | None = None, **facts: Any) -> None:
    """Moves a workspace to another phase, or raises `Moved` when the move is not in `SOURCES`, or the lease is lost.

    With `holder` only the process that holds the workspace's lease moves it. `facts` are further columns.
    """
    now = timezone.now()
    reason = facts.setdefault("phase_reason", "")
    facts.setdefault("phase_detail", "")
    entry = {"phase": to.value, "at": now.isoformat(), "reason": reason}
    rows = Workspace.objects.filter(pk=workspace.pk, phase__in=SOURCES[to], deleted_at=None)
    if holder is not None:
        rows = rows.filter(lease_holder=holder)
    changed = rows.update(
        phase=to,
        phase_since=now,
        phases=[*workspace.phases, entry][-HISTORY:],
        unknown_since=None,
        state_rev=F("state_rev") + 1,
        **facts,
    )
    if changed != 1:  # not in the table, or somebody was faster
        raise Moved(f"Workspace {workspace.slug} cannot become {to.value} now.")
    workspace.refresh_from_db()


class ExecState(models.TextChoices):
    RUNNING = "running", "Running"
    ENDED = "ended", "Ended"


ENDED_BY = ("exit", "signal", "oom", "pids", "disk", "output_cap", "timeout", "cancelled", "lost", "not_started")


class Exec(models.Model):
    """One program that ran, or runs, in a workspace. `request` holds no secret and no stdin."""

    KIND = "exec"
    spec_rev: ClassVar[int] = 1

    slug = models.CharField(max_length=32, unique=True, default=new_exec_id, editable=False)
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="execs")
    session_id = models.CharField(max_length=32, null=True)
    started_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    request = (
        models.JSONField()
    )  # argv cwd env_names stdin_bytes timeout_s max_output_bytes output_kill_bytes background
    request_hash = models.CharField(
        max_length=64, blank=True, default=""
    )  # of the body, where a key makes it repeatable
    state = models.CharField(max_length=16, choices=ExecState.choices, default=ExecState.RUNNING)
    lease_holder = models.CharField(max_length=32, blank=True, default="")  # the process that takes its output
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    ended_by = models.CharField(max_length=16, blank=True, default="")
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    error = models.JSONField(null=True)  # {code, detail, hint, errors} of a program that could not start
    stdout_bytes = models.PositiveBigIntegerField(default=0)
    stderr_bytes = models.PositiveBigIntegerField(default=0)
    stdout_gap = models.JSONField(null=True)  # [from, to] in stream offsets
    stderr_gap = models.JSONField(null=True)
    duration_ms = models.FloatField(null=True)
    cpu_ms = models.FloatField(default=0)
    max_rss_bytes = models.PositiveBigIntegerField(default=0)
    evidence = models.JSONField(default=dict)
    survivors = models.JSONField(default=list)

    objects: ClassVar[Any] = ExecQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=ExecState.values), name="exec_state_known"),
            models.CheckConstraint(
                condition=Q(state=ExecState.RUNNING, ended_by="", ended_at=None)
                | Q(state=ExecState.ENDED, ended_by__in=ENDED_BY, ended_at__isnull=False),
                name="exec_ended_has_verdict",
            ),
        ]
        indexes = [
            models.Index(fields=["state"], condition=Q(state=ExecState.RUNNING), name="exec_running"),
            models.Index(fields=["workspace", "created_at"]),
            models.Index(
                fields=["workspace", "session_id", "created_at"],
                condition=Q(session_id__isnull=False),
                name="exec_of_session",
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return self.slug

    @property
    def etag(self) -> str:
        """A run has no settings to change: only whether it has ended moves."""
        return f'"{self.spec_rev}.{2 if self.state == ExecState.ENDED else 1}"'

    @property
    def owner(self) -> User:
        return self.workspace.owner

    @property
    def owner_id(self) -> int:
        return self.workspace.owner_id


class ExecOutput(models.Model):
    """Kept bytes of one stream, at most OUTPUT_ROW_BYTES a row, by offset."""

    exec = models.ForeignKey(Exec, on_delete=models.CASCADE, related_name="output")
    stream = models.CharField(max_length=8)
    offset = models.PositiveBigIntegerField()
    data = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["exec", "stream", "offset"], name="exec_output_once"),
            models.CheckConstraint(condition=Q(stream__in=("stdout", "stderr")), name="exec_output_stream_known"),
        ]

    def __str__(self) -> str:
        return f"{self.exec_id} {self.stream}@{self.offset}"


def age(since: datetime) -> float:
    """Seconds since a time of the database."""
    return (timezone.now() - since).total_seconds()
