"""Images of all kinds on a real engine: ours, others, unsuitable ones, and the runtime that is brought into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engine import INSTANCE, DockerView
from workspaces.providers import manifests
from workspaces.providers.base import (
    ImageNotFound,
    ImageUnsuitable,
    Ref,
    SandboxSpec,
    State,
)
from workspaces.providers.container import ContainerProvider
from workspaces.runtime import build as runtime

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]


def mounts(view: DockerView, ref: Ref) -> dict[str, tuple[str, bool]]:
    found = view.client.inspect_container(ref.container_id)["Mounts"]
    return {mount["Destination"]: (mount["Name"], mount["RW"]) for mount in found}


# -- images


async def test_an_unknown_image_leaves_no_volume(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec(image="primer/base:nope")
    with pytest.raises(ImageNotFound):
        await container.start(spec)
    assert docker_view.names(spec.workspace_id) == []


async def test_a_start_works_after_the_image_has_appeared(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, runtime_image: str
) -> None:
    tag = f"primer-test/late-{INSTANCE}"
    spec = make_spec(image=f"{tag}:1")
    with pytest.raises(ImageNotFound):
        await container.start(spec)
    docker_view.client.tag(runtime_image, tag, "1")
    try:
        assert (await container.status(await container.start(spec))).state is State.RUNNING
    finally:
        docker_view.client.remove_image(f"{tag}:1", force=True)


async def test_an_image_with_a_registry_that_does_not_answer_is_not_found(
    container: ContainerProvider, make_spec: MakeSpec
) -> None:
    with pytest.raises(ImageNotFound, match="cannot be pulled"):
        await container.start(make_spec(image="localhost:1/nothing/here:1"))


async def test_our_image_brings_its_own_runtime(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView
) -> None:
    spec = make_spec()
    ref = await container.start(spec)
    assert mounts(docker_view, ref) == {"/workspace": (spec.workspace_id, True)}
    assert ref.image_digest.startswith("sha256:")


@pytest.mark.parametrize("label", ["", "0" * 64], ids=["no runtime", "another version's runtime"])
async def test_another_image_gets_the_runtime_by_a_read_only_volume(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str], label: str
) -> None:
    spec = make_spec(image=image("RUN rm -rf /opt/primer /workspace", f'LABEL primer.runtime="{label}"'))
    ref = await container.start(spec)
    assert mounts(docker_view, ref) == {
        "/workspace": (spec.workspace_id, True),
        "/opt/primer": (manifests.runtime_volume(runtime.digest()), False),
    }
    assert docker_view.run(ref.container_id, "stat", "-c", "%u:%g %a", "/workspace") == "1000:1000 750"
    assert "Read-only file system" in docker_view.run(
        ref.container_id, "sh", "-c", "echo x > /opt/primer/runtime.pyz; true"
    )


async def test_the_volume_keeps_its_owner_over_a_fresh_container(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str]
) -> None:
    spec = make_spec(image=image("RUN rm -rf /workspace", 'LABEL primer.runtime=""'))
    await container.start(spec)
    ref = await container.start(replace(spec, generation=2, fresh=False))
    assert docker_view.run(ref.container_id, "stat", "-c", "%u:%g", "/workspace") == "1000:1000"


async def test_a_runtime_volume_with_other_bytes_is_filled_again(
    make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str]
) -> None:
    client, name = docker_view.client, manifests.runtime_volume(runtime.digest())
    tag = image('LABEL primer.runtime=""')
    config = {"connection": {"kind": "socket", "socket_path": docker_view.socket_path}}
    first, second = (ContainerProvider(config, {}, instance_id=INSTANCE) for _ in range(2))
    await first.destroy(await first.start(make_spec(image=tag)))
    mount = {"Type": "volume", "Source": name, "Target": "/v"}
    body = {
        "Image": tag,
        "Cmd": ["sh", "-c", "echo broken > /v/runtime.pyz"],
        "User": "0:0",
        "HostConfig": {"Mounts": [mount]},
    }
    spoiler = client.create_container_from_config(body)["Id"]
    client.start(spoiler)
    client.wait(spoiler)
    client.remove_container(spoiler, force=True)
    ref = await second.start(make_spec(image=tag))
    assert (await second.status(ref)).state is State.RUNNING
    await second.destroy(ref)
    await first.close()
    await second.close()


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        (["RUN rm -f /usr/bin/python3*"], "a python3 that starts"),
        (["RUN rm -rf /usr/lib/python3*/ctypes"], "the module ctypes"),
        (["RUN rm -rf /usr/lib/python3*/json /usr/lib/python3*/ctypes"], "the module ctypes, the module json"),
    ],
)
async def test_an_image_that_cannot_run_the_runtime_is_named_with_what_it_lacks(
    container: ContainerProvider,
    make_spec: MakeSpec,
    docker_view: DockerView,
    image: Callable[..., str],
    lines: list[str],
    lacks: str,
) -> None:
    spec = make_spec(image=image(*lines, 'LABEL primer.runtime=""'))
    with pytest.raises(ImageUnsuitable) as caught:
        await container.start(spec)
    assert caught.value.detail.endswith(f"it lacks {lacks}.")
    assert docker_view.names(spec.workspace_id) == []


async def test_an_image_that_declares_a_volume_is_unsuitable(
    container: ContainerProvider, make_spec: MakeSpec, image: Callable[..., str]
) -> None:
    with pytest.raises(ImageUnsuitable, match="/data"):
        await container.start(make_spec(image=image("VOLUME /data", 'LABEL primer.runtime=""')))


async def test_an_entrypoint_and_a_health_check_of_the_image_do_not_run(
    container: ContainerProvider, make_spec: MakeSpec, docker_view: DockerView, image: Callable[..., str]
) -> None:
    tag = image('ENTRYPOINT ["false"]', 'HEALTHCHECK --interval=1s CMD ["true"]', "ENV GREETING=hello")
    ref = await container.start(make_spec(image=tag))
    found = docker_view.client.inspect_container(ref.container_id)
    assert found["Path"] == "python3"
    assert "Health" not in found["State"]
    assert "GREETING=hello" in found["Config"]["Env"]
