"""The scripts behind make: what they read out of tools, and what they do where something is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_stage_that_does_not_end_is_killed_with_its_children(tmp_path, monkeypatch):
    script = load("test")
    monkeypatch.setattr(script, "LOGS", tmp_path)
    monkeypatch.setattr(script, "BIN", Path("/bin"))
    stage = script.Stage("endless", [["sh", "-c", "sleep 600 & echo $!; wait"]], limit_s=0.3)
    assert script.run(stage) is False
    child = int(stage.log.read_text().split()[0])
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    assert "did not end within 0.3 s" in stage.log.read_text()


def test_a_failing_stage_shows_its_output(tmp_path, monkeypatch, capsys):
    script = load("test")
    monkeypatch.setattr(script, "LOGS", tmp_path)
    monkeypatch.setattr(script, "BIN", Path("/bin"))
    assert script.run(script.Stage("broken", [["sh", "-c", "echo the reason; exit 3"]])) is False
    assert "the reason" in capsys.readouterr().out


def test_an_unknown_stage_is_refused(capsys):
    assert load("test").main(["nothing"]) == 2
    assert "there are: lint, types, unit, contract, e2e" in capsys.readouterr().out


@pytest.mark.skipif(
    os.geteuid() == 0 and Path("/etc/debian_version").exists(), reason="root on Debian installs an engine"
)
def test_without_an_engine_the_script_says_how_to_get_one():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "engine.py"], env={**os.environ, "DOCKER_HOST": "unix:///nonexistent"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "hint:" in done.stderr


@pytest.mark.parametrize("root", [True, False])
def test_where_no_engine_can_be_had_it_says_so_and_offers_local_only_as_not_isolated(monkeypatch, capsys, root):
    script = load("engine")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setattr(script.os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    assert script.main() == 1
    told = capsys.readouterr().err
    assert told.startswith("error: no container engine")
    assert "NOT ISOLATED" in told


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


def test_make_help_lists_every_target():
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    assert targets == {"help", "venv", "demo", "up", "dev", "fmt", "lint", "test", "docs", "deps", "image", "bench"}
