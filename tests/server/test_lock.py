"""One server per data directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from primer_site import up
from primer_site.lock import Holder, ServerLock, ServerRuns, holder

HOLD = """
import sys, pathlib
from primer_site.lock import ServerLock
lock = ServerLock(pathlib.Path(sys.argv[1]))
lock.publish("http://127.0.0.1:9")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_learns_who_holds_it(tmp_path, other):
    with pytest.raises(ServerRuns, match=rf"process {other.pid} and serves http://127\.0\.0\.1:9"):
        ServerLock(tmp_path)
    assert holder(tmp_path) == Holder(other.pid, "http://127.0.0.1:9")


def test_looking_does_not_take_it(tmp_path):
    lock = ServerLock(tmp_path)
    assert holder(tmp_path) == Holder(os.getpid())
    lock.release()
    assert holder(tmp_path) is None
    ServerLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_free(tmp_path, other):
    other.kill()
    other.wait()
    assert holder(tmp_path) is None
    ServerLock(tmp_path).release()


def test_nobody_holds_the_lock_of_a_directory_that_is_not_there(tmp_path):
    assert holder(tmp_path / "nothing") is None


def test_a_half_written_lock_file_is_no_error(tmp_path, other):
    (tmp_path / "server.lock").write_text('{"pid": 1')
    assert holder(tmp_path) == Holder(0)


def test_up_waits_for_one_that_is_just_ending_and_takes_its_place(tmp_path):
    ending = ServerLock(tmp_path)
    timer = threading.Timer(0.3, ending.release)
    timer.start()
    taken = up._lock(tmp_path)
    timer.join()
    assert isinstance(taken, ServerLock)
    taken.release()


def test_up_gives_up_on_one_that_neither_serves_nor_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(up, "PATIENCE_S", 0.2)
    held = ServerLock(tmp_path)
    with pytest.raises(ServerRuns, match=rf"process {os.getpid()}\."):
        up._lock(tmp_path)
    held.release()


def test_up_names_the_one_that_serves(tmp_path, other):
    assert up._lock(tmp_path) == Holder(other.pid, "http://127.0.0.1:9")
