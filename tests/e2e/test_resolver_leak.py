"""A resolver on the engine host's loopback must not hear what a sandbox looks up: CVE-2024-29018."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import unusable
from tests.e2e.private_engine import PrivateEngine
from tests.engine import INSTANCE, new_workspace_id
from tests.eventually import eventually
from workspaces.execution import ExecRequest
from workspaces.providers.base import SandboxSpec
from workspaces.providers.container import ContainerProvider
from workspaces.sandbox import Sandbox

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]
NAME = "secret.exfil.invalid"
LOOKUP = f"import socket\ntry: socket.getaddrinfo({NAME!r}, 80)\nexcept OSError: print('failed')"
LISTEN = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53))
print('listening', flush=True)
while True:
    data, peer = s.recvfrom(2048)
    print('query', data[12:60].hex(), flush=True)
"""


@pytest.fixture
def engine(runtime_image: str) -> Iterator[PrivateEngine]:
    if shutil.which("dockerd") is None or shutil.which("nsenter") is None:
        unusable("docker", "dockerd or nsenter is not installed here, so no engine with another resolver can be made")
    private = PrivateEngine(nameserver="127.0.0.1")
    try:
        private.start()
        private.take_image(runtime_image)
        yield private
    finally:
        private.destroy()


@pytest.fixture
def queries(engine: PrivateEngine, tmp_path: Path) -> Iterator[Path]:
    """What a resolver on the loopback of the engine's host hears, a line a query."""
    assert engine.process is not None
    heard = tmp_path / "queries"
    command = ["nsenter", f"--net=/proc/{engine.process.pid}/ns/net", sys.executable, "-c", LISTEN]
    with heard.open("w") as out:
        listener = subprocess.Popen(command, stdout=out)
    try:
        eventually(lambda: "listening" in heard.read_text(), within=10)
        yield heard
    finally:
        listener.kill()
        listener.wait()


async def test_no_lookup_of_an_internal_network_reaches_the_hosts_resolver(
    engine: PrivateEngine, queries: Path, runtime_image: str
) -> None:
    config = {"connection": {"kind": "socket", "socket_path": str(engine.socket)}}
    provider = ContainerProvider(config, {}, instance_id=INSTANCE)
    spec = SandboxSpec(INSTANCE, new_workspace_id(), 1, image=runtime_image, network_mode="internal")
    ref = await provider.start(spec)
    sandbox = Sandbox(lambda: provider.connect(ref), secrets.token_bytes(32))
    try:
        _, stdout, _ = await sandbox.run(ExecRequest("lookup", ("python3", "-c", LOOKUP), timeout_s=40))
    finally:
        await sandbox.close()
        await provider.destroy(ref)
        await provider.close()
    assert stdout == b"failed\n"
    assert "query" not in queries.read_text()
    plain = engine.docker("network", "create", "--internal", "plain")
    assert plain.returncode == 0, plain.stderr
    engine.docker("run", "--rm", "--network", "plain", runtime_image, "python3", "-c", LOOKUP)
    if "query" not in queries.read_text():  # engines since 26 keep it to themselves in any case
        assert int(engine.docker("version", "-f", "{{.Server.Version}}").stdout.split(b".")[0]) >= 23
