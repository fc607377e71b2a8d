"""How long a printed line takes to 50 live transcripts, and what HTTP answers meanwhile.

    python -m benchmarks.live [sockets] [seconds]

A program in a sandbox prints the time; each socket takes the difference when the line arrives. `steady` prints ten lines
a second, each of which is stored at once; `busy` prints a hundred, which are merged for up to 50 ms. Targets for steady:
median <= 20 ms, p95 <= 100 ms; HTTP p95 < 50 ms in both. Each row gives median and p95, and their share of the target.
Clients and server share the machine: on a loaded one the numbers say little, so its load is printed too. Needs a
container engine and the runtime image.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import requests

from tests.live import LiveServer

SOCKETS, SECONDS = 50, 12
RATES = {"steady": 0.1, "busy": 0.01}  # seconds between two lines
TARGETS_MS: dict[str, dict[str, float]] = {"steady": {"median": 20, "p95": 100}, "busy": {}}
HTTP_P95_MS = 50.0
PROTOCOL = "primer.v1.json"
PROGRAM = "import time\nfor _ in range({count}):\n    print(repr(time.time()), flush=True)\n    time.sleep({pause})\n"


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


class Api:
    def __init__(self, server: LiveServer) -> None:
        self.url = server.url
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {server.token}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, f"{self.url}/v1/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def until(self, path: str, wanted: Callable[[Any], bool], within: float = 60) -> Any:
        deadline = time.monotonic() + within
        while not wanted(item := self.call("GET", path)):
            if time.monotonic() > deadline:
                raise SystemExit(f"{path}: {item}")
            time.sleep(0.05)
        return item


async def follow(port: int, token: str, session: str, last: float, delays: list[tuple[float, float]]) -> None:
    """One socket, spoken by hand: a library's cost would be measured with it. `last` is when to stop.

    Adds for each line the seconds from print to store and from print to here.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET /ws/v1/sessions/{session}/events/?after=0 HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket",
        "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {PROTOCOL}", f"Authorization: Bearer {token}", "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise SystemExit(head.decode())
    settled = time.time() + 1  # what was printed before that may be replay, which is no latency
    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
        while True:
            async with asyncio.timeout(max(0.0, last - time.time())):
                opcode, payload = await frame(reader)
            now = time.time()
            if opcode == 9:
                writer.write(b"\x8a\x80\0\0\0\0")
            elif opcode == 1:
                event = json.loads(payload)
                stored = datetime.fromisoformat(event["ts"]).timestamp()
                delays += [(stored - sent, now - sent) for sent in printed(event) if sent > settled]
            elif opcode == 8:
                raise SystemExit(f"closed: {int.from_bytes(payload[:2], 'big')}")
    writer.close()


async def frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, second = await reader.readexactly(2)
    size = second & 127
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    return first & 15, await reader.readexactly(size)


def printed(event: dict[str, Any]) -> list[float]:
    text = event["data"].get("text", "") if event["kind"] == "tool_output" else ""
    return [float(line) for line in text.split("\n") if line[:2].isdigit() and "." in line]


def sockets(port: int, token: str, session: str, count: int, last: float, results: Any) -> None:
    delays: list[tuple[float, float]] = []

    async def run() -> None:
        await asyncio.gather(*(follow(port, token, session, last, delays) for _ in range(count)))

    asyncio.run(run())
    results.put(delays)


def http_probe(url: str, token: str, last: float, results: Any) -> None:
    """A request each 20 ms over a kept connection, as a page that polls would send them."""
    http = requests.Session()
    http.headers["Authorization"] = f"Bearer {token}"
    times: list[float] = []
    while time.time() < last:
        began = time.perf_counter()
        http.get(f"{url}/v1/me", timeout=30).raise_for_status()
        times.append(time.perf_counter() - began)
        time.sleep(0.02)
    results.put(times)


def measure(server: LiveServer, api: Api, workspace: str, name: str, count: int, seconds: float) -> None:
    pause = RATES[name]
    code = PROGRAM.format(count=int(seconds / pause), pause=pause)
    agent = f"printer-{name}"
    call = {"name": "workspace__exec", "arguments": {"command": f"python3 -c {json.dumps(code)}".replace("\\n", "\n")}}
    turns = [{"calls": [call]}, {"text": "done"}]
    api.call(
        "POST", "llm_providers", {"id": agent, "provider": "scripted", "config": {"kind": "scripted", "turns": turns}}
    )
    api.call("POST", "agents", {"id": agent, "model": {"provider_id": agent}})
    body = {"agent_id": agent, "workspace_id": workspace, "initial_instructions": "go"}
    session = api.call("POST", "sessions", body)["id"]
    last = time.time() + seconds - 1
    results: Any = multiprocessing.Queue()
    probe_results: Any = multiprocessing.Queue()
    clients = multiprocessing.Process(target=sockets, args=(server.port, server.token, session, count, last, results))
    probe = multiprocessing.Process(target=http_probe, args=(server.url, server.token, last, probe_results))
    clients.start()
    probe.start()
    found, times = results.get(), probe_results.get()
    stored, delays = [pair[0] for pair in found], [pair[1] for pair in found]
    clients.join()
    probe.join()
    item = api.until(f"sessions/{session}", lambda item: item["status"] == "ended")
    print(
        f"{name}: {count} sockets, one line each {pause * 1000:g} ms, {item['last_seq']} events, load {os.getloadavg()[0]:.1f}"
    )
    targets = TARGETS_MS[name]
    report(f"print to arrival ({len(delays)} lines)", delays, targets)
    report("  of it, print to store", stored)
    report(f"HTTP meanwhile ({len(times)} requests)", times, {"p95": HTTP_P95_MS})


def report(what: str, seconds: list[float], targets: dict[str, float] | None = None) -> None:
    """One row: median and p95 in ms, each with its share of the target where there is one (1.00 is just met)."""
    found = {"median": statistics.median(seconds) * 1000, "p95": quantile(seconds, 0.95) * 1000}
    cells = []
    for part, value in found.items():
        target = (targets or {}).get(part)
        share = f" = {value / target:.2f} of {target:g}" if target else ""
        cells.append(f"{part} {value:.1f} ms{share}")
    print(f"  {what:36} " + "   ".join(cells))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SOCKETS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as folder:
        server = LiveServer(Path(folder))
        server.start()
        try:
            api = Api(server)
            config = {"kind": "container", "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"}}
            api.call("POST", "workspace_providers", {"id": "engine", "provider": "container", "config": config})
            backend = {"kind": "container", "image": "primer/workspace-runtime:1.0"}
            api.call("POST", "workspace_templates", {"id": "box", "provider_id": "engine", "backend": backend})
            workspace = api.call("POST", "workspaces", {"template_id": "box"})["id"]
            api.until(f"workspaces/{workspace}", lambda item: item["phase"] == "running")
            for name in RATES:
                measure(server, api, workspace, name, count, seconds)
        finally:
            server.destroy()


if __name__ == "__main__":
    main()
