"""The scripts behind make: what they read out of tools, and what they do where something is missing."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=== 3 passed, 1 skipped in 2.10s ===", "3 passed, 1 skipped"),
        ("a\n=========== 1 failed, 122 passed in 62.01s (0:01:02) ============\n", "1 failed, 122 passed"),
        ("Success: no issues found in 90 source files", "Success: no issues found in 90 source files"),
        ("", "nothing to say"),
    ],
)
def test_a_stage_is_summed_up_by_its_tools_own_last_line(text, expected):
    assert load("test").summary(text) == expected


def test_skips_are_listed_once_for_each_reason():
    text = (
        "SKIPPED [2] tests/e2e/test_a.py:3: docker is not usable: no socket\n"
        "SKIPPED [1] tests/e2e/test_b.py:9: docker is not usable: no socket\n"
    )
    assert load("test").skipped(text) == ["3: docker is not usable: no socket"]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_stage_that_does_not_end_is_killed_with_its_children(tmp_path, monkeypatch):
    script = load("test")
    monkeypatch.setattr(script, "LOGS", tmp_path)
    monkeypatch.setattr(script, "BIN", Path("/bin"))
    stage = script.Stage("endless", [["sh", "-c", "sleep 600 & echo $!; wait"]], limit_s=0.3)
    assert script.run(stage) is False
    child = int(stage.log.read_text().split()[0])
    eventually(lambda: not running(child), message="the end of the stage's child")
    assert "did not end within 0.3 s" in stage.log.read_text()


def test_a_failing_stage_shows_its_output(tmp_path, monkeypatch, capsys):
    script = load("test")
    monkeypatch.setattr(script, "LOGS", tmp_path)
    monkeypatch.setattr(script, "BIN", Path("/bin"))
    assert script.run(script.Stage("broken", [["sh", "-c", "echo the reason; exit 3"]])) is False
    assert "the reason" in capsys.readouterr().out


@pytest.fixture
def stage_of_one(tmp_path, monkeypatch):
    """A stage whose test fails at its first try; what it does at the second is for the test to say."""
    script = load("test")
    monkeypatch.setattr(script, "LOGS", tmp_path)
    monkeypatch.setattr(script, "BIN", Path("/bin"))
    first = "echo 'FAILED tests/a.py::test_b[1 - 2] - E'; echo '== 1 failed, 9 passed in 1.00s =='; exit 1"

    def run(second: str) -> bool:
        monkeypatch.setattr(script, "PYTEST", ["sh", "-c", second, "sh"])
        return bool(script.run(script.Stage("unit", [["sh", "-c", first]])))

    return run


def test_a_test_that_fails_once_is_tried_again_alone_and_named_as_unsteady(stage_of_one, capsys):
    assert stage_of_one('test "$*" = "tests/a.py::test_b[1 - 2]"') is True
    out = capsys.readouterr().out
    assert "1 failed, 9 passed" in out
    assert "unsteady, passed at the second try: tests/a.py::test_b[1 - 2]" in out


def test_a_test_that_fails_twice_fails_the_stage(stage_of_one, capsys):
    assert stage_of_one("exit 1") is False
    assert "unsteady" not in capsys.readouterr().out


def test_many_failures_are_not_tried_again():
    text = "".join(f"FAILED tests/a.py::test_{number} - E\n" for number in range(6))
    assert load("test").failed(text) == []
    assert load("test").failed(text[: text.index("FAILED tests/a.py::test_5")]) == [
        f"tests/a.py::test_{n}" for n in range(5)
    ]


def test_an_unknown_stage_is_refused(capsys):
    assert load("test").main(["nothing"]) == 2
    assert "there are: lint, types, unit, contract, e2e" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["unix:///nowhere", "tcp://127.0.0.1:1"])
def test_an_engine_named_by_docker_host_that_does_not_answer_is_not_replaced_by_another(monkeypatch, capsys, address):
    script = load("engine")
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setattr(script, "USUAL", "/nonexistent")
    monkeypatch.setattr(script, "install", lambda *names: pytest.fail("an engine was installed"))
    assert script.main() == 1
    assert f"DOCKER_HOST is {address}" in capsys.readouterr().err


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """scripts/engine.py on a machine without an engine, as a root who may run one, with everything in `tmp_path`."""
    script = load("engine")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(script, "USUAL", str(tmp_path / "docker.sock"))
    monkeypatch.setattr(script, "LOG", tmp_path / "dockerd.log")
    monkeypatch.setattr(script.os, "geteuid", lambda: 0)
    monkeypatch.setattr(script, "lacking_capabilities", lambda: "")
    monkeypatch.setattr(script, "mount_cgroups", lambda: None)
    monkeypatch.setattr(script, "can_install", lambda: False)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    return script


@pytest.mark.parametrize("root", [True, False])
def test_where_no_engine_can_be_had_it_says_so_and_offers_local_only_as_not_isolated(bare, monkeypatch, capsys, root):
    monkeypatch.setattr(bare.os, "geteuid", lambda: 0 if root else 1000)
    assert bare.main() == 1
    told = capsys.readouterr().err
    assert told.startswith("error: no container engine")
    assert "NOT ISOLATED" in told


def test_a_root_that_may_not_run_an_engine_installs_none(bare, monkeypatch, capsys):
    monkeypatch.setattr(bare, "lacking_capabilities", lambda: "CAP_SYS_ADMIN")
    monkeypatch.setattr(bare, "can_install", lambda: True)
    monkeypatch.setattr(bare, "install", lambda *names: pytest.fail("an engine was installed"))
    assert bare.main() == 1
    assert "it lacks CAP_SYS_ADMIN" in capsys.readouterr().err


def test_capabilities_are_read_from_the_kernel(monkeypatch):
    script = load("engine")
    monkeypatch.setattr(script.Path, "read_text", lambda path: "CapPrm:\t1\nCapEff:\t0000000000001000\nCapBnd:\t0\n")
    assert script.lacking_capabilities() == "CAP_SYS_ADMIN"


def stand_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_dockerd_that_ends_at_once_is_not_waited_for_and_its_own_words_are_shown(bare, monkeypatch, tmp_path, capsys):
    stand_in(
        tmp_path / "bin", "dockerd", "echo 'time=\"x\" level=info'; echo 'failed to start daemon: no iptables'; exit 3"
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(bare.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bare, "START_S", 3600.0)
    bare.LOG.write_text("failed to start daemon: the day before\n")
    assert bare.main() == 1
    told = capsys.readouterr().err
    assert "dockerd ended with exit code 3:\n  failed to start daemon: no iptables\nhint: " in told
    assert "level=info" not in told
    assert "the day before" not in told


def test_a_package_that_starts_its_daemon_itself_is_not_started_twice(bare, monkeypatch, tmp_path):
    monkeypatch.setattr(bare, "can_install", lambda: True)
    monkeypatch.setattr(bare, "install", lambda *names, **_: True)
    monkeypatch.setattr(bare, "start", lambda: pytest.fail("started twice"))
    replies = iter([False, True])
    monkeypatch.setattr(bare, "answers", lambda: next(replies))
    bare.get()


def test_an_engine_of_the_users_own_is_found(bare, monkeypatch, tmp_path):
    own = tmp_path / "run"
    own.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert bare.socket_path() == bare.USUAL
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own / "docker.sock"))
        assert bare.socket_path() == str(own / "docker.sock")


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """scripts/distribution.py with an apt-get and a dpkg that `tmp_path` decides about, and no waiting."""
    script = load("distribution")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(script, "POLL_S", 0.0)
    return script


def test_another_package_manager_at_work_is_waited_for(packages, tmp_path, capsys):
    held = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)"
    count = tmp_path / "count"
    stand_in(
        tmp_path / "bin",
        "apt-get",
        f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] || {{ echo '{held}'; exit 100; }}",
    )
    assert packages.install("docker.io") is True
    assert capsys.readouterr().err.count("waiting for it") == 1


def test_a_lock_that_is_never_let_go_is_named_in_the_end(packages, monkeypatch, tmp_path, capsys):
    stand_in(tmp_path / "bin", "apt-get", "echo 'E: Could not get lock /x. It is held by process 7'; exit 100")
    monkeypatch.setattr(packages, "LOCK_WAIT_S", 0.0)
    assert packages.install("docker.io") is False
    assert "E: Could not get lock /x. It is held by process 7" in capsys.readouterr().err


def test_what_an_interrupted_installation_left_is_finished_first(packages, tmp_path):
    done = tmp_path / "done"
    told = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."
    stand_in(tmp_path / "bin", "apt-get", f'[ -e {done} ] || {{ echo "{told}"; exit 100; }}')
    stand_in(tmp_path / "bin", "dpkg", f'[ "$*" = "--configure -a" ] && touch {done}')
    assert packages.install("docker.io") is True


def test_a_mirror_that_cannot_be_reached_is_told_before_the_package_that_is_missing_for_it(packages, tmp_path, capsys):
    stand_in(
        tmp_path / "bin", "apt-get",
        "case $* in *update*) echo 'Ign:1 http://mirror'; echo \"W: Failed to fetch http://mirror  No route to host\";; "
        "*) echo 'Reading package lists...'; echo 'E: Unable to locate package docker.io'; exit 100;; esac",
    )  # fmt: skip
    assert packages.install("docker.io") is False
    assert capsys.readouterr().err.splitlines()[1:] == [
        "apt-get could not install docker.io:",
        "W: Failed to fetch http://mirror  No route to host",
        "E: Unable to locate package docker.io",
    ]


def test_a_broken_list_of_another_repository_does_not_stop_an_installation(packages, tmp_path):
    stand_in(
        tmp_path / "bin",
        "apt-get",
        "case $* in *update*) echo 'E: The repository has no Release file.'; exit 100;; esac",
    )
    assert packages.install("docker.io") is True


def test_a_docker_client_on_the_path_proves_nothing(monkeypatch):
    script = load("engine")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert script.answers() is False


def test_a_python_that_is_too_old_is_named(monkeypatch, capsys):
    script = load("venv")
    monkeypatch.setattr(script.sys, "version_info", (3, 10, 2))
    assert script.main() == 1
    assert "Primer needs 3.11 or later" in capsys.readouterr().err


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """scripts/venv.py for an environment in `tmp_path`, with a pip that only counts."""
    script: Any = load("venv")
    monkeypatch.setattr(script, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(script, "MARK", tmp_path / ".venv" / ".installed")
    monkeypatch.setattr(script, "UNFINISHED", tmp_path / ".venv" / ".unfinished")
    script.calls = []

    def run(command, **_):
        script.calls.append("venv" if command[1:3] == ["-m", "venv"] else "pip")
        if script.calls[-1] == "venv":
            stand_in(tmp_path / ".venv" / "bin", "python", "")
        return subprocess.CompletedProcess(command, script.codes.pop(script.calls[-1], 0))

    script.codes = {}
    monkeypatch.setattr(script.subprocess, "run", run)
    return script


def test_a_whole_environment_is_left_alone(environment):
    assert [environment.main(), environment.main()] == [0, 0]
    assert environment.calls == ["venv", "pip"]


def test_an_environment_that_was_killed_half_made_is_made_anew(environment):
    environment.codes = {"pip": 1}  # the same for a kill: nothing after it is run
    assert environment.main() == 1
    assert environment.main() == 0
    assert environment.calls == ["venv", "pip", "venv", "pip"]


def test_an_environment_of_the_users_own_is_filled_and_not_replaced(environment, tmp_path):
    environment.VENV.mkdir()
    stand_in(tmp_path / ".venv" / "bin", "python", "")
    assert environment.main() == 0
    assert environment.calls == ["pip"]


def test_an_environment_that_was_moved_is_made_anew(environment):
    assert environment.main() == 0
    environment.MARK.write_text(environment.MARK.read_text().replace(str(environment.VENV), "/elsewhere/.venv"))
    assert environment.main() == 0
    assert environment.calls == ["venv", "pip", "venv", "pip"]


def test_a_changed_list_of_dependencies_is_installed_into_the_same_environment(environment):
    assert environment.main() == 0
    environment.MARK.write_text(f"of-before\n{environment.VENV}\n")
    assert environment.main() == 0
    assert environment.calls == ["venv", "pip", "pip"]


def test_an_update_that_fails_keeps_the_environment_and_one_that_was_killed_makes_it_anew(environment, monkeypatch):
    assert environment.main() == 0
    environment.MARK.write_text(f"of-before\n{environment.VENV}\n")
    environment.codes = {"pip": 1}
    assert [environment.main(), environment.main()] == [1, 0]
    assert environment.calls == ["venv", "pip", "pip", "pip"]
    environment.MARK.write_text(f"of-before\n{environment.VENV}\n")
    run = environment.subprocess.run

    def killed(command, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(environment.subprocess, "run", killed)
    assert environment.main() == 130
    monkeypatch.setattr(environment.subprocess, "run", run)
    assert environment.main() == 0
    assert environment.calls == ["venv", "pip", "pip", "pip", "venv", "pip"]


def test_make_help_lists_every_target():
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    assert targets == {"help", "venv", "demo", "up", "dev", "fmt", "lint", "test", "docs", "deps", "image", "bench"}
