"""The server process: Daphne on one asyncio loop, the background services beside it, and a stop that loses nothing.

Daphne's own command has no lifespan and cuts runs and sockets at SIGTERM. Here services start on Daphne's loop before
the first request; a stop closes the listener, lets the services drain, closes sockets with RESTARTING, waits for the
answers that are under way and only then ends what is left. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import daphne.server  # installs the asyncio reactor: it has to stay before whatever imports Twisted
import structlog
from twisted.internet import defer
from twisted.internet import reactor as installed_reactor
from twisted.logger import globalLogBeginner

from primer_site import loop
from primer_site.errors import PrimerError
from primer_site.services import END_S, Running, Service
from primer_site.transport import Request, RequestFactory, Socket, SocketFactory

# A view's thread that wakes up waits this long for the loop's thread to let it in. Python's own 5 ms are felt in every
# request that waits for the sandbox: see docs/benchmarks.md.
SWITCH_S = 0.0005
DESCRIPTORS = 65536  # as far as the system lets us: each waiting request holds a socket and a database connection
RESTARTING = 4012  # close code; autobahn refuses 1012
LAST_BYTES_S = 0.5  # before an answer is cut, which throws away what of it has not reached its client
ANSWERS_S = 10.0  # what a stop grants to HTTP requests after the services have drained
reactor: Any = installed_reactor  # a module that is its own instance: its types say nothing
log = structlog.get_logger(__name__)


class AddressInUse(PrimerError):
    """Another program listens on that address."""

    code, status = "address_in_use", 409
    hint = "Choose another port with --port, or 0 for a free one."


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket (port 0: a free one); raises `AddressInUse` or another `PrimerError` with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise AddressInUse(f"Another program listens on {host}:{port}.") from exc
        raise PrimerError(f"Cannot listen on {host}:{port}: {exc.strerror or exc}.") from exc
    return sock


def raise_descriptor_limit() -> None:
    """The usual 1024 are gone with a few hundred requests that wait for their programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Server(daphne.server.Server):  # type: ignore[misc]
    """`run()` serves on `sock` until a signal; it returns after everything has ended."""

    def __init__(
        self,
        application: Any,
        sock: socket.socket,
        *,
        services: Iterable[Service] = (),
        drains: Iterable[Callable[[float], Awaitable[None]]] = (),
        drain_s: float = 10.0,
        max_body_bytes: int = 1 << 30,
        on_close_sockets: Callable[[int], Awaitable[None]] | None = None,
        before_listen: Callable[[], Awaitable[None]] | None = None,
        on_ready: Callable[[], None] | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(application, endpoints=["socket"], server_name="primer", websocket_max_message_size=64 * 1024)
        self.sock = sock
        self.services = tuple(services)
        self.drains = tuple(drains)  # each waits for running work, at most so many seconds, then marks it interrupted
        self.drain_s = drain_s
        self.max_body_bytes = max_body_bytes
        self.on_close_sockets = on_close_sockets
        self.before_listen = before_listen  # runs on the loop; when it fails, `run` raises what it raised
        self.on_ready = on_ready
        self.on_stop = on_stop  # before the listener closes
        self.stopping = False
        self.failure: Exception | None = None
        self.port: Any = None
        self._running: list[Running] = []
        self._hurry = asyncio.Event()

    def run(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        raise_descriptor_limit()
        # Twisted tells of every connection; what matters is logged here and by the request middleware.
        silent: Any = _ignore
        globalLogBeginner.beginLoggingTo([silent], redirectStandardIO=False, discardBuffer=True)
        self.connections: dict[Any, dict[str, Any]] = {}
        self.http_factory = RequestFactory(self)
        self.ws_factory = SocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            # A slow client is behind by a full buffer: the close frame needs a moment to reach it.
            closeHandshakeTimeout=5,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_message_size,
        )
        event_loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        asyncio.set_event_loop(event_loop)
        loop.adopt(event_loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            event_loop.add_signal_handler(number, self._signalled)
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        reactor.callWhenRunning(lambda: asyncio.ensure_future(self._boot()))
        reactor.run(installSignalHandlers=False)
        if self.failure is not None:
            raise self.failure

    async def _boot(self) -> None:
        try:
            if self.before_listen is not None:
                await self.before_listen()
            if not self.stopping:  # a signal may have come meanwhile
                self._listen()
        except Exception as exc:
            self.failure = exc
            reactor.stop()

    def _listen(self) -> None:
        self.application_checker()
        self.timeout_checker()
        self._running = [Running(service) for service in self.services]
        self.sock.listen(1024)
        self.sock.setblocking(False)
        self.port = reactor.adoptStreamPort(self.sock.fileno(), self.sock.family, self.http_factory)
        self.sock.close()  # the reactor has a descriptor of its own; this one would go on listening behind its back
        if self.on_ready is not None:
            self.on_ready()

    def _signalled(self) -> None:
        if self.stopping:
            log.warning("stopping at once")
            self._hurry.set()
        else:
            self.stopping = True
            reactor.stop()

    # Connections

    def create_application(self, protocol: Request | Socket, scope: dict[str, Any]) -> asyncio.Queue[Any] | None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        scope.setdefault("asgi", {"version": "3.0"})
        if protocol not in self.connections:
            return None
        receive = protocol.receive if isinstance(protocol, Request) else queue.get
        running = self.application(scope=scope, receive=receive, send=partial(self.handle_reply, protocol))
        if isinstance(protocol, Request):
            running = self._cut_short(protocol, scope["path"], running)
        self.connections[protocol]["application_instance"] = asyncio.ensure_future(running)
        return queue

    async def _cut_short(self, protocol: Request, path: str, running: Awaitable[None]) -> None:
        """Ends an answer whose rest cannot be had: a file that changed under it, a sandbox that is gone.

        A sandbox can bring that about as often as it likes: it gets one line, not the traceback that Daphne logs of any
        other exception.
        """
        try:
            await running
        except PrimerError as exc:
            more = {"detail": exc.log} if exc.log else {}
            log.warning("an answer broke off", path=path, code=exc.code, reason=exc.detail, **more)
            await asyncio.sleep(LAST_BYTES_S)
            if not self.connections.get(protocol, {}).get("disconnected"):
                protocol.handle_exception(exc)

    async def handle_reply(self, protocol: Request | Socket, message: dict[str, Any]) -> None:
        # A send that never waits, to a client that has gone, would let its application hold the loop for ever.
        await asyncio.sleep(0)
        await super().handle_reply(protocol, message)
        if message["type"] in ("http.response.body", "websocket.send"):
            await protocol.drained()

    # The stop

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Called once before the reactor ends, which waits for the result."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._stop()))

    async def _stop(self) -> None:
        self.stopping = True
        try:
            if self.on_stop is not None:
                self.on_stop()
            if self.port is not None:
                await self.port.stopListening().asFuture(asyncio.get_running_loop())
            await self._drain_services()
            await self._close_sockets()
            await self._wait_for_answers()
            await asyncio.gather(*(running.end() for running in self._running))
        except Exception:  # the reactor must end, whatever a service does
            log.exception("the stop was not clean")
        # Daphne's version expects an application behind each connection; some have none yet or no longer.
        self.connections = {key: value for key, value in self.connections.items() if "application_instance" in value}
        killed = super().kill_all_applications()
        await asyncio.wait([killed.asFuture(asyncio.get_running_loop())], timeout=2)

    async def _drain_services(self) -> None:
        for running in self._running:
            if not running.service.outlives_drain:
                running.stop.set()
        await self._unless_hurried(asyncio.gather(*(drain(self.drain_s) for drain in self.drains)))
        if self._hurry.is_set():
            await asyncio.wait_for(asyncio.gather(*(drain(0) for drain in self.drains)), END_S)
        for running in self._running:
            running.stop.set()

    async def _close_sockets(self) -> None:
        if self.on_close_sockets is not None:
            await self.on_close_sockets(RESTARTING)
        for protocol in list(self.connections):
            if isinstance(protocol, Socket) and protocol.state == protocol.STATE_OPEN:
                protocol.sendClose(code=RESTARTING)

    async def _wait_for_answers(self) -> None:
        async def answered() -> None:
            while self._under_way():  # noqa: ASYNC110 - Daphne has no event for it
                await asyncio.sleep(0.02)

        await self._unless_hurried(asyncio.ensure_future(asyncio.wait_for(answered(), ANSWERS_S)), quiet=TimeoutError)

    def _under_way(self) -> bool:
        return any(not details.get("disconnected") for details in self.connections.values())

    async def _unless_hurried(self, work: asyncio.Future[Any], quiet: type[Exception] | tuple[()] = ()) -> None:
        """Waits for `work`; cancels it at the second signal."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([work, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not work.done():
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            log.warning("cut short by a second signal")
        except quiet:
            log.warning("some requests did not end in time and were cut")


def _ignore(event: object) -> None:
    return None
