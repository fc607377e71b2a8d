"""One connection of the control plane: handshake, frames in and out, streams and their handlers."""

from __future__ import annotations

import _socket
import os

from . import gmac, protocol
from .loop import IN, OUT
from .paths import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .server import Server

HIGH = 256 * 1024  # bytes of output waiting for the socket: above, streams are not asked for more
PROVE_WITHIN_S = 2.0
SILENT_AFTER_S = 20.0  # the client pings far more often
_RECEIVE = 256 * 1024
_PIECES = 64  # of what waits, in one call


class Connection:
    """`streams` maps a stream number of the client to what serves it: a run, a reading, a writing."""

    def __init__(self, server: Server, sock: _socket.socket) -> None:
        self.server, self.sock, self.loop = server, sock, server.loop
        self.fd = sock.fileno()
        self.proven = False
        self.closed = False
        self.heard_at = self.opened_at = server.loop.now
        self.streams: dict[int, Any] = {}
        self._decoder, self._encoder = protocol.Decoder(), protocol.Encoder()
        self._out: list[bytes | memoryview] = []
        self._waiting = 0  # bytes of it
        self._bulk_key = b""
        self._bulk_tag: protocol.Tag | None = None
        sock.setblocking(False)
        self._greeting = protocol.dumps(server.greeting(os.urandom(16).hex()))
        self.loop.watch(self.fd, IN, self._on_event)
        self.send(protocol.GREETING, 0, self._greeting)
        self.flush()

    # -- out

    def send(self, kind: int, stream: int, payload: bytes) -> None:
        """Queues a frame; `flush` at the end of the loop's turn writes it."""
        if not self.closed:
            self._queue(self._encoder.encode(kind, stream, payload))

    def bulk(self) -> bool:
        """Whether `send_bulk` can be used; the first call brings in what it needs. Without room for it, DATA does."""
        key, self._bulk_key = self._bulk_key, b""
        try:
            if key and (library := gmac.library()) is not None:
                self._bulk_tag = gmac.Gmac(library, key)
        except (OSError, MemoryError):
            return False
        return self._bulk_tag is not None

    def send_bulk(self, stream: int, data: bytes) -> None:
        """`send` of the next bytes of a file to a client that takes them so."""
        if not self.closed and self._bulk_tag is not None:
            try:
                parts = self._encoder.encode_bulk(stream, data, self._bulk_tag)
            except OSError:
                self.close()
            else:
                self._queue(*parts)

    def _queue(self, *parts: bytes) -> None:
        self._out.extend(parts)
        self._waiting += sum(map(len, parts))

    def answer(self, stream: int, body: dict[str, Any]) -> None:
        self.send(protocol.REPLY, stream, protocol.dumps(body))

    def refuse(self, stream: int, failure: Failure) -> None:
        self.send(protocol.FAIL, stream, protocol.dumps(failure.body()))

    def pump(self) -> None:
        """Lets each stream send in turn, a chunk at a time, while the socket has room: a flood delays nobody."""
        while self._waiting < HIGH:
            more = False
            for handler in list(self.streams.values()):
                if self._waiting >= HIGH:
                    break
                more = handler.pump() or more
            if not more:
                return

    def flush(self) -> None:
        if self.closed:
            return
        if self.proven:
            self.pump()
        while self._out:
            try:
                count = self.sock.sendmsg(self._out[:_PIECES], (), _socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            self._sent(count)
            if self.proven and self._waiting < HIGH // 2:
                self.pump()
        self.loop.watch(self.fd, IN | OUT if self._out else IN)

    def _sent(self, count: int) -> None:
        self._waiting -= count
        whole = 0
        while count and count >= len(self._out[whole]):
            count -= len(self._out[whole])
            whole += 1
        del self._out[:whole]
        if count:
            self._out[0] = memoryview(self._out[0])[count:]

    # -- in

    def _on_event(self, mask: int) -> None:
        if mask & ~OUT:
            try:
                data = self.sock.recv(_RECEIVE if self.proven else protocol.MAX_GREETING)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.heard_at = self.loop.now
            try:
                self._decoder.feed(data)
                while not self.closed:
                    frame = self._decoder.next()
                    if frame is None:
                        break
                    self._on_frame(*frame)
            except protocol.ProtocolViolation:
                self.close()  # nothing this peer says counts any more; it gets no explanation either

    def _on_frame(self, kind: int, stream: int, payload: bytes) -> None:
        if not self.proven:
            self._on_handshake(kind, payload)
        elif kind == protocol.REQUEST:
            self.server.request(self, stream, protocol.loads(payload))
        elif kind in (protocol.DATA, protocol.CREDIT, protocol.END, protocol.ABORT):
            handler = self.streams.get(stream)
            if handler is not None:  # answered already: what was under way goes nowhere
                self._on_stream(handler, kind, stream, payload)
        else:
            raise protocol.ProtocolViolation("an unknown frame")

    def _on_stream(self, handler: Any, kind: int, stream: int, payload: bytes) -> None:
        try:
            if kind == protocol.DATA:
                handler.on_data(*protocol.unpack_data(payload))
            elif kind == protocol.CREDIT:
                handler.on_credit(*protocol.unpack_credit(payload))
            elif kind == protocol.END:
                handler.on_end(payload[0] if payload else 0)
            else:
                handler.on_close()
                self.forget(stream)
        except (Failure, OSError) as error:
            self.forget(stream)
            handler.on_close()
            self.server.fail(self, stream, error)

    def _on_handshake(self, kind: int, payload: bytes) -> None:
        """CLAIM once in the life of the runtime, then AUTH; anything else ends the connection."""
        body = protocol.loads(payload)
        if kind == protocol.CLAIM:
            self.server.claim(_from_hex(body.get("hash")))
            return
        key = self.server.key
        if kind != protocol.AUTH or key is None:
            raise protocol.ProtocolViolation("not a handshake")
        nonce, proof = _from_hex(body.get("nonce")), _from_hex(body.get("proof"))
        script = protocol.transcript(self._greeting, nonce)
        if not 16 <= len(nonce) <= 64 or not protocol.same_bytes(protocol.derive(key, script, b"client"), proof):
            self.send(protocol.REFUSED, 0, protocol.dumps({"code": "wrong_key"}))
            self.flush()
            raise protocol.ProtocolViolation("a wrong proof")
        if not self.server.admit(self):
            self.send(protocol.REFUSED, 0, protocol.dumps({"code": "busy"}))
            self.flush()
            raise protocol.ProtocolViolation("too many connections")
        self.send(protocol.WELCOME, 0, protocol.dumps({"proof": protocol.derive(key, script, b"server").hex()}))
        self._encoder.secure(protocol.derive(key, script, b"s2c"))
        self._bulk_key = protocol.derive(key, script, b"s2c-bulk")
        self._decoder.secure(protocol.derive(key, script, b"c2s"))
        self.proven = True

    # -- streams and the end

    def handle(self, stream: int, handler: Any) -> None:
        self.streams[stream] = handler

    def forget(self, stream: int) -> None:
        self.streams.pop(stream, None)

    def overdue(self, now: float) -> bool:
        return now - self.heard_at > SILENT_AFTER_S if self.proven else now - self.opened_at > PROVE_WITHIN_S

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.loop.forget(self.fd)
        self.sock.close()
        handlers, self.streams = list(self.streams.values()), {}
        for handler in handlers:
            handler.on_close()
        self.server.closed(self)


def _from_hex(text: object) -> bytes:
    try:
        return bytes.fromhex(str(text))
    except ValueError:
        raise protocol.ProtocolViolation("not hex") from None
