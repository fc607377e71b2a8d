"""What floods and slow clients cost the server: `python -m benchmarks.server [--rounds 3]`. Needs a container engine.

Memory is the peak of the server process during an action above what it held just before (VmHWM, reset between
actions), in MiB; the largest of the rounds is printed beside its limit. Exit code 1 when a limit does not hold.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import websocket

from tests.live import LiveServer

MIB = 1024 * 1024
FLOOD_BYTES = 200 * MIB
HELD_S = 3.0  # how long a client that does not read is left hanging
SLOW_CLIENTS = 10
SMALL_BUFFER = 64 * 1024
LIMITS = {"flood_mib": 16.0, "slow_download_mib": 8.0, "slow_socket_mib": 8.0, "exec_delay_p95_ms": 100.0}
TEMPLATE = {
    "id": "bench",
    "provider_id": "bench",
    "backend": {"kind": "container", "image": "primer/workspace-runtime:1.0", "cpu_cores": 1},
}
PROVIDER = {
    "id": "bench",
    "provider": "container",
    "config": {
        "kind": "container",
        "runtime": "docker",
        "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"},
    },
}


class Bench:
    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.call("POST", "/v1/workspace_providers", PROVIDER)
        self.call("POST", "/v1/workspace_templates", TEMPLATE)
        self.call(
            "POST", "/v1/llm_providers", {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
        )
        model = {"provider_id": "scripted", "model_name": "scripted"}
        self.call("POST", "/v1/agents", {"id": "bench", "model": model})
        self.workspaces = [self.call("POST", "/v1/workspaces", {"template_id": "bench"})["id"] for _ in range(2)]
        for workspace in self.workspaces:
            self.exec(workspace, "true")  # waits until it runs, and warms every path

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.server.request(method, path, json=body, timeout=300)
        if answer.status_code >= 300:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None

    def exec(self, workspace: str, command: str, **fields: Any) -> Any:
        return self.call("POST", f"/v1/workspaces/{workspace}/exec", {"command": command, "timeout_s": 120, **fields})

    def growth(self, action: Callable[[], None]) -> float:
        """Peak memory of the server during `action` above what it held before, in MiB."""
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")  # the peak starts from here
        before = self._memory("VmRSS")
        action()
        return (self._memory("VmHWM") - before) / MIB

    def _memory(self, name: str) -> int:
        text = Path(f"/proc/{self.server.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))

    def flood(self) -> dict[str, float]:
        """200 MiB of stdout in one workspace, while another one answers `true` again and again."""
        quiet = [self._timed_exec() for _ in range(20)]
        busy: list[float] = []
        done = threading.Event()

        def bystander() -> None:
            while not done.is_set():
                busy.append(self._timed_exec())

        def run() -> None:
            thread = threading.Thread(target=bystander)
            thread.start()
            found = self.exec(self.workspaces[0], f"yes primer | head -c {FLOOD_BYTES}")
            done.set()
            thread.join()
            if found["stdout_bytes"] != FLOOD_BYTES:
                raise SystemExit(f"the flood was not whole: {found['stdout_bytes']} bytes, {found['ended_by']}")

        grown = self.growth(run)
        return {"flood_mib": grown, "exec_delay_p95_ms": percentile(busy, 95) - statistics.median(quiet)}

    def _timed_exec(self) -> float:
        began = time.perf_counter()
        self.exec(self.workspaces[1], "true")
        return (time.perf_counter() - began) * 1000

    def slow_downloads(self) -> float:
        """MiB for each client that asks for a large file and reads nothing."""
        workspace = self.workspaces[0]
        self.exec(workspace, "[ -e big ] || head -c 300000000 /dev/zero > big")
        request = (
            f"GET /v1/workspaces/{workspace}/files/download?path=big HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {self.server.token}\r\n\r\n"
        ).encode()

        def hang() -> None:
            clients = [small_socket(self.server.port) for _ in range(SLOW_CLIENTS)]
            for client in clients:
                client.sendall(request)
            time.sleep(HELD_S)
            for client in clients:
                client.close()

        return self.growth(hang) / SLOW_CLIENTS

    def slow_sockets(self) -> float:
        """MiB for each socket on a busy session that reads nothing."""
        code = "for n in range(3000): print(n, 'x' * 60, flush=True)"
        text = f"Run this code:\n{code}"
        body = {"agent_id": "bench", "workspace_id": self.workspaces[0], "initial_instructions": text}

        def hang() -> None:
            session = self.call("POST", "/v1/sessions", body)["id"]
            url = f"ws://127.0.0.1:{self.server.port}/ws/v1/sessions/{session}/events/?after=0"
            sockets = [slow_websocket(url, self.server.token) for _ in range(SLOW_CLIENTS)]
            while self.call("GET", f"/v1/sessions/{session}")["status"] != "ended":
                time.sleep(0.05)
            for client in sockets:
                client.shutdown()

        return self.growth(hang) / SLOW_CLIENTS


def small_socket(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    client.connect(("127.0.0.1", port))
    return client


def slow_websocket(url: str, token: str) -> websocket.WebSocket:
    return websocket.create_connection(
        url,
        header=[f"Authorization: Bearer {token}"],
        subprotocols=["primer.v1.json"],
        sockopt=[(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)],
        timeout=30,
    )


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(len(ordered) * percent / 100))]


def measure(rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in LIMITS}
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as directory:
        server = LiveServer(Path(directory))
        server.start()
        try:
            bench = Bench(server)
            for _ in range(rounds):
                for name, value in bench.flood().items():
                    found[name].append(value)
                found["slow_download_mib"].append(bench.slow_downloads())
                found["slow_socket_mib"].append(bench.slow_sockets())
        finally:
            server.destroy()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    found = measure(parser.parse_args().rounds)
    figures = {
        name: {"largest": round(max(values), 2), "limit": LIMITS[name], "all": [round(value, 2) for value in values]}
        for name, values in found.items()
    }
    print(json.dumps(figures, indent=2))
    return 0 if all(max(values) < LIMITS[name] for name, values in found.items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
