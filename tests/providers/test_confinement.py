"""The verdict about a sandbox: from facts that its own inside reports, and which are therefore hostile."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workspaces import confinement
from workspaces.confinement import Finding, applied, judge, parse, report, request
from workspaces.execution import EndedBy, ExecOutcome
from workspaces.probe import KEYS
from workspaces.providers.base import Check, SandboxSpec
from workspaces.providers.container import ContainerProvider
from workspaces.sandbox import Sandbox

SPEC = SandboxSpec("inst", "ws-0123456789abcdef", 1)
FACTS = {
    "hostname": "ws-0123456789abcdef",
    "engine_socket": "absent",
    "route": "none",
    "reached": "nothing answers",
    "dns": "nothing answers",
    "capabilities": "none",
    "no_new_privs": "1",
    "seccomp": "2",
    "root": "read-only",
    "uid": "1000:1000",
    "pid1": "closed",
    "mount": "nosuid,nodev",
    "memory": "536870912",
    "pids": "256",
    "cpu": "1",
    "fsize": "1073741824",
}


def ended(by: EndedBy = "exit", code: int | None = 0) -> ExecOutcome:
    return ExecOutcome(by, code, None, 0, 0, 1.0)


def checks(spec: SandboxSpec = SPEC, /, **over: str) -> dict[str, Any]:
    found = report(ended(), json.dumps({**FACTS, **over}).encode(), spec, host_name="host")
    return {check["name"]: check for check in found["checks"]} | {"verdict": found["verdict"]}


def test_what_this_version_cannot_show_keeps_the_verdict_at_degraded() -> None:
    found = checks()
    assert found["verdict"] == "degraded"
    unsure = {name for name, check in found.items() if name != "verdict" and check["ok"] is not True}
    assert unsure == {"runtime_shield", "syscall_filter"}


@pytest.mark.parametrize(
    ("key", "value", "check"),
    [
        ("hostname", "host", "hostname"),
        ("engine_socket", "/var/run/docker.sock", "engine_socket"),
        ("route", "eth0 via 172.17.0.1", "network_route"),
        ("reached", "172.17.0.1", "network_gateway"),
        ("dns", "127.0.0.11", "network_dns"),
        ("capabilities", "CapEff=0000000000000400", "capabilities"),
        ("no_new_privs", "0", "no_new_privs"),
        ("seccomp", "0", "seccomp"),
        ("root", "wrote /etc", "root_readonly"),
        ("uid", "0:0", "uid"),
        ("uid", "1000:1000 and groups 27", "uid"),
        ("pid1", "mem opens", "runtime_memory"),
        ("memory", "max", "limit_memory"),
        ("memory", "1073741824", "limit_memory"),
        ("pids", "max", "limit_pids"),
        ("cpu", "-1", "limit_cpu"),
        ("cpu", "2", "limit_cpu"),
        ("fsize", "-1", "limit_file_size"),
    ],
)
def test_one_contradicted_fact_is_a_failed_confinement(key: str, value: str, check: str) -> None:
    found = checks(SPEC, **{key: value})
    assert found["verdict"] == "failed"
    assert (found[check]["ok"], found[check]["observed"]) == (False, value)


@pytest.mark.parametrize("key", ["memory", "seccomp", "reached"])
def test_a_fact_that_could_not_be_read_is_no_proof_and_no_contradiction(key: str) -> None:
    found = checks(SPEC, **{key: "unknown: PermissionError"})
    assert found["verdict"] == "degraded"


def test_limits_that_the_kernel_rounds_are_the_same_limits() -> None:
    spec = replace(SPEC, memory_bytes=100_000_001, cpu_cores=0.333)
    found = checks(spec, memory=str(100_000_001 // 4096 * 4096), cpu="0.33")
    assert (found["limit_memory"]["ok"], found["limit_cpu"]["ok"]) == (True, True)


def test_a_volume_without_mount_options_is_unsure_not_wrong() -> None:
    assert checks(mount="neither nosuid nor nodev")["workspace_mount"]["ok"] is None


def test_an_internal_network_may_have_a_route_but_nobody_may_answer() -> None:
    spec = replace(SPEC, network_mode="internal")
    assert checks(spec, route="eth0 via 10.231.0.1")["verdict"] == "degraded"
    assert checks(spec, route="eth0 via 10.231.0.1", reached="10.231.0.1")["verdict"] == "failed"


def test_allow_all_claims_nothing_about_the_network() -> None:
    found = checks(
        replace(SPEC, egress="allow_all"), route="eth0 via 172.18.0.1", reached="172.18.0.1", dns="127.0.0.11"
    )
    assert found["verdict"] == "degraded"
    assert found["network_gateway"]["expected"] == "unrestricted"


@pytest.mark.parametrize(
    "stdout",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe",
        json.dumps({**FACTS, "extra": "x"}).encode(),
        json.dumps({k: v for k, v in FACTS.items() if k != "uid"}).encode(),
        json.dumps({**FACTS, "uid": 1000}).encode(),
        json.dumps({**FACTS, "uid": None}).encode(),
        json.dumps({**FACTS, "uid": {"a": "b"}}).encode(),
        json.dumps({**FACTS, "uid": "x" * 201}).encode(),
        json.dumps(FACTS).encode() + b" " * 20_000,
        json.dumps(FACTS).encode() * 2,
    ],
)
def test_an_answer_of_another_form_proves_nothing(stdout: bytes) -> None:
    found = report(ended(), stdout, SPEC, host_name="host")
    assert (found["verdict"], found["checks"]) == ("unknown", [])


@pytest.mark.parametrize("outcome", [ended("timeout"), ended("lost", None), ended("exit", 1), ended("oom", 137)])
def test_a_probe_that_did_not_end_well_proves_nothing_whatever_it_printed(outcome: ExecOutcome) -> None:
    assert report(outcome, json.dumps(FACTS).encode(), SPEC, host_name="host")["verdict"] == "unknown"


def test_observed_text_is_printable() -> None:
    found = parse(json.dumps({**FACTS, "dns": "\x1b[31mred\x07\n\u202e"}).encode())
    assert found is not None
    assert found["dns"] == "?[31mred???"


def test_the_verdict_follows_from_the_checks_alone() -> None:
    yes, no, unsure = (Finding("a", "", "", ok) for ok in (True, False, None))
    assert judge([yes, yes]) == "proven"
    assert judge([yes, unsure]) == "degraded"
    assert judge([yes, unsure, no]) == "failed"
    assert judge([]) == "unknown"


def test_the_probe_reads_nothing_of_the_workspace() -> None:
    made = request()
    assert made.argv == ("python3", "-I", "-S", "-E", "-")
    assert b"import" in made.stdin


def test_the_probe_runs_anywhere_and_answers_in_the_form_that_is_checked() -> None:
    made = request()
    done = subprocess.run([sys.executable, *made.argv[1:]], input=made.stdin, capture_output=True, check=True)
    found = parse(done.stdout)
    assert found is not None
    assert set(found) == set(KEYS)


CHECK = Check("healthy", enforces={"cpu": "enforced", "memory": "enforced", "pids": "unavailable", "disk": "soft", "egress": "enforced"})  # fmt: skip


def test_applied_shows_a_limit_that_does_not_hold_as_not_applied() -> None:
    found = applied(SPEC, CHECK)
    assert found["limits"]["pids"] == {"asked": 256, "applied": None, "enforced": "unavailable"}
    assert found["limits"]["disk"] == {"asked": 1073741824, "applied": 1073741824, "enforced": "soft"}
    assert (found["egress"], found["network"]) == ("deny_all", "none")


def test_applied_follows_medium_and_network_of_the_workspace() -> None:
    found = applied(replace(SPEC, disk_medium="memory", network_mode="internal"), CHECK)
    assert found["limits"]["disk"]["enforced"] == "enforced"
    assert (found["limits"]["egress"]["enforced"], found["network"]) == ("soft", "internal")
    assert applied(replace(SPEC, egress="allow_all"), CHECK)["network"] == "egress bridge"


def test_applied_where_nothing_is_enforced_says_that_everything_is_open() -> None:
    found = applied(SPEC, Check("healthy", enforces={}))
    assert (found["egress"], found["network"]) == ("allow_all", "host")
    assert {limit["applied"] for limit in found["limits"].values()} == {None}


@pytest.mark.docker
@pytest.mark.parametrize(
    "over",
    [
        {},
        {"network_mode": "internal"},
        {"egress": "allow_all"},
        {"disk_medium": "memory", "disk_bytes": 2**24},
        {"cpu_cores": 0.5, "memory_bytes": 2**27, "pids_limit": 32},
    ],
)
async def test_a_real_sandbox_contradicts_nothing(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec], over: dict[str, Any]
) -> None:
    spec = make_spec(**over)
    ref = await container.start(spec)
    sandbox = Sandbox(lambda: container.connect(ref), secrets.token_bytes(32), disk_bytes=spec.disk_bytes)
    found = await confinement.verify(sandbox, spec)
    await sandbox.close()
    assert [check for check in found["checks"] if check["ok"] is False] == []
    assert found["verdict"] == "degraded"
    assert len(found["checks"]) == 18


@pytest.mark.docker
async def test_a_limit_that_was_loosened_behind_our_back_is_seen_from_inside(
    container: ContainerProvider, make_spec: Callable[..., SandboxSpec], docker_view: Any
) -> None:
    spec = make_spec()
    ref = await container.start(spec)
    docker_view.client.update_container(ref.container_id, mem_limit=2**30, memswap_limit=2**30)
    sandbox = Sandbox(lambda: container.connect(ref), secrets.token_bytes(32), disk_bytes=spec.disk_bytes)
    found = await confinement.verify(sandbox, spec)
    await sandbox.close()
    assert [check["name"] for check in found["checks"] if check["ok"] is False] == ["limit_memory"]
    assert found["verdict"] == "failed"
