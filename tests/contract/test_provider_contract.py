"""The promises of `providers/base.py`, held by every kind. Each verb at its odd moments first."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.conftest import Harness
from workspaces.confinement_limits import FILE, PIDS, exhaust
from workspaces.execution import ExecRequest
from workspaces.providers.base import (
    LIMITS,
    ChannelClosed,
    DataLost,
    Provider,
    Ref,
    StartFailed,
    StartTimeout,
    State,
)
from workspaces.providers.channel import greeted
from workspaces.sandbox import Sandbox

Start = Callable[..., Any]


async def test_a_start_that_runs_into_its_deadline_leaves_nothing(harness: Harness, provider: Provider) -> None:
    spec = harness.spec(start_timeout_s=0.03)
    with pytest.raises(StartTimeout):
        await provider.start(spec)
    assert harness.left(spec.workspace_id) == []


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.06, 0.12, 0.2])
async def test_a_cancelled_start_leaves_nothing(harness: Harness, provider: Provider, after_s: float) -> None:
    spec = harness.spec()
    task = asyncio.create_task(provider.start(spec))
    await asyncio.wait({task}, timeout=after_s)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        assert harness.left(spec.workspace_id) == []
    else:  # it was faster than our cancel: then it is there, whole
        assert (await provider.status(Ref(harness.kind, spec.workspace_id, 1))).state is State.RUNNING
        await provider.destroy(Ref(harness.kind, spec.workspace_id, 1))


async def test_two_starts_at_once_make_one_sandbox(harness: Harness, provider: Provider) -> None:
    spec = harness.spec()
    first, second = await asyncio.gather(provider.start(spec), harness.provider().start(spec))
    assert first == second
    assert len([ref for ref in await provider.discover() if ref.workspace_id == spec.workspace_id]) == 1
    await provider.destroy(first)
    assert harness.left(spec.workspace_id) == []


async def test_a_start_after_a_restart_adopts_what_runs(harness: Harness, start: Start) -> None:
    spec, ref = await start()
    assert await harness.provider().start(spec) == ref


async def test_an_older_start_cannot_take_a_sandbox_over(harness: Harness, start: Start) -> None:
    spec, ref = await start(generation=3)
    with pytest.raises(StartFailed, match="newer"):
        await harness.provider().start(replace(spec, generation=2))
    assert (await harness.provider().status(ref)).state is State.RUNNING


async def test_a_newer_generation_replaces_a_running_sandbox(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start()
    newer = await provider.start(replace(spec, generation=2, fresh=False))
    assert newer.generation == 2
    assert (await boot_id(provider, newer)) != ""
    with pytest.raises(ChannelClosed):
        await provider.connect(ref)


async def test_files_that_must_be_there_and_are_not_are_data_lost(harness: Harness, provider: Provider) -> None:
    spec = harness.spec(fresh=False)
    with pytest.raises(DataLost):
        await provider.start(spec)
    assert harness.left(spec.workspace_id) == []


async def test_connect_reaches_the_runtime_and_again_after_a_close(provider: Provider, start: Start) -> None:
    _, ref = await start()
    assert await boot_id(provider, ref) == await boot_id(provider, ref)


async def test_connect_works_from_a_new_provider(harness: Harness, start: Start) -> None:
    _, ref = await start()
    assert await boot_id(harness.provider(), Ref.from_dict(json.loads(json.dumps(ref.to_dict()))))


async def test_connect_to_what_is_stopped_or_gone_is_channel_closed(provider: Provider, start: Start) -> None:
    _, ref = await start()
    await provider.stop(ref)
    with pytest.raises(ChannelClosed):
        await provider.connect(ref)
    await provider.destroy(ref)
    with pytest.raises(ChannelClosed):
        await provider.connect(ref)


async def test_status_tells_running_stopped_and_gone(provider: Provider, start: Start) -> None:
    _, ref = await start()
    seen = [await provider.status(ref)]
    await provider.stop(ref)
    seen.append(await provider.status(ref))
    await provider.destroy(ref)
    seen.append(await provider.status(ref))
    assert [status.state for status in seen] == [State.RUNNING, State.STOPPED, State.GONE]
    assert [status.volume_exists for status in seen] == [True, True, False]


async def test_status_of_what_never_was_is_gone(harness: Harness, provider: Provider) -> None:
    assert (await provider.status(Ref(harness.kind, harness.spec().workspace_id, 1))).state is State.GONE


async def test_a_runtime_that_was_killed_is_stopped_with_a_reason(
    harness: Harness, provider: Provider, start: Start
) -> None:
    _, ref = await start()
    harness.kill_behind_our_back(ref)
    status = await provider.status(ref)
    assert status.state is State.STOPPED
    assert status.reason in ("killed", "exited")


async def test_a_sandbox_removed_behind_our_back_is_gone_and_starts_over_its_files(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start()
    harness.remove_behind_our_back(ref, files=False)
    status = await provider.status(ref)
    assert (status.state, status.reason, status.volume_exists) == (State.GONE, "removed", True)
    again = await provider.start(replace(spec, generation=2, fresh=False))
    assert (await provider.status(again)).state is State.RUNNING


async def test_files_removed_behind_our_back_are_data_lost_and_never_silently_empty(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start()
    harness.remove_behind_our_back(ref, files=True)
    status = await provider.status(ref)
    assert (status.state, status.reason, status.volume_exists) == (State.GONE, "data_lost", False)
    with pytest.raises(DataLost):
        await provider.start(replace(spec, generation=2, fresh=False))


async def test_stop_twice_and_stop_of_nothing_succeed(harness: Harness, provider: Provider, start: Start) -> None:
    _, ref = await start()
    await provider.stop(ref)
    await provider.stop(ref)
    await provider.stop(Ref(harness.kind, harness.spec().workspace_id, 1))


async def test_files_stay_over_a_stop_and_a_fresh_start(provider: Provider, start: Start) -> None:
    spec, ref = await start()
    secret = secrets.token_bytes(32)
    assert await shell(provider, ref, secret, "echo kept > note && cat note") == b"kept\n"
    await provider.stop(ref)
    again = await provider.start(replace(spec, generation=2, fresh=False))
    assert await shell(provider, again, secret, "cat note") == b"kept\n"


async def test_a_sandbox_serves_the_holder_of_its_secret_after_a_restart_of_the_server(
    harness: Harness, provider: Provider, start: Start
) -> None:
    _, ref = await start()
    secret = secrets.token_bytes(32)
    await shell(provider, ref, secret, "touch mine")
    assert await shell(harness.provider(), ref, secret, "ls") == b"mine\n"


async def test_a_stop_ends_every_process_of_the_sandbox(provider: Provider, start: Start) -> None:
    spec, ref = await start()
    secret = secrets.token_bytes(32)
    await shell(provider, ref, secret, "(setsid sh -c 'while :; do date +%N > tick; sleep 0.01; done') >&- 2>&- &")
    await provider.stop(ref)
    again = await provider.start(replace(spec, generation=2, fresh=False))
    first = await shell(provider, again, secret, "cat tick")
    assert first == await shell(provider, again, secret, "sleep 0.1; cat tick")


async def test_destroy_twice_and_by_two_at_once_succeeds_and_leaves_nothing(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start()
    both = await asyncio.gather(provider.destroy(ref), harness.provider().destroy(ref))
    assert any(both)
    assert await provider.destroy(ref) == []
    assert harness.left(spec.workspace_id) == []


async def test_destroy_says_what_it_removed(harness: Harness, provider: Provider, start: Start) -> None:
    _, ref = await start()
    expected = ["container", "volume"] if harness.kind == "container" else ["process", "directory"]
    assert await provider.destroy(ref) == expected


async def test_discover_finds_what_runs_and_what_was_left_alone(
    harness: Harness, provider: Provider, start: Start
) -> None:
    _, running = await start()
    _, stopped = await start()
    await provider.stop(stopped)
    found = {ref.workspace_id: ref for ref in await harness.provider().discover()}
    assert found[running.workspace_id].generation == running.generation
    assert stopped.workspace_id in found
    assert await provider.destroy(found[stopped.workspace_id]) != []


async def test_another_installation_neither_sees_nor_touches_ours(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start()
    stranger = type(provider)({**harness.config}, {}, instance_id="somebody-else")
    assert ref.workspace_id not in {found.workspace_id for found in await stranger.discover()}
    with pytest.raises(StartFailed):
        await stranger.start(replace(spec, instance_id="somebody-else", generation=9))
    assert await stranger.destroy(ref) == []
    await stranger.stop(ref)
    await stranger.close()
    assert (await provider.status(ref)).state is State.RUNNING


async def test_check_measures_every_limit(provider: Provider) -> None:
    check = await provider.check()
    assert check.health != "unreachable"
    assert set(check.enforces) == set(LIMITS)
    assert json.loads(json.dumps(check.engine)) == check.engine


async def test_check_image_says_that_it_is_there(harness: Harness, provider: Provider) -> None:
    found = await provider.check_image(harness.spec())
    assert found.present
    assert set(found.limits) == set(LIMITS)


async def test_limits_are_met_where_the_kind_holds_them_and_left_alone_where_it_does_not(
    harness: Harness, provider: Provider, start: Start
) -> None:
    spec, ref = await start(disk_bytes=2**22)
    sandbox = Sandbox(lambda: provider.connect(ref), secrets.token_bytes(32), disk_bytes=spec.disk_bytes)
    try:
        found = await exhaust(sandbox, spec, (await provider.check()).enforces)
        left = [run for run in await sandbox.list_execs() if run.state != "ended" or run.survivors]
        files = (await sandbox.list("")).items
    finally:
        await sandbox.close()
    held = harness.kind == "container"
    assert [(one.name, one.ok) for one in found] == [(PIDS, True if held else None), (FILE, True)], found
    assert held or found[0].observed == "not tried: there is no limit of processes here"
    assert (left, files) == ([], ())


async def shell(provider: Provider, ref: Ref, secret: bytes, line: str) -> bytes:
    """The stdout of a shell line in the sandbox, over a channel of its own."""
    sandbox = Sandbox(lambda: provider.connect(ref), secret)
    try:
        outcome, stdout, stderr = await sandbox.run(ExecRequest(secrets.token_hex(8), ("sh", "-c", line)))
    finally:
        await sandbox.close()
    assert outcome.exit_code == 0, stderr
    return stdout


async def boot_id(provider: Provider, ref: Ref) -> str:
    """The runtime's own mark of its start, as its greeting says it; closes the channel."""
    channel: Any = await provider.connect(ref)
    await greeted(channel)
    data = await channel.read(4096)
    await channel.close()
    return str(json.loads(data[data.index(b"{") :])["boot_id"])
