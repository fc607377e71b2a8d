"""The directories of the local provider: one per workspace, with the record of its process beside it, out of its reach."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final

from workspaces.providers import processes
from workspaces.providers.base import ChannelClosed, SandboxSpec, StartFailed
from workspaces.providers.channel import StreamChannel
from workspaces.providers.wire import Wire
from workspaces.runtime import build as runtime

NOBODY: Final = 65534
LAUNCH_TIMEOUT_S: Final = 20
REMOVE_TIMEOUT_S: Final = 120
LOCK_POLL_S: Final = 0.01
BOOT_LINES, LINE_CHARS = 20, 500
SOCKET_NAME: Final = "s"  # relative to the run directory: a full path may be too long for an address
SAFE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Becomes the runtime in a child that nobody waits for: it lives on when the server ends. Prints the child's pid.
LAUNCHER: Final = """
import json, os, resource, sys
a = json.loads(sys.argv[1])
for name, value in a["limits"].items():
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))
os.umask(0o077)
os.chdir(a["run"])
null, log = os.open("/dev/null", os.O_RDONLY), os.open("boot.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
if a["uid"] is not None:
    os.fchown(log, a["uid"], a["uid"])
    os.setgroups([]); os.setresgid(*[a["uid"]] * 3); os.setresuid(*[a["uid"]] * 3)
child = os.fork()
if child:
    print(child)
else:
    os.setsid()
    os.dup2(null, 0); os.dup2(log, 1); os.dup2(log, 2)
    os.closerange(3, 4096)
    os.execve(a["argv"][0], a["argv"], a["env"])
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One runtime: its process is named by pid and start together."""

    instance_id: str
    workspace_id: str
    generation: int
    pid: int = 0
    started: str = ""

    @property
    def alive(self) -> bool:
        return bool(self.started) and processes.started(self.pid) == self.started


def folder(path: str, mode: int) -> None:
    """Makes a directory of exactly this mode, whatever the server's umask is; one that is there stays as it is."""
    if not os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)


class Home:
    """`root_path`: `.state` (records and locks, the server's own), `.runtime` (zipapp, `bin`), and a directory per workspace."""

    def __init__(self, root: str, instance_id: str) -> None:
        self.root, self.instance_id = root, instance_id
        self.state = os.path.join(root, ".state")
        self.uid = NOBODY if os.geteuid() == 0 else os.getuid()
        self.runtime = os.path.join(root, ".runtime", runtime.digest()[:16] + ".pyz")
        self.programs = os.path.join(root, ".runtime", "bin")  # last on every PATH

    def prepare(self) -> None:
        """Makes what all workspaces share; OSError when the directory cannot be used."""
        folder(self.root, 0o711)
        folder(self.state, 0o700)
        folder(os.path.dirname(self.runtime), 0o755)
        if not os.path.exists(self.runtime):
            replace(self.runtime, runtime.zipapp_bytes(), 0o644)
        folder(self.programs, 0o755)
        for name in ("python", "python3"):  # images have both, machines often only one or none
            link(interpreter(), os.path.join(self.programs, name))

    @property
    def used(self) -> bool:
        """Whether anything was ever made here."""
        return os.path.isdir(self.state)

    def directory(self, workspace_id: str) -> Directory:
        return Directory(self, workspace_id)

    def records(self) -> list[Record]:
        """Everything of this instance here, also a record without a directory or a dead process."""
        try:
            names = sorted(name for name in os.listdir(self.state) if name.endswith(".json"))
        except FileNotFoundError:
            return []
        found = (self.directory(name.removesuffix(".json")).record() for name in names)
        return [record for record in found if record is not None]

    @asynccontextmanager
    async def locked(self, workspace_id: str) -> AsyncIterator[None]:
        """One start or removal of a workspace at a time, over all processes and providers of this machine."""
        path = os.path.join(self.state, workspace_id + ".lock")
        while (descriptor := take_lock(path)) is None:  # noqa: ASYNC110 — other processes hold it too
            await asyncio.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            self._release(workspace_id, path, descriptor)

    def _release(self, workspace_id: str, path: str, descriptor: int) -> None:
        if not os.path.exists(self.directory(workspace_id).record_path):
            os.unlink(path)  # nothing is left of the workspace
        os.close(descriptor)


class Directory:
    """One workspace: `files` (what users see) and `run` (socket and log), both of the runtime's uid."""

    def __init__(self, home: Home, workspace_id: str) -> None:
        self.home, self.workspace_id = home, workspace_id
        self.path = os.path.join(home.root, workspace_id)
        self.files = os.path.join(self.path, "files")
        self.run = os.path.join(self.path, "run")
        self.record_path = os.path.join(home.state, workspace_id + ".json")

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.files)

    def make(self) -> None:
        """The directories, and a record without a process, so that a crash from here on leaves nothing unknown."""
        if self.foreign:
            raise StartFailed(f"A directory named {self.workspace_id} belongs to another installation.")
        if self.record() is None:
            self.write(Record(self.home.instance_id, self.workspace_id, 0))
        folder(self.path, 0o711)
        for path in (self.files, self.run):
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chown(path, self.home.uid, self.home.uid if os.geteuid() == 0 else -1)

    def launch(self, spec: SandboxSpec) -> Record:
        """Starts the runtime as a process of its own session and stores its record; `StartFailed` when it does not start."""
        socket_path = os.path.join(self.run, SOCKET_NAME)
        if os.path.lexists(socket_path):
            os.unlink(socket_path)
        root = os.geteuid() == 0
        order = {
            "limits": {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024, "RLIMIT_FSIZE": spec.disk_bytes},
            "run": self.run,
            "uid": self.home.uid if root else None,
            "argv": [
                interpreter(), "-I", "-S", "-E", self.home.runtime,
                "serve", "--socket", SOCKET_NAME, "--workdir", self.files,
            ],
            "env": {"HOME": self.files, "LANG": "C.UTF-8", "PATH": f"{SAFE_PATH}:{self.home.programs}"},
        }  # fmt: skip
        done = subprocess.run(
            [interpreter(), "-I", "-S", "-E", "-c", LAUNCHER, json.dumps(order)],
            capture_output=True, text=True, timeout=LAUNCH_TIMEOUT_S, check=False, close_fds=True,
        )  # fmt: skip
        if not done.stdout.strip().isdigit():
            raise StartFailed("The runtime could not be started on this machine.", log=done.stderr[-2000:])
        pid = int(done.stdout)
        record = Record(spec.instance_id, self.workspace_id, spec.generation, pid, processes.started(pid))
        self.write(record)
        return record

    async def connect(self, pid: int) -> StreamChannel:
        """A stream to the socket of the process `pid`; `ChannelClosed` when another one listens there, OSError when none does."""
        folder = os.open(self.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_unix_connection(Wire, f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        finally:
            os.close(folder)
        # The name may have been replaced by a link to some other service of this machine.
        peer = wire.transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        if struct.unpack("3i", peer)[0] != pid:
            wire.transport.abort()
            raise ChannelClosed("Another process listens in place of the runtime.")
        return StreamChannel(wire)

    def record(self) -> Record | None:
        """The record of this installation's process, None when there is none or it is somebody else's."""
        record = self._read()
        return record if record is not None and record.instance_id == self.home.instance_id else None

    @property
    def foreign(self) -> bool:
        record = self._read()
        return record is not None and record.instance_id != self.home.instance_id

    def _read(self) -> Record | None:
        try:
            with open(self.record_path, encoding="utf-8") as file:
                return Record(**json.load(file))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, record: Record) -> None:
        replace(self.record_path, json.dumps(asdict(record)).encode(), 0o600)

    def boot_lines(self) -> tuple[str, ...]:
        """The last lines of the runtime's own log: hostile text, cut to size; no link is followed."""
        try:
            descriptor = os.open(os.path.join(self.run, "boot.log"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return ()
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(64 * 1024).decode("utf-8", "replace")
        return tuple(line[:LINE_CHARS] for line in text.splitlines()[-BOOT_LINES:])

    def take_back(self, made: bool) -> None:
        """After a failed start: ends the process, and removes the files if that start had made them."""
        record = self.record()
        if record is not None:
            processes.end_tree(record.pid, record.started)
        if made:
            self.remove()

    def remove(self) -> list[str]:
        """Ends the process, removes directory and record; returns what was there."""
        removed: list[str] = []
        if self.foreign:
            return removed
        record = self.record()
        if record is not None and processes.end_tree(record.pid, record.started):
            removed.append("process")
        if os.path.lexists(self.path):
            remove_tree(self.path)
            removed.append("directory")
        if record is not None:
            os.unlink(self.record_path)
        return removed


def replace(path: str, data: bytes, mode: int) -> None:
    """Writes a file whole or not at all, also when several do it at once."""
    descriptor, part = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".part-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chmod(part, mode)
    os.replace(part, path)


def link(target: str, path: str) -> None:
    """A symbolic link with this target, also where another one stood and when several make it at once."""
    if os.path.lexists(path) and os.readlink(path) == target:
        return
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as place:
        os.symlink(target, os.path.join(place, "link"))
        os.replace(os.path.join(place, "link"), path)


def take_lock(path: str) -> int | None:
    """The descriptor of the lock, None while somebody else has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Removed, and made again by another holder meanwhile: then the lock that we have means nothing.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def remove_tree(path: str) -> None:
    """`rm -rf`: it goes down by descriptors, follows no link, and no depth of hostile directories ends it."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], capture_output=True, timeout=REMOVE_TIMEOUT_S, check=False)
    subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", path], capture_output=True, timeout=REMOVE_TIMEOUT_S, check=True
    )


def interpreter() -> str:
    """A python that the runtime's uid may execute: the server's own, unless it lies in a closed directory."""
    own = os.path.realpath(sys.executable)
    parts = own.split("/")
    folders = ["/".join(parts[:depth]) or "/" for depth in range(1, len(parts))]
    if os.geteuid() != 0 or all(os.stat(folder).st_mode & 0o001 for folder in folders):
        return own
    return shutil.which("python3", path=SAFE_PATH) or own
