"""Prepared queries: what Django would answer, at the price of the database alone."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Token, User
from primer_site.prepared import Prepared

pytestmark = pytest.mark.django_db


def tokens() -> Prepared[Token]:
    return Prepared(
        lambda name, user: Token.objects.select_related("user").filter(name=name, user=user, scope="write"),
        name=str, user=int,
    )  # fmt: skip


@pytest.fixture
def ann() -> User:
    user = User.objects.create_user("ann", password="x" * 12)
    for name in ("one", "two", "one"):
        Token.objects.create(user=user, name=name, expiry=timedelta(days=3))
    return user


def fields(row: Any) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_the_rows_are_those_of_the_query_with_their_related_rows_and_types(ann: User) -> None:
    prepared = tokens()
    for name, count in (("one", 2), ("two", 1), ("three", 0), ("one", 2)):
        asked = Token.objects.select_related("user").filter(name=name, user=ann, scope="write").order_by("pk")
        with CaptureQueriesContext(
            connection,
        ) as seen:
            found = sorted(prepared.all(name=name, user=ann.pk), key=lambda row: str(row.pk))
            users = [fields(row.user) for row in found]
        assert len(seen) == 1
        assert len(found) == count
        assert [fields(row) for row in found] == [fields(row) for row in sorted(asked, key=lambda row: str(row.pk))]
        assert users == [fields(ann)] * count


def test_what_changed_since_the_last_time_is_seen(ann: User) -> None:
    prepared = tokens()
    prepared.all(name="two", user=ann.pk)
    Token.objects.filter(name="two").update(expiry=timezone.now())
    User.objects.filter(pk=ann.pk).update(is_active=False)
    (row,) = prepared.all(name="two", user=ann.pk)
    assert row.expiry is not None
    assert row.expiry <= timezone.now()
    assert not row.user.is_active


def test_only_the_named_columns_are_read_and_the_others_still_come_when_asked_for(ann: User) -> None:
    prepared = Prepared(lambda name: User.objects.only("username").filter(username=name), name=str)
    (row,) = prepared.all(name="ann")
    assert "email" in row.get_deferred_fields()
    assert row.role == ann.role


def test_hostile_values_are_values(ann: User) -> None:
    prepared = tokens()
    for name in ("' OR 1=1 --", "%s", "\x01user\x01", "\x01name\x01", "é" * 1000):
        assert prepared.all(name=name, user=ann.pk) == []
    assert prepared.all(name="one", user=-(2**52)) == []


@pytest.mark.django_db(transaction=True)
def test_each_thread_has_a_query_of_its_own_also_after_its_connection_was_closed(ann: User) -> None:
    prepared = tokens()
    counts: list[int] = []

    def work() -> None:
        for _ in range(20):
            counts.append(len(prepared.all(name="one", user=ann.pk)))
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2] * 80
