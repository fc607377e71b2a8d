"""The server is killed between a deed and the answer that is kept of it, or right behind both: the repeat does nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from primer_site.crashpoints import VARIABLE
from tests.api.live import LiveWorld

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BETWEEN, BEHIND = "before-kept-answer", "after-kept-answer"
# deed -> (path, body, the line that it leaves in the audit log)
DEEDS: dict[str, tuple[str, Any, str]] = {
    "messages": ("sessions/{session}/messages", {"text": "print(2)"}, "session.message"),
    "rerun": ("sessions/{session}/rerun", None, "session.create"),
    "start": ("workspaces/{resting}/start", None, "workspace.start"),
    "stop": ("workspaces/{running}/stop", None, "workspace.stop"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWorld]:
    made = LiveWorld(tmp_path_factory.mktemp("crash-between"))
    try:
        made.start()
        made.build()
        yield made
    finally:
        made.destroy()


def prepared(world: LiveWorld, deed: str) -> str:
    """The path of a deed that would change something now."""
    ids = {"session": world.ids["sessions"]}
    if deed in ("messages", "rerun"):
        world.until(f"sessions/{ids['session']}", "status", "ended")
    else:
        workspace = ids["resting"] = ids["running"] = world.made("workspaces", {"template_id": "plain"})["id"]
        world.until(f"workspaces/{workspace}", "phase", "running")
        if deed == "start":
            world.call("POST", f"workspaces/{workspace}/stop")
            world.until(f"workspaces/{workspace}", "phase", "stopped")
    return DEEDS[deed][0].format_map(ids)


def lines(world: LiveWorld, deed: str) -> int:
    return world.total(f"audit?action={DEEDS[deed][2]}&actor=alice")


@pytest.mark.parametrize("point", [BETWEEN, BEHIND])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_server_that_dies_there_did_it_whole_or_not_at_all(deed: str, point: str, world: LiveWorld) -> None:
    path, (_, body, _) = prepared(world, deed), DEEDS[deed]
    before, key = lines(world, deed), f"{deed}-{point}"
    world.restart(**{VARIABLE: point})
    with pytest.raises(requests.ConnectionError):
        world.call("POST", path, body, key=key)
    assert world.server.process is not None
    assert world.server.process.wait(20) == -9

    world.restart()
    assert lines(world, deed) == before + (0 if point == BETWEEN else 1)
    first = world.call("POST", path, body, key=key)
    assert first.status_code in (200, 201, 202), first.text
    assert ("Idempotent-Replay" in first.headers) == (point == BEHIND)
    again = world.call("POST", path, body, key=key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert lines(world, deed) == before + 1
