"""Shapes of providers, templates and workspaces in the API."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.rest import (
    DESCRIPTION_HELP,
    ID_HELP,
    LABELS_HELP,
    LabelsField,
    SlugField,
    StrictSerializer,
    checked_beside,
    refuse_reserved,
)
from primer_site import vault
from workspaces.fields import (
    CommandField,
    EnvField,
    ModeField,
    PathField,
    StoredEnvField,
    by_kind,
    decode_base64,
    invalid,
)
from workspaces.kinds import BackendField, ProviderConfigField
from workspaces.models import Health, Phase, Require, Workspace, WorkspaceProvider, WorkspaceTemplate
from workspaces.providers import CHOICES, provider_class
from workspaces.references import provider_named, refuse_other_kind, template_named
from workspaces.secret_fields import env_changes, masked_config, masked_env
from workspaces.stored_shapes import ChannelSerializer, ConfinementSerializer, PhaseEntrySerializer

DAY_S = 24 * 3600
MAX_LIFE_S = 365 * DAY_S
FILES = 100
FILES_BYTES = 4 * 1024 * 1024
COMMANDS = 50
TOLD_TO_ALL: dict[str, list[str]] = {
    Health.UNREACHABLE: ["The engine does not answer; an administrator sees why."],
    Health.DEGRADED: ["The engine lacks something; an administrator sees what."],
}
ENV_HELP = (
    "Variables of each program in the sandbox: text, or a secret that no read shows. They reach it through the runtime, never "
    "through the container's own settings."
)
FIXED = "cannot be changed"  # the client tells by these words that the object stands in the way, not the value
FOR_LIFE = frozenset({"id", "provider_id", "isolates", "owner", "spec"})  # what the server gives a workspace
READ_BACK = frozenset({"created_at", "updated_at", "status", "isolates"})


@extend_schema_field(bool)
class IsolatesField(serializers.Field[Any, Any, Any, Any]):
    """Whether programs are kept away from the machine they run on: the kind of the provider says it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(read_only=True, **kwargs)

    def to_representation(self, kind: str) -> bool:
        return provider_class(kind).isolates


class UtcField(serializers.DateTimeField):
    """A time of the database. Given its zone, it does not ask for the current one, which costs more than all else it does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(default_timezone=UTC, **kwargs)

    def to_representation(self, value: Any) -> str:
        if isinstance(value, datetime) and value.tzinfo is UTC:
            return value.isoformat().replace("+00:00", "Z")
        shown: str = super().to_representation(value)
        return shown


class ResourceSerializer(StrictSerializer):
    """What providers and templates share. An id is given once; a body that is put carries the same one."""

    id = SlugField(source="slug", help_text=ID_HELP)
    description = serializers.CharField(
        max_length=4096, allow_blank=True, default="", trim_whitespace=False, help_text=DESCRIPTION_HELP
    )
    labels = LabelsField(default=dict, help_text=LABELS_HELP)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)
    read_back = READ_BACK

    def validate_id(self, value: str) -> str:
        if self.instance is None:
            return refuse_reserved(value)
        if value != self.instance.slug:
            raise serializers.ValidationError("cannot be changed")
        return value

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields: dict[str, Any] = super().get_fields()
        if self.instance is not None and not self.partial:
            fields["id"].required = False  # a PUT names the object in its path
        return fields


class EngineStatusSerializer(StrictSerializer):
    """What the last check of an engine found."""

    health = serializers.ChoiceField(Health.choices)
    checked_at = serializers.DateTimeField(allow_null=True)
    reasons = serializers.ListField(child=serializers.CharField())
    engine = serializers.DictField()
    enforces = serializers.DictField(child=serializers.CharField(), help_text="enforced, soft or unavailable.")
    limit_reasons = serializers.SerializerMethodField(help_text="Why a limit is not enforced.")

    def get_limit_reasons(self, row: WorkspaceProvider) -> dict[str, str]:
        return dict(row.engine.get("limit_reasons", {}))

    def to_representation(self, instance: WorkspaceProvider) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(instance)
        return {**shown, "engine": {name: fact for name, fact in shown["engine"].items() if name != "limit_reasons"}}


class ProviderSerializer(ResourceSerializer):
    provider = serializers.CharField(
        max_length=16, help_text=f"The kind of engine: {', '.join(CHOICES)}. `config.kind` says the same."
    )
    config = by_kind("WorkspaceProviderConfig", ProviderConfigField)(help_text="How the engine is reached.")
    isolates = IsolatesField(source="provider")
    status = EngineStatusSerializer(source="*", read_only=True)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("config"), dict):
            kind = data.get("provider") or (self.instance.provider if self.instance is not None else None)
            if "kind" not in data["config"] and kind:
                data = {**data, "config": {**data["config"], "kind": kind}}
        if self.instance is not None:  # a socket that is stored already may be put back while its engine is down
            self._context = {**self.context, "kept_connection": self.instance.config.get("connection")}
        return super().to_internal_value(data)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs.get("provider") or (self.instance.provider if self.instance is not None else "")
        if "config" in attrs and attrs["config"]["kind"] != kind:
            raise invalid("provider", f"must be {attrs['config']['kind']}, the kind of its config")
        return attrs

    def to_representation(self, instance: WorkspaceProvider) -> dict[str, Any]:
        """Config and reasons for admins only: an engine's address is nobody else's business."""
        shown: dict[str, Any] = super().to_representation(instance)
        user = getattr(self.context.get("request"), "user", None)
        if getattr(user, "is_admin", False):
            shown["config"] = masked_config(instance.provider, instance.config, vault.unseal(instance.secrets))
        else:
            shown["config"] = {k: instance.config[k] for k in ("kind", "runtime") if k in instance.config}
            shown["status"]["reasons"] = TOLD_TO_ALL.get(instance.health, [])
        return shown


class TemplateFileSerializer(StrictSerializer):
    """One file; content or content_base64."""

    path = PathField()
    content = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    content_base64 = serializers.CharField(required=False, allow_blank=True)
    mode = ModeField(default=0o644)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "path" not in attrs:  # in a PATCH required and default hold nowhere, and an item of a list is whole
            raise serializers.ValidationError({"path": ["is required"]})
        if ("content" in attrs) == ("content_base64" in attrs):
            raise serializers.ValidationError("must have either content or content_base64")
        raw = (
            attrs["content"].encode()
            if "content" in attrs
            else decode_base64(attrs["content_base64"], "content_base64")
        )
        return {
            "path": attrs["path"],
            "content_base64": base64.b64encode(raw).decode(),
            "mode": attrs.get("mode", 0o644),
        }

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        raw, mode = base64.b64decode(instance["content_base64"]), f"{instance['mode']:04o}"
        try:
            return {"path": instance["path"], "content": raw.decode(), "mode": mode}
        except UnicodeDecodeError:
            return {"path": instance["path"], "content_base64": instance["content_base64"], "mode": mode}


class TemplateSerializer(ResourceSerializer):
    provider_id = SlugField(source="provider.slug", help_text="The workspace provider that its workspaces run on.")
    isolates = IsolatesField(source="provider.provider")
    backend = by_kind("WorkspaceBackend", BackendField)(
        help_text="The sandbox itself; its kind is that of the provider."
    )
    env = StoredEnvField(default=dict, help_text=ENV_HELP)
    files = TemplateFileSerializer(
        many=True, default=list,
        help_text="Files that are there from the start: a list of `path` with `content` or `content_base64`, and `mode`.",
    )  # fmt: skip
    init_commands = serializers.ListField(
        child=CommandField(), default=list, max_length=COMMANDS,
        help_text="Commands of the first start, in order: shell lines or lists of words. The first that fails fails the workspace.",
    )  # fmt: skip
    idle_timeout_s = serializers.IntegerField(
        min_value=10, max_value=MAX_LIFE_S, allow_null=True, default=None,
        help_text="Stops a workspace after so many seconds without work; its files stay. Left out: never.",
    )  # fmt: skip
    max_age_s = serializers.IntegerField(
        min_value=60, max_value=MAX_LIFE_S, allow_null=True, default=None,
        help_text="Deletes a workspace with its files so many seconds after it was made. Left out: never.",
    )  # fmt: skip
    require = serializers.ChoiceField(
        Require.choices, default=Require.BEST_EFFORT,
        help_text="enforced: refuse a template whose limits are only soft on its engine. best_effort: start, and say so.",
    )  # fmt: skip

    def validate_files(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(value) > FILES or sum(len(item["content_base64"]) for item in value) > FILES_BYTES * 4 // 3:
            raise serializers.ValidationError(f"must be at most {FILES} files of {FILES_BYTES} bytes in all")
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "provider" in attrs:
            attrs["provider"] = provider_named(attrs["provider"]["slug"])
        provider = attrs.get("provider") or self.instance.provider  # type: ignore[union-attr]
        backend = attrs.get("backend") or self.instance.backend  # type: ignore[union-attr]
        refuse_other_kind(backend, provider)
        return attrs

    def to_representation(self, instance: WorkspaceTemplate) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(instance)
        shown["env"] = masked_env(instance.env, vault.unseal(instance.secrets))
        return shown


class TemplateVersionSerializer(StrictSerializer):
    version = serializers.IntegerField(source="number")
    at = serializers.DateTimeField()
    by = serializers.CharField(source="by_name")
    spec = serializers.DictField()


class ImageCheckSerializer(StrictSerializer):
    """Whether a template could start now."""

    image_present = serializers.BooleanField()
    image_can_be_pulled = serializers.BooleanField(
        help_text="Not there, and its name says where the engine can have it."
    )
    image_digest = serializers.CharField()
    detail = serializers.CharField()
    limits = serializers.DictField(child=serializers.CharField(), help_text="enforced, soft or unavailable.")
    reasons = serializers.DictField(child=serializers.CharField(), help_text="Why a limit is not enforced.")
    problems = serializers.ListField(child=serializers.CharField(), help_text="Why no workspace could start now.")


class WorkspaceSerializer(StrictSerializer):
    """A workspace. Writes: `template_id name labels env ttl_s` at creation, `name` and `labels` later."""

    id = serializers.CharField(source="slug", read_only=True)
    name = serializers.CharField(
        max_length=100, allow_blank=True, default="", help_text="A name for people; the id is the server's."
    )
    template_id = SlugField(source="template.slug", help_text="The template that it is made from.")
    provider_id = serializers.CharField(source="provider.slug", read_only=True)
    isolates = IsolatesField(source="provider.provider")
    owner = serializers.CharField(source="owner.username", read_only=True)
    labels = LabelsField(default=dict, help_text=LABELS_HELP)
    env = EnvField(default=dict, help_text=f"{ENV_HELP} Added to the template's.")
    ttl_s = serializers.IntegerField(
        min_value=60, max_value=MAX_LIFE_S, allow_null=True, required=False, write_only=True,
        help_text="Deletes the workspace with its files so many seconds after it was made; the template's maximum age may be sooner.",
    )  # fmt: skip
    phase = serializers.ChoiceField(Phase.choices, read_only=True)
    phase_reason = serializers.CharField(read_only=True)
    phase_detail = serializers.CharField(read_only=True)
    unknown_since = UtcField(read_only=True, allow_null=True)
    boot_lines = serializers.ListField(child=serializers.CharField(), read_only=True)
    phases = PhaseEntrySerializer(many=True, read_only=True)
    spec = serializers.SerializerMethodField()
    applied = serializers.DictField(read_only=True, allow_null=True)
    confinement = ConfinementSerializer(read_only=True, allow_null=True)
    image_digest = serializers.CharField(read_only=True)
    container_name = serializers.SerializerMethodField()
    volume_name = serializers.SerializerMethodField()
    channel = ChannelSerializer(read_only=True)
    last_activity_at = UtcField(
        read_only=True, help_text="The last use by a program, a call for files or a start; exact to 5 s."
    )
    expires_at = UtcField(read_only=True, allow_null=True)
    created_at = UtcField(read_only=True)
    updated_at = UtcField(
        read_only=True, help_text="Moves with name and labels; what happens to it moves phases and last_activity_at."
    )

    read_back = READ_BACK | {
        "id", "provider_id", "isolates", "owner", "phase", "phase_reason", "phase_detail", "unknown_since", "boot_lines", "phases",
        "spec", "applied", "confinement", "image_digest", "container_name", "volume_name", "channel",
        "last_activity_at", "expires_at",
    }  # fmt: skip

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields: dict[str, Any] = super().get_fields()
        if isinstance(self.instance, Workspace):
            fields["template_id"].required = False
            fields["env"] = StoredEnvField(
                default=dict, help_text=ENV_HELP
            )  # null would remove a name, and is told that it cannot
        return fields

    def to_internal_value(self, data: Any) -> Any:
        # State comes from the server alone: naming it in a new workspace is a mistake worth a word.
        named = [key for key in data if key in self.read_back] if isinstance(data, dict) else []
        wrong = {key: ["is set by the server"] for key in named if self.instance is None}
        return checked_beside(wrong, lambda: super(WorkspaceSerializer, self).to_internal_value(data))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if self.instance is not None:
            return self._unchanged(attrs)
        return {**attrs, "template": template_named(attrs["template"]["slug"])}

    def _unchanged(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """What was fixed at creation may be sent back, and not be changed; a PUT that leaves it out says nothing of it."""
        row: Any = self.instance
        sent: dict[str, Any] = self.initial_data
        wrong = {name: [f"{FIXED}: the server sets it"] for name in sent if not self._as_shown(row, name, sent[name])}
        template, env = attrs.pop("template", None), attrs.pop("env", {})
        if template is not None and template["slug"] != row.template.slug:
            wrong["template_id"] = [f"{FIXED}: create a new workspace"]
        if "ttl_s" in attrs and not _same_end(row, attrs.pop("ttl_s")):
            wrong["ttl_s"] = [f"{FIXED}: create a new workspace"]
        if "env" in sent and (names := env_changes(env, row.env, vault.unseal(row.secrets))):
            wrong["env"] = [f"{FIXED}: create a new workspace ({', '.join(names)})"]
        if wrong:
            raise serializers.ValidationError(wrong)
        return attrs

    def _as_shown(self, row: Workspace, name: str, value: Any) -> bool:
        """Whether a field of the server is sent back as it is. What moves by itself may have moved since it was read."""
        if name == "phase":
            return value in [row.phase, *(entry["phase"] for entry in row.phases)]
        if name in ("created_at", "expires_at"):
            return _same_moment(value, getattr(row, name))
        return name not in FOR_LIFE or value == self.to_representation(row)[name]

    def get_spec(self, row: Workspace) -> dict[str, Any]:
        spec = {key: value for key, value in row.spec.items() if key != "files"}
        return spec | {"files": [{"path": item["path"], "mode": f"{item['mode']:04o}"} for item in row.spec["files"]]}

    def get_container_name(self, row: Workspace) -> str:
        return (row.ref or {}).get("container_name") or ""

    def get_volume_name(self, row: Workspace) -> str:
        return (row.ref or {}).get("volume_name") or ""

    def to_representation(self, instance: Workspace) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(instance)
        shown["env"] = masked_env(instance.env, vault.unseal(instance.secrets))
        return shown


class WorkspaceChangeSerializer(StrictSerializer):
    """What PUT and PATCH of a workspace write, for the OpenAPI document; what was read may be sent back with it."""

    name = serializers.CharField(max_length=100, allow_blank=True, default="")
    labels = LabelsField(default=dict)
    template_id = SlugField(required=False, help_text="Fixed at creation.")
    read_back = WorkspaceSerializer.read_back


def _same_end(row: Workspace, ttl_s: int | None) -> bool:
    """Whether a workspace with this `ttl_s` would be deleted when this one will be: the number itself is not stored."""
    lives = [seconds for seconds in (ttl_s, row.spec.get("max_age_s")) if seconds]
    return row.expires_at == (row.created_at + timedelta(seconds=min(lives)) if lives else None)


def _same_moment(text: Any, stored: datetime | None) -> bool:
    if not isinstance(text, str) or stored is None:
        return text is stored
    try:
        return datetime.fromisoformat(text) == stored
    except ValueError:
        return False
