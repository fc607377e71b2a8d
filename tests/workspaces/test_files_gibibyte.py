"""The largest file that is promised, and the smallest, into a real container and out of it again."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import LiveServer
from tests.workspaces.test_files_live import GROWTH, MIB, Site

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.slow]
GIB = 1024 * MIB


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, docker_engine: str, runtime_image: str
) -> Iterator[Site]:  # fmt: skip
    """A server with a container whose disk holds the file, beside which its memory is small."""
    server = LiveServer(tmp_path_factory.mktemp("gibibyte") / "server")
    config = {"kind": "container", "runtime": "docker", "connection": {"kind": "socket", "socket_path": docker_engine}}
    backend = {"kind": "container", "image": runtime_image, "disk_bytes": 5 * GIB // 4, "memory_bytes": 256 * MIB}
    server.start()
    try:
        yield Site(server, config, backend)
    finally:
        server.destroy()


class Numbered:
    """A body of `size` bytes that is nowhere whole: each mebibyte begins with its number, the rest is zeros."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def read(self, most: int) -> bytes:
        assert most == MIB
        block = block_at(self.at)[: self.size - self.at]
        self.at += len(block)
        return block


def block_at(offset: int) -> bytes:
    return (offset // MIB).to_bytes(8, "big") + bytes(MIB - 8)


@contextlib.contextmanager
def sent(
    site: Site, method: str, what: str, body: Any = None, size: int = 0
) -> Iterator[http.client.HTTPResponse]:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=120, blocksize=MIB)
    headers = {"Authorization": f"Bearer {site.server.token}"}
    if body is not None:
        headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    with contextlib.closing(connection):
        connection.request(method, f"/v1/workspaces/{site.workspace}/{what}", body=body, headers=headers)
        yield connection.getresponse()


def test_a_gibibyte_goes_up_and_down_and_the_server_does_not_grow(site: Site) -> None:
    site.put("warm", b"x" * 3 * MIB)
    site.files("GET", "/download", path="warm")
    before = site.forget_peak()
    with sent(site, "PUT", "files?path=large", Numbered(GIB), GIB) as up:
        assert up.status == 204, up.read()
    assert site.memory("VmHWM") - before < GROWTH

    before = site.forget_peak()
    with sent(site, "GET", "files/download?path=large") as down:
        told = (down.status, down.headers["Content-Length"], down.headers["ETag"])
        assert told == (200, str(GIB), up.headers["ETag"])
        for offset in range(0, GIB, MIB):
            assert down.read(MIB) == block_at(offset), offset
        assert down.read(1) == b""
    assert site.memory("VmHWM") - before < GROWTH
    assert site.files("DELETE", path="large").status_code == 204


def test_a_file_of_no_bytes_goes_up_and_down(site: Site) -> None:
    with sent(site, "PUT", "files?path=empty", b"", 0) as up:
        assert (up.status, up.read()) == (204, b"")
    with sent(site, "GET", "files/download?path=empty") as down:
        assert (down.status, down.headers["Content-Length"], down.read()) == (200, "0", b"")
    assert down.headers["ETag"] == up.headers["ETag"]
    read = site.files("GET", "/read", path="empty").json()
    assert (read["content"], read["size_bytes"], read["truncated"]) == ("", 0, False)
