"""How long the console's pages take: lists of a thousand rows, a transcript of ten thousand events, live fragments to 50 pages.

    python -m benchmarks.console [viewers] [seconds]

Targets: a list answers in < 150 ms; the page of the long transcript opens on its tail in < 1 s; a printed line reaches the
page's socket (sub-protocol `primer.v1.html`, each event with its fragment) in <= 20 ms median and 100 ms p95. Client and
server share the machine, so its load is printed too. The live part needs a container engine and the runtime image.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests

from benchmarks import live
from tests.live import ROOT, LiveServer

ROWS, EVENTS, ROUNDS = 1000, 10_000, 15
LIST_MS, TRANSCRIPT_MS = 150.0, 1000.0
PAGES = ("/workspaces/", "/workspaces/?size=100", "/sessions/", "/sessions/?size=100&q=print", "/", "/compute/agents/")


def fill() -> None:
    """Runs in a process with the server's own settings: rows as they are after a long life, none of which moves."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "primer_site.settings"
    django.setup()
    from django.utils import timezone

    from accounts.models import User
    from agents.models import Agent
    from agents.serializers import agent_shown
    from sessions_app.models import AgentSession, SessionEvent
    from workspaces.models import Workspace, WorkspaceTemplate
    from workspaces.snapshot import channel, snapshot

    template, agent, user = WorkspaceTemplate.objects.get(), Agent.objects.get(), User.objects.get(username="admin")
    common = {"owner": user, "template": template, "provider": template.provider, "spec": snapshot(template)}
    common |= {"channel": channel(template.provider.config.get("reachability"))}
    boxes = Workspace.objects.bulk_create(
        [Workspace(**common, name=f"box {n}", phase="stopped", desired="stopped") for n in range(ROWS)]
    )
    ended = {
        "status": "ended",
        "ended_reason": "completed",
        "ended_at": timezone.now(),
        "agent_spec": agent_shown(agent),
    }
    text = "Run this code: print(6 * 7)"
    sessions = AgentSession.objects.bulk_create(
        [
            AgentSession(owner=user, agent=agent, workspace=boxes[n], initial_instructions=text, **ended)
            for n in range(ROWS)
        ]
    )
    long = sessions[0]
    data = {"call_id": "c1", "exec_id": "exec-1", "stream": "stdout"}
    SessionEvent.objects.bulk_create(
        [
            SessionEvent(
                session=long, seq=n, kind="tool_output", data={**data, "offset": n * 20, "text": f"line {n}\n"}
            )
            for n in range(1, EVENTS + 1)
        ]
    )
    AgentSession.objects.filter(pk=long.pk).update(last_seq=EVENTS)
    print(long.slug)


def signed_in(server: LiveServer) -> requests.Session:
    http = requests.Session()
    page = http.get(f"{server.url}/login/", timeout=30)
    token = page.text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
    form = {"username": "admin", "password": server.password, "csrfmiddlewaretoken": token}
    http.post(f"{server.url}/login/", data=form, timeout=30).raise_for_status()
    return http


def timed(http: requests.Session, url: str) -> tuple[list[float], int]:
    """Seconds of each round after a first one that fills caches, and the size of the page."""
    times, size = [], len(http.get(url, timeout=60).content)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        http.get(url, timeout=60).raise_for_status()
        times.append(time.perf_counter() - began)
    return times, size


def row(what: str, times: list[float], size: int, target_ms: float) -> None:
    median, p95 = statistics.median(times) * 1000, live.quantile(times, 0.95) * 1000
    print(
        f"  {what:32} median {median:6.1f} ms = {median / target_ms:.2f} of {target_ms:g}   p95 {p95:6.1f} ms   {size // 1024} KiB"
    )


def pages(server: LiveServer) -> None:
    command = [sys.executable, "-c", "from benchmarks.console import fill; fill()"]
    done = subprocess.run(command, cwd=ROOT, env=server.env(), check=True, capture_output=True, text=True)
    session = done.stdout.split()[-1]
    http = signed_in(server)
    print(f"pages: {ROWS} workspaces and sessions, {ROUNDS} rounds, load {os.getloadavg()[0]:.1f}")
    for path in PAGES:
        row(path, *timed(http, server.url + path), LIST_MS)
    row(f"transcript of {EVENTS} events", *timed(http, f"{server.url}/sessions/{session}/"), TRANSCRIPT_MS)


def main() -> None:
    viewers = int(sys.argv[1]) if len(sys.argv) > 1 else live.SOCKETS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else live.SECONDS
    live.PROTOCOL = "primer.v1.html"
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as folder:
        server = LiveServer(Path(folder))
        server.start()
        try:
            api = live.Api(server)
            config = {"kind": "container", "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"}}
            api.call("POST", "workspace_providers", {"id": "engine", "provider": "container", "config": config})
            backend = {"kind": "container", "image": "primer/workspace-runtime:1.0"}
            api.call("POST", "workspace_templates", {"id": "box", "provider_id": "engine", "backend": backend})
            api.call(
                "POST", "llm_providers", {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
            )
            api.call("POST", "agents", {"id": "runner", "model": {"provider_id": "scripted"}})
            workspace = api.call("POST", "workspaces", {"template_id": "box"})["id"]
            api.until(f"workspaces/{workspace}", lambda item: item["phase"] == "running")
            pages(server)
            live.measure(server, api, workspace, "steady", viewers, seconds)
        finally:
            server.destroy()


if __name__ == "__main__":
    main()
