"""The recipe runs against one real server, one real engine and the real image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.recipe import SCRIPTED, Api
from tests.engine import DockerView, docker_view
from tests.live import LiveServer
from workspaces import image

__all__ = ["docker_view"]


@pytest.fixture(scope="session")
def runtime_image(docker_view: DockerView) -> str:
    """The tag that the recipe's template names, built as `primer image build` does when it is absent or outdated."""
    for _ in image.build(engine_url=f"unix://{docker_view.socket_path}"):
        pass
    return image.TAG


@pytest.fixture(scope="session")
def api(server: LiveServer) -> Iterator[Api]:
    """An admin's client of the shared server, with the scripted model registered."""
    client = Api(server.url, server.token)
    if client.call("GET", "llm_providers/scripted").status_code == 404:
        client.ok("POST", "llm_providers", SCRIPTED, status=201)
    yield client
    client.close()
