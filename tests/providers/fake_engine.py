"""An engine that answers what a test tells it to, over a unix socket or TLS; and certificates for the latter."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VERSION = {"Version": "99.0", "ApiVersion": "1.41", "Components": [{"Name": "runc", "Version": "1.3.9"}]}
INFO = {
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "Runtimes": {"runc": {}},
    "SecurityOptions": ["name=seccomp,profile=default"],
    "CpuCfsQuota": True,
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "DockerRootDir": "/nowhere",
    "NCPU": 2,
    "MemTotal": 8 * 1024**3,
}
Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def ok(value: Any) -> bytes:
    return http(json.dumps(value).encode())


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def chunked(*values: Any) -> bytes:
    """A stream of JSON values, as the engine sends its events."""
    parts = [json.dumps(value).encode() + b"\n" for value in values]
    body = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts) + b"0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + body


def stream(*parts: bytes) -> bytes:
    """An upgraded exec stream, as the engine opens it also for an exec that failed."""
    return b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + b"".join(parts)


def frame(kind: int, data: bytes, length: int | None = None) -> bytes:
    return bytes([kind, 0, 0, 0]) + (len(data) if length is None else length).to_bytes(4, "big") + data


class FakeEngine:
    """Answers by the end of the path; what it does not know is 404. `seen` holds the request lines."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers: dict[str, Answer] = {"/version": ok(VERSION), "/info": ok(INFO), **answers}
        self.seen: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.seen.append(head.split("\r\n")[0])
            for line in head.lower().split("\r\n"):
                if line.startswith("content-length:"):
                    await reader.readexactly(int(line.split(":")[1]))
            path = head.split(" ")[1].split("?")[0]
            answer = next((a for end, a in self.answers.items() if path.endswith(end)), http(b"{}", "404 Not Found"))
            if callable(answer):
                await answer(reader, writer)
            else:
                writer.write(answer)
                await writer.drain()


class Connections:
    """The calls of a server's handler: whatever still runs at the end of a test is ended with it, and closed."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            return
        finally:
            writer.close()
            self._tasks.discard(task)

    async def finish(self) -> None:
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # TLS would wait for the other side's goodbye
        await asyncio.sleep(0)  # the loop lets the sockets go in its next round


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never answers; ends when the caller goes."""
    await reader.read()


@asynccontextmanager
async def unix(engine: FakeEngine, path: Path) -> AsyncIterator[dict[str, Any]]:
    """A provider's config for the engine behind a unix socket."""
    connections = Connections(engine.serve)
    server = await asyncio.start_unix_server(connections, str(path))
    try:
        yield {"connection": {"kind": "socket", "socket_path": str(path)}}
    finally:
        server.close()
        await connections.finish()


class Authority:
    """Makes certificates; `pem` is its own."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extensions = [(x509.BasicConstraints(ca=True, path_length=0), True)]
        self.pem = self._sign(self._name, self._key, extensions)

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key for 127.0.0.1, as PEM texts."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._sign(subject, key, [(address, False)]), private.decode()

    def _sign(self, subject: x509.Name, key: Any, extensions: list[tuple[Any, bool]]) -> str:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def server_context(authority: Authority, folder: Path) -> ssl.SSLContext:
    """A server that lets in only who shows a certificate of the authority."""
    certificate, key = authority.issue("engine")
    (folder / "server.pem").write_text(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.load_verify_locations(cadata=authority.pem)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def tcp(serve: Any, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server on a free port of 127.0.0.1, with TLS if there is a context."""
    connections = Connections(serve)
    server = await asyncio.start_server(connections, "127.0.0.1", 0, ssl=context)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await connections.finish()
