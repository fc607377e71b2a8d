"""Serializers show the rows of a list by a shorter way than DRF's; what they show is the same."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from accounts.models import AuditEntry, User
from accounts.rest import StrictSerializer


class Odd(StrictSerializer):
    """Every way in which a field comes by its value."""

    username = serializers.CharField()
    renamed = serializers.CharField(source="username")
    called = serializers.CharField(source="get_username")
    computed = serializers.SerializerMethodField()
    nothing = serializers.DateTimeField(source="last_login", allow_null=True)
    joined = serializers.DateTimeField(source="date_joined")
    lacking = serializers.CharField(source="no_such_attribute", default="a default")
    left_out = serializers.CharField(source="no_such_attribute", required=False)
    hidden = serializers.CharField(source="password", write_only=True)

    def get_computed(self, row: User) -> int:
        return len(row.username)


class Acted(StrictSerializer):
    """A relation that may lead nowhere."""

    actor = serializers.CharField(source="actor.username", allow_null=True)
    login = serializers.CharField(source="actor.username", default="nobody")


def both(serializer: StrictSerializer, row: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return serializer.to_representation(row), dict(serializers.Serializer.to_representation(serializer, row))


def test_a_row_is_shown_as_its_fields_would_show_it() -> None:
    shown, expected = both(Odd(), User(username="alice"))
    assert shown == expected
    assert (shown["called"], shown["lacking"], shown["nothing"]) == ("alice", "a default", None)
    assert not {"left_out", "hidden"} & set(shown)


def test_a_relation_that_leads_nowhere_is_what_its_field_says() -> None:
    shown, expected = both(Acted(), AuditEntry(actor=None))
    assert shown == expected == {"actor": None, "login": "nobody"}


def test_one_serializer_shows_many_rows() -> None:
    rows = [User(username=name) for name in ("alice", "bob")]
    assert [row["username"] for row in Odd(rows, many=True).data] == ["alice", "bob"]
