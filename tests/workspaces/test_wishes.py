"""Wishes that come while the engine is still busy with the one before, and ends that the engine owes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primer_site import loop
from tests.eventually import eventually, eventually_async
from tests.factories import Api, make_provider, make_template
from tests.workspaces.conftest import Process, create, phase_of, sandbox_pid, until
from tests.workspaces.doubles import GatedProvider
from workspaces import access, bringup, providers, reconcile
from workspaces.models import Desired, Workspace
from workspaces.providers.base import ChannelClosed
from workspaces.sandbox import Sandbox


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[GatedProvider]]:
    monkeypatch.setitem(providers.KINDS, "fake", ("Gated", "tests.workspaces.doubles.GatedProvider"))
    GatedProvider.reset()
    yield GatedProvider
    GatedProvider.reset()
    GatedProvider.go.set()


@pytest.fixture
def gated(gate: type[GatedProvider], running: str) -> str:
    return running


def test_a_start_while_the_engine_still_stops_is_not_lost(gated: str, gate: type[GatedProvider], alice: Api) -> None:
    alice.put(f"workspaces/{gated}/files", {"content": "kept"}, path="a.txt")
    gate.reset("stop")
    assert alice.post(f"workspaces/{gated}/stop").status_code == 202
    assert gate.entered.wait(10)
    assert alice.post(f"workspaces/{gated}/start").status_code == 202
    gate.go.set()
    eventually(lambda: Workspace.objects.get(slug=gated).generation == 2, within=20)
    found = until(alice, gated, "running")
    assert [entry["phase"] for entry in found["phases"]][-4:] == ["stopped", "pending", "starting", "running"]
    assert alice.get(f"workspaces/{gated}/files/read", path="a.txt").json()["content"] == "kept"


def test_a_stop_while_the_engine_still_stops_is_one_stop(gated: str, gate: type[GatedProvider], alice: Api) -> None:
    gate.reset("stop")
    alice.post(f"workspaces/{gated}/stop")
    assert gate.entered.wait(10)
    for verb in ("start", "stop"):
        assert alice.post(f"workspaces/{gated}/{verb}").status_code == 202
    gate.go.set()
    until(alice, gated, "stopped")
    assert Workspace.objects.get(slug=gated).generation == 1


def test_a_delete_while_the_engine_still_stops_wins(gated: str, gate: type[GatedProvider], alice: Api) -> None:
    gate.reset("stop")
    alice.post(f"workspaces/{gated}/stop")
    assert gate.entered.wait(10)
    alice.post(f"workspaces/{gated}/start")
    assert alice.delete(f"workspaces/{gated}").status_code == 202
    gate.go.set()
    until(alice, gated, "404")


def test_a_sandbox_that_died_stays_stopped_until_somebody_wishes_it_back(running: str, alice: Api) -> None:
    os.kill(sandbox_pid(running), signal.SIGKILL)
    until(alice, running, "stopped")
    assert Workspace.objects.get(slug=running).desired == Desired.STOPPED
    assert alice.post(f"workspaces/{running}/start").json()["phase"] == "pending"
    until(alice, running, "running")


def test_a_delete_looks_until_nothing_is_left(
    gated: str, gate: type[GatedProvider], alice: Api, root_path: str
) -> None:
    gate.half = 3
    assert alice.delete(f"workspaces/{gated}").status_code == 202
    until(alice, gated, "404")
    assert not list(Path(root_path).rglob(gated))


def test_a_delete_that_the_engine_refuses_says_so_and_goes_on(
    gated: str, gate: type[GatedProvider], alice: Api
) -> None:
    gate.broken = True
    alice.delete(f"workspaces/{gated}")
    found = eventually(lambda: (row := alice.get(f"workspaces/{gated}").json())["phase_detail"] and row)
    assert (found["phase"], found["phase_reason"]) == ("deleting", "engine_error")
    assert found["phase_detail"] == "The engine refused to remove it."
    gate.broken = False
    until(alice, gated, "404")


def test_a_delete_beyond_its_deadline_says_so_and_goes_on(
    gated: str, gate: type[GatedProvider], alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "DESTROY_TIMEOUT_S", 0.2)
    gate.reset("destroy")
    alice.delete(f"workspaces/{gated}")
    found = eventually(lambda: (row := alice.get(f"workspaces/{gated}").json())["phase_detail"] and row)
    assert (found["phase"], found["phase_reason"]) == ("deleting", "timeout")
    assert "not removed everything" in found["phase_detail"]
    monkeypatch.setattr(reconcile, "DESTROY_TIMEOUT_S", 30)
    gate.go.set()
    until(alice, gated, "404")


def test_a_command_of_the_template_runs_once_however_often_its_start_is_begun_again(running: str, alice: Api) -> None:
    """What happens after a server that was killed: the container is adopted, and the preparation begins again."""
    row = Workspace.objects.get(slug=running)
    row.spec["init_commands"] = [["sh", "-c", "echo x >> count; sleep 0.5"], ["sh", "-c", "echo y >> count"]]
    row.spec["files"] = [{"path": "count", "content_base64": "", "mode": 0o644}]

    async def killed_while_the_first_command_runs() -> None:
        facts = access.facts_of(row)
        of_the_dead = access._client(facts)
        first = asyncio.ensure_future(bringup.prepare(row, of_the_dead))
        sandbox = await access.open_sandbox(facts)
        await eventually_async(lambda: _begun(sandbox, row.slug))
        first.cancel()
        await of_the_dead.close()
        await bringup.prepare(row, sandbox)
        await bringup.prepare(row, sandbox)

    loop.run(killed_while_the_first_command_runs(), 30)
    assert alice.get(f"workspaces/{running}/files/read", path="count").json()["content"] == "x\ny\n"


async def _begun(sandbox: Sandbox, slug: str) -> bool:
    return any(run.id.startswith(f"init-{slug}") for run in await sandbox.list_execs())


def test_callers_at_once_share_one_client_of_a_new_generation(running: str, alice: Api) -> None:
    old = Workspace.objects.get(slug=running)
    alice.post(f"workspaces/{running}/stop")
    until(alice, running, "stopped")
    alice.post(f"workspaces/{running}/start")
    until(alice, running, "running")
    new = Workspace.objects.get(slug=running)

    async def open_three() -> tuple[int, bool]:
        await access.forget(new.pk)
        stale = access._Kept(old.generation, access._client(access.facts_of(new)))
        await stale.sandbox.open()  # so that closing it takes a moment
        access._kept[new.pk] = stale
        found = await asyncio.gather(*(access.open_sandbox(access.facts_of(new)) for _ in range(3)))
        return len({id(one) for one in found}), stale.sandbox._closing

    assert loop.run(open_three(), 20) == (1, True)


def test_a_caller_with_an_old_look_at_the_row_does_not_replace_the_new_client(running: str) -> None:
    row = Workspace.objects.get(slug=running)
    row.generation -= 1

    async def with_old_facts() -> None:
        await access.open_sandbox(access.facts_of(row))

    with pytest.raises(ChannelClosed):
        loop.run(with_old_facts(), 10)


def test_settings_that_no_engine_takes_fail_the_workspace_with_a_sentence(process: Process, alice: Api) -> None:
    make_template(provider=make_provider("here", "local", config={"root_path": ""}))
    workspace = create(alice)
    found: dict[str, Any] = until(alice, workspace, "failed")
    assert "config.root_path" in found["phase_detail"]
    assert alice.delete(f"workspaces/{workspace}").status_code == 202
    until(alice, workspace, "404")


def test_a_mistake_of_ours_while_an_engine_is_made_fails_the_workspace_too(
    process: Process, template: Any, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(providers.KINDS, "fake")
    monkeypatch.setattr("workspaces.serializers.provider_class", lambda kind: GatedProvider)
    template.provider.write_spec({"description": "made anew"})
    workspace = create(alice)
    found = until(alice, workspace, "failed")
    assert found["phase_reason"] == "provider_unusable"
    assert "administrator" in found["phase_detail"]
    assert phase_of(alice, workspace) == "failed"


def test_an_exec_hears_at_once_that_the_engine_is_down(
    process: Process, running: str, provider: Any, root_path: str, alice: Api
) -> None:
    process.stop()
    provider.write_spec({"config": {"kind": "fake", "fault": "refuses", "root_path": root_path}})
    process.start()
    for body in ({"argv": ["true"]}, {"argv": ["true"], "background": True}):
        answer = alice.post(f"workspaces/{running}/exec", body)
        assert (answer.status_code, answer.json()["code"]) == (503, "engine_unavailable")
        assert int(answer.headers["Retry-After"]) > 0
    assert phase_of(alice, running) == "running"
    files = alice.get(f"workspaces/{running}/files", path=".")
    assert (files.status_code, files.json()["code"]) == (503, "engine_unavailable")
    provider.write_spec({"config": {"kind": "fake", "root_path": root_path}})

    def back() -> bool:
        return bool(alice.post(f"workspaces/{running}/exec", {"argv": ["true"]}).status_code == 200)

    eventually(back, within=20)


def test_an_open_channel_serves_although_the_engine_does_not_answer(
    running: str, provider: Any, root_path: str, alice: Api
) -> None:
    provider.write_spec({"config": {"kind": "fake", "fault": "refuses", "root_path": root_path}})
    eventually(lambda: alice.get(f"workspaces/{running}").json()["unknown_since"], within=20)
    answer = alice.post(f"workspaces/{running}/exec", {"argv": ["echo", "still"]})
    assert (answer.status_code, answer.json()["stdout"]) == (200, "still\n")


def test_a_workspace_says_that_its_image_is_being_pulled(
    process: Process, gate: type[GatedProvider], template: Any, alice: Api
) -> None:
    gate.reset("fetch_image")
    workspace = create(alice)
    assert gate.entered.wait(10)
    assert phase_of(alice, workspace) == "pulling"
    gate.go.set()
    found = until(alice, workspace, "running")
    assert [entry["phase"] for entry in found["phases"]] == ["pending", "pulling", "starting", "running"]


def test_a_delete_does_not_wait_for_a_pull(
    process: Process, gate: type[GatedProvider], template: Any, alice: Api
) -> None:
    gate.reset("fetch_image")
    workspace = create(alice)
    assert gate.entered.wait(10)
    assert alice.delete(f"workspaces/{workspace}").status_code == 202
    until(alice, workspace, "404")
    assert not gate.go.is_set()
