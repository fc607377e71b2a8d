"""Files through a real server: bodies of any form and size, ranges over sockets, clients that go away, memory that stays."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.eventually import eventually
from tests.live import ROOT, LiveServer

MIB = 1024 * 1024
SIZE = 200 * MIB
GROWTH = 16 * MIB


class Site:
    """A server with one workspace."""

    def __init__(self, server: LiveServer, config: dict[str, Any], backend: dict[str, Any]) -> None:
        self.server = server
        provider = {"id": "here", "provider": config["kind"], "config": config}
        self.ok("POST", "workspace_providers", json=provider)
        self.ok("POST", "workspace_templates", json={"id": "t", "provider_id": "here", "backend": backend})
        self.workspace = self.ok("POST", "workspaces", json={"template_id": "t"}).json()["id"]
        self.python("pass")

    def call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return self.server.request(method, f"/v1/{path}", **{"timeout": 120, **kwargs})

    def ok(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        answer = self.call(method, path, **kwargs)
        assert answer.status_code < 300, answer.text
        return answer

    def files(self, method: str, what: str = "", *, path: str, **kwargs: Any) -> requests.Response:
        return self.call(method, f"workspaces/{self.workspace}/files{what}", params={"path": path}, **kwargs)

    def put(self, path: str, data: Any) -> requests.Response:
        return self.files("PUT", path=path, data=data, headers={"Content-Type": "application/octet-stream"})

    def python(self, code: str) -> str:
        answer = self.ok("POST", f"workspaces/{self.workspace}/exec", json={"argv": ["python3", "-c", code]})
        assert answer.json()["exit_code"] == 0, answer.json()
        return str(answer.json()["stdout"])

    def memory(self, name: str) -> int:
        text = Path(f"/proc/{self.server.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))

    def forget_peak(self) -> int:
        """The memory of the server now; from here on its peak is counted anew."""
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")
        return self.memory("VmRSS")

    def streams(self) -> int:
        """Files that the runtime holds open in the workspace."""
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if b"primer" not in (process / "cmdline").read_bytes() or str(self.server.pid) == process.name:
                    continue
                links = [os.readlink(fd) for fd in (process / "fd").iterdir()]
            except OSError:
                continue
            found += sum(link.endswith(("/large", "/tree", "/tree/sub")) for link in links)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = LiveServer(tmp_path_factory.mktemp("files") / "server")
    with tempfile.TemporaryDirectory(prefix="primer-files-") as root:
        os.chmod(root, 0o711)  # the sandbox runs as another user
        server.start(PRIMER_ALLOW_LOCAL="1")
        try:
            yield Site(server, {"kind": "local", "root_path": root}, {"kind": "local"})
        finally:
            server.destroy()


def pieces(size: int) -> Iterator[bytes]:
    block = bytes(range(256)) * 1024
    for at in range(0, size, len(block)):
        yield block[: min(len(block), size - at)]


def digest(parts: Iterator[bytes]) -> str:
    found = hashlib.blake2b()
    for part in parts:
        found.update(part)
    return found.hexdigest()


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_a_body_without_a_length_arrives_whole(site: Site, size: int) -> None:
    assert site.put("chunked", pieces(size) if size else iter(())).status_code == 204
    found = site.files("GET", "/download", path="chunked")
    assert (found.headers["Content-Length"], found.content == b"".join(pieces(size))) == (str(size), True)


def test_a_large_file_goes_up_and_down_and_the_server_does_not_grow(site: Site) -> None:
    site.put("warm", b"x" * 3 * MIB)
    site.files("GET", "/download", path="warm")
    before = site.forget_peak()
    with tempfile.TemporaryFile() as file:
        for part in pieces(SIZE):
            file.write(part)
        file.seek(0)
        assert site.put("large", file).status_code == 204
    assert site.memory("VmHWM") - before < GROWTH
    before = site.forget_peak()
    with site.files("GET", "/download", path="large", stream=True) as answer:
        assert int(answer.headers["Content-Length"]) == SIZE
        assert digest(answer.iter_content(MIB)) == digest(pieces(SIZE))
    assert site.memory("VmHWM") - before < GROWTH
    rest = site.files(
        "GET", "/download", path="large", headers={"Range": f"bytes={SIZE - 5}-", "If-Range": answer.headers["ETag"]}
    )
    assert (rest.status_code, len(rest.content)) == (206, 5)
    assert rest.headers["Content-Range"] == f"bytes {SIZE - 5}-{SIZE - 1}/{SIZE}"


def test_a_large_tree_comes_as_a_stream_and_the_server_does_not_grow(site: Site) -> None:
    site.python(
        "import os\nos.makedirs('tree/sub')\n"
        "for n in range(3000): open('tree/sub/%d' % n, 'w').write('x' * 2000)\n"
        "for n in range(4): open('tree/big%d' % n, 'wb').truncate(40_000_000)"
    )
    before = site.forget_peak()
    with site.files("GET", "/download", path="tree", stream=True) as answer:
        assert answer.headers["Transfer-Encoding"] == "chunked"
        with tarfile.open(fileobj=answer.raw, mode="r|") as archive:
            sizes = [member.size for member in archive]
    assert (len(sizes), sum(sizes)) == (3006, 3000 * 2000 + 4 * 40_000_000)
    assert site.memory("VmHWM") - before < GROWTH


def test_clients_that_go_away_leave_nothing_open_and_others_are_served(site: Site) -> None:
    site.python("import os; open('large', 'wb').truncate(100_000_000); os.makedirs('tree/sub', exist_ok=True)")
    for path in ("large", "tree") * 5:
        client = socket.create_connection(("127.0.0.1", site.server.port))
        target = f"/v1/workspaces/{site.workspace}/files/download?path={path}"
        lines = [f"GET {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {site.server.token}", "", ""]
        client.sendall("\r\n".join(lines).encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
    eventually(lambda: site.streams() == 0, within=20, message="the runtime closed what nobody reads")
    assert site.files("GET", "/read", path="chunked", timeout=20).status_code in (200, 404, 422)


def test_head_sends_no_body_and_keeps_the_connection(site: Site) -> None:
    site.put("small", b"12345")
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {site.server.token}"
        url = f"{site.server.url}/v1/workspaces/{site.workspace}/files/download?path=small"
        head = session.head(url, timeout=20)
        assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "5", b"")
        assert session.get(url, timeout=20).content == b"12345"


def test_an_archive_that_fails_in_the_middle_is_cut_off_and_never_looks_whole(site: Site) -> None:
    site.python(
        "import os\nos.makedirs('gone/a')\nopen('gone/a/big', 'wb').truncate(200_000_000)\nopen('gone/z', 'w').write('z')"
    )
    with site.files("GET", "/download", path="gone", stream=True) as answer:
        parts = answer.iter_content(MIB)
        next(parts)
        site.python("import os, shutil\nos.rename('gone/a', 'kept')\nshutil.rmtree('gone')")
        with pytest.raises(requests.RequestException):
            digest(parts)


def primectl(site: Site, *argv: str, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {
        **os.environ,
        "PRIMECTL_SERVER": site.server.url,
        "PRIMECTL_TOKEN": site.server.token,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "cli.main", *argv]
    return subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, timeout=120, check=False)


def test_a_hostile_tree_comes_down_and_a_tree_goes_up_with_primectl(site: Site, tmp_path: Path) -> None:
    site.python(
        "import os\nos.makedirs('h/sub')\nopen('h/ok', 'w').write('ok')\nopen('h/sub/tool', 'w').write('#!')\n"
        "os.chmod('h/sub/tool', 0o755)\nos.symlink('/etc/passwd', 'h/link')\nos.mkfifo('h/fifo')\n"
        "open('h/new\\nline', 'w')\nopen('h/rtl\\u202egnp', 'w')\nopen(b'h/bad\\xff', 'w')\nopen('h/back\\\\slash', 'w')\n"
        "open('h/secret', 'w').write('s')\nos.chmod('h/secret', 0)"
    )
    done = primectl(site, "cp", f"{site.workspace}:h", "here", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert {str(p.relative_to(tmp_path / "here")) for p in (tmp_path / "here").rglob("*")} == {"ok", "sub", "sub/tool"}
    assert (tmp_path / "here/sub/tool").stat().st_mode & 0o777 == 0o755
    said = done.stderr.decode()
    for line in (
        "skipped link: a link", "skipped fifo: not a regular file", "skipped secret: not readable",
        "skipped back\\slash: its path is not portable", "skipped new\\nline: its name holds control characters",
    ):  # fmt: skip
        assert line in said, said
    up = primectl(site, "cp", "here", f"{site.workspace}:copy", cwd=tmp_path)
    assert (up.returncode, up.stdout) == (0, f"{site.workspace}:copy written (2 entries, 4 bytes)\n".encode()), (
        up.stderr
    )
    assert (
        site.python("import os; print(oct(os.stat('copy/sub/tool').st_mode & 0o777), open('copy/ok').read())")
        == "0o755 ok\n"
    )
    piped = primectl(site, "cp", f"{site.workspace}:copy", "-", cwd=tmp_path)
    with tarfile.open(fileobj=io.BytesIO(piped.stdout), mode="r:") as archive:
        names = archive.getnames()
        note = json.loads(archive.getmembers()[-1].pax_headers["comment"])
    assert (names, note["entries"]) == (["ok", "sub", "sub/tool", "."], 3)
    data = os.urandom(2_000_000)
    assert primectl(site, "cp", "-", f"{site.workspace}:in", cwd=tmp_path, stdin=data).returncode == 0
    assert primectl(site, "cp", f"{site.workspace}:in", "-", cwd=tmp_path).stdout == data


def test_listing_a_wide_directory_goes_page_by_page_and_the_server_does_not_grow(site: Site) -> None:
    site.python("import os\nos.mkdir('wide')\nfor n in range(20000): open('wide/%0100d' % n, 'w')")
    route, seen, cursor = f"workspaces/{site.workspace}/files", 0, ""
    before = site.forget_peak()
    while cursor is not None:
        query = {"path": "wide", "recursive": "true", "limit": 1000, **({"cursor": cursor} if cursor else {})}
        page = site.ok("GET", route, params=query).json()
        seen, cursor = seen + len(page["items"]), page["next_cursor"]
    assert seen == 20_000
    assert site.memory("VmHWM") - before < GROWTH
