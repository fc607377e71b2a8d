"""The faults that the fake provider promises: what others test against must itself be true."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from primer_site.errors import Invalid
from tests.eventually import eventually_async
from workspaces.providers import CHOICES, KINDS, provider_class
from workspaces.providers.base import EngineUnavailable, Ref, SandboxSpec, StartTimeout, State
from workspaces.providers.fake import LIES, FakeProvider
from workspaces.runtime import protocol
from workspaces.sandbox import Sandbox

SPEC = SandboxSpec("", "ws-00000000000000ff", 1)


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., FakeProvider]]:
    instance = f"fake-{secrets.token_hex(4)}"
    made: list[FakeProvider] = []

    def _make(**config: Any) -> FakeProvider:
        made.append(FakeProvider(config, {}, instance_id=instance))
        return made[-1]

    yield _make
    plain = _make()
    for ref in await plain.discover():
        await plain.destroy(ref)
    for provider in made:
        await provider.close()
    shutil.rmtree(plain.config["root_path"], ignore_errors=True)


def spec(provider: FakeProvider, **over: Any) -> SandboxSpec:
    return replace(SPEC, instance_id=provider.instance_id, workspace_id=f"ws-{secrets.token_hex(8)}", **over)


def test_it_is_a_kind_that_nobody_can_choose() -> None:
    assert "fake" in KINDS
    assert "fake" not in CHOICES
    assert {kind: provider_class(kind).kind for kind in KINDS} == {kind: kind for kind in KINDS}


@pytest.mark.parametrize(("name", "value"), [("fault", "sulks"), ("lie", "white")])
def test_an_unknown_fault_is_refused(name: str, value: str) -> None:
    with pytest.raises(Invalid, match=name):
        FakeProvider({name: value}, {}, instance_id="x")


@pytest.mark.parametrize("verb", ["start", "connect", "status", "stop", "destroy", "discover", "check_image"])
async def test_refuses_has_nobody_listening(make: Callable[..., FakeProvider], verb: str) -> None:
    provider = make(fault="refuses")
    made = spec(provider)
    arguments = {"start": [made], "check_image": [made], "discover": []}.get(verb, [Ref("fake", made.workspace_id, 1)])
    with pytest.raises(EngineUnavailable):
        await getattr(provider, verb)(*arguments)
    assert (await provider.check()).health == "unreachable"


async def test_never_runs_into_the_deadline_of_a_start(make: Callable[..., FakeProvider]) -> None:
    provider = make(fault="never", delay_s=0.01)
    with pytest.raises(StartTimeout):
        await provider.start(spec(provider, start_timeout_s=0.05))
    with pytest.raises(EngineUnavailable, match="in time"):
        await provider.discover()


async def test_slow_is_slow_and_right(make: Callable[..., FakeProvider]) -> None:
    provider = make(fault="slow", delay_s=0.05)
    before = time.monotonic()
    ref = await provider.start(spec(provider))
    assert time.monotonic() - before >= 0.05
    assert (await provider.status(ref)).state is State.RUNNING


async def test_dies_later_runs_and_then_stops(make: Callable[..., FakeProvider]) -> None:
    provider = make(fault="dies_later", delay_s=0.2)
    ref = await provider.start(spec(provider))
    assert (await make().status(ref)).state is State.RUNNING

    async def stopped() -> bool:
        return (await provider.status(ref)).state is State.STOPPED

    await eventually_async(stopped)


@pytest.mark.parametrize("lie", LIES)
async def test_a_client_believes_no_lie(make: Callable[..., FakeProvider], lie: str) -> None:
    ref = await make().start(spec(make()))
    provider = make(fault="lies", lie=lie)
    sandbox = Sandbox(lambda: provider.connect(ref), b"s" * 32, lost_after_s=0.3)
    with pytest.raises(Exception) as caught:
        await sandbox.open()
    await sandbox.close()
    assert hasattr(caught.value, "code"), repr(caught.value)


async def test_the_lies_are_what_they_are_called(make: Callable[..., FakeProvider]) -> None:
    ref = await make().start(spec(make()))

    async def first(lie: str) -> bytes:
        channel = await make(fault="lies", lie=lie).connect(ref)
        data = await channel.read(4096)
        await channel.close()
        return data

    types, greeting, frame, endless = [await first(lie) for lie in LIES]
    assert types[4] == protocol.GREETING
    assert greeting.startswith(b"HTTP/1.1 200")
    assert frame[:4] == b"\xff\xff\xff\xff"
    assert endless == b"\0" * 4096


async def test_what_was_started_before_a_restart_is_found_after_it(make: Callable[..., FakeProvider]) -> None:
    ref = await make().start(spec(make()))
    assert [found.workspace_id for found in await make().discover()] == [ref.workspace_id]
    await asyncio.gather(make().destroy(ref), make().destroy(ref))
    assert await make().discover() == []
