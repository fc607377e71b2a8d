"""The adversarial cases that run in a workspace, through the API, on a real engine; `tests/cases/adversarial.yaml` says what is safe."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engine import DockerView
from tests.eventually import eventually
from tests.factories import CONTAINER_BACKEND, Api, make_template
from tests.workspaces.conftest import create, until
from workspaces.models import WorkspaceProvider

pytestmark = pytest.mark.docker
MIB = 1024 * 1024
CASES = yaml.safe_load((Path(__file__).parent.parent / "cases" / "adversarial.yaml").read_text())["cases"]
HERE = [
    case for case in CASES if case["where"] == "container" and case["id"][:3] in ("ESC", "AGT", "RES", "PRC", "OUT")
]
# Controls that this version does not have. The confinement of a workspace shows them as absent; no case passes by them.
UNAVAILABLE = {
    "ESC-16": "the syscall filter is not part of this version (confinement: syscall_filter)",
    "AGT-08": "the syscall filter is not part of this version (confinement: syscall_filter)",
    "ESC-14": "a named volume takes no mount options; no_new_privs and the device rules stand in (confinement: workspace_mount)",
}
LANGUAGES = {"py": ["python3", "-c"], "sh": ["sh", "-c"], "perl": ["perl", "-e"]}


def request_of(case: dict[str, Any]) -> dict[str, Any]:
    run = case["run"]
    if run.get("special") == "big_argument":
        argv = ["sh", "-c", "#" * 200_000 + "\n; echo ran"]
    elif run.get("special") == "split_characters":
        code = run["code"] + "\nsys.stdout.flush()"
        argv = ["python3", "-c", code]
    else:
        argv = [*LANGUAGES[run["lang"]], run["code"]]
    return {"argv": argv, "timeout_s": run["timeout_s"]}


def text_of(case: dict[str, Any], done: dict[str, Any]) -> str:
    """What the patterns of a case look at: both streams, or, for split characters, what was counted in them."""
    if done["encoding"] == "base64":
        return "".join(base64.b64decode(done[name]).decode("latin-1") for name in ("stdout", "stderr"))
    out = done["stdout"]
    if case["run"].get("special") == "split_characters":
        return f"characters {len(out)} euro {out.count('€')} replacement {out.count(chr(0xFFFD))}"
    return str(out + done["stderr"])


def exit_status(done: dict[str, Any]) -> int | None:
    return 128 + int(done["signal"]) if done["signal"] is not None else done["exit_code"]


def processes_of_the_workspace(docker: DockerView, workspace: str) -> list[str]:
    """Command lines in the container, without the runtime, its keepers and the engine's bridge; none when it has ended."""
    if not docker.client.inspect_container(workspace)["State"]["Running"]:
        return []  # in one case its PID 1 may be the victim
    table = docker.client.top(workspace, ps_args="-eo pid,args")
    return [row[1] for row in table["Processes"] if "runtime.pyz" not in row[1] and "<defunct>" not in row[1]]


@pytest.fixture
def workspace(case: dict[str, Any], docker: DockerView, alice: Api) -> str:
    template = "box"
    if case.get("profile") == "fsize":
        make_template(
            "small", provider=WorkspaceProvider.objects.get(), backend={**CONTAINER_BACKEND, "disk_bytes": 8 * MIB}
        )
        template = "small"
    name = create(alice, template)
    until(alice, name, "running")
    return name


@pytest.mark.parametrize("case", HERE, ids=[case["id"] for case in HERE])
def test_a_case_ends_as_it_should(case: dict[str, Any], workspace: str, docker: DockerView, alice: Api) -> None:
    if case["id"] in UNAVAILABLE:
        pytest.skip(f"unavailable: {UNAVAILABLE[case['id']]}")
    answer = alice.post(f"workspaces/{workspace}/exec", request_of(case))
    if case["id"] == "PRC-07":  # an argument above the kernel's limit is a typed error and never the program's output
        assert (answer.status_code, answer.json()["code"]) == (422, "cannot_start"), answer.content
        assert "Write the code to a file" in answer.json()["hint"]
        return
    assert answer.status_code == 200, answer.content
    done, asserted = answer.json(), case["assert"]
    text = text_of(case, done)
    shown = {**done, "stdout": text[:2000], "stderr": ""}
    # A case that names no verdict ends by itself: it waits for nobody and meets no timeout.
    assert done["ended_by"] in asserted.get("ended_by", ["exit", "signal", "pids"]), shown
    if "exit" in asserted and done["ended_by"] in ("exit", "signal"):
        assert exit_status(done) in asserted["exit"], shown
    for pattern in asserted.get("stdout_matches", []):
        assert re.search(pattern, text, re.MULTILINE), (pattern, shown)
    for pattern in asserted.get("stdout_lacks", []):
        assert not re.search(pattern, text, re.MULTILINE), (pattern, shown)
    afterwards(case, done, workspace, docker, alice)


def afterwards(case: dict[str, Any], done: dict[str, Any], workspace: str, docker: DockerView, alice: Api) -> None:
    for state in case["assert"].get("after", []):
        name, _, limit = state.partition("<=")
        if name in ("alive", "recovers"):
            again = alice.post(f"workspaces/{workspace}/exec", {"argv": ["echo", "alive"]})
            assert again.json().get("stdout") == "alive\n", again.content
        elif name in ("leftover", "killall"):  # the product has ended them by itself
            eventually(lambda: not processes_of_the_workspace(docker, workspace), within=10)
        elif name == "listed":
            left = processes_of_the_workspace(docker, workspace)
            assert not left or done["survivors"], left
        elif name == "log_kb":
            assert len(docker.client.logs(workspace)) <= int(limit) * 1024
        elif name == "df_drop_mb":  # what lies in the workspace is all that the host has lost to it
            assert int(inside(alice, workspace, "du -sm .").split()[0]) <= int(limit)
        elif name == "mem_mb":
            scratch_is_small_and_can_be_emptied(alice, workspace, int(limit))
        else:
            pytest.fail(f"{case['id']} asserts {state}, which nothing here looks at")


def scratch_is_small_and_can_be_emptied(alice: Api, workspace: str, limit_mib: int) -> None:
    """What lies in /tmp and /dev/shm stays charged to the workspace: a bounded amount, until somebody removes it."""
    files = "/sys/fs/cgroup/memory/memory.stat /sys/fs/cgroup/memory.stat"  # of either version
    charged = f"cat {files} 2>/dev/null | awk '$1 == \"shmem\" {{ print int($2 / 1048576) }}'"
    assert limit_mib < int(inside(alice, workspace, charged)) <= 64 + 16
    inside(alice, workspace, "rm -f /tmp/* /dev/shm/*")
    assert int(inside(alice, workspace, charged)) <= limit_mib


def inside(alice: Api, workspace: str, line: str) -> str:
    return str(alice.post(f"workspaces/{workspace}/exec", {"command": line}).json()["stdout"])


def test_what_the_confinement_cannot_show_is_shown_as_absent_and_the_verdict_is_not_proven(
    box: str, alice: Api
) -> None:
    found = alice.get(f"workspaces/{box}").json()["confinement"]
    absent = {check["name"] for check in found["checks"] if check["ok"] is None}
    assert {"runtime_shield", "syscall_filter"} <= absent
    assert found["verdict"] == "degraded"


def test_a_survivor_can_be_ended_by_the_id_of_its_run(box: str, docker: DockerView, alice: Api) -> None:
    line = "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started"
    done = alice.post(f"workspaces/{box}/exec", {"command": line}).json()
    assert [one["command"].removeprefix("setsid ") for one in done["survivors"]] == ["sleep 600"]
    assert alice.delete(f"workspaces/{box}/exec/{done['id']}").status_code == 204
    eventually(lambda: not processes_of_the_workspace(docker, box), within=10)


def test_a_memory_limit_is_named_in_the_evidence(box: str, alice: Api) -> None:
    code = "b=[]\nwhile True: b.append(bytearray(8<<20))"
    done = alice.post(f"workspaces/{box}/exec", {"argv": ["python3", "-c", code]}).json()
    assert (done["ended_by"], done["evidence"]["limit"]) == ("oom", 256 * MIB)
    assert done["evidence"]["oom_kill"] >= 1
