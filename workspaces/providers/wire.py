"""A socket whose bytes are taken as they come: no copy, no task and no turn of the loop between the kernel and their reader."""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from primer_site import loop
from workspaces.providers.base import ChannelClosed

BUFFER: Final = 256 * 1024  # bytes of one look at the socket, and of what waits here for a reader that is slower
CLOSE_TIMEOUT_S: Final = 1.0
Take = Callable[[memoryview], None]


class Wire(asyncio.BufferedProtocol):
    """Both directions of one connection: `read` piece by piece, or `pour` all that comes into a function."""

    transport: Any

    def __init__(self) -> None:
        self._room = memoryview(mmap.mmap(-1, BUFFER))  # costs memory only as far as something was ever read into it
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._held = False  # the kernel keeps the rest
        self._take: Take | None = None
        self._failure: Exception | None = None
        self._moved, self._writable, self._lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._ended = False

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        data = self._room[:nbytes]
        if self._take is None:
            self._keep(bytes(data))
            return
        try:
            self._take(data)
        except Exception as exc:  # of a reader that refuses what came: it is told where it waits
            self._take, self._failure = self._keep, exc
            self._moved.set()

    def _keep(self, data: bytes | memoryview) -> None:
        self._parts.append(bytes(data))
        self._waiting += len(data)
        if self._waiting >= BUFFER and not self._held:
            self._held = True
            self.transport.pause_reading()
        self._moved.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._moved.set()
        return self.transport.get_extra_info("sslcontext") is None  # what is to be written still goes, TLS cannot

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        for event in (self._moved, self._writable, self._lost):
            event.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- what a channel calls

    @property
    def ended(self) -> bool:
        """Whether the other side is known to have gone."""
        return self._ended or self.transport.is_closing()

    async def read(self) -> bytes:
        """What came with one look at the socket; b"" at the end."""
        while not self._parts:
            if self._ended:
                return b""
            self._moved.clear()
            await self._moved.wait()
        data = self._parts.popleft()
        self._waiting -= len(data)
        if self._held and self._waiting < BUFFER:
            self._held = False
            self.transport.resume_reading()
        return data

    async def pour(self, take: Take) -> None:
        """Calls `take` with what comes, inside the loop's own callback, until the end; raises what `take` raises.

        The bytes are gone when `take` returns. It must not block, and the peer has to be held back by other means.
        """
        while self._parts:
            take(memoryview(await self.read()))
        self._take = take
        try:
            while not self._ended and self._failure is None:
                self._moved.clear()
                await self._moved.wait()
        finally:
            self._take = None
        if self._failure is not None:
            raise self._failure

    async def write(self, data: bytes) -> None:
        """Sends all of `data` and waits for the transport; `ChannelClosed` when the connection is gone."""
        if not self.transport.is_closing():
            self.transport.write(data)
            await self._writable.wait()
        if self.transport.is_closing():
            raise ChannelClosed

    async def close(self) -> None:
        """Lets what was written go, for a second at most."""
        self.transport.close()
        # TLS says goodbye and waits for an answer, which a dead engine does not give.
        if not await loop.heard(self._lost, CLOSE_TIMEOUT_S):
            self.transport.abort()
