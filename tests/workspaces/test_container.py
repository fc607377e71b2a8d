"""Workspaces on a real engine: what is left behind, what is removed behind our back, what engines forget to say."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from docker import APIClient

from tests.engine import INSTANCE, DockerView
from tests.eventually import eventually
from tests.factories import CONTAINER_BACKEND, Api, make_template
from tests.workspaces.conftest import Process, create, phase_of, until
from tests.workspaces.test_exec import run
from workspaces import reconcile
from workspaces.models import Workspace, WorkspaceProvider
from workspaces.providers import objects
from workspaces.providers.engine import TIMEOUT_S

pytestmark = pytest.mark.docker


def files(workspace: str, what: str = "") -> str:
    return f"workspaces/{workspace}/files{what}"


def test_delete_leaves_neither_container_nor_volume(box: str, docker: DockerView, alice: Api) -> None:
    assert docker.names(box) == [f"container /{box}", f"volume {box}"]
    assert alice.delete(f"workspaces/{box}").status_code == 202
    until(alice, box, "404")
    assert docker.names(box) == []


def test_a_missing_image_fails_at_once_with_nothing_left_and_may_be_tried_again(
    docker: DockerView, runtime_image: str, alice: Api
) -> None:
    backend = {**CONTAINER_BACKEND, "image": "primer/absent:nope"}
    make_template("absent", provider=WorkspaceProvider.objects.get(), backend=backend)
    workspace = create(alice, "absent")
    found = until(alice, workspace, "failed")
    assert found["phase_reason"] == "image_not_found"
    assert "primer image build" in found["phase_detail"] or found["phase_detail"].endswith(".")
    assert docker.names(workspace) == []
    answer = alice.post(f"workspaces/{workspace}/exec", {"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_not_running")
    docker.client.tag(runtime_image, "primer/absent", "nope")
    try:
        assert alice.post(f"workspaces/{workspace}/start").status_code == 202
        until(alice, workspace, "running")
    finally:
        docker.client.remove_image("primer/absent:nope")


@pytest.mark.parametrize(("field", "value"), [("Privileged", True), ("PidsLimit", -1), ("NetworkMode", "bridge")])
def test_a_container_that_the_engine_made_otherwise_fails_the_workspace_and_is_removed(
    field: str, value: Any, docker: DockerView, runtime_image: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = APIClient.create_container_from_config

    def make(self: APIClient, config: dict[str, Any], *name: str) -> Any:
        return real(self, {**config, "HostConfig": {**config["HostConfig"], field: value}}, *name)

    monkeypatch.setattr(APIClient, "create_container_from_config", make)
    workspace = create(alice, "box")
    found = until(alice, workspace, "failed")
    assert found["phase_reason"] == "spec_mismatch"
    assert field in found["phase_detail"]
    assert docker.names(workspace) == []


def test_a_container_removed_behind_our_back_is_lost_and_starts_again_over_its_files(
    box: str, docker: DockerView, alice: Api
) -> None:
    alice.put(files(box), {"content": "kept"}, path="a.txt")
    docker.client.remove_container(box, force=True)
    found = until(alice, box, "lost", within=30)
    assert found["phase_reason"] == "removed"
    answer = alice.post(f"workspaces/{box}/exec", {"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_lost")
    assert alice.post(f"workspaces/{box}/start").status_code == 202
    until(alice, box, "running")
    assert alice.get(files(box, "/read"), path="a.txt").json()["content"] == "kept"


def test_an_exec_on_a_container_that_just_vanished_is_told_so(box: str, docker: DockerView, alice: Api) -> None:
    docker.client.remove_container(box, force=True)
    answer = alice.post(f"workspaces/{box}/exec", {"argv": ["true"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_lost"), answer.content
    answer = alice.get(files(box))
    assert (answer.status_code, answer.json()["code"]) == (409, "workspace_lost")


def test_a_volume_removed_behind_our_back_is_lost_for_good_and_never_silently_empty(
    box: str, docker: DockerView, alice: Api
) -> None:
    alice.post(f"workspaces/{box}/stop")
    until(alice, box, "stopped")
    docker.client.remove_container(box, force=True)
    docker.client.remove_volume(box)
    assert alice.post(f"workspaces/{box}/start").status_code == 202
    found = until(alice, box, "lost")
    assert found["phase_reason"] == "data_lost"
    assert docker.names(box) == []
    assert alice.post(f"workspaces/{box}/start").status_code == 409


def test_a_killed_container_is_stopped_and_the_next_exec_starts_it(box: str, docker: DockerView, alice: Api) -> None:
    alice.put(files(box), {"content": "kept"}, path="a.txt")
    docker.client.kill(box)
    found = until(alice, box, "stopped", within=30)
    assert found["phase_reason"]
    assert run(alice, box, "cat", "a.txt")["stdout"] == "kept"


def test_a_run_in_a_container_that_is_killed_is_lost_and_not_repeated(box: str, docker: DockerView, alice: Api) -> None:
    body = {"command": "echo ran >> marks; echo before; sleep 600", "timeout_s": 60, "background": True}
    started = alice.post(f"workspaces/{box}/exec", body).json()
    path = f"workspaces/{box}/exec/{started['id']}"
    eventually(lambda: alice.get(f"{path}/output").json()["data"] == "before\n")
    docker.client.kill(box)
    ended = eventually(lambda: (state := alice.get(path).json())["ended_by"] and state, within=40)
    assert (ended["ended_by"], ended["exit_code"]) == ("lost", None)
    assert alice.get(f"{path}/output").json()["data"] == "before\n"
    assert run(alice, box, "cat", "marks")["stdout"] == "ran\n"


def test_a_container_removed_under_a_running_program_is_lost_at_once_and_was_never_shown_as_stopped(
    box: str, docker: DockerView, alice: Api
) -> None:
    busy = "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; echo before; python3 -c 'x = bytearray(200 << 20); input()'"
    started = alice.post(f"workspaces/{box}/exec", {"command": busy, "background": True, "timeout_s": 60}).json()
    path = f"workspaces/{box}/exec/{started['id']}"
    eventually(lambda: alice.get(f"{path}/output").json()["data"] == "before\n")
    docker.client.remove_container(box, force=True)
    found = until(alice, box, "lost", within=30)
    assert found["phase_reason"] == "removed"
    assert "stopped" not in [one["phase"] for one in found["phases"]]
    ended = eventually(lambda: (state := alice.get(path).json())["ended_by"] and state, within=40)
    assert (ended["ended_by"], ended["exit_code"]) == ("lost", None)
    assert alice.get(f"{path}/output").json()["data"] == "before\n"


def test_a_restarted_container_goes_on_working(box: str, docker: DockerView, alice: Api) -> None:
    alice.put(files(box), {"content": "kept"}, path="a.txt")
    docker.client.restart(box, timeout=0)
    answer = eventually(
        lambda: (a := alice.post(f"workspaces/{box}/exec", {"argv": ["cat", "a.txt"]})).status_code == 200 and a,
        within=60,
    )
    assert answer.json()["stdout"] == "kept"


def test_the_volume_belongs_to_the_sandbox_also_after_a_restart(box: str, alice: Api) -> None:
    for _ in range(2):
        assert run(alice, box, "stat", "-c", "%u:%g %a", ".")["stdout"] == "1000:1000 750\n"
        alice.post(f"workspaces/{box}/stop")
        until(alice, box, "stopped")


def test_a_workspace_that_its_own_program_locked_starts_again_over_its_files(box: str, alice: Api) -> None:
    assert run(alice, box, "sh", "-c", "echo kept >a.txt; chmod 000 .")["exit_code"] == 0
    alice.post(f"workspaces/{box}/stop")
    until(alice, box, "stopped")
    assert alice.post(f"workspaces/{box}/start").status_code == 202
    until(alice, box, "running")
    assert run(alice, box, "sh", "-c", "cat a.txt; stat -c %a .; chmod 000 .")["stdout"] == "kept\n700\n"
    assert alice.get(files(box)).json()["items"][0]["name"] == "a.txt"
    assert run(alice, box, "cat", "a.txt")["stdout"] == "kept\n"


def test_nothing_of_a_run_reaches_the_engine(box: str, docker: DockerView, alice: Api) -> None:
    seen: list[str] = []
    events = docker.client.events(decode=True, filters={"container": box})
    watcher = threading.Thread(target=lambda: seen.extend(str(event) for event in events), daemon=True)
    watcher.start()
    run(alice, box, "sh", "-c", "echo sentinel-5f0c $KEY", env={"KEY": "sentinel-77aa"})
    inspect = str(docker.client.inspect_container(box))
    events.close()
    watcher.join(5)
    assert "sentinel" not in "".join(seen) + inspect
    assert "sentinel" not in docker.client.logs(box).decode()


def test_two_runs_at_once_do_not_see_each_others_end(box: str, alice: Api) -> None:
    results: dict[str, Any] = {}

    def go(name: str, line: str, timeout_s: float) -> None:
        results[name] = run(alice, box, "sh", "-c", line, timeout_s=timeout_s)

    threads = [
        threading.Thread(target=go, args=("cut", "sleep 60", 1.0)),
        threading.Thread(target=go, args=("whole", "sleep 3; echo done", 30.0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (results["cut"]["ended_by"], results["whole"]["ended_by"]) == ("timeout", "exit")
    assert results["whole"]["stdout"] == "done\n"
    assert results["whole"]["evidence"]["shared"] is True


def test_five_hundred_quick_programs_each_give_their_whole_output(box: str, alice: Api) -> None:
    outputs: list[str] = []

    def go() -> None:
        outputs.extend(run(alice, box, "echo", "hello")["stdout"] for _ in range(25))

    threads = [threading.Thread(target=go) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == ["hello\n"] * 500


def test_a_busy_workspace_still_answers(box: str, alice: Api) -> None:
    hold = "import time\nx = bytearray(200 << 20)\ntime.sleep(600)"
    busy = [*([["sh", "-c", "while :; do :; done"]] * 4), ["python3", "-c", hold]]
    ids = [alice.post(f"workspaces/{box}/exec", {"argv": argv, "background": True}).json()["id"] for argv in busy]
    assert run(alice, box, "echo", "hi")["stdout"] == "hi\n"
    assert alice.get(files(box)).status_code == 200
    for exec_id in ids:
        assert alice.delete(f"workspaces/{box}/exec/{exec_id}").status_code in (202, 204)


def test_a_workspace_made_by_another_instance_is_never_touched(
    process: Process, docker: DockerView, runtime_image: str, alice: Api
) -> None:
    name = "ws-00000000000000aa"
    docker.client.create_container_from_config(
        {"Image": runtime_image, "Cmd": ["true"], "Labels": {"primer.instance": "stranger", "primer.workspace": name}},
        name,
    )
    try:
        process.stop()
        process.start()
        workspace = create(alice, "box")
        until(alice, workspace, "running")
        assert docker.client.inspect_container(name)["Config"]["Labels"]["primer.instance"] == "stranger"
    finally:
        docker.client.remove_container(name, force=True)


def test_an_orphan_of_ours_is_removed_at_boot(box: str, process: Process, docker: DockerView, alice: Api) -> None:
    process.stop()
    Workspace.objects.filter(slug=box).delete()
    assert docker.names(box)
    process.start()
    eventually(lambda: docker.names(box) == [], within=30)
    assert phase_of(alice, box) == "404"


def test_a_helper_that_a_killed_server_left_beside_a_live_workspace_is_removed(
    box: str, process: Process, docker: DockerView, runtime_image: str, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"primer.instance": INSTANCE, "primer.workspace": box, "primer.role": "helper"}
    body = {"Image": runtime_image, "Cmd": ["true"], "Labels": labels}
    docker.client.create_container_from_config(body)
    assert len([name for name in docker.names(box) if name.startswith("container")]) == 2
    monkeypatch.setattr(objects, "HELPER_S", 0)
    monkeypatch.setattr(reconcile, "HELPERS_EVERY_S", 0.5)
    process.stop()
    process.start()
    eventually(lambda: docker.names(box) == [f"container /{box}", f"volume {box}"], within=30)
    assert run(alice, box, "echo", "alive")["stdout"] == "alive\n"


def test_verify_runs_the_probes_again(box: str, alice: Api) -> None:
    first = alice.get(f"workspaces/{box}").json()["confinement"]
    again = alice.post(f"workspaces/{box}/verify")
    assert again.status_code == 200
    assert again.json()["verdict"] == first["verdict"] == "degraded"
    assert alice.get(f"workspaces/{box}").json()["confinement"] == again.json()
    met = {check["name"]: check["ok"] for check in again.json()["checks"] if check["name"].endswith("_exhausted")}
    assert met == {"pids_exhausted": True, "file_size_exhausted": True}
    assert "pids_exhausted" not in str(first)


def test_a_limit_that_was_lifted_since_the_start_fails_the_confinement_at_the_next_look(
    box: str, docker: DockerView, alice: Api
) -> None:
    url = docker.client._url("/containers/{0}/update", box)
    docker.client._post_json(url, data={"PidsLimit": -1}).raise_for_status()
    run(alice, box, "sh", "-c", "sleep 300 >/dev/null 2>&1 &")
    beside = alice.post(f"workspaces/{box}/verify").json()
    assert outcome_of(beside, "pids_exhausted")["ok"] is None
    assert "1 program runs" in outcome_of(beside, "pids_exhausted")["observed"]
    run(alice, box, "pkill", "sleep")
    found = alice.post(f"workspaces/{box}/verify").json()
    assert outcome_of(found, "pids_exhausted")["ok"] is False
    assert alice.get(f"workspaces/{box}").json()["confinement"]["verdict"] == found["verdict"] == "failed"


def outcome_of(proof: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(check for check in proof["checks"] if check["name"] == name)
    return found


def test_a_disk_that_is_only_soft_is_said_to_be_and_is_refused_where_it_must_hold(
    box: str, alice: Api, bob: Api
) -> None:
    asked = CONTAINER_BACKEND["disk_bytes"]
    assert alice.get(f"workspaces/{box}").json()["applied"]["limits"]["disk"] == {
        "asked": asked, "applied": asked, "enforced": "soft",
    }  # fmt: skip
    refused = bob.patch("workspace_templates/box", {"require": "enforced"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "require")
    assert "disk (soft)" in refused.json()["errors"][0]["message"]


@pytest.mark.slow
def test_a_quiet_program_outlasts_every_timeout_of_the_engines_client(box: str, alice: Api) -> None:
    found = run(alice, box, "sh", "-c", f"sleep {TIMEOUT_S + 5:g}; echo ok", timeout_s=120)
    assert (found["stdout"], found["ended_by"], found["exit_code"]) == ("ok\n", "exit", 0)
