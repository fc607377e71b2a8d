"""What an exec costs through the HTTP API, beside a bare host subprocess and a request that does nothing.

    python -m benchmarks.http_exec [rounds]

Needs a container engine and the runtime image. Prints medians of interleaved rounds and their ratio (target: <= 1.8).
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live import LiveServer

CODE = "print(6*7)"
# Neither a version manager's shim nor a virtual environment: both cost more than the interpreter itself.
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else str(Path(sys.executable).resolve())
PROVIDER = {
    "id": "bench-engine",
    "provider": "container",
    "config": {"kind": "container", "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"}},
}
TEMPLATE = {
    "id": "bench-box",
    "provider_id": "bench-engine",
    "backend": {"kind": "container", "image": "primer/workspace-runtime:1.0", "cpu_cores": 2},
}


class Client:
    """One kept connection, without a library's own overhead."""

    def __init__(self, server: LiveServer) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self.headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        response = self.connection.getresponse()
        raw = response.read()
        return response.status, json.loads(raw) if raw else None


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as folder:
        server = LiveServer(Path(folder))
        server.start()
        try:
            measure(Client(server), rounds)
        finally:
            server.destroy()


def measure(client: Client, rounds: int) -> None:
    client.call("POST", "/v1/workspace_providers", PROVIDER)
    client.call("POST", "/v1/workspace_templates", TEMPLATE)
    workspace = client.call("POST", "/v1/workspaces", {"template_id": "bench-box"})[1]["id"]
    path = f"/v1/workspaces/{workspace}/exec"

    def bare() -> None:
        subprocess.run([PYTHON, "-c", CODE], capture_output=True, check=True)

    def exec_() -> None:
        status, body = client.call("POST", path, {"argv": ["python3", "-c", CODE]})
        assert (status, body.get("stdout")) == (200, "42\n"), body

    def nothing() -> None:
        assert client.call("GET", "/v1/me")[0] == 200

    samples = interleaved({"bare": bare, "exec": exec_, "nothing": nothing}, rounds)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print(f"bare subprocess          {medians['bare']:6.2f} ms")
    print(f"exec over HTTP           {medians['exec']:6.2f} ms   ratio {medians['exec'] / medians['bare']:.2f}")
    print(f"a request that does nothing (authenticated GET /v1/me) {medians['nothing']:.2f} ms")
    print(f"rounds {rounds}, slowest exec {max(samples['exec']):.1f} ms")


def interleaved(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each case, one after the other in every round, after five rounds of warming up."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 5):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            if number >= 5:
                samples[name].append((time.perf_counter() - began) * 1000)
    return samples


if __name__ == "__main__":
    main()
