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
DIED = {"Type": "container", "Action": "die", "Actor": {"ID": ID}}
OOM = {"Type": "container", "Action": "oom", "Actor": {"ID": ID}, "timeNano": 1_000_000_000}
LATER = {**DIED, "timeNano": 60_000_000_000}
ASKED = {**DIED, "Action": "kill"}
VICTIM = {"OOMKilled": True}  # engines set it for the whole container also when the kernel took one program of it
OTHER = {"Type": "container", "Action": "die", "Actor": {"ID": "d" * 64}}


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
        (VICTIM, [OOM, DIED], "out_of_memory"),
        (VICTIM, [OOM, {**DIED, "timeNano": 21_000_000_000}], "out_of_memory"),  # a busy engine told of the end late
        (VICTIM, [OOM, LATER], "killed"),
        (VICTIM, [OOM, ASKED, DIED], "killed"),
        (VICTIM, [DIED], "killed"),
        (VICTIM, [], "engine_restart"),
        ({**VICTIM, "ExitCode": 1}, [OOM, DIED], "exited"),
        ({"ExitCode": 1}, [DIED], "exited"),
        ({"ExitCode": 0}, [], "exited"),
        ({}, [OTHER, DIED], "killed"),
        ({}, [DIED, OOM], "out_of_memory"),  # the engine heard of the end first
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
