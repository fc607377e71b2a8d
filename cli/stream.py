"""Events of a session, each once and in order: WebSocket first, the event list where that does not hold."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from cli.app import App
from cli.client import MAX_JSON
from cli.errors import ApiError, CliError, Exit, Unreachable
from cli.patience import AWAY_S
from cli.wire import segment

Event = dict[str, Any]

PROTOCOL = "primer.v1.json"
_SILENCE_S = 45.0  # the server pings every 20 s
_SOCKET_TRIES = 3
_PAGE = 500
_POLL_S = 1.0
_BACK_S = 10.0  # on the list alone, until a socket is tried again


class StillRunning(Exception):
    """The time to wait is over; the session goes on."""


class _Lost(Exception):
    """The socket is gone; what it had not delivered is in the store."""


class _NoSocket(Exception):
    """The server does not open a socket for us; the list will say why, or serve."""


class Follower:
    """Yields the events after `after` until the session ends.

    `settled` is the last seq of an earlier ending: a `session_ended` up to it belongs to the past. `deadline` is on the
    app's clock; passing it raises StillRunning.
    """

    def __init__(self, app: App, session_id: str, *, after: int = 0, settled: int = 0, deadline: float | None = None):
        self.app = app
        self.id = session_id
        self.seq = after
        self.settled = settled
        self.deadline = deadline
        self._ended = False
        self._heard = app.clock()

    def __iter__(self) -> Iterator[Event]:
        sockets = True
        while not self._ended:
            if sockets:
                try:
                    yield from self._sockets()
                except _NoSocket:
                    sockets = False
            # The list, while no socket stays open; then one is tried again.
            again = self.app.clock() + _BACK_S
            while not self._ended and (not sockets or self.app.clock() < again):
                yield from self._poll()

    def _sockets(self) -> Iterator[Event]:
        """Events of one socket after the other, until the end or until one after the other failed."""
        failures = 0
        while failures < _SOCKET_TRIES and not self._ended:
            before = self.seq
            try:
                for event in self._socket():
                    yield from self._accept(event)
                    if self._ended:
                        return
            except _Lost:
                failures = 0 if self.seq > before else failures + 1
                if failures < _SOCKET_TRIES:
                    jitter = random.uniform(0.75, 1.25)  # noqa: S311 - not a secret
                    self._pause(min(15.0, 0.5 * 2**failures) * jitter)

    def _accept(self, event: Event) -> Iterator[Event]:
        """Drops a repeat, fetches what a gap left out, and notices the end."""
        seq = event.get("seq")
        if not isinstance(seq, int) or not isinstance(event.get("kind"), str):
            raise _Lost
        if seq <= self.seq:
            return
        if seq > self.seq + 1:
            yield from self._list(upto=seq - 1)
        if seq > self.seq and not self._ended:
            yield self._take(event)

    def _take(self, event: Event) -> Event:
        self.seq = int(event["seq"])
        if not isinstance(event.get("data"), dict):
            event["data"] = {}
        self._ended = event["kind"] == "session_ended" and self.seq > self.settled
        return event

    def _list(self, upto: int | None = None) -> Iterator[Event]:
        """Stored events after the last one seen, page by page."""
        while not self._ended and (upto is None or self.seq < upto):
            items = self._page()
            fresh = [e for e in items if isinstance(e.get("seq"), int) and e["seq"] > self.seq]
            if not fresh:
                return
            for event in fresh:
                if not self._ended:
                    yield self._take(event)

    def _page(self) -> list[Event]:
        path = f"/v1/sessions/{segment(self.id)}/events"
        try:
            with self.app.client.patience.until(self._end()):
                items = self.app.client.get(path, after=self.seq, limit=_PAGE).items
        except ApiError as exc:
            if exc.status == 404:
                raise CliError(f"session {self.id} not found", exit=Exit.NOT_FOUND, code="not_found") from exc
            if exc.status < 500:
                raise
            return self._no_answer(exc)
        except Unreachable as exc:
            if exc.code == "not_primer":
                raise
            return self._no_answer(exc)
        self._heard = self.app.clock()
        return items

    def _end(self) -> float:
        """When a server that does not answer has been away long enough."""
        end = self._heard + AWAY_S
        return end if self.deadline is None else min(end, self.deadline)

    def _no_answer(self, exc: CliError) -> list[Event]:
        self._left(0)
        if self.app.clock() >= self._heard + AWAY_S:
            attach = f"primectl session attach {self.id}"
            raise CliError(*exc.lines, exit=Exit.UNREACHABLE, hint=f"attach with: {attach}", code=exc.code) from exc
        return []

    def _poll(self) -> Iterator[Event]:
        before = self.seq
        yield from self._list()
        if self.seq == before and not self._ended:
            self._pause(_POLL_S)

    def _pause(self, seconds: float) -> None:
        left = self._left(seconds)
        self.app.sleep(left)

    def _left(self, at_most: float) -> float:
        """Seconds until the deadline, at most so many; raises StillRunning when it has passed."""
        if self.deadline is None:
            return at_most
        left = self.deadline - self.app.clock()
        if left <= 0:
            raise StillRunning
        return min(at_most, left)

    def _socket(self) -> Iterator[Event]:
        import websocket

        socket = self._connect()
        self._heard = self.app.clock()
        try:
            while True:
                socket.settimeout(self._left(_SILENCE_S))
                try:
                    opcode, frame = socket.recv_data_frame(control_frame=True)
                except websocket.WebSocketTimeoutException as exc:
                    self._left(0)
                    raise _Lost from exc
                except (websocket.WebSocketException, OSError, ValueError) as exc:
                    raise _Lost from exc
                self._heard = self.app.clock()
                if opcode == websocket.ABNF.OPCODE_CLOSE:
                    raise self._closed(frame.data)
                if opcode == websocket.ABNF.OPCODE_TEXT:
                    yield _parsed(frame.data)
        finally:
            with contextlib.suppress(websocket.WebSocketException, OSError):
                socket.close(timeout=1)
            socket.shutdown()  # close() does nothing once the server's close was answered, and leaves it open

    def _closed(self, data: bytes) -> Exception:
        """4401, 4403 and 4404 are verdicts: the list repeats them as a problem. Anything else: come again."""
        code = int.from_bytes(data[:2], "big") if len(data) >= 2 else 0
        return _NoSocket() if code in (4401, 4403, 4404) else _Lost()

    def _connect(self) -> Any:
        import websocket

        client = self.app.client
        base = urlsplit(client.server)
        scheme = "wss" if base.scheme == "https" else "ws"
        url = f"{scheme}://{base.netloc}{base.path}/ws/v1/sessions/{segment(self.id)}/events/?after={self.seq}"
        options: dict[str, Any] = {"ca_certs": client.verify} if isinstance(client.verify, str) else {}
        if client.verify is False:
            import ssl

            options = {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
        try:
            socket = websocket.create_connection(
                url,
                timeout=self._left(client.timeout_s),
                header=[f"Authorization: Bearer {client.token}"] if client.token else [],
                subprotocols=[PROTOCOL],
                sslopt=options,
                redirect_limit=0,  # it would carry the token along
                suppress_origin=True,
                http_no_proxy=[base.hostname] if not client.session.trust_env else None,
            )
        except websocket.WebSocketBadStatusException as exc:
            raise _NoSocket from exc
        except (websocket.WebSocketException, OSError, ValueError) as exc:
            raise _Lost from exc
        _cap_frames(socket)
        return socket


def _cap_frames(socket: Any) -> None:
    """websocket-client takes frames of any length; one larger than an answer may be is a lost socket."""
    receive = socket.frame_buffer.recv_strict

    def capped(count: int) -> Any:
        if count > MAX_JSON:
            raise OSError("frame too large")
        return receive(count)

    socket.frame_buffer.recv_strict = capped


def _parsed(data: bytes) -> Event:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _Lost from exc
    if not isinstance(event, dict):
        raise _Lost
    return event


def merged(events: Iterator[Event]) -> Iterator[Event]:
    """Consecutive deltas of one kind, and output of one stream of one call, as one event with the last seq."""
    held: Event | None = None
    for event in events:
        if held is not None and _same_flow(held, event):
            data = {**held["data"], "text": str(held["data"].get("text", "")) + str(event["data"].get("text", ""))}
            held = {**held, "seq": event["seq"], "data": data}
            continue
        if held is not None:
            yield held
        held = event if _is_delta(event) else None
        if held is None:
            yield event
    if held is not None:
        yield held


def _is_delta(event: Event) -> bool:
    return event["kind"] in ("text_delta", "thinking_delta") or (
        event["kind"] == "tool_output" and "text" in event["data"]
    )


def _same_flow(held: Event, event: Event) -> bool:
    if held["kind"] != event["kind"] or not _is_delta(event):
        return False
    return all(held["data"].get(key) == event["data"].get(key) for key in ("call_id", "stream"))
