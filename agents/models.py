"""Models that can be asked, and agents that ask them."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q

from accounts.models import User
from agents.querysets import SharedQuerySet
from primer_site.resource import SluggedResource


class LLMKind(models.TextChoices):
    ANTHROPIC = "anthropic", "Anthropic Messages API"
    OPENAI = "openai", "OpenAI Chat Completions"
    SCRIPTED = "scripted", "Scripted, without a key"


class Health(models.TextChoices):
    HEALTHY = "healthy", "Healthy"
    UNREACHABLE = "unreachable", "Unreachable"
    UNKNOWN = "unknown", "Not tested yet"


class LLMProvider(SluggedResource):
    """A model endpoint. Its key is in `secrets`, sealed; `config` holds nothing secret."""

    KIND = "llm_provider"
    SPEC_FIELDS = ("labels", "description", "provider", "config", "secrets")

    provider = models.CharField(max_length=16, choices=LLMKind.choices)
    config = models.JSONField(default=dict)
    secrets = models.TextField(blank=True, default="", editable=False)
    health = models.CharField(max_length=16, choices=Health.choices, default=Health.UNKNOWN, editable=False)
    checked_at = models.DateTimeField(null=True, editable=False)
    reasons = models.JSONField(default=list, editable=False)

    objects: ClassVar[Any] = SharedQuerySet.as_manager()

    class Meta(SluggedResource.Meta):
        constraints = [
            *SluggedResource.Meta.constraints,
            models.CheckConstraint(condition=Q(provider__in=LLMKind.values), name="llm_provider_kind_known"),
            models.CheckConstraint(condition=Q(health__in=Health.values), name="llm_provider_health_known"),
        ]


class Agent(SluggedResource):
    """How a model is asked. A session keeps a snapshot, so a change here reaches only later ones."""

    KIND = "agent"
    SPEC_FIELDS = (
        "labels", "description", "provider", "model_name", "tools", "system_prompt", "temperature",
        "max_output_tokens", "thinking", "limits",
    )  # fmt: skip

    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    provider = models.ForeignKey(LLMProvider, on_delete=models.PROTECT, related_name="agents")
    model_name = models.CharField(max_length=200, blank=True, default="")  # "" is the provider's default model
    tools = models.JSONField(default=list)
    system_prompt = models.JSONField(default=list)  # paragraphs
    temperature = models.FloatField(null=True)  # sent only when set
    max_output_tokens = models.PositiveIntegerField(default=8192)
    thinking = models.JSONField(default=str)  # "off", "auto" or {"budget_tokens": n}
    limits = models.JSONField(default=dict)  # max_turns max_tool_calls timeout_s max_tokens

    objects: ClassVar[Any] = SharedQuerySet.as_manager()
