"""What the control plane can ask: each operation takes the server, the ticket to answer, and the body."""

from __future__ import annotations

import os
import sys

from . import files, linux, protocol, tree
from .paths import Failure, describe, split

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


class Download:
    """Serves one read: info first, then bytes as the client's credit allows, then the ETag."""

    def __init__(self, server: Server, ticket: Ticket, reading: files.Reading, credit: int) -> None:
        self._server, self._ticket, self._reading = server, ticket, reading
        self._limit = reading.start + credit
        self._ended = False

    def pump(self) -> bool:
        reading = self._reading
        if self._ended or (reading.offset >= self._limit and reading.offset < reading.end):
            return False
        offset = reading.offset
        try:
            data = reading.next_part(self._limit - offset)
        except OSError as error:
            self._close()
            self._server.fail(self._ticket.connection, self._ticket.stream, error)
            return False
        if data:
            payload = protocol.pack_data(protocol.FILE, offset, data)
            self._ticket.connection.send(protocol.DATA, self._ticket.stream, payload)
            return True
        self._ended = True
        self._ticket.connection.forget(self._ticket.stream)
        self._server.run_job(self._ticket, self._result())
        return False

    def _result(self) -> Any:
        try:
            return (yield from self._reading.result())
        finally:
            self._reading.close()

    def _close(self) -> None:
        self._ended = True
        self._ticket.connection.forget(self._ticket.stream)
        self._reading.close()

    def on_credit(self, channel: int, taken: int, limit: int) -> None:
        self._limit = max(self._limit, limit)

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        raise protocol.ProtocolViolation("a read takes no data")

    def on_end(self, channel: int) -> None:
        pass

    def on_close(self) -> None:
        if not self._ended:
            self._close()


class Upload:
    """Serves one write; a connection that breaks before the end leaves the old file as it was."""

    def __init__(self, server: Server, ticket: Ticket, writing: files.Writing, rid: object) -> None:
        self._server, self._ticket, self._writing, self._rid = server, ticket, writing, rid
        self._ended = False

    def pump(self) -> bool:
        return False

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        writing = self._writing
        writing.write(offset, data)
        if writing.granted - writing.received < protocol.WINDOW // 2:
            writing.granted = writing.received + protocol.WINDOW
            payload = protocol.pack_credit(protocol.FILE, writing.received, writing.granted)
            self._ticket.connection.send(protocol.CREDIT, self._ticket.stream, payload)

    def on_credit(self, channel: int, taken: int, limit: int) -> None:
        pass

    def on_end(self, channel: int) -> None:
        self._ended = True
        self._ticket.connection.forget(self._ticket.stream)
        self._server.run_job(self._ticket, self._commit())

    def _commit(self) -> Any:
        try:
            return (yield from self._writing.commit())
        finally:
            self._writing.close()

    def on_close(self) -> None:
        if not self._ended:
            self._ended = True
            self._writing.close()
            if isinstance(self._rid, str):
                self._server.tickets.pop(self._rid, None)  # nothing happened, so it may be asked again


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
    parts = split(body.get("path"), server.root.path)
    limit = body.get("limit")
    reading = files.Reading(server.root, parts, int(body.get("offset", 0)), None if limit is None else int(limit))
    download = Download(server, ticket, reading, int(body.get("credit", 0)))
    opened = {"info": describe(parts, reading.info), "start": reading.start, "end": reading.end}
    ticket.connection.send(protocol.EVENT, ticket.stream, protocol.dumps(opened))
    ticket.connection.handle(ticket.stream, download)


def _write(server: Server, ticket: Ticket, body: dict[str, Any]) -> None:
    size, limit = int(body.get("size", 0)), server.registry.disk_bytes
    if limit and server.registry.watcher.total + size > limit:
        raise Failure("no_space", "the workspace would grow beyond its disk limit")
    upload = Upload(server, ticket, files.Writing(server.root, body), body.get("rid"))
    ticket.connection.handle(ticket.stream, upload)


def _mkdir(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    return files.op_mkdir(server.root, body)


def _move(server: Server, ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    return files.op_move(server.root, body)


def _delete(server: Server, ticket: Ticket, body: dict[str, Any]) -> Any:
    parts = split(body.get("path"), server.root.path)
    return tree.delete_tree(server.root, parts, bool(body.get("recursive")))


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
    "write": _write,
    "mkdir": _mkdir,
    "move": _move,
    "delete": _delete,
    "shutdown": _shutdown,
}
