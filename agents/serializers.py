"""Shapes of models and agents in the API."""

from __future__ import annotations

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
    refuse_reserved,
)
from agents.limits import DEFAULTS, LimitsSerializer
from agents.llm import llm_class
from agents.llm_shapes import CONFIGS, ConfigField
from agents.messages import Usage
from agents.models import Agent, LLMKind, LLMProvider
from primer_site import vault
from primer_site.errors import FieldError, Invalid
from workspaces.secret_fields import masked_config

WORKSPACE_TOOLS = (
    "the tools of the workspace (workspace__write, workspace__exec, …) come with the session's binding; "
    "leave them out of tools"
)
MAX_PROMPT = 200_000  # characters


class NamedSerializer(StrictSerializer):
    """What models and agents share. The id is fixed at creation and may be sent back unchanged."""

    id = SlugField(source="slug", help_text=ID_HELP)
    description = serializers.CharField(max_length=4096, allow_blank=True, default="", help_text=DESCRIPTION_HELP)
    labels = LabelsField(default=dict, help_text=LABELS_HELP)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance is not None:
            self.fields["id"].required = False

    def validate_id(self, value: str) -> str:
        if self.instance is None:
            return refuse_reserved(value)
        if value != self.instance.slug:
            raise serializers.ValidationError("cannot change")
        return value


class LLMStatusSerializer(serializers.Serializer[Any]):
    health = serializers.CharField()
    checked_at = serializers.DateTimeField(allow_null=True)
    reasons = serializers.ListField(child=serializers.CharField())


class LLMProviderSerializer(NamedSerializer):
    provider = serializers.ChoiceField(
        LLMKind.choices, help_text="The interface that it speaks; `config.kind` says the same."
    )
    config = ConfigField(help_text="Its address, its key, and what is asked of it.")
    status = serializers.SerializerMethodField()
    read_back = frozenset({"status", "created_at", "updated_at"})

    @extend_schema_field(LLMStatusSerializer)
    def get_status(self, row: LLMProvider) -> dict[str, Any]:
        facts = {"health": row.health, "checked_at": row.checked_at, "reasons": row.reasons}
        return dict(LLMStatusSerializer(facts).data)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs.get("provider") or (self.instance.provider if self.instance else "")
        if "config" in attrs:
            if attrs["config"].get("kind") != kind:
                raise serializers.ValidationError({"config": {"kind": [f"must be {kind}, the provider's kind"]}})
            config = CONFIGS[kind](data=attrs["config"])
            if not config.is_valid():
                raise serializers.ValidationError({"config": config.errors})
            attrs["config"] = dict(config.validated_data)
            if self.instance is None:  # later a key may be taken away, and the page says that it is missing
                _refuse_keyless(attrs["config"])
        elif self.instance is not None and kind != self.instance.provider:
            raise serializers.ValidationError({"config": ["is required when the kind changes"]})
        return attrs

    def to_representation(self, instance: LLMProvider) -> dict[str, Any]:
        data: dict[str, Any] = super().to_representation(instance)
        request = self.context.get("request")
        if request is not None and request.user.is_admin:
            data["config"] = masked_config(instance.provider, instance.config, vault.unseal(instance.secrets))
        else:  # an endpoint's address and script are the admins' business
            shown = {"kind": instance.provider, "default_model": instance.config.get("default_model")}
            data["config"] = {name: value for name, value in shown.items() if value is not None}
        return data


def _refuse_keyless(config: dict[str, Any]) -> None:
    """A vendor's own endpoint answers nobody without a key; one at an address of its own may ask for none."""
    if config["kind"] != LLMKind.SCRIPTED and not (
        isinstance(config.get("api_key"), str) or config.get("api_key_env") or config.get("base_url")
    ):
        message = "is required, or api_key_env, or the base_url of an endpoint that asks for no key"
        raise serializers.ValidationError({"config": {"api_key": [message]}})


class ModelRefSerializer(StrictSerializer):
    """A model of a provider."""

    provider_id = serializers.CharField(max_length=200, help_text="The LLM provider that is asked.")
    model_name = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="The model; the provider's default without it."
    )


MAX_BUDGET = 1_000_000
BUDGET_HELP = "Tokens for thinking in each turn."


class ThinkingBudget(StrictSerializer):
    budget_tokens = serializers.IntegerField(min_value=1, max_value=MAX_BUDGET, help_text=BUDGET_HELP)


THINKING_SCHEMA = {
    "oneOf": [
        {"type": "string", "enum": ["off", "auto"]},
        {
            "type": "object",
            "properties": {
                "budget_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_BUDGET, "description": BUDGET_HELP}
            },
            "required": ["budget_tokens"],
        },
    ]
}


@extend_schema_field(THINKING_SCHEMA)
class ThinkingField(serializers.Field[Any, Any, Any, Any]):
    """`off`, `auto`, or `{budget_tokens}`."""

    shapes = {"budget": ThinkingBudget}

    def to_internal_value(self, data: Any) -> Any:
        if data in ("off", "auto"):
            return data
        if isinstance(data, dict) and set(data) == {"budget_tokens"}:
            budget = data["budget_tokens"]
            if isinstance(budget, int) and not isinstance(budget, bool) and 1 <= budget <= MAX_BUDGET:
                return data
        raise serializers.ValidationError("must be off, auto or {budget_tokens: 1 to 1000000}")

    def to_representation(self, value: Any) -> Any:
        return value or "off"


class AgentSerializer(NamedSerializer):
    owner = serializers.CharField(source="owner.username", read_only=True)
    model = ModelRefSerializer(help_text="Which model answers.")
    tools = serializers.ListField(
        child=serializers.CharField(max_length=200), default=list, max_length=200,
        help_text="workspace__write, workspace__exec and the others come with the workspace; leave this empty.",
    )  # fmt: skip
    system_prompt = serializers.ListField(
        child=serializers.CharField(max_length=MAX_PROMPT, allow_blank=True, trim_whitespace=False),
        default=list,
        max_length=100,
        help_text="Paragraphs that the model reads first, in this order.",
    )
    temperature = serializers.FloatField(
        min_value=0, max_value=2, allow_null=True, default=None, help_text="0 to 2; sent only when it is set."
    )
    max_output_tokens = serializers.IntegerField(
        min_value=1, max_value=1_000_000, default=8192, help_text="Tokens of one reply."
    )
    thinking = ThinkingField(default="off", help_text="off, auto, or a budget in tokens for each turn.")
    limits = LimitsSerializer(default=dict, help_text="Where a run ends by itself, however far it is.")
    read_back = frozenset({"owner", "created_at", "updated_at"})

    def validate_tools(self, names: list[str]) -> list[str]:
        if any(name == "workspace" or name.startswith("workspace__") for name in names):
            raise serializers.ValidationError(WORKSPACE_TOOLS)
        if names:
            raise serializers.ValidationError(
                f"there is no tool {names[0]!r}; this server has only the workspace's own"
            )
        return names

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "model" in attrs:
            model = attrs.pop("model")
            if not self.partial or "provider_id" in model:
                attrs["provider"] = llm_named(model["provider_id"])
            if not self.partial or "model_name" in model:
                attrs["model_name"] = model.get("model_name", "")
        self._refuse_thinking(attrs)
        if "limits" in attrs:
            base = {**DEFAULTS, **self.instance.limits} if self.partial and self.instance else DEFAULTS
            attrs["limits"] = {**base, **attrs["limits"]}
        return attrs

    def _refuse_thinking(self, attrs: dict[str, Any]) -> None:
        """A setting that the kind of model cannot keep is refused, not ignored."""
        old = self.instance
        thinking = attrs.get("thinking", old.thinking if old is not None else "off") or "off"
        provider = attrs.get("provider", old.provider if old is not None else None)
        if provider is not None:
            refuse_thinking(thinking, provider.provider)
        most = attrs.get("max_output_tokens", old.max_output_tokens if old is not None else 0)
        written = "thinking" in attrs or "max_output_tokens" in attrs
        if written and isinstance(thinking, dict) and most and thinking["budget_tokens"] >= most:
            message = f"must have a budget below max_output_tokens, which is {most}: thoughts are a part of the reply"
            raise serializers.ValidationError({"thinking": [message]})

    def to_representation(self, instance: Agent) -> dict[str, Any]:
        return agent_shown(instance)


def refuse_thinking(thinking: Any, kind: str) -> None:
    """Raises `Invalid` for a setting that models of this kind do not have."""
    if (thinking or "off") != "off" and not llm_class(kind).takes_thinking:
        message = f"must be off: models of the kind {kind} have no such setting here"
        raise Invalid("The request is not valid.", errors=[FieldError("thinking", message)])


def agent_shown(agent: Agent) -> dict[str, Any]:
    """The agent as reads show it; sessions keep the same as their snapshot."""
    return {
        "id": agent.slug,
        "description": agent.description,
        "owner": agent.owner.username,
        "model": {"provider_id": agent.provider.slug, "model_name": agent.model_name},
        "tools": agent.tools,
        "system_prompt": agent.system_prompt,
        "temperature": agent.temperature,
        "max_output_tokens": agent.max_output_tokens,
        "thinking": agent.thinking or "off",
        "limits": {**DEFAULTS, **agent.limits},
        "labels": agent.labels,
        "created_at": agent.created_at.isoformat().replace("+00:00", "Z"),
        "updated_at": agent.updated_at.isoformat().replace("+00:00", "Z"),
    }


def llm_named(slug: str) -> LLMProvider:
    """The live provider of that id; `Invalid` names those there are."""
    row: LLMProvider | None = LLMProvider.objects.live().filter(slug=slug).first()
    if row is None:
        known = list(LLMProvider.objects.live().order_by("slug").values_list("slug", flat=True)[:20])
        raise Invalid(
            "The agent is not valid.",
            errors=[FieldError("model.provider_id", f'no llm_provider "{slug[:80]}"')],
            hint=f"there are: {', '.join(known)}" if known else "there is none yet: create one first",
        )
    return row


class LLMTestSerializer(serializers.Serializer[Any]):
    ok = serializers.BooleanField(allow_null=True, help_text="Null where nothing was asked: a dry run.")
    model = serializers.CharField()
    duration_ms = serializers.FloatField()
    request_id = serializers.CharField(
        allow_blank=True, help_text="The endpoint's own name of the request, where it gives one."
    )
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    hint = serializers.CharField(allow_blank=True)


class LLMModelsSerializer(serializers.Serializer[Any]):
    items = serializers.ListField(child=serializers.CharField())


class TokenUsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cache_read_tokens = serializers.IntegerField()
    cache_write_tokens = serializers.IntegerField()
    cost = serializers.FloatField(allow_null=True, help_text="Null where the model has no price.")

    def to_representation(self, instance: Any) -> dict[str, Any]:
        # A row that an earlier version stored may lack a name.
        stored = instance if isinstance(instance, dict) else {}
        return dict(super().to_representation({**Usage.from_dict(stored).to_dict(), "cost": stored.get("cost")}))


class AgentUsageSerializer(serializers.Serializer[Any]):
    """What the sessions of an agent have used, as far as the caller sees them."""

    sessions = serializers.IntegerField()
    turns = serializers.IntegerField()
    tool_calls = serializers.IntegerField()
    usage = TokenUsageSerializer()
