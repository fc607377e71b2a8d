"""Idle and age limits, by a clock that the test moves: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accounts.models import AuditEntry
from sessions_app import claims
from tests.factories import make_template, make_user, make_workspace
from tests.sessions.cast import make_session
from workspaces import leases, services
from workspaces.models import Exec, Phase, Workspace

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
Move = Callable[[float], None]


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Move:
    """Sets the clock to so many seconds after noon."""

    def to(seconds: float) -> None:
        monkeypatch.setattr("django.utils.timezone.now", lambda: NOON + timedelta(seconds=seconds))

    to(0)
    return to


def workspace(phase: Phase = Phase.RUNNING, ttl_s: int | None = None, **template: Any) -> Workspace:
    """A workspace that was made, and used for the last time, at noon."""
    row = make_workspace(make_user(), make_template("limited", **template), ttl_s=ttl_s)
    Workspace.objects.filter(pk=row.pk).update(phase=phase, ref={"kind": "fake"})
    row.refresh_from_db()
    return row


def wish(row: Workspace) -> tuple[str, str]:
    row.refresh_from_db()
    return row.desired, row.phase


def reason(row: Workspace) -> Any:
    entry = AuditEntry.objects.filter(object_id=row.slug).latest("pk")
    return (entry.after or {})["reason"]


@pytest.mark.django_db
def test_an_idle_workspace_is_stopped_when_its_time_is_over_and_not_before(move: Move) -> None:
    row = workspace(idle_timeout_s=600)
    move(600)
    leases.end_of_life()
    assert wish(row) == ("running", "running")
    move(601)
    leases.end_of_life()
    assert wish(row) == ("stopped", "running")
    assert reason(row) == "idle"


@pytest.mark.django_db
def test_use_begins_the_idle_time_anew(move: Move) -> None:
    row = workspace(idle_timeout_s=600)
    move(590)
    services.workspace_touch(row.pk, row.last_activity_at)
    move(601)
    leases.end_of_life()
    assert wish(row) == ("running", "running")
    move(1191)
    leases.end_of_life()
    assert wish(row) == ("stopped", "running")


@pytest.mark.django_db
def test_a_running_program_is_use_however_long_it_is_silent(move: Move) -> None:
    row = workspace(idle_timeout_s=600)
    run = Exec.objects.create(workspace=row, request={})
    move(100_000)
    leases.end_of_life()
    assert wish(row) == ("running", "running")
    run.delete()
    leases.end_of_life()
    assert wish(row) == ("stopped", "running")


@pytest.mark.django_db
def test_a_session_whose_model_thinks_for_long_is_use(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    row = workspace(idle_timeout_s=60)
    session = claims.claim(make_session(row.owner, workspace=row).pk)
    assert session is not None
    move(59)
    assert claims.renew(session) == (True, "")
    move(100)
    leases.end_of_life()
    assert wish(row) == ("running", "running")
    move(120)
    leases.end_of_life()
    assert wish(row) == ("stopped", "running")


@pytest.mark.django_db
def test_without_an_idle_limit_nothing_is_ever_idle(move: Move) -> None:
    row = workspace()
    move(10**8)
    leases.end_of_life()
    assert wish(row) == ("running", "running")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("ttl_s", "max_age_s", "ends_s"), [(60, None, 60), (None, 90, 90), (60, 90, 60), (120, 90, 90)]
)
def test_the_sooner_of_ttl_and_age_deletes(move: Move, ttl_s: Any, max_age_s: Any, ends_s: int) -> None:
    row = workspace(ttl_s=ttl_s, max_age_s=max_age_s)
    assert row.expires_at == NOON + timedelta(seconds=ends_s)
    move(ends_s - 1)
    leases.end_of_life()
    assert wish(row) == ("running", "running")
    move(ends_s)
    leases.end_of_life()
    assert wish(row) == ("gone", "deleting")
    assert reason(row) == "expired"


@pytest.mark.django_db
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.DELETING])
def test_age_deletes_in_every_phase_and_whatever_runs(move: Move, phase: Phase) -> None:
    row = workspace(phase, ttl_s=60)
    Exec.objects.create(workspace=row, request={})
    move(61)
    leases.end_of_life()
    assert wish(row) == ("gone", "deleting")
    leases.end_of_life()  # again is nothing new
    assert AuditEntry.objects.filter(object_id=row.slug, action="workspace.delete").count() == 1


@pytest.mark.django_db
def test_a_start_does_not_make_an_old_workspace_younger(move: Move) -> None:
    row = workspace(Phase.STOPPED, ttl_s=60)
    move(59)
    services.workspace_start(by=None, row=row)
    move(60)
    leases.end_of_life()
    assert wish(row) == ("gone", "deleting")


@pytest.mark.django_db
def test_a_started_workspace_is_not_idle_from_before_its_stop(move: Move) -> None:
    row = workspace(Phase.STOPPED, idle_timeout_s=60)
    move(10_000)
    services.workspace_start(by=None, row=row)
    Workspace.objects.filter(pk=row.pk).update(phase=Phase.RUNNING)
    move(10_060)
    leases.end_of_life()
    assert wish(row) == ("running", "running")


@pytest.mark.django_db
def test_the_limits_are_those_of_the_workspaces_own_settings(move: Move) -> None:
    """A template that is changed later changes nothing for what was made before."""
    row = workspace(idle_timeout_s=60)
    services.template_update(by=make_actor(), row=row.template, data={"idle_timeout_s": 6000})
    move(61)
    leases.end_of_life()
    assert wish(row) == ("stopped", "running")


def make_actor() -> Any:
    from accounts.audit import Actor

    return Actor(make_user("bob", "admin"))
