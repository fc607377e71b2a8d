"""Why a sandbox ended: from the engine's facts, never from a number alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.providers.fake_engine import Answer, FakeEngine, chunked, http, ok, unix
from workspaces.providers.base import Ref, State, Status
from workspaces.providers.container import ContainerProvider

ID = "c" * 64
REF = Ref("container", "ws-0123456789abcdef", 1, container_id=ID)
VOLUME = {"Name": REF.workspace_id, "Labels": {"primer.instance": "inst"}}
DIED = {"Type": "container", "Action": "die", "id": ID}
OOM = {"Type": "container", "Action": "oom", "id": ID, "timeNano": 1_000_000_000}
LATER = {**DIED, "timeNano": 60_000_000_000}
OTHER = {"Type": "container", "Action": "die", "id": "d" * 64}


async def status(tmp_path: Path, state: dict[str, Any], events: list[dict[str, Any]], **volume: Any) -> Status:
    container = {
        "Id": ID,
        "Config": {"Labels": {"primer.instance": "inst"}},
        "State": {"Status": "exited", "Running": False, "OOMKilled": False, "ExitCode": 137, **state},
    }
    answers: dict[str, Answer] = {
        f"/containers/{REF.workspace_id}/json": ok(container),
        f"/volumes/{REF.workspace_id}": ok({**VOLUME, **volume}),
        "/events": chunked(*events),
        "/logs": http(b"", kind="application/vnd.docker.raw-stream"),
    }
    async with unix(FakeEngine(answers), tmp_path / "engine.sock") as config:
        provider = ContainerProvider(config, {}, instance_id="inst")
        found = await provider.status(REF)
        await provider.close()
    return found


@pytest.mark.parametrize(
    ("state", "events", "reason"),
    [
        ({"OOMKilled": True}, [DIED], "out_of_memory"),
        ({"ExitCode": 1}, [DIED], "exited"),
        ({"ExitCode": 0}, [], "exited"),
        ({}, [OTHER, DIED], "killed"),
        ({}, [DIED, OOM], "out_of_memory"),  # the engine heard of the end first, and lost its flag
        ({}, [OOM, LATER], "killed"),  # a program was the victim, a minute before
        ({}, [OTHER], "engine_restart"),
        ({}, [], "engine_restart"),
        ({}, [OTHER] * 256, "killed"),
    ],
)
async def test_the_reason_of_an_ending(
    tmp_path: Path, state: dict[str, Any], events: list[dict[str, Any]], reason: str
) -> None:
    found = await status(tmp_path, state, events)
    assert (found.state, found.reason) == (State.STOPPED, reason)
    assert found.detail.endswith("The files are still there.")


async def test_files_in_memory_are_said_to_be_gone(tmp_path: Path) -> None:
    found = await status(tmp_path, {}, [DIED], Options={"type": "tmpfs"})
    assert found.detail == "The sandbox was killed. Its files were in memory and went with it."


@pytest.mark.parametrize("word", ["removing", "dead"])
async def test_a_container_that_is_being_removed_is_gone_and_was_not_stopped(tmp_path: Path, word: str) -> None:
    """`docker rm -f` kills first: for a moment the engine shows a dead container."""
    found = await status(tmp_path, {"Status": word}, [DIED])
    assert (found.state, found.reason, found.volume_exists) == (State.GONE, "removed", True)
