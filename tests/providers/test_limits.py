"""What a template's limits are worth on an engine: the word, the reason, and the engine's own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.providers.fake_engine import INFO, Answer, http, ok
from tests.providers.test_engine import SPEC, Make, fake
from workspaces.providers.base import ImageCheck, StartFailed
from workspaces.runtime import build as runtime

__all__ = ["fake"]

IMAGE = ok({"Id": "sha256:x", "Config": {"Labels": {"primer.runtime": runtime.digest()}}})
GIB = 1024**3


async def check(fake: Make, info: dict[str, Any] | None = None, **over: Any) -> ImageCheck:
    async with fake({"/info": ok({**INFO, **(info or {})}), "1.0/json": IMAGE}) as provider:
        return await provider.check_image(replace(SPEC, **over))


async def test_every_limit_that_is_not_enforced_has_its_reason(fake: Make) -> None:
    loose = {"PidsLimit": False, "SwapLimit": False, "CpuCfsQuota": False}
    found = await check(fake, loose, network_mode="internal")
    assert {name for name, worth in found.limits.items() if worth != "enforced"} == set(found.reasons)
    assert found.limits == {
        "cpu": "unavailable", "memory": "soft", "pids": "unavailable", "disk": "soft", "egress": "soft"
    }  # fmt: skip
    assert all(reason.endswith(".") for reason in found.reasons.values())
    assert found.problems == ()


async def test_what_is_enforced_needs_no_reason(fake: Make) -> None:
    found = await check(fake, disk_medium="memory")
    assert set(found.limits.values()) == {"enforced"}
    assert found.reasons == {}


async def test_more_cores_than_the_engine_has_are_named_with_both_numbers(fake: Make) -> None:
    found = await check(fake, cpu_cores=64.0)
    assert found.problems == ("The template asks for 64 CPU cores; the engine has 2.",)
    assert found.limits["cpu"] == "unavailable"
    assert found.reasons["cpu"] == found.problems[0]
    assert found.detail.startswith(found.problems[0])
    assert found.present


async def test_all_the_cores_that_the_engine_has_are_no_problem(fake: Make) -> None:
    found = await check(fake, cpu_cores=2.0)
    assert (found.problems, found.limits["cpu"]) == ((), "enforced")


async def test_more_memory_than_the_host_has_is_no_limit(fake: Make) -> None:
    found = await check(fake, memory_bytes=64 * GIB)
    assert found.limits["memory"] == "unavailable"
    assert "asks for 64.0 GiB of memory; the engine's host has 8.0 GiB" in found.reasons["memory"]
    assert found.problems == ()  # the engine starts it all the same


async def test_an_engine_that_tells_no_numbers_is_not_accused(fake: Make) -> None:
    found = await check(fake, {"NCPU": 0, "MemTotal": None}, cpu_cores=64.0, memory_bytes=64 * GIB)
    assert (found.problems, found.limits["cpu"], found.limits["memory"]) == ((), "enforced", "enforced")


async def test_a_missing_runtime_and_too_many_cores_are_both_told(fake: Make) -> None:
    found = await check(fake, cpu_cores=3.0, engine_runtime="runsc")
    assert len(found.problems) == 2
    assert "no runtime named runsc" in found.detail


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"cpu_cores": 64.0}, "The engine refused to create the sandbox. The template asks for 64 CPU cores; the engine has 2."),
        ({}, "The engine refused to create the sandbox."),
        ({"engine_runtime": "runsc"}, "The engine refused to create the sandbox. Does it have the runtime runsc?"),
    ],
)  # fmt: skip
async def test_a_refused_start_says_what_the_engine_lacks(fake: Make, over: dict[str, Any], sentence: str) -> None:
    refusal = http(b'{"message": "range of CPUs: see /var/lib/docker"}', "400 Bad Request")
    answers: dict[str, Answer] = {
        "1.0/json": IMAGE,
        f"/volumes/{SPEC.workspace_id}": ok({"Name": SPEC.workspace_id, "Labels": {"primer.instance": "inst"}}),
        "/containers/create": refusal,
    }
    async with fake(answers) as provider:
        with pytest.raises(StartFailed) as caught:
            await provider.start(replace(SPEC, **over))
    assert caught.value.detail == sentence
    assert "/var/lib" not in caught.value.detail
