"""The configuration of each kind of model as a body: every field that exists, and the sentence for what does not fit."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from accounts.rest import StrictSerializer
from agents.llm.address import place_of
from agents.llm.scripted import BadScript, parse_turns

KIND_HELP = "The interface that it speaks."
MAX_PRICE = 1_000_000.0
KEY_VARIABLE = re.compile(r"(?!PRIMER_)[A-Z][A-Z0-9_]{0,80}_(?:API_KEY|AUTH_TOKEN)")


class PriceSerializer(StrictSerializer):
    """Per million tokens. What a cache costs is the price of input where it is left out."""

    input = serializers.FloatField(min_value=0, max_value=MAX_PRICE)
    output = serializers.FloatField(min_value=0, max_value=MAX_PRICE)
    cache_read = serializers.FloatField(min_value=0, max_value=MAX_PRICE, required=False)
    cache_write = serializers.FloatField(min_value=0, max_value=MAX_PRICE, required=False)


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "writeOnly": True},
            {
                "type": "object",
                "properties": {"set": {"type": "boolean"}, "last4": {"type": "string", "nullable": True}},
            },
        ],
        "nullable": True,
    }
)
class SecretField(serializers.Field[Any, Any, Any, Any]):
    """Text; null removes what is stored; what a read shows (`{set, last4}`) keeps it."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and set(data) <= {"set", "last4"}:
            return data
        if not isinstance(data, str) or not 1 <= len(data) <= 4096 or not data.isascii() or not data.isprintable():
            raise serializers.ValidationError("must be 1 to 4096 printable ASCII characters")
        if data.strip("*•") == "" or data != data.strip():
            raise serializers.ValidationError("is masked or has spaces around it: leave it out to keep what is stored")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class ModelConfigSerializer(StrictSerializer):
    """What every kind has."""

    default_model = serializers.CharField(
        max_length=200, required=False, help_text="The model of agents that name none."
    )
    max_retries = serializers.IntegerField(
        min_value=0, max_value=20, required=False, help_text="Tries after the first, where another may help."
    )
    prices = serializers.DictField(
        child=PriceSerializer(), required=False,
        help_text="Prices per million tokens by model: `{MODEL: {input, output, cache_read, cache_write}}`. Without them no cost is shown.",
    )  # fmt: skip


class ScriptedConfigSerializer(ModelConfigSerializer):
    """Without `turns` the model runs the code it is given; with them it plays that script."""

    kind = serializers.ChoiceField(["scripted"], help_text=KIND_HELP)
    turns = serializers.ListField(
        child=serializers.JSONField(), required=False,
        help_text="What it answers, turn by turn. Without them it runs the code that it is given.",
    )  # fmt: skip

    def validate_turns(self, value: list[Any]) -> list[Any]:
        try:
            parse_turns(value)
        except BadScript as exc:
            where = exc.field.removeprefix("turns")
            raise serializers.ValidationError(f"{where.lstrip('.')} {exc.message}".strip()) from None
        return value


class EndpointConfigSerializer(ModelConfigSerializer):
    """A model behind HTTP. `timeout_s` is how long it may be silent."""

    api_key = SecretField(
        required=False, allow_null=True,
        help_text="The key; stored encrypted and never shown again. Left out it stays, null removes it. Or name a variable instead.",
    )  # fmt: skip
    api_key_env = serializers.CharField(
        max_length=100, required=False,
        help_text="Instead of a key: a variable of the server that holds it. Its name is shown, its value never.",
    )  # fmt: skip
    base_url = serializers.CharField(
        max_length=500, required=False,
        help_text="Any endpoint that speaks this API; the vendor's own without it. A private address must be listed in "
        "PRIMER_LLM_HOSTS. Changing it drops the stored key.",
    )  # fmt: skip
    timeout_s = serializers.FloatField(
        min_value=1, max_value=3600, required=False, help_text="Seconds for which the model may be silent in one call."
    )
    max_concurrency = serializers.IntegerField(min_value=1, max_value=1000, required=False, help_text="Calls at once.")

    def validate_base_url(self, value: str) -> str:
        try:
            place_of(value)
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from None
        return value

    def validate_api_key_env(self, value: str) -> str:
        # Any other variable of the server could be sent to any base_url by this.
        if not KEY_VARIABLE.fullmatch(value):
            raise serializers.ValidationError("must be a name that ends with _API_KEY or _AUTH_TOKEN")
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if isinstance(attrs.get("api_key"), str) and attrs.get("api_key_env"):
            raise serializers.ValidationError({"api_key_env": ["cannot be given together with api_key"]})
        return attrs


class AnthropicConfigSerializer(EndpointConfigSerializer):
    kind = serializers.ChoiceField(["anthropic"], help_text=KIND_HELP)


class OpenAIConfigSerializer(EndpointConfigSerializer):
    kind = serializers.ChoiceField(["openai"], help_text=KIND_HELP)


CONFIGS: dict[str, type[ModelConfigSerializer]] = {
    "anthropic": AnthropicConfigSerializer,
    "openai": OpenAIConfigSerializer,
    "scripted": ScriptedConfigSerializer,
}


@extend_schema_field(
    PolymorphicProxySerializer(
        component_name="LLMProviderConfig", serializers=dict(CONFIGS), resource_type_field_name="kind"
    )
)
class ConfigField(serializers.DictField):
    """The configuration of any kind; which fields there are is checked when the kind is known."""

    shapes = CONFIGS
