"""The runtime's loop: listens, checks who connects, hands requests to runs and files, and reaps as PID 1."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import gc
import os
import sys

from . import linux, protocol
from .connection import Connection
from .loop import IN, Job, Loop
from .paths import Failure, Root, failure_of
from .registry import Registry
from .requests import MUTATIONS, OPERATIONS, Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator

MAX_PROVEN, MAX_UNPROVEN = 8, 4
MAX_TICKETS = 256
JOB_S = 60.0
_BASE_NAMES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "HOSTNAME")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Server:
    def __init__(self, address: str, workdir: str) -> None:
        self.resident = os.getpid() == 1
        self.loop = Loop()
        self.root = Root(workdir)
        self.boot_id = os.urandom(8).hex()
        self.key: bytes | None = None
        self.connections: list[Connection] = []
        self.tickets: dict[str, Ticket] = {}
        self.stopping = False
        self.registry = Registry(self.loop, self.root, base_environment(workdir, self.resident), self.resident)
        self._listener = listen(address)
        self._abstract = address.startswith("@")
        self.loop.watch(self._listener.fileno(), IN, self._on_accept)

    # -- connections

    def greeting(self, nonce: str) -> dict[str, Any]:
        return {
            "version": protocol.VERSION,
            "protocol": protocol.PROTOCOL,
            "nonce": nonce,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "boot_id": self.boot_id,
            "claimed": self.key is not None,
        }

    def _on_accept(self, mask: int) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        sock = _socket.socket(fileno=fd)
        unproven = sum(not one.proven for one in self.connections)
        if unproven >= MAX_UNPROVEN or (self.resident and not from_outside(sock)):
            sock.close()
            return
        self.connections.append(Connection(self, sock))

    def claim(self, key: bytes) -> None:
        """Learns the hash of the token, once, and only while nothing of a user has run."""
        if self.key is not None or self.registry.runs or len(key) != 32:
            raise protocol.ProtocolViolation("claimed already")
        self.key = key

    def admit(self, connection: Connection) -> bool:
        return sum(one.proven for one in self.connections) < MAX_PROVEN

    def closed(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)

    # -- requests

    def request(self, connection: Connection, stream: int, body: dict[str, Any]) -> None:
        operation = str(body.get("op"))
        handler = OPERATIONS.get(operation)
        try:
            if handler is None:
                raise Failure("unknown_operation", f"this runtime ({protocol.VERSION}) does not know it")
            ticket = self._ticket(connection, stream, operation, body)
            if ticket is None:
                return
            result = handler(self, ticket, body)
        except Exception as error:  # whatever a request does, it gets an answer
            self.fail(connection, stream, error, body.get("rid"))
            return
        if isinstance(result, dict):
            ticket.answer(result)
        elif result is not None:
            self.run_job(ticket, result)

    def _ticket(self, connection: Connection, stream: int, operation: str, body: dict[str, Any]) -> Ticket | None:
        """None when this very change was asked before over a connection that broke: its answer comes, the change does not
        happen twice."""
        rid = body.get("rid") if operation in MUTATIONS else None
        if isinstance(rid, str):
            known = self.tickets.get(rid)
            if known is not None:
                known.move(connection, stream)
                return None
            while len(self.tickets) >= MAX_TICKETS:
                del self.tickets[next(iter(self.tickets))]
        ticket = Ticket(connection, stream)
        if isinstance(rid, str):
            self.tickets[rid] = ticket
        return ticket

    def run_job(self, ticket: Ticket, steps: Generator[None, None, dict[str, Any]]) -> None:
        def done(value: Any, error: Exception | None) -> None:
            if error is None:
                ticket.answer(value)
            else:
                ticket.fail(self.failure(error))

        self.loop.add_job(Job(steps, done, self.loop.now + JOB_S))

    def fail(self, connection: Connection, stream: int, error: Exception, rid: object = None) -> None:
        failure = self.failure(error)
        ticket = self.tickets.get(rid) if isinstance(rid, str) else None
        if ticket is not None:
            ticket.fail(failure)
        else:
            connection.refuse(stream, failure)

    @staticmethod
    def failure(error: Exception) -> Failure:
        if isinstance(error, Failure):
            return error
        if isinstance(error, TimeoutError):
            return Failure("timeout", "the operation took too long")
        if isinstance(error, OSError):
            return failure_of(error)
        return Failure("invalid", "a field of the request has a wrong type")

    # -- the loop

    def serve(self) -> None:
        while not self.stopping or self.registry.active:
            self.loop.guarded(self.registry.tick)
            self._flush()
            if not self.stopping:
                self.registry.ensure_idle()
            self.loop.run_once(self.registry.wait_s())
            self._close_overdue()
        self._flush()

    def _flush(self) -> None:
        for connection in list(self.connections):
            self.loop.guarded(connection.flush)

    def _close_overdue(self) -> None:
        for connection in list(self.connections):
            if connection.overdue(self.loop.now):
                if self.resident and from_outside(connection.sock):
                    # A bridge that code inside has stopped would stay for ever; one that had ended would not be overdue.
                    linux.send_signal(peer_of(connection.sock), _signal.SIGKILL)
                connection.close()

    def stop(self) -> None:
        """Ends every run and then the loop (never as PID 1: its end is the engine's business)."""
        self.stopping = True
        for run in list(self.registry.runs.values()):
            if run.state == "ended" and run.left is not False:
                run.end_survivors(0.0)
            run.end("cancelled", 0.0, "shutdown")


def listen(address: str) -> _socket.socket:
    """`@name` is an abstract socket, which no program can unlink; a path is for runtimes outside a container."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
    if address.startswith("@"):
        sock.bind(b"\0" + os.fsencode(address[1:]))
    else:
        try:
            os.unlink(address)
        except FileNotFoundError:
            pass
        sock.bind(address)
        os.chmod(address, 0o600)
    sock.listen(16)
    return sock


def peer_of(sock: _socket.socket) -> int:
    """The pid of the process at the other end."""
    raw = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], sys.byteorder)


def from_outside(sock: _socket.socket) -> bool:
    """Whether the peer was put in by the engine: then its parent is outside this pid namespace, and reads as 0."""
    for line in linux.read_small(f"/proc/{peer_of(sock)}/status", 2048).split(b"\n"):
        if line.startswith(b"PPid:"):
            return line.split()[1] == b"0"
    return False


def base_environment(workdir: str, resident: bool) -> dict[bytes, bytes]:
    """What every run gets below its own: the container's, which holds nothing of ours; elsewhere only plain names."""
    names = os.environ if resident else [name for name in _BASE_NAMES if name in os.environ]
    env = {os.fsencode(name): os.fsencode(os.environ[name]) for name in names}
    env.setdefault(b"PATH", _DEFAULT_PATH.encode())
    env.setdefault(b"HOME", os.fsencode(workdir))
    return env


def why_not(error: OSError, address: str, workdir: str) -> str:
    """What failed and where; and what to do where that is known: this is all that anybody sees of it."""
    words = f"{errno.errorcode.get(error.errno or 0, 'EIO')} at {error.filename or address}"
    if error.filename != workdir:
        return words
    if error.errno == errno.EACCES:
        return f"{words}. Give the directory to uid {os.geteuid()} (chown), with mode 0750, and start again."
    if error.errno in (errno.ENOTDIR, errno.ENOENT):
        return f"{words}. Put a directory of uid {os.geteuid()} there, and start again."
    return words


def serve(address: str, workdir: str) -> int:
    """Runs until it is stopped. First of all: nobody of the same uid may read this process."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.ignore_signals()
    os.umask(0o022)
    try:
        server = Server(address, workdir)
    except OSError as error:
        sys.stderr.write(f"primer-runtime cannot start: {why_not(error, address, workdir)}\n")
        return 1
    if not server.resident:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        _signal.signal(_signal.SIGTERM, lambda *_: server.stop())
        _signal.signal(_signal.SIGINT, lambda *_: server.stop())
    gc.collect()
    gc.freeze()  # keepers are forks: objects that no collection touches stay shared
    linux.trim_heap()
    sys.stdout.write(f"primer-runtime ready {protocol.VERSION}\n")
    sys.stdout.flush()
    server.serve()
    return 0
