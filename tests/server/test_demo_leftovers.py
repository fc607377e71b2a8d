"""A demo that was killed leaves a sandbox and a directory; the next demo removes both, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from primer_site import demo_leftovers, destroy
from primer_site.lock import ServerLock

CLAIM_AND_WAIT = """
import sys, time
from primer_site.demo_leftovers import Claim
claim = Claim()
print(claim.directory, flush=True)
time.sleep(600)
"""


@pytest.fixture
def removed(monkeypatch, tmp_path):
    """The instances whose objects were removed from the engine; directories of demos are in `tmp_path`."""
    names: list[str] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def remove_objects(name, where):
        names.append(name)
        return ["1 container removed"]

    monkeypatch.setattr(destroy, "remove_objects", remove_objects)
    return names


def left(directory, instance="inst-left"):
    (directory / "home").mkdir()
    (directory / "home" / "instance-id").write_text(instance)
    return directory


def abandoned():
    claim = demo_leftovers.Claim()
    claim.release()
    return left(claim.directory)


def test_a_killed_demo_is_cleared_by_the_next_one_and_a_running_one_is_not(removed):
    demo = subprocess.Popen([sys.executable, "-c", CLAIM_AND_WAIT], stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        directory = left(Path(demo.stdout.readline().strip()))
        demo_leftovers.clear()
        assert (directory.is_dir(), removed) == (True, [])
        os.kill(demo.pid, signal.SIGKILL)
        demo.wait()
    finally:
        demo.kill()
        demo.communicate()
    demo_leftovers.clear()
    assert (directory.is_dir(), removed) == (False, ["inst-left"])


def test_what_the_user_asked_to_keep_stays(removed):
    claim = demo_leftovers.Claim()
    claim.keep()
    claim.release()
    left(claim.directory)
    demo_leftovers.clear()
    assert (claim.directory.is_dir(), removed) == (True, [])


def test_a_demo_whose_server_still_drains_is_left_to_it(removed):
    directory = abandoned()
    server = ServerLock(directory / "home")
    demo_leftovers.clear()
    assert (directory.is_dir(), removed) == (True, [])
    server.release()
    demo_leftovers.clear()
    assert (directory.is_dir(), removed) == (False, ["inst-left"])


def test_a_directory_of_another_user_is_not_believed(removed, monkeypatch):
    directory = abandoned()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    demo_leftovers.clear()
    assert (directory.is_dir(), removed) == (True, [])


def test_a_link_in_the_place_of_a_directory_is_not_followed(removed, tmp_path):
    directory = abandoned()
    elsewhere = tmp_path / "elsewhere"
    directory.rename(elsewhere)
    directory.symlink_to(elsewhere)
    demo_leftovers.clear()
    assert (elsewhere.is_dir(), removed) == (True, [])


def test_a_demo_killed_before_it_had_an_install_leaves_only_its_directory(removed):
    claim = demo_leftovers.Claim()
    claim.release()
    demo_leftovers.clear()
    assert (claim.directory.exists(), removed) == (False, [])
