"""What a run leaves behind is listed, and nothing else: no process that has ended, or is only waiting for its turn to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from tests.engine import INSTANCE, DockerView, docker_view, new_workspace_id, runtime_image  # noqa: F401
from tests.runtime.conftest import SECRET, request
from workspaces.providers import provider_class
from workspaces.providers.base import SandboxSpec
from workspaces.runtime import linux
from workspaces.runtime.runs import SETTLE_S, Run
from workspaces.sandbox import Sandbox

CALLERS, EACH = 8, 14
LEAVE_NOTHING = (
    ("true",),
    ("sh", "-c", "exit 3"),
    ("sh", "-c", "echo a | cat | wc -c"),
    ("sh", "-c", "yes | head -c 100 >/dev/null"),
    ("bash", "-c", "echo $(ls | wc -l) >counted; cat counted"),
    ("sh", "-c", "(true &); true & wait"),
    ("python3", "-c", "import subprocess; subprocess.run(['true'])"),
)


async def burst(sandbox: Sandbox) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Commands that leave nothing, from eight callers at once: those that listed a survivor all the same."""
    wrong: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    async def caller(number: int) -> None:
        for turn in range(EACH):
            argv = LEAVE_NOTHING[(turn + number) % len(LEAVE_NOTHING)]
            outcome, _, _ = await sandbox.run(request(*argv))
            assert outcome.ended_by == "exit"
            if outcome.survivors:
                wrong.append((argv, tuple(one.command for one in outcome.survivors)))

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return wrong


async def test_bursts_of_short_commands_list_no_survivor(sandbox: Sandbox) -> None:
    assert await burst(sandbox) == []


async def test_a_real_survivor_is_listed_also_in_a_burst(sandbox: Sandbox) -> None:
    async def left() -> tuple[str, ...]:
        outcome, _, _ = await sandbox.run(request("sh", "-c", "sleep 600 &"))
        return tuple(one.command for one in outcome.survivors)

    assert set(await asyncio.gather(*(left() for _ in range(CALLERS)))) == {("sleep 600",)}


@pytest.fixture
async def throttled(docker_view: DockerView, runtime_image: str) -> AsyncIterator[Sandbox]:  # noqa: F811
    """A real container that gets a third of a processor: whoever has used it up waits for most of a tenth of a second."""
    provider = provider_class("container")(
        {"connection": {"kind": "socket", "socket_path": docker_view.socket_path}}, {}, instance_id=INSTANCE
    )
    spec = SandboxSpec(
        instance_id=INSTANCE, workspace_id=new_workspace_id(), generation=1, image=runtime_image, cpu_cores=0.34
    )
    ref = await provider.start(spec)
    sandbox = Sandbox(lambda: provider.connect(ref), SECRET)
    await sandbox.open()
    yield sandbox
    await sandbox.close()
    await provider.destroy(ref)
    await provider.close()


@pytest.mark.docker
async def test_bursts_in_a_throttled_container_list_no_survivor(throttled: Sandbox) -> None:
    assert await burst(throttled) == []


def ended_run(monkeypatch: pytest.MonkeyPatch, state: str) -> Run:
    """A run whose main process ended at 0.0 and left one process in this state below its keeper, pid 10."""
    run = Run.__new__(Run)
    run.outputs, run.left, run.ended_at, run.drain_until = (), True, 0.0, 0.05  # type: ignore[assignment]
    run.orphaned, run.parted, run.keeper = False, False, SimpleNamespace(pid=10)  # type: ignore[assignment]
    monkeypatch.setattr(linux, "processes", lambda: {1: (0, "S"), 10: (1, "S"), 11: (10, state)})
    return run


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_run_waits_a_little_for_a_process_that_wants_the_processor(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    run = ended_run(monkeypatch, state)
    assert not run._drained(0.06)
    assert 0.06 < run.drain_until < SETTLE_S
    assert run._drained(SETTLE_S)  # and no longer: it may be computing for hours


@pytest.mark.parametrize("state", ["S", "T", "Z"])
def test_a_run_does_not_wait_for_a_process_that_rests(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    assert ended_run(monkeypatch, state)._drained(0.06)
