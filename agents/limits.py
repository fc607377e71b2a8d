"""Limits of a run as the API takes them: on an agent, and per session on top."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.rest import StrictSerializer
from agents.budget import Limits

DEFAULTS: dict[str, Any] = {"max_turns": 50, "max_tool_calls": 200, "timeout_s": 1800, "max_tokens": None}
DAY_S = 24 * 3600


class LimitsSerializer(StrictSerializer):
    """All optional; `max_tokens` null is no limit."""

    max_turns = serializers.IntegerField(
        min_value=1, max_value=10_000, required=False, help_text="Turns of the model in one run."
    )
    max_tool_calls = serializers.IntegerField(
        min_value=1, max_value=100_000, required=False, help_text="Calls of tools in one run, all together."
    )
    timeout_s = serializers.FloatField(
        min_value=0.1, max_value=7 * DAY_S, required=False, help_text="Seconds of one run, from its first turn on."
    )
    max_tokens = serializers.IntegerField(
        min_value=1, max_value=10**12, required=False, allow_null=True,
        help_text="Tokens of one run, in and out; left out, no limit.",
    )  # fmt: skip


def raised(asked: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Those of the limits asked for that are above the agent's `own`, each with the value there; null is no limit."""
    holding = {**DEFAULTS, **own}
    return {
        name: holding[name]
        for name, value in asked.items()
        if holding.get(name) is not None and (value is None or value > holding[name])
    }


def limits_of(*layers: dict[str, Any]) -> Limits:
    """The limits that hold: defaults, then each layer's own values."""
    merged = dict(DEFAULTS)
    for layer in layers:
        merged |= {name: value for name, value in layer.items() if name in DEFAULTS}
    return Limits(**merged)
