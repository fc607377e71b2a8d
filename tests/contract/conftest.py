"""One harness per kind: how to make a provider, and how to reach behind its back."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import INSTANCE, DockerView, docker_view, new_workspace_id, runtime_image  # noqa: F401
from workspaces.providers import processes, provider_class
from workspaces.providers.base import Provider, Ref, SandboxSpec


class Harness:
    """A kind of provider with everything that its tests need; each `provider()` is a new instance, as after a restart."""

    kind: str
    image = ""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.made: list[Provider] = []

    def provider(self, **over: Any) -> Provider:
        found = provider_class(self.kind)({**self.config, **over}, {}, instance_id=INSTANCE)
        self.made.append(found)
        return found

    def spec(self, **over: Any) -> SandboxSpec:
        values = {"workspace_id": new_workspace_id(), "generation": 1, "image": self.image, **over}
        return SandboxSpec(instance_id=INSTANCE, **values)

    def left(self, workspace_id: str) -> list[str]:
        """What is really there of a workspace, seen without the provider."""
        raise NotImplementedError

    def remove_behind_our_back(self, ref: Ref, *, files: bool) -> None:
        raise NotImplementedError

    def kill_behind_our_back(self, ref: Ref) -> None:
        raise NotImplementedError


class LocalHarness(Harness):
    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root = kind, root
        super().__init__({"root_path": str(root)})

    def left(self, workspace_id: str) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob(f"{workspace_id}*"))

    def kill_behind_our_back(self, ref: Ref) -> None:
        processes.end_tree(int(ref.extra["pid"]), ref.extra["started"])

    def remove_behind_our_back(self, ref: Ref, *, files: bool) -> None:
        self.kill_behind_our_back(ref)
        if files:
            shutil.rmtree(self.root / ref.workspace_id)
        else:
            (self.root / ".state" / f"{ref.workspace_id}.json").unlink()


class ContainerHarness(Harness):
    kind = "container"

    def __init__(self, view: DockerView, image: str) -> None:
        super().__init__({"connection": {"kind": "socket", "socket_path": view.socket_path}})
        self.view, self.image = view, image

    def left(self, workspace_id: str) -> list[str]:
        return self.view.names(workspace_id)

    def kill_behind_our_back(self, ref: Ref) -> None:
        self.view.client.kill(ref.container_id)

    def remove_behind_our_back(self, ref: Ref, *, files: bool) -> None:
        self.view.client.remove_container(ref.container_id, force=True)
        if files:
            self.view.client.remove_volume(ref.volume_name)


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    if kind != "container":
        # Short and open for uid 65534: pytest's own directories are closed.
        return LocalHarness(kind, request.getfixturevalue("open_root"))
    return ContainerHarness(request.getfixturevalue("docker_view"), request.getfixturevalue("runtime_image"))


@pytest.fixture
def open_root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import tempfile

    root = Path(tempfile.mkdtemp(prefix="primer-contract-"))
    root.chmod(0o711)
    yield root
    shutil.rmtree(root, ignore_errors=True)  # a runtime that is just going removes its own files meanwhile


@pytest.fixture(params=["fake", "local", pytest.param("container", marks=pytest.mark.docker)])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    found = _make(request.param, request, tmp_path)
    yield found
    for provider in found.made:
        await provider.close()


@pytest.fixture
async def provider(harness: Harness) -> Provider:
    return harness.provider()


@pytest.fixture
async def start(harness: Harness, provider: Provider) -> AsyncIterator[Callable[..., Any]]:
    """Starts a sandbox that is destroyed after the test."""
    refs: list[Ref] = []

    async def _start(**over: Any) -> tuple[SandboxSpec, Ref]:
        spec = harness.spec(**over)
        refs.append(await provider.start(spec))
        return spec, refs[-1]

    yield _start
    for ref in refs:
        await harness.provider().destroy(ref)
