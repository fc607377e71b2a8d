"""TLS material of a provider is used: for the SDK's calls and for the stream, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primer_site.errors import Invalid
from tests.engine import INSTANCE, DockerView
from tests.providers.fake_engine import Authority, FakeEngine, server_context, tcp
from workspaces.providers.base import SandboxSpec, State
from workspaces.providers.container import ContainerProvider
from workspaces.providers.endpoint import Tls, TlsFiles


def provider(url: str, ca: str, cert: str = "", key: str = "") -> ContainerProvider:
    """The key arrives as a secret, the rest as config: as the API stores them."""
    connection = {"kind": "tcp", "url": url, "tls": {"ca": ca, "cert": cert} if cert else {"ca": ca}}
    secrets = {"connection": {"tls": {"key": key}}} if key else {}
    return ContainerProvider({"connection": connection}, secrets, instance_id=INSTANCE)


async def health(url: str, *material: str) -> Any:
    found = provider(url, *material)
    check = await found.check()
    await found.close()
    return check


async def test_an_engine_that_wants_our_certificate_gets_it(tmp_path: Path) -> None:
    authority = Authority()
    async with tcp(FakeEngine({}).serve, server_context(authority, tmp_path)) as url:
        check = await health(url, authority.pem, *authority.issue("primer"))
    assert (check.health, check.reasons) == ("healthy", ())


async def test_an_engine_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    authority = Authority()
    async with tcp(FakeEngine({}).serve, server_context(authority, tmp_path)) as url:
        check = await health(url, Authority("other").pem, *authority.issue("primer"))
    assert check.health == "unreachable"
    assert check.reasons[0].startswith("No trusted connection to the container engine at 127.0.0.1:")


async def test_without_our_certificate_the_engine_does_not_let_us_in(tmp_path: Path) -> None:
    authority = Authority()
    async with tcp(FakeEngine({}).serve, server_context(authority, tmp_path)) as url:
        assert (await health(url, authority.pem)).health == "unreachable"


async def test_material_that_is_no_pem_is_named(tmp_path: Path) -> None:
    found = provider("tcp://127.0.0.1:1", "not a certificate")
    with pytest.raises(Invalid, match="tls"):
        await found.discover()
    await found.close()


async def test_an_unencrypted_engine_port_is_said_to_be_open() -> None:
    async with tcp(FakeEngine({}).serve) as url:
        found = ContainerProvider({"connection": {"kind": "tcp", "url": url}}, {}, instance_id=INSTANCE)
        assert "not encrypted" in (await found.check()).reasons[0]
        await found.close()


def test_key_files_are_readable_by_nobody_else_and_go_with_the_provider() -> None:
    files = TlsFiles(Tls("ca", "cert", "key"))
    folder = Path(files.paths["key"]).parent
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (modes, folder.stat().st_mode & 0o777) == ({0o600}, 0o700)
    files.close()
    assert not folder.exists()


@pytest.mark.docker
async def test_a_sandbox_lives_on_an_engine_behind_tls(
    tmp_path: Path, docker_view: DockerView, make_spec: Callable[..., SandboxSpec]
) -> None:
    authority = Authority()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(docker_view.socket_path)
        try:
            await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
        finally:
            inner_writer.close()

    async with tcp(proxy, server_context(authority, tmp_path)) as url:
        found = provider(url, authority.pem, *authority.issue("primer"))
        ref = await found.start(make_spec())
        channel = await found.connect(ref)
        second = await found.connect(ref)
        assert await channel.read(1) == await second.read(1) != b""
        await channel.close()
        await second.close()
        assert (await found.status(ref)).state is State.RUNNING
        assert await found.destroy(ref) == ["container", "volume"]
        await found.close()
    assert docker_view.names(ref.workspace_id) == []


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
