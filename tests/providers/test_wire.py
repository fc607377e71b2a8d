"""The socket below a channel: nothing is lost between reading and pouring, and a slow reader holds the sender back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.eventually import eventually_async
from workspaces.providers.base import ChannelClosed
from workspaces.providers.wire import BUFFER, Wire

Ends = tuple[Wire, socket.socket]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, wire = await asyncio.get_running_loop().create_unix_connection(Wire, sock=ours)
    yield wire, theirs
    theirs.close()
    await wire.close()


async def test_what_came_before_pouring_is_poured_first(ends: Ends) -> None:
    wire, theirs = ends
    theirs.send(b"first ")
    await eventually_async(lambda: bool(wire._parts))
    got: list[bytes] = []
    pouring = asyncio.create_task(wire.pour(lambda part: got.append(bytes(part))))
    await eventually_async(lambda: got == [b"first "])
    theirs.send(b"then")
    theirs.shutdown(socket.SHUT_WR)
    await pouring
    assert b"".join(got) == b"first then"
    assert await wire.read() == b""


async def test_what_the_taker_refuses_ends_the_pouring_with_its_error(ends: Ends) -> None:
    wire, theirs = ends

    def refuse(part: memoryview) -> None:
        raise ValueError(bytes(part).decode())

    theirs.send(b"nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        await asyncio.wait_for(wire.pour(refuse), 5)


async def test_a_reader_that_does_not_read_holds_the_sender_back_and_then_gets_all(ends: Ends) -> None:
    wire, theirs = ends
    loop, sent = asyncio.get_running_loop(), bytes(range(256)) * 16 * 1024
    sending = asyncio.create_task(loop.sock_sendall(theirs, sent))
    await eventually_async(lambda: wire._held)
    assert wire._waiting < 2 * BUFFER
    assert not sending.done()
    got = bytearray()
    while len(got) < len(sent):
        got += await wire.read()
    await sending
    assert bytes(got) == sent


async def test_a_write_to_an_end_that_has_gone_is_a_closed_channel(ends: Ends) -> None:
    wire, theirs = ends
    theirs.close()
    await eventually_async(lambda: wire.ended)

    async def write_until_told() -> None:
        while True:
            await wire.write(b"x" * BUFFER)

    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(write_until_told(), 5)
