"""A small ASGI application on the real server, as a process of its own: `python bare_app.py DIRECTORY`.

Prints the port, then serves. It tells what it did by files in DIRECTORY, and waits for files there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from urllib.parse import parse_qs

here = Path(sys.argv[1])
flooding: list[asyncio.Future[None]] = []  # the loop itself holds tasks only weakly
CHUNK = b"x" * 65536


async def until(name: str) -> None:
    while not (here / name).exists():
        await asyncio.sleep(0.01)


def tell(name: str, text: object = "") -> None:
    temporary = here / f".{name}"
    temporary.write_text(str(text))
    temporary.replace(here / name)


async def app(scope, receive, send) -> None:
    if scope["type"] == "websocket":
        await socket(scope, receive, send)
        return
    route = scope["path"].strip("/")
    await {"slow": slow, "flood": flood, "digest": digest, "broken": broken}.get(route, hello)(scope, receive, send)


async def answer(send, body: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"Content-Type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


async def hello(scope, receive, send) -> None:
    await answer(send, b"hello")


async def slow(scope, receive, send) -> None:
    tell("slow-started")
    await until("slow-release")
    await answer(send, b"late but whole")


async def flood(scope, receive, send) -> None:
    """Sends as fast as the server takes it, and tells how much was taken."""
    total = int(parse_qs(scope["query_string"])[b"bytes"][0])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    sent = 0
    while sent < total:
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        sent += len(CHUNK)
        tell("flood-sent", sent)
    await send({"type": "http.response.body", "body": b""})


async def broken(scope, receive, send) -> None:
    """Ends in the middle, for a reason of ours or for a fault."""
    from primer_site.errors import Conflict

    await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", b"10")]})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise Conflict("It was changed.") if scope["query_string"] == b"ours" else RuntimeError("a fault")


async def digest(scope, receive, send) -> None:
    value, size, largest, more = hashlib.sha256(), 0, 0, True
    while more:
        message = await receive()
        value.update(message["body"])
        size += len(message["body"])
        largest = max(largest, len(message["body"]))
        more = message["more_body"]
    await answer(send, json.dumps({"sha256": value.hexdigest(), "size": size, "largest": largest}).encode())


async def socket(scope, receive, send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    if scope["path"] == "/flood":
        flooding.append(asyncio.ensure_future(flood_socket(send)))
    if scope["path"] == "/long":
        await send({"type": "websocket.send", "text": "y" * 1_000_000})
    if scope["path"] == "/deaf":
        await until("deaf-listens")
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            tell("socket-closed", message["code"])
            return
        await send({"type": "websocket.send", "text": message["text"]})


async def flood_socket(send) -> None:
    sent = 0
    while not (here / "socket-closed").exists():
        await send({"type": "websocket.send", "bytes": CHUNK})
        sent += len(CHUNK)
        tell("socket-sent", sent)


async def service(stop: asyncio.Event) -> None:
    tell("service-started")
    await stop.wait()
    tell("service-stopped")


async def failing(stop: asyncio.Event) -> None:
    if not (here / "failed-once").exists():
        tell("failed-once")
        raise RuntimeError("the first try fails")
    tell("failing-recovered")
    await stop.wait()


async def drain(seconds: float) -> None:
    tell("drain-began", seconds)
    try:
        await asyncio.wait_for(until("drained"), seconds)
        tell("drain-ended", "complete")
    except TimeoutError:
        tell("drain-ended", "interrupted")


def main() -> None:
    import structlog

    from primer_site import transport
    from primer_site.server import Server, bind
    from primer_site.services import Service

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    limits = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    transport.SOCKET_BLOCKED_S = limits.get("socket_blocked_s", transport.SOCKET_BLOCKED_S)
    close = transport.Socket.sendClose

    def tell_and_close(self, code=None, reason=None) -> None:
        close(self, code, reason)
        tell("closing", code)

    transport.Socket.sendClose = tell_and_close
    transport.HTTP_BLOCKED_S = limits.get("http_blocked_s", transport.HTTP_BLOCKED_S)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    services = [Service("quiet", service, outlives_drain=True), Service("failing", failing)]
    server = Server(
        app, sock, services=services, drains=[drain], drain_s=limits.get("drain_s", 0.2), max_body_bytes=4 * 1024 * 1024,
        on_ready=lambda: print(port, flush=True),
    )  # fmt: skip
    server.run()


if __name__ == "__main__":
    main()
