"""Shapes of sessions and events in the API."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.models import User
from accounts.rest import LABELS_HELP, LabelsField, StrictSerializer, checked_beside
from agents.limits import DEFAULTS, LimitsSerializer
from agents.models import Agent
from agents.serializers import TokenUsageSerializer
from primer_site.errors import FieldError, Invalid, printable
from sessions_app.models import AgentSession, EndedReason, EventKind, Status
from workspaces.models import Workspace, WorkspaceTemplate
from workspaces.serializers import UtcField

MAX_TEXT = 1_000_000  # characters of instructions or of a message


class EndedDetailSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    hint = serializers.CharField(allow_blank=True)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return dict(super().to_representation({"code": "", "message": "", "hint": "", **instance}))


class EffectiveLimitsSerializer(serializers.Serializer[Any]):
    max_turns = serializers.IntegerField()
    max_tool_calls = serializers.IntegerField()
    timeout_s = serializers.FloatField()
    max_tokens = serializers.IntegerField(allow_null=True)


LIMITS = tuple(EffectiveLimitsSerializer().fields)


class SessionSerializer(StrictSerializer):
    """A session as reads show it; `limits` are those that hold."""

    id = serializers.CharField(source="slug", read_only=True)
    owner = serializers.CharField(source="owner.username", read_only=True)
    agent_id = serializers.CharField(source="agent.slug", read_only=True)
    workspace_id = serializers.CharField(source="workspace.slug", read_only=True)
    initial_instructions = serializers.CharField(read_only=True)
    limits = serializers.SerializerMethodField()
    status = serializers.ChoiceField(Status.choices, read_only=True)
    ended_reason = serializers.SerializerMethodField()
    ended_detail = EndedDetailSerializer(read_only=True, allow_null=True)
    answer = serializers.CharField(read_only=True)
    turns = serializers.IntegerField(read_only=True)
    tool_calls = serializers.IntegerField(read_only=True)
    usage = TokenUsageSerializer(read_only=True)
    confinement = serializers.SerializerMethodField()
    last_seq = serializers.IntegerField(read_only=True)
    labels = LabelsField(default=dict)
    started_at = UtcField(read_only=True, allow_null=True)
    ended_at = UtcField(read_only=True, allow_null=True)
    created_at = UtcField(read_only=True)
    updated_at = UtcField(read_only=True)

    @extend_schema_field(EffectiveLimitsSerializer)
    def get_limits(self, row: AgentSession) -> dict[str, Any]:
        holding = {**DEFAULTS, **row.agent_spec["limits"], **row.limits}
        return {name: holding[name] for name in LIMITS}  # a serializer for each row would be most of a list's time

    @extend_schema_field(serializers.ChoiceField(EndedReason.choices, allow_null=True))
    def get_ended_reason(self, row: AgentSession) -> str | None:
        return EndedReason(row.ended_reason).value if row.ended_reason else None

    def get_confinement(self, row: AgentSession) -> str | None:
        return row.confinement or None


class NewSessionSerializer(StrictSerializer):
    """One of `workspace_id` and `template_id`; with the latter the session gets a workspace of its own."""

    agent_id = serializers.CharField(max_length=200, help_text="The agent that works.")
    workspace_id = serializers.CharField(
        max_length=200, required=False, allow_null=True,
        help_text="The workspace it works in; a stopped one is started. Or a template: its throw-away workspace is removed at the "
        "end, the files with it.",
    )  # fmt: skip
    template_id = serializers.CharField(
        max_length=200, required=False, allow_null=True,
        help_text="Instead: a template for a workspace that is removed at the end, its files with it.",
    )  # fmt: skip
    initial_instructions = serializers.CharField(
        max_length=MAX_TEXT, trim_whitespace=False, help_text="What to do; sent as it is, at most 1,000,000 characters."
    )
    limits = LimitsSerializer(
        default=dict,
        help_text="Where it ends by itself; what is left out is the agent's. Only the agent's owner and admins may ask for more.",
    )
    labels = LabelsField(default=dict, help_text=LABELS_HELP)

    def to_internal_value(self, data: Any) -> Any:
        given = data if isinstance(data, dict) else {}
        place, template = given.get("workspace_id"), given.get("template_id")
        wrong: dict[str, Any] = {}
        if place is None and template is None:
            wrong["workspace_id"] = ["is required, or template_id"]
        elif place is not None and template is not None:
            wrong["workspace_id"] = ["cannot be given together with template_id"]
        return checked_beside(wrong, lambda: super(NewSessionSerializer, self).to_internal_value(data))

    def validate_initial_instructions(self, text: str) -> str:
        return _not_blank(text)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        workspace_id, template_id = attrs.pop("workspace_id", None), attrs.pop("template_id", None)
        user = self.context["request"].user
        attrs["agent"] = named(Agent, user, "agent", attrs.pop("agent_id"))
        if workspace_id is not None:
            attrs["workspace"] = named(Workspace, user, "workspace", workspace_id)
        else:
            attrs["template"] = named(WorkspaceTemplate, user, "workspace_template", template_id)
        return attrs


def named(model: type[Agent | Workspace | WorkspaceTemplate], user: User, kind: str, slug: str) -> Any:
    """The row of that id that the user may see; what is somebody else's does not exist."""
    row = model.objects.visible_to(user).filter(slug=slug).first()
    if row is None:
        field = {"agent": "agent_id", "workspace": "workspace_id"}.get(kind, "template_id")
        raise Invalid("The request is not valid.", errors=[FieldError(field, f'no {kind} "{printable(slug)}"')])
    return row


class MessageSerializer(StrictSerializer):
    text = serializers.CharField(max_length=MAX_TEXT, trim_whitespace=False)

    def validate_text(self, text: str) -> str:
        return _not_blank(text)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise serializers.ValidationError("must not be empty")
    return text


class EventSerializer(serializers.Serializer[Any]):
    """One line of the transcript; `data` depends on `kind`."""

    seq = serializers.IntegerField(min_value=1)
    ts = serializers.DateTimeField()
    kind = serializers.ChoiceField(EventKind.choices)
    data = serializers.DictField()  # type: ignore[assignment] # the envelope's name, not the serializer's


class EventPageSerializer(serializers.Serializer[Any]):
    items = EventSerializer(many=True)
    last_seq = serializers.IntegerField()
