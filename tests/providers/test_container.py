"""What only a real engine can show: images, owners, networks, endings, and the traces that a failed start must not leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from docker import APIClient

from tests.engine import INSTANCE, DockerView
from tests.eventually import eventually_async
from workspaces.providers import manifests, objects
from workspaces.providers.base import (
    DataLost,
    EngineUnavailable,
    Ref,
    SandboxSpec,
    StartFailed,
    StartTimeout,
    State,
)
from workspaces.providers.container import ContainerProvider
from workspaces.runtime import build as runtime

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]


# -- starts that fail


async def test_a_runtime_that_ends_at_once_is_a_failed_start_with_its_last_lines(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str]
) -> None:
    broken = "RUN printf 'import sys; print(\"no luck\"); sys.exit(3)' > /opt/primer/runtime.pyz"
    spec = make_spec(image=image(broken))
    with pytest.raises(StartFailed) as caught:
        await container.start(spec)
    assert caught.value.detail == "The sandbox ended while it started (exit code 3)."
    assert caught.value.boot_lines == ("no luck",)
    assert docker_view.names(spec.workspace_id) == []


async def test_a_runtime_that_never_listens_runs_into_the_deadline_with_its_last_lines(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str]
) -> None:
    silent = "RUN printf 'import time; print(\"thinking\", flush=True); time.sleep(1000)' > /opt/primer/runtime.pyz"
    spec = make_spec(image=image(silent), start_timeout_s=4)
    with pytest.raises(StartTimeout) as caught:
        await container.start(spec)
    assert caught.value.boot_lines == ("thinking",)
    assert docker_view.names(spec.workspace_id) == []


async def test_an_engine_runtime_that_the_engine_lacks_fails_the_start_and_leaves_nothing(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec(engine_runtime="no-such-runtime")
    assert (await container.check_image(spec)).detail == "The engine has no runtime named no-such-runtime."
    with pytest.raises(StartFailed, match="runtime no-such-runtime"):
        await container.start(spec)
    assert docker_view.names(spec.workspace_id) == []


async def test_a_container_of_somebody_else_under_our_name_is_left_alone(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, runtime_image: str
) -> None:
    spec = make_spec()
    theirs = docker_view.client.create_container_from_config({"Image": runtime_image}, spec.workspace_id)["Id"]
    try:
        with pytest.raises(StartFailed, match="not ours"):
            await container.start(spec)
        assert (await container.status(Ref("container", spec.workspace_id, 1))).state is State.GONE
        assert await container.destroy(Ref("container", spec.workspace_id, 1)) == []
        assert docker_view.client.inspect_container(theirs)["Name"] == f"/{spec.workspace_id}"
    finally:
        docker_view.client.remove_container(theirs, force=True)


async def test_a_volume_of_somebody_else_under_our_name_is_left_alone(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    docker_view.client.create_volume(spec.workspace_id)
    try:
        with pytest.raises(StartFailed, match="not ours"):
            await container.start(spec)
        assert docker_view.client.inspect_volume(spec.workspace_id)["Labels"] in (None, {})
    finally:
        docker_view.client.remove_volume(spec.workspace_id)


async def test_a_container_that_a_dead_server_had_only_created_is_adopted(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    facts = manifests.ImageFacts.from_inspect(docker_view.client.inspect_image(spec.image))
    volume = manifests.volume_body(spec)
    docker_view.client.create_volume(volume["Name"], labels=volume["Labels"])
    made = docker_view.client.create_container_from_config(
        manifests.container_body(spec, facts, runtime.digest()), spec.workspace_id
    )
    assert (await container.start(spec)).container_id == made["Id"]


async def test_a_created_container_with_another_spec_is_not_adopted(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    facts = manifests.ImageFacts.from_inspect(docker_view.client.inspect_image(spec.image))
    loose = manifests.container_body(spec, facts, runtime.digest())
    loose["HostConfig"]["Privileged"] = True
    volume = manifests.volume_body(spec)
    docker_view.client.create_volume(volume["Name"], labels=volume["Labels"])
    made = docker_view.client.create_container_from_config(loose, spec.workspace_id)
    ref = await container.start(spec)
    assert ref.container_id != made["Id"]
    assert docker_view.client.inspect_container(ref.container_id)["HostConfig"]["Privileged"] is False


# -- networks


async def test_deny_all_has_loopback_only(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    ref = await container.start(make_spec())
    assert docker_view.run(ref.container_id, "ls", "/sys/class/net") == "lo"


async def test_an_internal_network_is_made_with_the_workspace_and_goes_with_it(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    specs = [make_spec(network_mode="internal") for _ in range(2)]
    refs = await asyncio.gather(*(container.start(spec) for spec in specs))
    names = docker_view.names(specs[0].workspace_id)
    assert [name.split()[0] for name in names] == ["container", "network", "volume"]
    assert (await container.discover())[0].extra.get("network")
    again = await container.start(replace(specs[0], generation=2, fresh=False))
    assert await container.destroy(again) == ["container", "volume", "network"]
    await container.destroy(refs[1])
    assert docker_view.names(specs[0].workspace_id) == []


async def test_an_internal_network_whose_subnet_is_taken_gets_the_next_one(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec(network_mode="internal")
    first, second = (manifests.internal_network_body(spec, n)["IPAM"]["Config"][0]["Subnet"] for n in (0, 1))
    taken = docker_view.client.create_network(
        f"taken-{spec.workspace_id}", ipam={"Driver": "default", "Config": [{"Subnet": first}]}
    )["Id"]
    try:
        await container.start(spec)
        assert docker_view.client.inspect_network(spec.workspace_id)["IPAM"]["Config"][0]["Subnet"] == second
    finally:
        docker_view.client.remove_network(taken)


async def test_two_first_starts_with_allow_all_share_one_bridge(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    specs = [make_spec(egress="allow_all") for _ in range(2)]
    refs = await asyncio.gather(*(container.start(spec) for spec in specs))
    name = manifests.egress_network(INSTANCE)
    assert len(docker_view.client.networks(filters={"name": name})) == 1
    for ref in refs:
        assert await container.destroy(ref) == ["container", "volume"]
    assert len(docker_view.client.networks(filters={"name": name})) == 1


# -- disks and endings


async def test_a_memory_disk_is_as_large_as_asked_and_refuses_more(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    ref = await container.start(make_spec(disk_medium="memory", disk_bytes=8 * 1024**2))
    assert docker_view.run(ref.container_id, "sh", "-c", "df -B1 --output=size /workspace | tail -1") == str(
        8 * 1024**2
    )
    fill = "for i in 1 2 3; do head -c 4000000 /dev/zero > /workspace/$i || echo full; done"
    assert "full" in docker_view.run(ref.container_id, "sh", "-c", fill)


async def test_the_death_of_the_runtime_for_memory_is_out_of_memory(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    ref = await container.start(make_spec(memory_bytes=64 * 1024**2))
    # What lies in /tmp and /dev/shm is charged to the sandbox and belongs to no process: in the end nobody else is left to kill.
    fill = "for i in 1 2 3; do dd if=/dev/zero of=/dev/shm/f bs=1M; dd if=/dev/zero of=/tmp/f bs=1M; done"
    docker_view.run(ref.container_id, "sh", "-c", fill)

    async def stopped() -> bool:
        return (await container.status(ref)).state is State.STOPPED

    await eventually_async(stopped, within=20)
    assert (await container.status(ref)).reason == "out_of_memory"


async def test_a_sandbox_that_somebody_kills_after_a_program_of_it_ran_out_of_memory_was_killed(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    ref = await container.start(make_spec(memory_bytes=64 * 1024**2))
    hog = "python3 -c 'x = bytearray(300 << 20)' || echo was the victim"
    assert "was the victim" in docker_view.run(ref.container_id, "sh", "-c", hog)
    docker_view.client.kill(ref.container_id)

    async def stopped() -> bool:
        return (await container.status(ref)).state is State.STOPPED

    await eventually_async(stopped, within=20)
    assert (await container.status(ref)).reason == "killed"


@pytest.mark.parametrize("verb", ["start", "stop", "destroy"])
async def test_a_container_that_somebody_paused_is_stopped_and_says_so(
    verb: str, container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    ref = await container.start(spec)
    docker_view.client.pause(spec.workspace_id)
    status = await container.status(ref)
    assert (status.state, status.reason, status.volume_exists) == (State.STOPPED, "paused", True)
    if verb == "start":
        again = await container.start(replace(spec, generation=2, fresh=False))
        assert again.container_id != ref.container_id
        assert (await container.status(again)).state is State.RUNNING
    elif verb == "stop":
        await container.stop(ref)
        assert (await container.status(ref)).reason != "paused"
    else:
        await container.destroy(ref)
        assert docker_view.names(spec.workspace_id) == []


async def test_helpers_that_a_crash_left_are_found_and_removed(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    facts = manifests.ImageFacts.from_inspect(docker_view.client.inspect_image(spec.image))
    docker_view.client.create_container_from_config(manifests.helper_body(spec, facts, mount=None, command=["true"]))
    (found,) = await container.discover()
    assert (found.workspace_id, found.container_id) == (spec.workspace_id, "")
    assert await container.destroy(found) == ["container"]


async def test_helpers_that_a_crash_left_beside_a_sandbox_go_and_nothing_else_does(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, ref, stopped = docker_view.client, await container.start(make_spec()), await container.start(make_spec())
    await container.stop(stopped)
    spec = make_spec(workspace_id=ref.workspace_id)
    facts = manifests.ImageFacts.from_inspect(client.inspect_image(spec.image))
    ours, theirs = (
        client.create_container_from_config(
            manifests.helper_body(replace(spec, instance_id=instance), facts, mount=None, command=["true"])
        )["Id"]
        for instance in (INSTANCE, "somebody-else")
    )
    try:
        await container.sweep_helpers()  # one that young may be at work
        assert ours in everything(client)
        monkeypatch.setattr(objects, "HELPER_S", 0)

        async def gone() -> bool:  # the engine counts in whole seconds
            await container.sweep_helpers()
            return ours not in everything(client)

        await eventually_async(gone)
        assert {theirs, ref.container_id, stopped.container_id} <= everything(client)
    finally:
        client.remove_container(theirs)


def everything(client: Any) -> set[str]:
    return {str(one["Id"]) for one in client.containers(all=True)}


async def test_a_lone_volume_is_found_and_removed(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    body = manifests.volume_body(make_spec())
    docker_view.client.create_volume(body["Name"], labels=body["Labels"])
    (found,) = await container.discover()
    assert found.volume_name == body["Name"]
    assert await container.destroy(found) == ["volume"]


async def test_nothing_of_a_run_passes_through_the_engine(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    ref = await container.start(make_spec())
    await (await container.connect(ref)).close()
    found = docker_view.client.inspect_container(ref.container_id)
    commands = [docker_view.client.exec_inspect(e)["ProcessConfig"]["arguments"] for e in found["ExecIDs"] or []]
    assert all(arguments[-1] == "bridge" for arguments in commands)
    assert {item.split("=")[0] for item in found["Config"]["Env"]} <= {"HOME", "LANG", "PATH"}


async def test_a_closed_provider_says_so_instead_of_hanging(docker_view: DockerView, make_spec: MakeSpec) -> None:
    config: dict[str, Any] = {"connection": {"kind": "socket", "socket_path": docker_view.socket_path}}
    provider = ContainerProvider(config, {}, instance_id=INSTANCE)
    await provider.close()
    with pytest.raises(EngineUnavailable):
        await provider.discover()


@pytest.mark.parametrize(("fresh", "error"), [(True, StartFailed), (False, DataLost)])
async def test_a_volume_that_vanishes_just_before_the_create_is_not_replaced_by_an_unknown_one(
    container: ContainerProvider,
    make_spec: MakeSpec,
    docker_view: DockerView,
    monkeypatch: pytest.MonkeyPatch,
    fresh: bool,
    error: type[Exception],
) -> None:
    spec = make_spec()
    if not fresh:
        await container.start(spec)
    real = APIClient.create_container_from_config

    def create(self: APIClient, body: dict[str, Any], *name: str) -> Any:
        if name:  # the sandbox, not one of the nameless helpers
            docker_view.client.remove_volume(spec.workspace_id)
        return real(self, body, *name)

    monkeypatch.setattr(APIClient, "create_container_from_config", create)
    with pytest.raises(error):
        await container.start(replace(spec, generation=2, fresh=fresh))
    assert docker_view.names(spec.workspace_id) == []
