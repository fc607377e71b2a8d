"""A real container engine for tests: an instance label of this run alone, the runtime image, and a look from outside."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from workspaces import image

INSTANCE = f"test-{os.getpid()}-{secrets.token_hex(4)}"


class DockerView:
    """The engine as somebody else sees it: what is really there, and hands that reach in behind our back."""

    def __init__(self, socket_path: str) -> None:
        import docker

        self.socket_path = socket_path
        self.client: Any = docker.APIClient(base_url=f"unix://{socket_path}", timeout=60)

    def names(self, workspace_id: str = "") -> list[str]:
        """`kind name` of everything with this run's label, of one workspace or of all."""
        label = [f"primer.instance={INSTANCE}", *([f"primer.workspace={workspace_id}"] if workspace_id else [])]
        filters = {"label": label}
        found = [f"container {c['Names'][0]}" for c in self.client.containers(all=True, filters=filters)]
        found += [f"volume {v['Name']}" for v in self.client.volumes(filters=filters)["Volumes"] or []]
        found += [f"network {n['Name']}" for n in self.client.networks(filters=filters)]
        return sorted({*found, *(self._by_name(workspace_id) if workspace_id else [])})

    def _by_name(self, name: str) -> list[str]:
        """Also what lost its labels: an engine makes a missing volume anew without them."""
        filters = {"name": name}
        found = [f"container {c['Names'][0]}" for c in self.client.containers(all=True, filters=filters)]
        return found + [f"volume {v['Name']}" for v in self.client.volumes(filters=filters)["Volumes"] or []]

    def run(self, container_id: str, *command: str) -> str:
        """What a program inside prints, through the engine and not through our own channel."""
        made = self.client.exec_create(container_id, list(command))
        return bytes(self.client.exec_start(made["Id"])).decode().strip()

    def sweep(self) -> None:
        filters = {"label": f"primer.instance={INSTANCE}"}
        for container in self.client.containers(all=True, filters=filters):
            self.client.remove_container(container["Id"], force=True, v=True)
        for volume in self.client.volumes(filters=filters)["Volumes"] or []:
            self.client.remove_volume(volume["Name"])
        for network in self.client.networks(filters=filters):
            self.client.remove_network(network["Id"])


@pytest.fixture(scope="session")
def docker_view(docker_engine: str) -> Iterator[DockerView]:
    view = DockerView(docker_engine)
    yield view
    view.sweep()
    view.client.close()


@pytest.fixture(scope="session")
def runtime_image(docker_view: DockerView) -> Iterator[str]:
    """The runtime image of this source tree under a tag of this run: another run beside it may be of another tree."""
    tag = f"primer-test/runtime-{INSTANCE}:1"
    for _ in image.build(tag=tag, engine_url=f"unix://{docker_view.socket_path}"):
        pass
    yield tag
    if docker_view.client.images(tag):  # the packages that import this fixture share the tag
        docker_view.client.remove_image(tag, force=True)


def new_workspace_id() -> str:
    return f"ws-{secrets.token_hex(8)}"
