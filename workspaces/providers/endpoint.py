"""Where an engine is and how it is spoken to: a unix socket, or TCP with the provider's own TLS material."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from primer_site.errors import FieldError, Invalid

DEFAULT_SOCKET: Final = "/var/run/docker.sock"
TLS_PARTS: Final = ("ca", "cert", "key")
TLS_PORT, PLAIN_PORT = 2376, 2375


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts. `ca` proves the engine to us; `cert` and `key` prove us to the engine."""

    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine's address: either `socket_path`, or `host` and `port` with `tls` (None: not encrypted)."""

    socket_path: str = ""
    host: str = ""
    port: int = 0
    tls: Tls | None = None

    @property
    def label(self) -> str:
        """How people know it."""
        return self.socket_path or f"{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """As the docker SDK spells it."""
        if self.socket_path:
            return f"unix://{self.socket_path}"
        return f"{'https' if self.tls else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def endpoint(config: dict[str, Any], secrets: dict[str, Any]) -> Endpoint:
    """The endpoint of a container provider's config; `secrets` has the same shape and wins. Raises `Invalid`."""
    connection = config.get("connection") or {"kind": "socket"}
    kind = connection.get("kind")
    if kind == "socket":
        path = str(connection.get("socket_path") or DEFAULT_SOCKET)
        if not path.startswith("/") or "\0" in path:
            raise _invalid("socket_path", "must be an absolute path")
        return Endpoint(socket_path=path)
    if kind == "tcp":
        return _tcp(connection, (secrets.get("connection") or {}).get("tls") or {})
    raise _invalid("kind", "must be socket or tcp")


def _tcp(connection: dict[str, Any], secret_tls: dict[str, Any]) -> Endpoint:
    url = urlsplit(str(connection.get("url") or ""))
    given = {**(connection.get("tls") or {}), **{name: text for name, text in secret_tls.items() if text}}
    tls = Tls(**{part: str(given[part]) for part in TLS_PARTS if given.get(part)}) if given else None
    try:
        port = url.port
    except ValueError as exc:
        raise _invalid("url", "has a port that is not a number below 65536") from exc
    if url.scheme not in ("tcp", "http", "https") or not url.hostname:
        raise _invalid("url", "must look like tcp://engine.example:2376")
    if url.scheme == "https" and tls is None:
        tls = Tls()
    if url.scheme == "http" and tls is not None:
        raise _invalid("url", "says http, and TLS material is given: use tcp:// or https://")
    if tls and bool(tls.cert) != bool(tls.key):
        raise _invalid("tls", "needs cert and key together")
    return Endpoint(host=url.hostname, port=port or (TLS_PORT if tls else PLAIN_PORT), tls=tls)


def _invalid(name: str, message: str) -> Invalid:
    field = f"config.connection.{name}"
    return Invalid(f"{field} {message}.", errors=[FieldError(field, message)])


def refuse_link_local(host: str, port: int) -> None:
    """Raises `Invalid` when the name leads to a link-local address: metadata services live there, engines do not."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return  # the connection fails with its own sentence
    for *_, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        if mapped.is_link_local:
            raise _invalid("url", "leads to a link-local address, where no engine may be")


class TlsFiles:
    """TLS material as files of mode 0600 in a folder of mode 0700, for libraries that take only paths; removed by `close`."""

    def __init__(self, tls: Tls) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="primer-tls-")  # mkdtemp makes it 0700
        self.paths: dict[str, str] = {}
        for part in TLS_PARTS:
            if text := getattr(tls, part):
                self.paths[part] = os.path.join(self._folder.name, part + ".pem")
                descriptor = os.open(self.paths[part], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)

    def context(self) -> ssl.SSLContext:
        """The same material for asyncio streams; raises `Invalid` when the PEM text is not usable."""
        try:
            context = ssl.create_default_context(cafile=self.paths.get("ca"))
            if "cert" in self.paths:
                context.load_cert_chain(self.paths["cert"], self.paths["key"])
        except (ssl.SSLError, OSError, ValueError) as exc:
            raise _invalid("tls", "is not usable PEM: check ca, cert and key") from exc
        return context

    def close(self) -> None:
        self._folder.cleanup()
