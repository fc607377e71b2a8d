"""Stop, start, delete, loss: each verb when there is nothing to do, twice at once, in the middle, and after a restart."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from tests.eventually import eventually
from tests.factories import Api, make_provider, make_template, make_workspace
from tests.workspaces.conftest import Process, create, phase_of, sandbox_pid, until
from workspaces import leases, services
from workspaces.models import SOURCES, Moved, Phase, Workspace, advance


def write(person: Api, workspace: str, path: str, text: str) -> None:
    assert person.put(f"workspaces/{workspace}/files", {"content": text}, path=path).status_code == 204


def test_stopping_keeps_the_files_and_starting_brings_them_back(running: str, alice: Api) -> None:
    write(alice, running, "a.txt", "kept")
    assert alice.post(f"workspaces/{running}/stop").status_code == 202
    until(alice, running, "stopped")
    assert alice.post(f"workspaces/{running}/stop").status_code == 202  # again is success
    refused = alice.get(f"workspaces/{running}/files/read", path="a.txt")
    assert (refused.status_code, refused.json()["code"]) == (409, "workspace_not_running")
    assert alice.post(f"workspaces/{running}/start").status_code == 202
    until(alice, running, "running")
    assert alice.get(f"workspaces/{running}/files/read", path="a.txt").json()["content"] == "kept"
    assert alice.post(f"workspaces/{running}/start").json()["phase"] == "running"  # again is success


def test_an_exec_starts_a_stopped_workspace(running: str, alice: Api) -> None:
    alice.post(f"workspaces/{running}/stop")
    until(alice, running, "stopped")
    answer = alice.post(f"workspaces/{running}/exec", {"argv": ["echo", "up"]})
    assert (answer.status_code, answer.json()["stdout"]) == (200, "up\n")


def test_delete_is_202_then_404_and_leaves_nothing(running: str, alice: Api, root_path: str) -> None:
    assert running in str(list(Path(root_path).rglob("*")))
    assert alice.delete(f"workspaces/{running}").status_code == 202
    until(alice, running, "404")
    assert alice.delete(f"workspaces/{running}").status_code == 404
    assert running not in [path.name for path in Path(root_path).rglob("*")]
    assert running not in [item["id"] for item in alice.get("workspaces").json()["items"]]


def test_delete_during_a_slow_start_does_not_wait_for_it(process: Process, root_path: str, alice: Api) -> None:
    provider = make_provider(config={"fault": "never", "delay_s": 0.2, "root_path": root_path})
    make_template(provider=provider)
    workspace = create(alice)
    until(alice, workspace, "starting")
    assert alice.delete(f"workspaces/{workspace}").status_code == 202
    assert alice.delete(f"workspaces/{workspace}").status_code == 202  # twice at once
    assert phase_of(alice, workspace) == "deleting"
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    until(alice, workspace, "404")


def test_delete_works_in_every_phase(process: Process, template: Any, alice: Api) -> None:
    for phase in Phase:
        workspace = create(alice)
        until(alice, workspace, "running")
        Workspace.objects.filter(slug=workspace).update(phase=phase)
        assert alice.delete(f"workspaces/{workspace}").status_code == 202, phase
        until(alice, workspace, "404")


def test_ten_deletes_at_once_are_one(running: str, alice: Api) -> None:
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(alice.delete(f"workspaces/{running}").status_code))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) <= {202, 404}
    assert 202 in codes
    until(alice, running, "404")


def test_delete_waits_for_an_engine_that_is_down(running: str, provider: Any, root_path: str, alice: Api) -> None:
    provider.write_spec({"config": {"kind": "fake", "fault": "refuses", "root_path": root_path}})
    alice.delete(f"workspaces/{running}")
    eventually(lambda: alice.get(f"workspaces/{running}").json()["unknown_since"])
    assert phase_of(alice, running) == "deleting"
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    until(alice, running, "404")


def test_a_sandbox_that_dies_is_stopped_with_the_reason_and_can_be_started(running: str, alice: Api) -> None:
    os.kill(sandbox_pid(running), signal.SIGKILL)
    found = until(alice, running, "stopped", "lost")
    assert found["phase_reason"]
    assert alice.post(f"workspaces/{running}/start").status_code == 202
    until(alice, running, "running")


def test_files_that_vanished_are_lost_and_never_a_silently_empty_workspace(
    running: str, alice: Api, root_path: str
) -> None:
    alice.post(f"workspaces/{running}/stop")
    until(alice, running, "stopped")
    for path in Path(root_path).rglob(running):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert alice.post(f"workspaces/{running}/start").status_code == 202
    found = until(alice, running, "lost")
    assert found["phase_reason"] == "data_lost"
    refused = alice.post(f"workspaces/{running}/start")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    answer = alice.post(f"workspaces/{running}/exec", {"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_lost")


def test_a_running_workspace_is_found_again_after_a_restart(process: Process, running: str, alice: Api) -> None:
    write(alice, running, "a.txt", "kept")
    process.stop()
    process.start()
    assert alice.get(f"workspaces/{running}/files/read", path="a.txt").json()["content"] == "kept"
    assert phase_of(alice, running) == "running"


def test_a_start_that_was_cut_by_a_restart_is_begun_again(process: Process, root_path: str, alice: Api) -> None:
    provider = make_provider(config={"fault": "never", "root_path": root_path})
    make_template(provider=provider)
    workspace = create(alice)
    until(alice, workspace, "starting")
    process.stop()
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})
    process.start()
    until(alice, workspace, "running")


def test_a_delete_that_was_cut_by_a_restart_is_finished(process: Process, running: str, alice: Api) -> None:
    process.stop()
    assert alice.delete(f"workspaces/{running}").status_code == 202
    assert phase_of(alice, running) == "deleting"
    process.start()
    until(alice, running, "404")


def test_what_no_row_stands_behind_is_swept_at_the_next_start(
    process: Process, running: str, alice: Api, root_path: str
) -> None:
    process.stop()
    Workspace.objects.filter(slug=running).update(phase=Phase.DELETING, deleted_at=timezone.now())
    process.start()
    eventually(lambda: running not in [path.name for path in Path(root_path).rglob("*")], within=20)


def test_an_idle_workspace_is_stopped_and_one_with_a_running_program_is_not(
    process: Process, provider: Any, alice: Api
) -> None:
    make_template("idle", idle_timeout_s=10)
    workspace = create(alice, "idle")
    until(alice, workspace, "running")
    long = alice.post(f"workspaces/{workspace}/exec", {"argv": ["sleep", "60"], "background": True}).json()["id"]
    past = timezone.now() - timedelta(seconds=60)
    Workspace.objects.filter(slug=workspace).update(last_activity_at=past)
    leases.end_of_life()
    assert Workspace.objects.get(slug=workspace).desired == "running"
    alice.delete(f"workspaces/{workspace}/exec/{long}")
    Workspace.objects.filter(slug=workspace).update(last_activity_at=past)
    until(alice, workspace, "stopped")


def test_a_workspace_past_its_age_is_deleted(process: Process, template: Any, alice: Api) -> None:
    workspace = create(alice, ttl_s=60)
    until(alice, workspace, "running")
    Workspace.objects.filter(slug=workspace).update(expires_at=timezone.now() - timedelta(seconds=1))
    until(alice, workspace, "404")


def test_the_table_of_moves_is_the_only_way_between_phases(template: Any, owner: Any) -> None:
    row = make_workspace(owner)
    for start in Phase:
        for target in Phase:
            Workspace.objects.filter(pk=row.pk).update(phase=start, ref={"kind": "fake"}, lease_holder="me")
            row.refresh_from_db()
            if start in SOURCES[target]:
                advance(row, to=target, holder="me")
                assert row.phase == target
            else:
                with pytest.raises(Moved):
                    advance(row, to=target, holder="me")


def test_a_reconciler_that_lost_its_lease_moves_nothing(template: Any, owner: Any) -> None:
    row = make_workspace(owner)
    Workspace.objects.filter(pk=row.pk).update(lease_holder="somebody")
    with pytest.raises(Moved):
        advance(row, to=Phase.STARTING, holder="me")
    services.workspace_delete(by=None, row=row)
    assert Workspace.objects.get(pk=row.pk).phase == Phase.DELETING
