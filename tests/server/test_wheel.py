"""The wheel alone: its base speaks to a server elsewhere, and with its extra it is that server, started in an empty directory."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import requests

from tests.e2e import test_cookbook_code_interpreter_cli as cookbook
from tests.e2e.conftest import api, runtime_image
from tests.e2e.recipe import SAMPLES
from tests.live import LiveServer
from tests.server.clean import ROOT, Clean, build_wheel
from tests.server.primer import NO_ENGINE

__all__ = ["api", "runtime_image"]
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path) -> Clean:
    """The command line alone."""
    return Clean(wheel.parent / "base", wheel)


@pytest.fixture(scope="module")
def full(wheel: Path) -> Clean:
    """With the server extra."""
    return Clean(wheel.parent / "full", wheel, extra="server")


# -- the base


def test_the_base_has_no_django_and_no_engine_and_nothing_of_the_checkout(base: Clean, tmp_path: Path) -> None:
    code = (
        "import importlib.util as u, cli; "
        "print([n for n in ('django', 'docker', 'channels', 'pytest', 'tests') if u.find_spec(n)], cli.__file__)"
    )
    done = base.run("python", "-c", code, cwd=tmp_path)
    assert done.stdout == f"[] {base.site}/cli/__init__.py\n", done.stderr


def test_primer_of_the_base_says_how_to_get_the_server(base: Clean, tmp_path: Path) -> None:
    for command in ("up", "doctor", "prune", "demo"):
        done = base.run("primer", command, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: the server part is not installed\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_the_base_signs_in_to_a_server_elsewhere_by_itself(base: Clean, server: LiveServer, tmp_path: Path) -> None:
    env = {"PRIMECTL_SERVER": server.url, "PRIMECTL_TOKEN": server.token}
    assert base.run("primectl", "whoami", cwd=tmp_path, **env).stdout.startswith("admin")
    refused = base.run("primectl", "get", "agents", cwd=tmp_path, **{**env, "PRIMECTL_TOKEN": "wrong"})
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr


@pytest.mark.docker
def test_the_recipes_lines_run_from_the_base_against_a_server_elsewhere(
    base: Clean, runtime_image: str, api: object, server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of the recipe and everything it must leave, by the test of the recipe itself."""

    class Installed(cookbook.Shell):
        def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
            done = base.run("primectl", *words, cwd=SAMPLES, **self.environment)
            assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            return done

    monkeypatch.setattr(cookbook, "Shell", Installed)
    cookbook.test_the_recipe_over_the_command_line(runtime_image, api, server, tmp_path)  # type: ignore[arg-type]


# -- the server


def test_primer_up_serves_from_the_wheel_in_an_empty_directory(full: Clean, tmp_path: Path) -> None:
    env = {"PRIMER_INIT_TOKEN": "t" * 40, "PYTHONUNBUFFERED": "1", **NO_ENGINE}
    server = subprocess.Popen(
        [full.bin / "primer", "up", "--port", "0"], cwd=tmp_path, env=full.env(tmp_path, **env), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith("Try "):
                break
        url = next(line.split()[1].rstrip("/") for line in lines if line.startswith("Console "))
        assert requests.get(f"{url}/readyz", timeout=30).json() == {"ready": True}
        head = {"Authorization": "Bearer " + "t" * 40}
        assert requests.get(f"{url}/v1/docs/", headers=head, timeout=30).status_code == 200
        agents = full.run("primectl", "get", "agents", "-o", "name", cwd=tmp_path)
        assert agents.stdout == "agent/default-runner\n", agents.stderr
        again = full.run("primer", "up", cwd=tmp_path)
        assert f"Console  {url}/" in again.stdout
    finally:
        server.send_signal(signal.SIGTERM)
        rest, _ = server.communicate(timeout=60)
    assert server.returncode == 0, rest
    made = {path.name for path in tmp_path.iterdir()}
    assert made <= {".local", ".config", ".cache"}, "a server writes into its data directory and the context file only"
    kept = {path.name for path in tmp_path.glob(".cache/*")}
    assert kept <= {"primectl"}, "primectl notes there when a server last answered"


def test_every_command_of_the_wheel_finds_its_parts(full: Clean, tmp_path: Path) -> None:
    """Without an engine and without an install: sentences, no tracebacks."""
    lines = {
        "doctor": 1,
        "prune": 1,
        "demo": 1,
        "backup file": 1,
        "admin reset-password": 1,
        "image build": 1,
        "destroy -y": 0,
    }
    for line, code in lines.items():
        done = full.run("primer", *line.split(), cwd=tmp_path, **NO_ENGINE)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), f"{line}: {done.stdout}{done.stderr}"
    assert list(tmp_path.iterdir()) == []


def test_a_backup_of_the_wheel_is_restored_by_the_wheel(full: Clean, tmp_path: Path) -> None:
    one, two = {"PRIMER_HOME": str(tmp_path / "one"), **NO_ENGINE}, {"PRIMER_HOME": str(tmp_path / "two"), **NO_ENGINE}
    assert full.run("primer", "up", "--prepare-only", cwd=tmp_path, **one).returncode == 0
    assert full.run("primer", "backup", "file", cwd=tmp_path, **one).returncode == 0
    done = full.run("primer", "restore", "file", cwd=tmp_path, **two)
    assert done.returncode == 0, done.stderr


# -- what is in it


def test_the_image_can_be_built_from_the_wheel(full: Clean, tmp_path: Path) -> None:
    code = "from workspaces import image; print(len(image.context().getvalue()))"
    done = full.run("python", "-c", code, cwd=tmp_path)
    assert int(done.stdout) > 50_000, done.stderr


def test_the_samples_are_in_the_wheel(full: Clean) -> None:
    names = {path.name for path in full.directory.glob("share/primer/samples/*.yaml")}
    assert names == {path.name for path in (ROOT / "samples").glob("*.yaml")}


def test_the_wheel_holds_no_tests_and_no_scripts(base: Clean) -> None:
    ours = {path.name for path in base.site.iterdir()}
    assert not ours & {"tests", "scripts", "benchmarks", "samples"}
