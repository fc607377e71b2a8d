"""One key, one effect: also when the work fails, the server dies, or another process holds the key."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection
from django.http import JsonResponse
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from accounts import idempotency
from accounts.models import AuditEntry, IdempotencyKey, User
from accounts.services import prune_idempotency, user_create
from primer_site.errors import Conflict, PrimerError

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice() -> User:
    return user_create(username="alice", role="member")[0]


def request(key: str = "key-1", body: Any = None, path: str = "/v1/things") -> Any:
    raw = APIRequestFactory().post(path, body or {"a": 1}, format="json", headers={"Idempotency-Key": key})
    return APIView().initialize_request(raw)


def made(user: User) -> Response:
    entry = AuditEntry.objects.create(actor_name="x", action="thing.create", kind="thing", object_id="t")
    return Response({"id": entry.pk}, status=201, headers={"ETag": '"1.1"'})


def things() -> int:
    return AuditEntry.objects.filter(action="thing.create").count()


def test_a_repeat_gets_the_same_answer_with_its_etag(alice: User) -> None:
    first = idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None)
    again = idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None)
    assert (again.data, again.status_code, again.headers["ETag"]) == (first.data, 201, '"1.1"')
    assert again.headers["Idempotent-Replay"] == "true"
    assert things() == 1


@pytest.mark.parametrize("other", [{"body": {"a": 2}}, {"path": "/v1/others"}])
def test_the_key_of_another_request_is_refused(alice: User, other: dict[str, Any]) -> None:
    idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None)
    with pytest.raises(Conflict):
        idempotency.once(request(**other), alice, lambda: made(alice), prepare=lambda: None)
    assert things() == 1


def test_a_failure_frees_the_key_and_leaves_nothing(alice: User) -> None:
    def fails() -> Response:
        made(alice)
        raise PrimerError

    with pytest.raises(PrimerError):
        idempotency.once(request(), alice, fails, prepare=lambda: None)
    assert (things(), IdempotencyKey.objects.count()) == (0, 0)


def test_a_server_that_died_between_object_and_answer_left_neither(alice: User, monkeypatch: Any) -> None:
    """The process ends after the object was written: its transaction goes with it, and the repeat makes the one object."""

    class Died(BaseException):
        pass

    def dies(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "_finish", dies)
        patch.setattr(idempotency, "_release", lambda claim: None)  # a dead process releases nothing
        with pytest.raises(Died):
            idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None)
    IdempotencyKey.objects.update(holder="of-a-dead-process")
    assert idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None).status_code == 201
    assert things() == 1


def test_a_request_that_still_works_is_not_done_a_second_time(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "WAIT_S", 0.1)
    idempotency.begin(request(), alice)
    with pytest.raises(Conflict, match="still being worked on"):
        idempotency.once(request(), alice, lambda: made(alice), prepare=lambda: None)
    assert things() == 0


def test_a_repeat_that_comes_while_the_first_one_works_waits_for_its_answer(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = idempotency.begin(request(), alice)
    assert isinstance(claim, IdempotencyKey)
    looks: list[float] = []

    def looked(seconds: float) -> None:  # the first one ends between the second look and the third
        looks.append(seconds)
        if len(looks) == 2:
            idempotency._finish(claim, made(alice), True)

    monkeypatch.setattr("accounts.idempotency.time.sleep", looked)
    again = idempotency.once(request(), alice, lambda: made(alice))
    assert (again.status_code, again.data, len(looks)) == (
        201,
        {"id": AuditEntry.objects.get(action="thing.create").pk},
        2,
    )
    assert things() == 1


def test_a_repeat_that_comes_while_the_first_one_fails_takes_its_place(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = idempotency.begin(request(), alice)
    assert isinstance(claim, IdempotencyKey)
    monkeypatch.setattr("accounts.idempotency.time.sleep", lambda _: idempotency._release(claim))
    assert idempotency.once(request(), alice, lambda: made(alice)).status_code == 201
    assert things() == 1


def test_a_repeat_that_waits_writes_nothing_and_looks_ever_less_often(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write in each look would make everybody else wait for their turn."""
    idempotency.begin(request(), alice)
    monkeypatch.setattr(idempotency, "_claimed", claims := Mock(side_effect=idempotency._claimed))
    clock, pauses = [0.0], []

    def passes(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("accounts.idempotency.time.sleep", passes)
    monkeypatch.setattr("accounts.idempotency.time.monotonic", lambda: clock[0])
    with CaptureQueriesContext(connection) as seen, pytest.raises(Conflict, match="still being worked on") as refused:
        idempotency.begin(request(), alice)
    assert refused.value.retry_after_s == 1
    assert claims.call_count == 1
    assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.4]
    looks = len(pauses) + 1
    assert [query["sql"].split()[0] for query in seen.captured_queries][-looks:] == ["SELECT"] * looks


def test_of_many_repeats_of_one_key_a_few_wait_and_the_others_are_told_at_once(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = idempotency.begin(request(), alice)
    assert isinstance(first, IdempotencyKey)
    slept: list[float] = []

    def ends(seconds: float) -> None:
        slept.append(seconds)
        idempotency._release(first)

    monkeypatch.setattr("accounts.idempotency.time.sleep", ends)
    with ExitStack() as others:
        for _ in range(idempotency.WAITERS):
            others.enter_context(idempotency._place(alice, "key-1"))
        with pytest.raises(Conflict, match="still being worked on"):
            idempotency.begin(request(), alice)
        assert slept == []
        assert isinstance(idempotency.begin(request("key-2"), alice), IdempotencyKey)  # another key has its own places
    assert isinstance(idempotency.begin(request(), alice), IdempotencyKey)
    assert (len(slept), idempotency._waiting) == (1, {})


def test_the_stored_hash_cannot_be_recomputed_from_a_guessed_body(alice: User) -> None:
    import hashlib

    idempotency.once(request(body={"password": "hunter22"}), alice, lambda: made(alice), prepare=lambda: None)
    plain = json.dumps({"password": "hunter22"}, sort_keys=True).encode()
    assert IdempotencyKey.objects.get().body_hash != hashlib.sha256(plain).hexdigest()


def test_a_key_whose_answer_was_never_made_is_free_again_also_where_none_would_be_kept(alice: User) -> None:
    """A login whose server died before it made the token: the repeat is the first one, and no 409."""
    idempotency.begin(request(), alice, storable=False)
    IdempotencyKey.objects.update(holder="of-a-dead-process")
    assert idempotency.once(request(), alice, lambda: made(alice), storable=False).status_code == 201
    with pytest.raises(Conflict, match="secret"):
        idempotency.once(request(), alice, lambda: made(alice), storable=False)
    assert things() == 1


def test_work_outside_a_transaction_leaves_what_it_did_when_it_fails(alice: User) -> None:
    """What an engine did cannot be undone, so its trace in the database stays as well."""

    def fails() -> Response:
        made(alice)
        raise PrimerError

    with pytest.raises(PrimerError):
        idempotency.once(request(), alice, fails, outside=True)
    assert (things(), IdempotencyKey.objects.count()) == (1, 0)


def test_keys_are_pruned_when_their_day_is_over_and_not_before(alice: User) -> None:
    for key in ("old", "young"):
        idempotency.once(request(key), alice, lambda: made(alice))
    for key, age_h in (("old", 25), ("young", 23)):
        IdempotencyKey.objects.filter(key=key).update(created_at=timezone.now() - timedelta(hours=age_h))
    assert prune_idempotency() == 1
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["young"]
    assert prune_idempotency() == 0


def test_an_answer_with_a_name_that_is_not_utf8_is_repeated(alice: User) -> None:
    body = {"path": "caf\udce9"}
    idempotency.once(request(), alice, lambda: JsonResponse(body, status=201))
    again = idempotency.once(request(), alice, lambda: JsonResponse({}), prepare=lambda: None)
    assert (again.status_code, json.loads(again.content)) == (201, body)
