"""Both ends against the other one gone bad: a stranger at the runtime's socket, a runtime that lies to the client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from primer_site.errors import PrimerError
from tests.runtime.conftest import SECRET, Runtime, SocketChannel, request
from workspaces.providers.base import ChannelClosed
from workspaces.runtime import protocol
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import ProtocolError, SandboxRefused
from workspaces.sandbox_link import Link, tagger

# -- a stranger at the runtime's socket


def stranger(runtime: Runtime) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(runtime.socket)
    return sock


def rest_of(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


async def test_another_token_is_refused_and_the_right_one_goes_on(sandbox: Sandbox, runtime: Runtime) -> None:
    with pytest.raises(SandboxRefused):
        await runtime.sandbox(secret=b"guessed").open()
    await sandbox.stat("")


async def test_a_runtime_is_claimed_once(runtime: Runtime) -> None:
    first, second = runtime.sandbox(), runtime.sandbox()
    await first.open()
    await second.open()  # the same server again, after a restart
    sock = stranger(runtime)
    claim = protocol.Encoder().encode(protocol.CLAIM, 0, protocol.dumps({"hash": protocol.token_hash(b"mine").hex()}))
    sock.sendall(claim)
    assert b'"proof"' not in await asyncio.to_thread(rest_of, sock)
    await first.stat("")
    await first.close()
    await second.close()
    sock.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x10\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x05\x10\0\0\0\0",
        protocol.Encoder().encode(protocol.REQUEST, 1, b'{"op":"start"}'),
        protocol.Encoder().encode(protocol.AUTH, 0, b'{"nonce":"zz","proof":"zz"}'),
        protocol.Encoder().encode(protocol.AUTH, 0, b'{"nonce":[],"proof":{}}'),
        protocol.Encoder().encode(protocol.CLAIM, 0, b'{"hash":"zz"}'),
        protocol.Encoder().encode(protocol.CLAIM, 0, b"[]"),
    ],
)
async def test_what_is_no_handshake_ends_the_connection_and_nothing_else(
    sandbox: Sandbox, runtime: Runtime, data: bytes
) -> None:
    sock = stranger(runtime)
    sock.sendall(data)
    await asyncio.to_thread(rest_of, sock)
    sock.close()
    await sandbox.stat("")


async def test_silent_strangers_are_few_and_thrown_out(sandbox: Sandbox, runtime: Runtime) -> None:
    socks = [stranger(runtime) for _ in range(12)]
    await asyncio.gather(*(asyncio.to_thread(rest_of, sock) for sock in socks))  # each is closed by the runtime
    assert len(os.listdir(f"/proc/{runtime.process.pid}/fd")) < 30
    await sandbox.stat("")
    for sock in socks:
        sock.close()


async def test_a_frame_changed_on_the_way_ends_the_channel_and_the_client_resumes(runtime: Runtime) -> None:
    first = True

    async def connect() -> SocketChannel:
        nonlocal first
        channel = await runtime.connect()
        if first:
            first, read = False, channel.read

            async def flip(limit: int) -> bytes:
                data = await read(limit)
                return data.replace(b"AAAAAAAA", b"AAAABAAA", 1)

            channel.read = flip  # type: ignore[method-assign]
        return channel

    sandbox = runtime.sandbox(open_channel=connect)
    outcome, out, _ = await sandbox.run(request("sh", "-c", "printf 'A%.0s' $(seq 1000)"))
    assert (outcome.ended_by, out) == ("exit", b"A" * 1000)
    assert len(runtime.channels) == 2
    await sandbox.close()


async def test_nine_proven_connections_are_one_too_many(runtime: Runtime) -> None:
    links = []
    for _ in range(8):
        link = Link(await runtime.connect())
        await link.open(SECRET)
        links.append(link)
    with pytest.raises(PrimerError) as caught:
        await Link(await runtime.connect()).open(SECRET)
    assert caught.value.code == "sandbox_busy"
    for link in links:
        await link.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"op": None},
        {"op": "nope"},
        {"op": "start"},
        {"op": "start", "id": "x", "argv": "true"},
        {"op": "start", "id": "x", "argv": [1]},
        {"op": "start", "id": "x", "argv": ["true"], "env": []},
        {"op": "start", "id": "x", "argv": ["true"], "timeout_s": "soon"},
        {"op": "attach", "id": []},
        {"op": "read", "path": 7},
        {"op": "read", "path": "x", "offset": "y"},
        {"op": "list", "limit": {}},
        {"op": "write", "path": "x", "mode": "rw"},
        {"op": "hello", "disk_bytes": "all"},
    ],
)
async def test_requests_of_wrong_types_are_answered_with_an_error(
    sandbox: Sandbox, runtime: Runtime, body: dict[str, object]
) -> None:
    op = str(body.pop("op", "missing"))
    with pytest.raises(PrimerError):
        await sandbox.call(op, body)
    await sandbox.stat("")


# -- a runtime that lies

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Liar:
    """A peer that knows the token and uses it badly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = protocol.Encoder(), protocol.Decoder()

    async def receive(self) -> tuple[int, int, bytes]:
        while (frame := self.decoder.next()) is None:
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionResetError
            self.decoder.feed(data)
        return frame

    def send(self, kind: int, stream: int, payload: bytes) -> None:
        self.writer.write(self.encoder.encode(kind, stream, payload))

    async def prove(self) -> None:
        greeting = protocol.dumps({"version": "9", "protocol": 1, "nonce": "00", "boot_id": "b", "claimed": True})
        self.send(protocol.GREETING, 0, greeting)
        _, _, payload = await self.receive()
        key = protocol.token_hash(SECRET)
        script = protocol.transcript(greeting, bytes.fromhex(str(protocol.loads(payload)["nonce"])))
        self.send(protocol.WELCOME, 0, protocol.dumps({"proof": protocol.derive(key, script, b"server").hex()}))
        self.encoder.secure(protocol.derive(key, script, b"s2c"))
        self.decoder.secure(protocol.derive(key, script, b"c2s"))
        self.bulk_tag = tagger(protocol.derive(key, script, b"s2c-bulk"))
        _, stream, _ = await self.receive()
        facts: dict[str, object] = {"version": "9", "boot_id": "b", "uid": 1, "pid": 1, "hostname": "h", "python": "3"}
        facts |= {"machine": "m", "workdir": "/w", "rss_bytes": 1, "limits": {}}
        self.send(protocol.REPLY, stream, protocol.dumps(facts))


Lie = Callable[[Liar], Awaitable[None]]


@pytest.fixture
async def lying(tmp_path: Path) -> AsyncIterator[Callable[[Lie], Awaitable[Sandbox]]]:
    """A sandbox client whose peer does what the given function does."""
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Task[None] | None] = set()
    sandboxes: list[Sandbox] = []

    async def make(lie: Lie) -> Sandbox:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            with contextlib.closing(writer), contextlib.suppress(ConnectionError, protocol.ProtocolViolation):
                await lie(Liar(reader, writer))
                await writer.drain()
                await reader.read()

        path = str(tmp_path / "liar")
        servers.append(await asyncio.start_unix_server(serve, path))

        async def connect() -> SocketChannel:
            return SocketChannel(*await asyncio.open_unix_connection(path))

        sandboxes.append(Sandbox(connect, SECRET, lost_after_s=0.4))
        return sandboxes[-1]

    yield make
    for sandbox in sandboxes:
        await sandbox.close()
    for server in servers:
        server.close()
    for task in tasks:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


GREETING = {"version": "1", "protocol": 1, "nonce": "0", "boot_id": "b", "claimed": True}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff\x01\0\0\0\0",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        struct.pack(">IBI", 9, 1, 0) + b"[[[[",
        protocol.Encoder().encode(protocol.GREETING, 0, b"{}"),
        protocol.Encoder().encode(protocol.GREETING, 0, b"[" * 4000),
        protocol.Encoder().encode(protocol.GREETING, 0, b'{"protocol":NaN}'),
        protocol.Encoder().encode(protocol.GREETING, 0, protocol.dumps({**GREETING, "protocol": 99})),
        protocol.Encoder().encode(protocol.REPLY, 1, b"{}"),
    ],
)
async def test_a_greeting_that_is_none_is_a_typed_error(
    lying: Callable[[Lie], Awaitable[Sandbox]], data: bytes
) -> None:
    async def lie(liar: Liar) -> None:
        liar.writer.write(data)
        await liar.writer.drain()
        liar.writer.close()

    sandbox = await lying(lie)
    with pytest.raises((ProtocolError, ChannelClosed)):
        await sandbox.open()


async def test_a_peer_without_the_token_cannot_pose_as_the_runtime(lying: Callable[[Lie], Awaitable[Sandbox]]) -> None:
    async def lie(liar: Liar) -> None:
        liar.send(protocol.GREETING, 0, protocol.dumps(GREETING))
        await liar.receive()
        liar.send(protocol.WELCOME, 0, protocol.dumps({"proof": "00" * 32}))

    with pytest.raises(SandboxRefused):
        await (await lying(lie)).open()


async def test_an_endless_stream_ends_the_channel_and_stays_small(lying: Callable[[Lie], Awaitable[Sandbox]]) -> None:
    async def lie(liar: Liar) -> None:
        await liar.prove()
        while True:
            liar.writer.write(os.urandom(65536))
            await liar.writer.drain()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox = await lying(lie)
    with pytest.raises((ProtocolError, ChannelClosed)):
        await sandbox.call("ping", {}, timeout=2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def outcome(**over: object) -> bytes:
    body: dict[str, object] = {"ended_by": "exit", "exit_code": 0, "signal": None, "stdout_bytes": 0, "stderr_bytes": 0}
    body |= {"stdout_end": 0, "stderr_end": 0, "duration_ms": 1, "cpu_ms": 1, "max_rss_bytes": 1, "survivors": []}
    body |= {"evidence": {"oom_kill": 0, "pids_max": 0, "disk": None, "limit": None, "shared": False}, **over}
    return protocol.dumps({"outcome": body})


def started(**over: object) -> bytes:
    return protocol.dumps({"pid": 7, "stdin": 0, "stdout": 0, "stderr": 0, **over})


LIES: dict[str, list[tuple[int, bytes]]] = {
    "not json": [(protocol.REPLY, b"{")],
    "a verdict of ours": [(protocol.REPLY, outcome(ended_by="lost"))],
    "an unknown verdict": [(protocol.REPLY, outcome(ended_by="fine"))],
    "a text for a number": [(protocol.REPLY, outcome(stdout_bytes="0"))],
    "a bool for a number": [(protocol.REPLY, outcome(exit_code=True))],
    "a negative count": [(protocol.REPLY, outcome(stdout_bytes=-1))],
    "an exit code of 4096": [(protocol.REPLY, outcome(exit_code=4096))],
    "survivors without end": [(protocol.REPLY, outcome(survivors=[{"pid": 1, "command": "x"}] * 5000))],
    "fewer bytes than sent": [
        (protocol.EVENT, started()),
        (protocol.DATA, protocol.pack_data(1, 0, b"xxxx")),
        (protocol.REPLY, outcome(stdout_bytes=1)),
    ],
    "an offset that jumps": [(protocol.EVENT, started()), (protocol.DATA, protocol.pack_data(1, 5, b"x"))],
    "an unknown channel": [(protocol.EVENT, started()), (protocol.DATA, protocol.pack_data(9, 0, b"x"))],
    "more than the credit": [
        (protocol.EVENT, started()),
        *[(protocol.DATA, protocol.pack_data(1, n * 65536, bytes(65536))) for n in range(5)],
    ],
    "a stream that goes back": [(protocol.EVENT, started(stdout=9)), (protocol.EVENT, started(stdout=3))],
    "an empty data frame": [(protocol.EVENT, started()), (protocol.DATA, protocol.pack_data(1, 0, b""))],
    "a kind of the wrong direction": [(protocol.REQUEST, b"{}")],
}


@pytest.mark.parametrize("name", LIES)
async def test_an_exec_ends_lost_and_never_by_a_lie(lying: Callable[[Lie], Awaitable[Sandbox]], name: str) -> None:
    told = 0

    async def lie(liar: Liar) -> None:
        nonlocal told
        if told >= 2:  # then it stays away, and the client gives up
            liar.writer.close()
            return
        told += 1
        await liar.prove()
        _, stream, _ = await liar.receive()
        for kind, payload in LIES[name]:
            liar.send(kind, stream, payload)

    sandbox = await lying(lie)
    handle = await sandbox.start_exec(request("true"))
    assert (await handle.outcome()).ended_by == "lost"
    assert told == 2


async def test_bytes_that_were_announced_and_never_come_do_not_hang_for_ever(
    lying: Callable[[Lie], Awaitable[Sandbox]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workspaces.sandbox_exec.STALLED_S", 0.2)

    async def lie(liar: Liar) -> None:
        await liar.prove()
        _, stream, _ = await liar.receive()
        liar.send(protocol.EVENT, stream, started())
        liar.send(protocol.REPLY, stream, outcome(stdout_bytes=10, stdout_end=10))

    sandbox = await lying(lie)
    handle = await sandbox.start_exec(request("true"))
    assert [chunk async for chunk in handle.output()] == []
    assert (await handle.outcome()).ended_by == "lost"


@pytest.mark.parametrize(
    "info",
    [
        None,
        [],
        {"path": "x"},
        {"path": "x", "name": "x", "kind": "door", "size_bytes": 1, "modified_at": 1, "mode": 1},
        {"path": "x", "name": "x", "kind": "file", "size_bytes": -1, "modified_at": 1, "mode": 1},
        {"path": "x", "name": "x", "kind": "file", "size_bytes": 1, "modified_at": 1, "mode": 1, "etag": "a\r\nb"},
    ],
)
async def test_a_file_reply_of_wrong_types_is_a_protocol_error(
    lying: Callable[[Lie], Awaitable[Sandbox]], info: object
) -> None:
    async def lie(liar: Liar) -> None:
        await liar.prove()
        _, stream, _ = await liar.receive()
        liar.send(protocol.REPLY, stream, protocol.dumps({"info": info}))

    with pytest.raises(ProtocolError):
        await (await lying(lie)).stat("x")


async def test_a_call_that_is_never_answered_ends_at_its_deadline(lying: Callable[[Lie], Awaitable[Sandbox]]) -> None:
    async def lie(liar: Liar) -> None:
        await liar.prove()

    sandbox = await lying(lie)
    with pytest.raises(PrimerError) as caught:
        await sandbox.call("ping", {}, timeout=0.3)
    assert caught.value.code == "timeout"
