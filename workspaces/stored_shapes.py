"""Parts of a workspace that are stored as JSON in the form in which they are shown."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.rest import StrictSerializer


def zulu(stored: str) -> str:
    """A time that is stored as text inside JSON, in the form of all others."""
    return stored.replace("+00:00", "Z")


class StoredSerializer(StrictSerializer):
    """An object that is stored as JSON in the form in which it is shown. Lists hold hundreds of them, so they are copied by
    name rather than field by field."""

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        return {name: instance[name] for name in map(str, self.fields)}


class FindingSerializer(StoredSerializer):
    name = serializers.CharField()
    expected = serializers.CharField()
    observed = serializers.CharField()
    ok = serializers.BooleanField(allow_null=True)


class ConfinementSerializer(StoredSerializer):
    verdict = serializers.ChoiceField(["proven", "degraded", "failed", "unknown"])
    checked_at = serializers.DateTimeField()
    checks = FindingSerializer(many=True)

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        return super().to_representation(instance) | {"checked_at": zulu(instance["checked_at"])}


class PhaseEntrySerializer(StoredSerializer):
    phase = serializers.CharField()
    at = serializers.DateTimeField()
    reason = serializers.CharField()

    def to_representation(self, instance: dict[str, Any]) -> dict[str, Any]:
        return super().to_representation(instance) | {"at": zulu(instance["at"])}


class ChannelSerializer(StoredSerializer):
    kind = serializers.CharField()
    asked = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
