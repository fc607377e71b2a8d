"""Bytes on their way: files and directories out, files in. One chunk at a time, as the client's credit allows."""

from __future__ import annotations

import os

from . import protocol
from .loop import Job
from .pack import Pack
from .paths import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generator

    from .files import Reading, Writing
    from .paths import Root
    from .requests import Ticket
    from .server import Server

JOB_S = 60.0
BULK_FROM = 4 * 1024 * 1024  # bytes of a transfer for which a faster MAC is worth its memory


class Sending:
    """What goes out: `pump` sends one chunk, and jobs find out what to send.

    A job may be at work when the client gives up. What it works with is closed behind it, never under it.
    """

    def __init__(self, server: Server, ticket: Ticket, bulk: bool) -> None:
        self._server, self._ticket = server, ticket
        self._may_bulk, self._bulk = bulk, False  # the client takes bulk frames; it gets them
        self._busy = self._ended = False
        self._limit = 0
        ticket.connection.handle(ticket.stream, self)

    def pump(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def work(self, steps: Generator[None, None, None], then: Callable[[], None] | None = None) -> None:
        def guarded() -> Generator[None, None, None]:
            for _ in steps:
                if self._ended:
                    return
                yield

        def done(value: Any, error: Exception | None) -> None:
            self._busy = False
            if self._ended:
                self.close()
            elif error is not None:
                self.fail(error)
            elif then is not None:
                then()

        self._busy = True
        self._server.loop.add_job(Job(guarded(), done, self._server.loop.now + JOB_S))

    def opened(self, body: dict[str, Any]) -> None:
        self._ticket.connection.send(protocol.EVENT, self._ticket.stream, protocol.dumps(body))

    def expect(self, size: int) -> None:
        """So many bytes are known to go out in all."""
        if self._may_bulk and size >= BULK_FROM:
            self._may_bulk, self._bulk = False, self._ticket.connection.bulk()

    @property
    def chunk(self) -> int:
        return protocol.BULK_CHUNK if self._bulk else protocol.CHUNK

    def send(self, offset: int, data: bytes) -> None:
        connection, stream = self._ticket.connection, self._ticket.stream
        if self._bulk:
            connection.send_bulk(stream, data)
        else:
            connection.send(protocol.DATA, stream, protocol.pack_data(protocol.FILE, offset, data))

    def end(self) -> None:
        self._ended = True
        self._ticket.connection.forget(self._ticket.stream)
        if not self._busy:
            self.close()

    def fail(self, error: Exception) -> None:
        self.end()
        self._server.fail(self._ticket.connection, self._ticket.stream, error)

    def on_credit(self, channel: int, taken: int, limit: int) -> None:
        self._limit = max(self._limit, limit)

    def on_data(self, channel: int, offset: int, data: bytes) -> None:
        raise protocol.ProtocolViolation("what is sent takes no data")

    def on_end(self, channel: int) -> None:
        pass

    def on_close(self) -> None:
        if not self._ended:
            self.end()


class Download(Sending):
    """Serves one read: what the file is, then its bytes, then what it was at the end."""

    def __init__(self, server: Server, ticket: Ticket, reading: Reading, bulk: bool) -> None:
        self._reading = reading
        super().__init__(server, ticket, bulk)

    def begin(self, offset: int, limit: int | None, if_range: object, credit: int) -> None:
        def begun() -> None:
            self._limit = self._reading.start + credit
            self.expect(self._reading.end - self._reading.start)
            self.opened(self._reading.opened())

        self.work(self._reading.prepare(offset, limit, if_range), begun)

    def pump(self) -> bool:
        reading = self._reading
        if self._busy or self._ended or (reading.offset >= self._limit and reading.offset < reading.end):
            return False
        offset = reading.offset
        try:
            data = reading.next_part(min(self.chunk, self._limit - offset))
            if data:
                self.send(offset, data)
                return True
            self._ticket.answer(reading.result())
        except OSError as error:
            self.fail(error)
        else:
            self.end()
        return False

    def close(self) -> None:
        self._reading.close()


class PackDownload(Sending):
    """Serves one directory: what it is, then the items of its tree as one run of bytes, then how many entries it had."""

    def __init__(self, server: Server, ticket: Ticket, root: Root, parts: list[bytes], credit: int, bulk: bool) -> None:
        self._pack = Pack(root, parts)
        self._items = self._pack.items()
        self._buffer = bytearray()
        self._sent = 0
        self._whole = False
        super().__init__(server, ticket, bulk)
        self._limit = credit
        self.opened({"info": describe(parts, os.fstat(self._pack.fd))})

    def pump(self) -> bool:
        if self._busy or self._ended or self._sent >= self._limit:
            return False
        if self._buffer:
            data = bytes(self._buffer[: min(self.chunk, self._limit - self._sent)])
            del self._buffer[: len(data)]
            self.send(self._sent, data)
            self._sent += len(data)
            self.expect(self._sent)
            return True
        if self._whole:
            self._ticket.answer({"entries": self._pack.entries})
            self.end()
            return False
        self.work(self._fill())
        return not self._busy  # a long walk goes on as a job, and is looked at again in the next turn of the loop

    def _fill(self) -> Generator[None, None, None]:
        for count, item in enumerate(self._items, 1):
            if item is not None:
                self._buffer += item
                if len(self._buffer) >= self.chunk:
                    return
            if item is None or count % 64 == 0:
                yield
        self._whole = True

    def close(self) -> None:
        self._items.close()
        self._pack.close()


class Upload:
    """Serves one write; a connection that breaks before the end leaves the old file as it was."""

    def __init__(self, server: Server, ticket: Ticket, writing: Writing, rid: object) -> None:
        self._server, self._ticket, self._writing, self._rid = server, ticket, writing, rid
        self._ended = False
        ticket.connection.handle(ticket.stream, self)

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
