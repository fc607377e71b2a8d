"""A template that asks for more than its engine has, on a real engine: the check says so, and so does the start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine import DockerView
from tests.factories import CONTAINER_BACKEND, Api, make_template
from tests.workspaces.conftest import create, until
from workspaces.models import WorkspaceProvider

pytestmark = pytest.mark.docker


@pytest.fixture
def engine(docker: DockerView) -> dict[str, Any]:
    return dict(docker.client.info())


def template(image: str, **over: Any) -> None:
    backend = {**CONTAINER_BACKEND, "image": image, **over}
    make_template("large", provider=WorkspaceProvider.objects.get(slug="docker"), backend=backend)


def test_too_many_cores_are_told_with_the_engines_number(
    engine: dict[str, Any], runtime_image: str, alice: Api, bob: Api, docker: DockerView
) -> None:
    template(runtime_image, cpu_cores=256.0)
    sentence = f"The template asks for 256 CPU cores; the engine has {engine['NCPU']}."
    found = bob.post("workspace_templates/large/check").json()
    assert (found["image_present"], found["problems"], found["reasons"]["cpu"]) == (True, [sentence], sentence)
    assert found["limits"]["cpu"] == "unavailable"
    workspace = create(alice, "large")
    failed = until(alice, workspace, "failed")
    assert failed["phase_reason"] == "start_failed"
    assert failed["phase_detail"] == f"The engine refused to create the sandbox. {sentence}"
    assert docker.names(workspace) == []


def test_more_memory_than_the_host_has_is_no_limit_and_can_be_refused(
    engine: dict[str, Any], runtime_image: str, bob: Api
) -> None:
    template(runtime_image, memory_bytes=4 * 1024**4)
    found = bob.post("workspace_templates/large/check").json()
    assert found["limits"]["memory"] == "unavailable"
    assert f"the engine's host has {engine['MemTotal'] / 1024**3:.1f} GiB" in found["reasons"]["memory"]
    refused = bob.patch("workspace_templates/large", {"require": "enforced"})
    assert refused.status_code == 422
    assert "memory (unavailable)" in refused.json()["errors"][0]["message"]
    assert "4096.0 GiB" in refused.json()["errors"][0]["message"]
