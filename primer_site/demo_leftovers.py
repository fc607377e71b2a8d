"""What a killed demo left behind, its sandbox on the engine and its data, is removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from primer_site import destroy, engine, report
from primer_site.lock import holder

PREFIX = "primer-demo-"
LOCK = "demo.lock"


class Claim:
    """A directory of a running demo: locked until its process ends, also by SIGKILL."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        fresh = self.directory / "new.lock"
        self._descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        fresh.rename(self.directory / LOCK)  # another demo that looks right now sees no lock or a held one

    def keep(self) -> None:
        """The directory belongs to the user from now on, and no later demo touches it."""
        (self.directory / LOCK).unlink()

    def release(self) -> None:
        os.close(self._descriptor)


def clear() -> None:
    """Removes what demos of this user left that run no more; raises PrimerError when the engine cannot be asked."""
    for directory in _abandoned():
        instance = directory / "home" / "instance-id"
        if instance.is_file() and (name := instance.read_text().strip()):
            removed = destroy.remove_objects(name, [("container", engine.config(), {})])
            if removed != [destroy.NOTHING]:
                report.ok("engine", f"{removed[0]}, left by a demo that was killed")
        shutil.rmtree(directory, ignore_errors=True)


def _abandoned() -> Iterator[Path]:
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        status = directory.lstat()
        # Anybody can make a directory of that name there, and could name somebody's install in it.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            continue
        if _free(directory / LOCK) and holder(directory / "home") is None:
            yield directory


def _free(lock: Path) -> bool:
    """Whether a demo had this lock and has ended. Without a lock the directory is just being made, or was kept."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
