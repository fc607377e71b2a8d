"""A container that somebody froze with `docker pause` while it was in use."""

from __future__ import annotations

import pytest

from tests.engine import DockerView
from tests.factories import Api

pytestmark = pytest.mark.docker


def test_who_uses_a_container_that_somebody_paused_is_told_so(box: str, docker: DockerView, alice: Api) -> None:
    path = f"workspaces/{box}"
    docker.client.pause(box)
    run = alice.post(f"{path}/exec", {"argv": ["true"], "timeout_s": 5})
    for answer in (run, alice.get(f"{path}/files")):
        assert (answer.status_code, answer.json()["code"]) == (409, "workspace_not_running")
        assert "was paused outside Primer" in answer.json()["detail"]
        assert "workspace start" in answer.json()["hint"]
    # Asked once more, it starts over the files, as any stopped workspace does for a run.
    assert alice.post(f"{path}/exec", {"argv": ["true"]}).json()["exit_code"] == 0
