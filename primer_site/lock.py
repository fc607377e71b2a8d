"""One server per data directory: a lock beside the database that ends with its process, and says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from primer_site.errors import Conflict
from primer_site.home import FILE_MODE

LOCK_FILE = "server.lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds the lock; `url` is "" until it serves."""

    pid: int
    url: str = ""


class ServerRuns(Conflict):
    """The server of this data directory runs."""

    code = "server_runs"

    def __init__(self, holder: Holder) -> None:
        where = f" and serves {holder.url}" if holder.url else ""
        super().__init__(
            f"The server of this data directory runs as process {holder.pid}{where}.",
            hint=f"Stop it first: kill {holder.pid}",
        )
        self.holder = holder


class ServerLock:
    """Held from the first change of the data directory to the end of the process; the kernel frees it, also after SIGKILL."""

    def __init__(self, home: Path) -> None:
        self._descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._descriptor)
            raise ServerRuns(_read(home) or Holder(0)) from exc
        self.publish("")

    def publish(self, url: str) -> None:
        """Tells others where this process serves."""
        data = json.dumps(asdict(Holder(os.getpid(), url))).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def release(self) -> None:
        os.close(self._descriptor)


def holder(home: Path) -> Holder | None:
    """Who serves from this data directory now; None when nobody does."""
    try:
        descriptor = os.open(home / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(home) or Holder(0)
    finally:
        os.close(descriptor)
    return None


def _read(home: Path) -> Holder | None:
    try:
        return Holder(**json.loads((home / LOCK_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None  # the holder is just writing it
