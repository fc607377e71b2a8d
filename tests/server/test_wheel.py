"""The wheel alone: everything that a server needs is in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A directory with the wheel unpacked as an installer would, beside the environment's dependencies."""
    work: Path = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    # A copy: the build writes into its source, and two builds at once would meet there.
    left_out = shutil.ignore_patterns(".*", "var", "build", "dist", "*.egg-info", "__pycache__", "docs", "tests")
    shutil.copytree(ROOT, source, ignore=left_out)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], cwd=work, check=True)
    (wheel,) = work.glob("primer_console-*.whl")
    site = work / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(site: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site), "PRIMER_HOME": str(site.parent / "home"), **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_server_is_prepared_from_the_wheel_in_an_empty_directory(installed):
    done = run(installed, "-m", "primer_site.command", "up", "--prepare-only", DOCKER_HOST="unix:///nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Next     primer up" in done.stdout
    where = run(installed, "-c", "import primer_site; print(primer_site.__file__)")
    assert where.stdout.startswith(str(installed)), "the checkout was used instead of the wheel"


def test_the_image_can_be_built_from_the_wheel(installed):
    done = run(installed, "-c", "from workspaces import image; print(len(image.context().getvalue()))")
    assert int(done.stdout) > 50_000, done.stderr


def test_the_samples_are_in_the_wheel(installed):
    names = {path.name for path in installed.rglob("share/primer/samples/*.yaml")}
    assert names == {path.name for path in (ROOT / "samples").glob("*.yaml")}


def test_the_wheel_holds_no_tests_and_no_scripts(installed):
    assert not (installed / "tests").exists()
    assert not (installed / "scripts").exists()
