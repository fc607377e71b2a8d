"""Verdicts, and the counters behind them, from cgroups of both versions as they look inside and outside a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspaces.runtime.evidence import Counters, Facts, verdict

LIMITS = {"memory_bytes": 268435456.0, "pids": 128.0}


def facts(**over: object) -> Facts:
    made = Facts()
    made.exit_code = 1
    for name, value in over.items():
        setattr(made, name, value)
    return made


def cgroup(root: Path, files: dict[str, str], membership: str) -> Counters:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "self").write_text(membership)
    return Counters(str(root), str(root / "self"))


V1 = {
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "pids/pids.events": "max 7\n",
    "memory/memory.limit_in_bytes": "268435456\n",
    "pids/pids.max": "128\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
}
V2 = {
    "memory.events": "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n",
    "pids.events": "max 7\n",
    "memory.max": "268435456\n",
    "pids.max": "128\n",
    "cpu.max": "150000 100000\n",
}


@pytest.mark.parametrize(
    ("files", "membership"),
    [
        (V1, "5:pids:/docker/abc\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n"),  # in a container: mounted at the root
        ({f"{k.split('/')[0]}/docker/abc/{k.split('/')[1]}": v for k, v in V1.items()}, "5:pids:/docker/abc\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n"),
        (V2, "0::/\n"),
        ({f"system.slice/{k}": v for k, v in V2.items()}, "0::/system.slice\n"),
    ],
    ids=["v1-container", "v1-host", "v2-container", "v2-host"],
)  # fmt: skip
def test_counters_and_limits_are_found_in_either_version(
    tmp_path: Path, files: dict[str, str], membership: str
) -> None:
    counters = cgroup(tmp_path, files, membership)
    assert counters.read() == (3, 7)
    assert counters.limits == {"memory_bytes": 268435456, "pids": 128, "cpu_cores": 1.5}


def test_a_counter_that_rises_is_read_again(tmp_path: Path) -> None:
    counters = cgroup(tmp_path, V2, "0::/\n")
    (tmp_path / "memory.events").write_text("oom 5\noom_kill 4\n")
    assert counters.read() == (4, 7)


def test_missing_and_unlimited_files_are_no_limits_and_no_evidence(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "pids.max": "max\n", "cpu.max": "max 100000\n"}
    counters = cgroup(tmp_path, files, "0::/\n")
    assert counters.read() == (0, 0)
    assert counters.limits == {}


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "cpu/cpu.cfs_quota_us": "-1\n"}
    assert cgroup(tmp_path, files, "").limits == {}


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill x\n", "\x00\xff", "oom_kill 1 2\n"])
def test_odd_counter_files_count_as_zero(tmp_path: Path, text: str) -> None:
    assert cgroup(tmp_path, {"memory.events": text}, "0::/\n").read()[0] == 0


ORDER: list[tuple[dict[str, object], str]] = [
    ({"cause": "cancelled", "cancelled_by": "alice"}, "cancelled"),
    ({"cause": "timeout"}, "timeout"),
    ({"cause": "output_cap"}, "output_cap"),
    ({"exit_code": None, "signal": 25}, "disk"),
    ({"oom_kill": 1}, "oom"),
    ({"pids_max": 1}, "pids"),
    ({"exit_code": None, "signal": 11}, "signal"),
    ({}, "exit"),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_match_wins(first: int) -> None:
    """A run to which a verdict and all later ones apply gets the earliest; a death by signal stays what it was."""
    merged: dict[str, object] = {}
    for over, _ in reversed(ORDER[first:]):
        merged.update(over)
    assert verdict(facts(**merged), LIMITS)[0] == ORDER[first][1]


def test_counters_of_a_successful_run_are_written_down_and_decide_nothing() -> None:
    ended_by, evidence = verdict(facts(exit_code=0, oom_kill=2, pids_max=5), LIMITS)
    assert ended_by == "exit"
    assert (evidence["oom_kill"], evidence["pids_max"]) == (2, 5)


def test_exit_code_137_alone_proves_nothing() -> None:
    assert verdict(facts(exit_code=137), LIMITS)[0] == "exit"


def test_the_limit_that_was_met_stands_beside_the_verdict() -> None:
    assert verdict(facts(exit_code=None, signal=9, oom_kill=1), LIMITS)[1]["limit"] == 268435456
    assert verdict(facts(pids_max=1), LIMITS)[1]["limit"] == 128
    assert verdict(facts(cause="timeout", timeout_s=4.0), LIMITS)[1]["limit"] == 4.0
    assert verdict(facts(exit_code=None, signal=25, file_limit=8.0), LIMITS)[1] == {
        "oom_kill": 0, "pids_max": 0, "disk": "sigxfsz", "limit": 8.0, "shared": False, "cancelled_by": None,
    }  # fmt: skip


def test_a_full_disk_is_evidence_of_a_failed_program_and_not_a_verdict() -> None:
    ended_by, evidence = verdict(facts(disk_full=True), LIMITS)
    assert (ended_by, evidence["disk"]) == ("exit", "enospc")
    assert verdict(facts(disk_full=True, exit_code=0), LIMITS)[1]["disk"] is None
