"""A large download through the real server: `python -m benchmarks.download [--rounds 5] [--local]`.

A file of 100 MB in a sandbox, read by one plain HTTP client; then the same bytes sent up; then a directory of many small
files as one archive. Rates are MB/s of content (median of the rounds), memory is the peak of the server process during an
action above what it held just before (MiB, largest of the rounds; the first large transfer of the server is among them).
On a busy machine a rate says little: beside it stand the processor time of the server for 100 MB, and what `cat` of the
same file through a plain exec of the engine reaches, measured in turn. Exit code 1 when a target does not hold.

Needs a container engine, or `--local` for sandboxes without one: then the engine's own copying is not in the figures.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live import LiveServer

MB, MIB = 1_000_000, 1024 * 1024
FILE_MB = 100
SMALL_FILES, SMALL_BYTES = 2_000, 2_000
TARGETS = {"download_mb_s": 200.0, "download_growth_mib": 16.0, "upload_growth_mib": 16.0, "tree_growth_mib": 16.0}
ENGINE_SOCKET = "/var/run/docker.sock"
ENGINE = {
    "kind": "container",
    "runtime": "docker",
    "connection": {"kind": "socket", "socket_path": ENGINE_SOCKET},
}
BACKEND = {"kind": "container", "image": "primer/workspace-runtime:1.0", "cpu_cores": 2}


class Bench:
    """One server, one workspace with the files in it."""

    def __init__(self, server: LiveServer, root: Path | None) -> None:
        self.server, self.local = server, root is not None
        config = {"kind": "local", "root_path": str(root)} if root else ENGINE
        provider = {"id": "bench", "provider": config["kind"], "config": config}
        backend = {"kind": "local"} if root else BACKEND
        self.call("POST", "/v1/workspace_providers", provider)
        self.call("POST", "/v1/workspace_templates", {"id": "bench", "provider_id": "bench", "backend": backend})
        self.workspace = self.call("POST", "/v1/workspaces", {"template_id": "bench"})["id"]
        code = (
            f"import os; open('big', 'wb').write(os.urandom({MB}) * {FILE_MB}); os.mkdir('tree')\n"
            f"for n in range({SMALL_FILES}): open('tree/%d' % n, 'wb').write(b'x' * {SMALL_BYTES})"
        )
        self.call("POST", f"/v1/workspaces/{self.workspace}/exec", {"argv": ["python3", "-c", code]})

    def call(self, method: str, path: str, body: Any) -> Any:
        answer = self.server.request(method, path, json=body, timeout=300)
        if answer.status_code >= 300:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def growth(self, action: Callable[[], float]) -> tuple[float, float]:
        """What `action` returns, and the peak memory of the server during it above what it held before, in MiB."""
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")  # the peak starts from here
        before = self._memory("VmRSS")
        found = action()
        return found, (self._memory("VmHWM") - before) / MIB

    def _memory(self, name: str) -> int:
        text = Path(f"/proc/{self.server.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))

    def cpu_s(self) -> float:
        """Processor time that the server has used so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def engine(self) -> float:
        """Seconds of `cat` of the same file through the engine alone: what any way through it costs at the least."""
        import docker

        client = docker.APIClient(base_url=f"unix://{ENGINE_SOCKET}")
        made = client.exec_create(self.workspace, ["cat", "big"])
        client.close()
        body = b'{"Detach": false, "Tty": false}'
        head = f"POST /exec/{made['Id']}/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        head += f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        buffer = bytearray(MIB)
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(ENGINE_SOCKET)
            began, total = time.perf_counter(), 0
            stream.sendall(head.encode() + body)
            while count := stream.recv_into(buffer):
                total += count
            took = time.perf_counter() - began
        if total < FILE_MB * MB:
            raise SystemExit(f"the engine gave {total} bytes")
        return took

    def download(self, path: str = "big") -> tuple[float, int]:
        """Seconds and bytes of one GET, from the request to the last byte; nothing is kept."""
        connection = self._connection()
        buffer = memoryview(bytearray(MIB))
        began, total = time.perf_counter(), 0
        connection.request("GET", self._path("files/download", path), headers=self._headers())
        answer = connection.getresponse()
        while count := answer.readinto(buffer):
            total += count
        took = time.perf_counter() - began
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"download of {path}: {answer.status}")
        return took, total

    def upload(self) -> float:
        """Seconds of one PUT of the same size."""
        connection = self._connection()
        body = bytes(MB) * FILE_MB
        began = time.perf_counter()
        headers = {**self._headers(), "Content-Type": "application/octet-stream"}
        connection.request("PUT", self._path("files", "up"), body=body, headers=headers)
        answer = connection.getresponse()
        answer.read()
        took = time.perf_counter() - began
        connection.close()
        if answer.status != 204:
            raise SystemExit(f"upload: {answer.status}")
        return took

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.token}"}

    def _path(self, route: str, path: str) -> str:
        return f"/v1/workspaces/{self.workspace}/{route}?path={path}"

    def _whole(self) -> float:
        took, total = self.download()
        if total != FILE_MB * MB:
            raise SystemExit(f"the download had {total} bytes")
        return took

    def _tree(self) -> float:
        took, total = self.download("tree")
        if total < SMALL_FILES * SMALL_BYTES:
            raise SystemExit(f"the archive had {total} bytes")
        return took

    def round(self) -> dict[str, float]:
        engine = {} if self.local else {"engine_mb_s": FILE_MB / self.engine()}
        used = self.cpu_s()
        down, down_growth = self.growth(self._whole)
        used = self.cpu_s() - used
        up, up_growth = self.growth(self.upload)
        tree, tree_growth = self.growth(self._tree)
        return {
            **engine,
            "download_mb_s": FILE_MB / down,
            "download_server_cpu_s": used,
            "download_growth_mib": down_growth,
            "upload_mb_s": FILE_MB / up,
            "upload_growth_mib": up_growth,
            "tree_files_s": SMALL_FILES / tree,
            "tree_growth_mib": tree_growth,
        }


def measure(rounds: int, local: bool) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as directory:
        place = Path(directory)
        place.chmod(0o711)  # the sandboxes of `--local` run as another user
        server = LiveServer(place / "server")
        root = place / "sandboxes" if local else None
        if root is not None:
            root.mkdir(mode=0o711)
        server.start(**({"PRIMER_ALLOW_LOCAL": "1"} if local else {}))
        try:
            bench = Bench(server, root)
            bench.download("tree/0")  # every path was taken once, with a small file
            return [bench.round() for _ in range(rounds)]
        finally:
            server.destroy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--local", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.local)
    good = True
    figures: dict[str, dict[str, Any]] = {}
    for name in found[0]:
        values = [one[name] for one in found]
        value = max(values) if name.endswith("_mib") else statistics.median(values)
        target = TARGETS.get(name)
        if target is not None:
            good = good and (value < target if name.endswith("_mib") else value >= target)
        figures[name] = {"value": round(value, 1), "target": target, "all": [round(one, 1) for one in values]}
    print(json.dumps(figures, indent=2))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
