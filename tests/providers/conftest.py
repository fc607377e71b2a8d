"""Fixtures for tests against a real engine."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.engine import INSTANCE, DockerView, docker_view, new_workspace_id, runtime_image  # noqa: F401
from workspaces.providers.base import SandboxSpec
from workspaces.providers.container import ContainerProvider


@pytest.fixture
async def container(docker_view: DockerView) -> AsyncIterator[ContainerProvider]:  # noqa: F811
    config = {"connection": {"kind": "socket", "socket_path": docker_view.socket_path}}
    provider = ContainerProvider(config, {}, instance_id=INSTANCE)
    yield provider
    for ref in await provider.discover():
        await provider.destroy(ref)
    await provider.close()


@pytest.fixture
def make_spec(runtime_image: str) -> Callable[..., SandboxSpec]:  # noqa: F811
    def make(**over: Any) -> SandboxSpec:
        values = {"workspace_id": new_workspace_id(), "generation": 1, "image": runtime_image, **over}
        return SandboxSpec(instance_id=INSTANCE, **values)

    return make


def derive(view: DockerView, base: str, tag: str, *lines: str) -> str:
    """An image on top of the runtime image; the test's fixture removes it."""
    text = "\n".join([f"FROM {base}", "USER 0:0", *lines]).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    buffer.seek(0)
    options = {"custom_context": True, "network_mode": "none", "rm": True, "forcerm": True, "decode": True}
    for item in view.client.build(fileobj=buffer, tag=tag, **options):
        assert "error" not in item, item
    return tag


@pytest.fixture
def image(docker_view: DockerView, runtime_image: str) -> Iterator[Callable[..., str]]:  # noqa: F811
    made: list[str] = []

    def make(*lines: str) -> str:
        made.append(f"primer-test/image-{INSTANCE}-{len(made)}:1")
        return derive(docker_view, runtime_image, made[-1], *lines)

    yield make
    for tag in made:
        docker_view.client.remove_image(tag, force=True)
