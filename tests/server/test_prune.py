"""What is kept for PRIMER_KEEP_DAYS and then goes: in the command, and daily in the running server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.utils import timezone

from accounts.models import AuditEntry, IdempotencyKey
from agents.models import Agent
from primer_site import prune, wiring
from sessions_app.models import AgentSession, SessionEvent
from tests.factories import make_user, make_workspace
from tests.sessions.cast import make_agent
from workspaces import image
from workspaces.models import Exec, ExecOutput

pytestmark = pytest.mark.django_db


def ago(days: float) -> Any:
    return timezone.now() - timedelta(days=days)


def session(days: float | None) -> AgentSession:
    """A session with one event, ended so long ago; None: it waits for its runner since ever."""
    owner = make_user()
    agent = Agent.objects.first() or make_agent(owner)
    ended = {"status": "ended", "ended_reason": "completed", "ended_at": ago(days)} if days is not None else {}
    row = AgentSession.objects.create(
        owner=owner, agent=agent, workspace=make_workspace(owner), agent_spec={}, initial_instructions="x",
        queued_at=ago(1000), created_at=ago(1000), **ended,
    )  # fmt: skip
    SessionEvent.objects.create(session=row, seq=1, kind="user_message", data={})
    return row


def run(days: float | None) -> Exec:
    """A command with output, ended so long ago; None: it runs since ever."""
    ended = {"state": "ended", "ended_by": "exit", "exit_code": 0, "ended_at": ago(days)} if days is not None else {}
    row = Exec.objects.create(workspace=make_workspace(), request={}, created_at=ago(1000), **ended)
    ExecOutput.objects.create(exec=row, stream="stdout", offset=0, data=b"x")
    return row


def pruned() -> dict[str, int]:
    return {name: sum(batches) for name, batches in prune.jobs()}


def test_old_ended_sessions_go_with_their_events_and_nothing_else_does() -> None:
    old, young, queued = session(91), session(89), session(None)
    assert pruned()["sessions"] == 1
    assert set(AgentSession.objects.values_list("pk", flat=True)) == {young.pk, queued.pk}
    assert set(SessionEvent.objects.values_list("session_id", flat=True)) == {young.pk, queued.pk}
    assert old.pk not in (young.pk, queued.pk)


def test_old_ended_commands_go_with_their_output_and_running_ones_stay() -> None:
    run(91)
    young, running = run(89), run(None)
    assert pruned()["commands"] == 1
    assert set(ExecOutput.objects.values_list("exec_id", flat=True)) == {young.pk, running.pk}


def test_old_audit_entries_go() -> None:
    make_workspace()
    assert pruned()["audit"] == 0
    count = AuditEntry.objects.count()
    AuditEntry.objects.all().update(at=ago(91))
    assert pruned()["audit"] == count
    assert not AuditEntry.objects.exists()


def test_a_second_time_finds_nothing() -> None:
    session(91)
    run(91)
    pruned()
    assert set(pruned().values()) == {0}


def test_expired_keys_of_repeats_go_whatever_the_days_are(settings: Any) -> None:
    settings.PRIMER_KEEP_DAYS = 0
    for key, days in (("old", 2), ("new", 0)):
        row = IdempotencyKey.objects.create(user=make_user(), key=key, route="POST /v1/x", body_hash="0")
        IdempotencyKey.objects.filter(pk=row.pk).update(created_at=ago(days))
    assert pruned()["keys"] == 1
    assert IdempotencyKey.objects.get().key == "new"


def test_zero_days_keep_everything_for_ever(settings: Any) -> None:
    settings.PRIMER_KEEP_DAYS = 0
    session(10_000)
    run(10_000)
    assert set(pruned()) == {"keys", "sign-ins"}
    assert (AgentSession.objects.count(), Exec.objects.count()) == (1, 1)


def test_many_rows_go_in_short_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "SMALL_BATCH", 2)
    for _ in range(5):
        run(91)
    (batches,) = [batches for name, batches in prune.jobs() if name == "commands"]
    assert list(batches) == [2, 2, 1]


def test_a_session_that_goes_on_meanwhile_stays() -> None:
    row = session(91)
    (batches,) = [batches for name, batches in prune.jobs() if name == "sessions"]
    AgentSession.objects.filter(pk=row.pk).update(status="queued", ended_reason="", ended_at=None)
    assert sum(batches) == 0
    assert AgentSession.objects.filter(pk=row.pk).exists()


# -- in the server


def test_the_server_runs_it() -> None:
    assert "prune" in {service.name for service in wiring.services()}


async def test_it_runs_soon_after_the_start_then_daily_and_ends_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, pauses = asyncio.Event(), []

    async def once(_: asyncio.Event) -> None:
        pauses.append("prune")
        if pauses.count("prune") == 2:
            stop.set()

    async def stopped(stop: asyncio.Event, within_s: float) -> bool:
        pauses.append(str(within_s))
        return stop.is_set()

    monkeypatch.setattr(prune, "once", once)
    monkeypatch.setattr(prune, "_stopped", stopped)
    await prune.serve(stop)
    assert pauses == ["300.0", "prune", "86400.0", "prune", "86400.0"]


@pytest.mark.django_db(transaction=True)
async def test_a_kind_that_fails_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from asgiref.sync import sync_to_async

    from primer_site import loop

    def broken() -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr("accounts.services.prune_idempotency", broken)
    row = await sync_to_async(run)(91)
    try:
        await prune.once(asyncio.Event())
    finally:
        await asyncio.to_thread(loop.close_database_threads)
    assert not await sync_to_async(Exec.objects.filter(pk=row.pk).exists)()
    assert "prune failed" in caplog.text
    assert "'commands': 1" in caplog.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["_volumes", "_replaced_images"])
async def test_engines_that_fail_in_a_new_way_end_no_round(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from primer_site import loop

    def broken() -> list[str]:
        raise RuntimeError("what no engine has said before")

    for name in ("_volumes", "_replaced_images"):
        monkeypatch.setattr(
            prune, name, broken if name == kind else {"_volumes": _two, "_replaced_images": lambda: ["a", "b"]}[name]
        )
    try:
        await prune.once(asyncio.Event())
    finally:
        await asyncio.to_thread(loop.close_database_threads)
    assert "prune failed" in caplog.text
    assert ("'volumes': 2" in caplog.text, "'images': 2" in caplog.text) == (kind != "_volumes", kind == "_volumes")


async def _two() -> list[str]:
    return ["a", "b"]


class Silent:
    """An engine that answers what is asked first, and then not in time."""

    def inspect_image(self, tag: str) -> Any:
        return {"Config": {"Labels": {}}}

    def images(self, **_: Any) -> Any:
        raise requests.ReadTimeout("Read timed out.")

    def close(self) -> None:
        pass


async def test_an_engine_that_does_not_answer_in_time_keeps_its_images_until_another_day(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image, "connect", lambda url: Silent())
    assert await prune._images() == []
    assert "images are pruned another day" in caplog.text
    assert "did not answer in time" in caplog.text
    prune._prune_images()
    told = capsys.readouterr()
    assert "warn  image" in (told.out + told.err), "none was looked at, so none is said to be removed"
    assert "0 removed" not in told.out


@pytest.mark.django_db(transaction=True)
async def test_without_an_engine_there_are_no_images_to_remove_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: Any
) -> None:
    from primer_site import loop

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    try:
        await prune.once(asyncio.Event())
    finally:
        await asyncio.to_thread(loop.close_database_threads)
    assert "'images': 0" in caplog.text
    assert "prune failed" not in caplog.text
