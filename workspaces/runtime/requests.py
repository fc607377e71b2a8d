"""What the control plane can ask: each operation takes the server, the ticket to answer, and the body."""

from __future__ import annotations

import os
import sys

from . import files, linux, protocol, tree
from .paths import Failure, split
from .transfers import Download, PackDownload, Upload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .connection import Connection
    from .server import Server

MUTATIONS = {"write", "mkdir", "move", "delete"}  # a repeated request with the same `rid` is answered, not repeated


class Ticket:
    """Where an answer goes. It keeps the answer, so that a client whose connection broke can fetch it once more."""

    def __init__(self, connection: Connection, stream: int) -> None:
        self.connection, self.stream = connection, stream
        self._kind, self._payload = 0, b""

    def answer(self, body: dict[str, Any]) -> None:
        self._finish(protocol.REPLY, protocol.dumps(body))

    def fail(self, failure: Failure) -> None:
        self._finish(protocol.FAIL, protocol.dumps(failure.body()))

    def _finish(self, kind: int, payload: bytes) -> None:
        self._kind, self._payload = kind, payload
        self.connection.send(kind, self.stream, payload)

    def move(self, connection: Connection, stream: int) -> None:
        self.connection, self.stream = connection, stream
        if self._kind:
            connection.send(self._kind, stream, self._payload)


def _hello(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    """Facts of the sandbox; also where the control plane says what disk limit to watch."""
    server.registry.disk_bytes = max(0, int(body.get("disk_bytes", 0)))
    return {
        "version": protocol.VERSION,
        "boot_id": server.boot_id,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "pid": os.getpid(),
        "hostname": os.uname().nodename,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "machine": os.uname().machine,
        "workdir": os.fsdecode(server.root.path),
        "limits": server.registry.counters.limits,
        "rss_bytes": _rss_bytes(),
        "execs": len(server.registry.active),
    }


def _rss_bytes() -> int:
    fields = linux.read_small("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _ping(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    return {}


def _start(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    if server.stopping:
        raise Failure("busy", "the runtime is being stopped")
    server.registry.start(ticket.connection, ticket.stream, body)


def _run_of(server: Server, body: dict[str, Any]) -> Any:
    run = server.registry.runs.get(str(body.get("id")))
    if run is None:
        raise Failure("not_found", "there is no such exec")
    return run


def _attach(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    _run_of(server, body).attach(ticket.connection, ticket.stream, body)


def _cancel(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    """Begins to end a run; its outcome follows on its own stream."""
    run = _run_of(server, body)
    run.end("cancelled", run.request.grace_s, str(body.get("by", ""))[:200])
    return {"state": run.state}


def _kill(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any] | None:
    """Ends a run or what it left behind, and answers when that is done and counted."""
    run = _run_of(server, body)
    if run.state == "ended":
        if run.left is False:
            return {"left": 0}
        run.end_survivors(run.request.grace_s)
    else:
        run.end("cancelled", run.request.grace_s, str(body.get("by", ""))[:200])
    run.killers.append(ticket)
    return None


def _execs(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    runs = list(server.registry.runs.values())[-500:]
    return {
        "items": [
            {
                "id": run.id,
                "state": run.state,
                "pid": run.main,
                "program": os.fsdecode(run.request.argv[0])[:200],
                "stdout_bytes": run.outputs[0].total,
                "stderr_bytes": run.outputs[1].total,
                "survivors": run.survivors() if run.state == "ended" and run.left is not False else [],
            }
            for run in runs
        ]
    }


def _stat(server: Server, ticket: Ticket, body: dict[str, Any]) -> Any:
    return files.op_stat(server.root, body)


def _list(server: Server, ticket: Ticket, body: dict[str, Any]) -> Any:
    parts = split(body.get("path", ""), server.root.path, allow_root=True)
    limit = min(tree.MAX_PAGE, max(1, int(body.get("limit", tree.MAX_PAGE))))
    return tree.list_tree(server.root, parts, body.get("cursor"), limit, bool(body.get("recursive")))


def _read(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    limit = body.get("limit")
    limit = None if limit is None else int(limit)
    offset, credit = int(body.get("offset", 0)), int(body.get("credit", 0))
    reading = files.Reading(server.root, split(body.get("path"), server.root.path))
    Download(server, ticket, reading, body.get("bulk") is True).begin(offset, limit, body.get("if_range"), credit)


def _pack(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    credit = int(body.get("credit", 0))
    parts = split(body.get("path"), server.root.path, allow_root=True)
    PackDownload(server, ticket, server.root, parts, credit, body.get("bulk") is True)


def _write(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    size, limit = int(body.get("size", 0)), server.registry.disk_bytes
    if limit and server.registry.watcher.total + size > limit:
        raise Failure("no_space", "the workspace would grow beyond its disk limit")
    Upload(server, ticket, files.Writing(server.root, body), body.get("rid"))


def _mkdir(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    return files.op_mkdir(server.root, body)


def _move(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    return files.op_move(server.root, body)


def _delete(server: Server, ticket: Ticket, body: dict[str, Any]) -> Any:
    parts = split(body.get("path"), server.root.path)
    yield from files.require_etag(server.root, parts, body.get("if_match"))
    return (yield from tree.delete_tree(server.root, parts, bool(body.get("recursive"))))


def _shutdown(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    if server.resident:
        raise Failure("invalid", "PID 1 is ended by the engine")
    server.stop()
    return {}


OPERATIONS: dict[str, Callable[[Server, Ticket, dict[str, Any]], Any]] = {
    "hello": _hello,
    "ping": _ping,
    "start": _start,
    "attach": _attach,
    "cancel": _cancel,
    "kill": _kill,
    "execs": _execs,
    "stat": _stat,
    "list": _list,
    "read": _read,
    "pack": _pack,
    "write": _write,
    "mkdir": _mkdir,
    "move": _move,
    "delete": _delete,
    "shutdown": _shutdown,
}
