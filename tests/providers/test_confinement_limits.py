"""The limits of a sandbox met on purpose: what an answer is worth, whom an attempt may not disturb, what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.engine import DockerView
from tests.eventually import eventually_async
from workspaces.confinement import Finding, extended
from workspaces.confinement_limits import (
    DISK,
    FILE,
    PIDS,
    TASKS_TRIED,
    Plan,
    exhaust,
    findings_of,
    parse,
    plan_of,
    report,
    request,
    unmade,
)
from workspaces.execution import EndedBy, Evidence, ExecOutcome, ExecRequest
from workspaces.probe_limits import KEYS, NO_ROOM, UNTRIED
from workspaces.providers.base import Channel, ChannelClosed, Enforced, Ref, SandboxSpec
from workspaces.providers.container import ContainerProvider
from workspaces.sandbox import Sandbox

SPEC = SandboxSpec("inst", "ws-0123456789abcdef", 1)
IN_MEMORY = replace(SPEC, disk_medium="memory", disk_bytes=2**24)
WORTH: dict[str, Enforced] = {"pids": "enforced", "disk": "soft"}
ALL = Plan("", "", "")
HELD = {
    "tasks": 251,
    "counted": 256,
    "forked": errno.EAGAIN,
    "below": 0,
    "above": errno.EFBIG,
    "filled": 2**24 - 4096,
    "used": 4096,
    "full": errno.ENOSPC,
}


def ended(by: EndedBy = "exit", code: int | None = 0, refusals: int = 2) -> ExecOutcome:
    return ExecOutcome(by, code, None, 0, 0, 1.0, evidence=Evidence(pids_max=refusals))


def found(refusals: int = 2, /, **over: int) -> dict[str, Finding]:
    made = report(ALL, IN_MEMORY, ended(refusals=refusals), json.dumps({**HELD, **over}).encode())
    return {finding.name: finding for finding in made}


def test_refusals_that_were_met_are_sentences_with_numbers() -> None:
    made = found()
    assert {name: finding.ok for name, finding in made.items()} == {PIDS: True, FILE: True, DISK: True}
    assert (
        made[PIDS].observed
        == "256 of 256 processes and threads ran, 251 of them for this attempt; one more was refused"
    )
    assert made[FILE].observed == "byte 16777216 of a file was written; byte 16777217 was refused"
    assert made[DISK].observed == "16773120 bytes were written beside 4096 that were there; the next one was refused"
    assert made[PIDS].expected == "process 257 is refused"


@pytest.mark.parametrize(
    ("over", "name", "says"),
    [
        ({"tasks": 257, "forked": 0}, PIDS, "257 processes and threads"),
        ({"tasks": 2**62}, PIDS, "the limit is 256"),
        ({"above": 0}, FILE, "byte 16777217 of a file was written"),
        ({"below": errno.EFBIG}, FILE, "lower than asked"),
        ({"filled": 2**25, "full": UNTRIED}, DISK, "33554432 bytes were written"),
        ({"filled": 2**24, "used": 4096}, DISK, "beside 4096"),
    ],
)
def test_what_went_beyond_a_limit_contradicts_it(over: dict[str, int], name: str, says: str) -> None:
    made = found(2, **over)
    assert made[name].ok is False
    assert says in made[name].observed


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ({"forked": 0}, PIDS),
        ({"forked": errno.ENOMEM}, PIDS),
        ({"forked": UNTRIED, "tasks": UNTRIED}, PIDS),
        ({"counted": 100}, PIDS),  # a limit above the sandbox's own refused it
        ({"counted": 257}, PIDS),
        ({"above": errno.ENOSPC}, FILE),
        ({"above": UNTRIED, "below": UNTRIED}, FILE),
        ({"above": 2**60}, FILE),
        ({"full": NO_ROOM, "filled": 0}, DISK),
        ({"full": errno.EIO}, DISK),
        ({"full": UNTRIED, "filled": UNTRIED, "used": UNTRIED}, DISK),
    ],
)
def test_an_attempt_without_a_refusal_of_its_limit_is_no_proof_and_no_contradiction(
    over: dict[str, int], name: str
) -> None:
    assert found(2, **over)[name].ok is None


def test_a_refusal_that_the_runtime_did_not_count_is_no_proof() -> None:
    assert found(0)[PIDS].ok is None


def test_a_full_disk_does_not_hide_the_cap_of_a_file() -> None:
    made = found(2, below=errno.ENOSPC)[FILE]
    assert (made.ok, "ENOSPC" in made.observed) == (True, True)


@pytest.mark.parametrize(
    "stdout",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 10_000,
        json.dumps(HELD).encode() * 2,
        json.dumps(HELD).encode() + b" " * 20_000,
        json.dumps({**HELD, "more": 1}).encode(),
        json.dumps({key: HELD[key] for key in KEYS if key != "tasks"}).encode(),
        *(
            json.dumps({**HELD, "tasks": odd}).encode()
            for odd in ("251", "\x1b[31m", None, True, 251.0, 1e400, -3, 2**63, [251], {"a": 1})
        ),
        b'{"tasks":' + b"9" * 5000 + b"}",
    ],
)
def test_an_answer_of_another_form_proves_nothing_and_none_of_its_text_is_kept(stdout: bytes) -> None:
    assert parse(stdout) is None
    made = report(ALL, IN_MEMORY, ended(), stdout)
    assert [finding.ok for finding in made] == [None, None, None]
    assert {finding.observed for finding in made} == {"the attempt gave no answer that can be read"}


@pytest.mark.parametrize("outcome", [ended("timeout", None), ended("lost", None), ended("oom", 137), ended("exit", 1)])
def test_an_attempt_that_did_not_end_well_proves_nothing_whatever_it_printed(outcome: ExecOutcome) -> None:
    made = report(ALL, IN_MEMORY, outcome, json.dumps(HELD).encode())
    assert [finding.ok for finding in made] == [None, None, None]
    assert outcome.ended_by in made[0].observed


@pytest.mark.parametrize(
    ("spec", "worth", "others", "plan"),
    [
        (SPEC, WORTH, 0, ("", "", None)),
        (SPEC, WORTH, 1, ("1 program runs", "", None)),
        (IN_MEMORY, WORTH, 3, ("3 programs run", "", "3 programs run")),
        (SPEC, {"pids": "unavailable", "disk": "soft"}, 0, ("no limit of processes", "", None)),
        (IN_MEMORY, {}, 0, ("no limit of processes", "no limit of a file", "no limit of a file")),
        (replace(SPEC, pids_limit=TASKS_TRIED + 1), WORTH, 0, (f"at most {TASKS_TRIED}", "", None)),
        (replace(SPEC, pids_limit=2000, memory_bytes=2**26), WORTH, 0, ("memory first", "", None)),
    ],
)
def test_what_would_harm_somebody_is_not_tried_and_says_why(
    spec: SandboxSpec, worth: dict[str, Enforced], others: int, plan: tuple[str, str, str | None]
) -> None:
    made = plan_of(spec, worth, others)
    for said, expected in zip((made.pids, made.file, made.disk), plan, strict=True):
        assert said == expected if not expected else expected in (said or "")
    for finding in findings_of(made, spec, HELD, 2):
        assert finding.ok is (None if finding.observed.startswith("not tried") else True)


def test_only_what_is_planned_is_asked_of_the_sandbox() -> None:
    assert request(IN_MEMORY, ALL).argv[-3:] == ("256", "16777216", "536870912")
    assert request(SPEC, Plan("busy", "", None)).argv[-3:] == ("0", "1073741824", "0")


def test_further_checks_contradict_a_report_and_never_prove_one_that_showed_nothing() -> None:
    proven = {"verdict": "proven", "checked_at": "t", "checks": [Finding("uid", "1", "1", True).to_dict()]}
    nothing = {"verdict": "unknown", "checked_at": "t", "checks": []}
    yes, no, unsure = (Finding(PIDS, "", "", ok) for ok in (True, False, None))
    assert [extended(proven, [one])["verdict"] for one in (yes, no, unsure)] == ["proven", "failed", "degraded"]
    assert [extended(nothing, [one])["verdict"] for one in (yes, no, unsure)] == ["unknown", "failed", "unknown"]
    assert [check["name"] for check in extended(proven, [no])["checks"]] == ["uid", PIDS]


def test_a_broken_attempt_keeps_the_reasons_of_what_was_not_to_be_tried() -> None:
    made = unmade(Plan("busy", "", None), SPEC, "no answer")
    assert [(finding.name, finding.observed, finding.ok) for finding in made] == [
        (PIDS, "busy", None),
        (FILE, "no answer", None),
    ]


# -- on a real engine


@asynccontextmanager
async def client(provider: ContainerProvider, ref: Ref, spec: SandboxSpec, secret: bytes) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(lambda: provider.connect(ref), secret, disk_bytes=spec.disk_bytes)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def said(sandbox: Sandbox, line: str) -> str:
    _, stdout, _ = await sandbox.run(ExecRequest(id=secrets.token_hex(8), argv=("sh", "-c", line)))
    return stdout.decode().strip()


@pytest.mark.docker
async def test_limits_of_a_real_sandbox_are_met_beside_nobody_and_leave_nothing(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec]
) -> None:
    spec = make_spec(disk_medium="memory", disk_bytes=2**24, memory_bytes=2**27, pids_limit=64)
    ref, secret = await container.start(spec), secrets.token_bytes(32)
    async with client(container, ref, spec, secret) as sandbox:
        await sandbox.write("kept.txt", b"x" * 100_000)
        made = await exhaust(sandbox, spec, WORTH)
        assert [(finding.name, finding.ok) for finding in made] == [(PIDS, True), (FILE, True), (DISK, True)], made
        assert "64 of 64" in made[0].observed

        running = await sandbox.start_exec(ExecRequest(id="sleeper", argv=("sleep", "300")))
        made = await exhaust(sandbox, spec, WORTH)
        assert [finding.ok for finding in made] == [None, True, None]
        assert "1 program runs" in made[0].observed
        await running.cancel("test")
        assert (await running.outcome()).ended_by == "cancelled"
        assert await said(sandbox, "ls -A; stat -f -c '%b %f' .") == "kept.txt\n4096 4071"  # its own 25 blocks


@pytest.mark.docker
async def test_a_limit_of_processes_that_was_lifted_is_contradicted(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec], docker_view: DockerView
) -> None:
    spec = make_spec(pids_limit=32)
    ref, secret = await container.start(spec), secrets.token_bytes(32)
    url = docker_view.client._url("/containers/{0}/update", ref.container_id)
    docker_view.client._post_json(url, data={"PidsLimit": -1}).raise_for_status()
    async with client(container, ref, spec, secret) as sandbox:
        made = await exhaust(sandbox, spec, WORTH)
    assert (made[0].name, made[0].ok) == (PIDS, False)
    assert made[0].observed == "33 processes and threads of one program ran at once; the limit is 32"


@pytest.mark.docker
async def test_a_server_that_dies_in_the_middle_leaves_no_process_and_no_file(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec]
) -> None:
    spec = make_spec(disk_medium="memory", disk_bytes=2**26)
    ref, secret = await container.start(spec), secrets.token_bytes(32)
    async with client(container, ref, spec, secret) as sandbox:
        await sandbox.start_exec(request(spec, ALL))  # what it prints nobody reads
    async with client(container, ref, spec, secret) as sandbox:

        async def over() -> bool:
            return all(run.state == "ended" and not run.survivors for run in await sandbox.list_execs())

        await eventually_async(over, within=15)
        assert await said(sandbox, "ls -A; stat -f -c '%b %f' .") == "16384 16384"
        assert (
            int(await said(sandbox, "cat /sys/fs/cgroup/pids/pids.current /sys/fs/cgroup/pids.current 2>/dev/null"))
            < 16
        )


@pytest.mark.docker
async def test_a_program_that_is_started_meanwhile_waits_and_then_runs(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec]
) -> None:
    spec = make_spec(pids_limit=64)
    ref, secret = await container.start(spec), secrets.token_bytes(32)
    async with client(container, ref, spec, secret) as sandbox:
        attempt = asyncio.create_task(exhaust(sandbox, spec, WORTH))
        lines = [f"echo {number} | cat" for number in range(8)]
        texts = await asyncio.gather(*(said(sandbox, line) for line in lines))
        assert texts == [str(number) for number in range(8)]
        assert [finding.ok for finding in await attempt] in ([True, True], [None, True])
        async with sandbox.quiet() as others:
            waiting = asyncio.create_task(said(sandbox, "echo late"))
            assert others == 0
            assert [run for run in await sandbox.list_execs() if run.state != "ended"] == []
            assert not waiting.done()
        assert await waiting == "late"


async def test_a_program_that_cannot_be_started_for_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workspaces.sandbox.QUIET_WAIT_S", 0.05)

    async def nowhere() -> Channel:
        raise ChannelClosed("The engine does not answer.")

    async def none() -> list[object]:
        return []

    sandbox = Sandbox(nowhere, b"x" * 32, disk_bytes=0, env={})
    monkeypatch.setattr(sandbox, "list_execs", none)
    starting = asyncio.create_task(sandbox.start_exec(ExecRequest(id="exec-1", argv=("true",))))
    await asyncio.sleep(0)
    async with sandbox.quiet() as others:
        assert others == 1
        assert not starting.done()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await sandbox.close()
