"""What a turn of the agent loop costs beside its model and its tool, alone and with 50 sessions at once.

    python -m benchmarks.loop [turns] [sessions]

The models answer at once: `scripted` inside the server, `anthropic` and `openai` through their SDKs from an endpoint of
this machine. Each turn makes one call that lists the workspace. Overhead is the time from the start of a turn to the start
of the next, less the call's own. Target: median < 15 ms with SQLite for one session. With many, none may starve: the slowest
ends within three times the median. Server, endpoint and reader share the machine, so its load is printed too, and what a
turn costs the server in processor time, which the load of others hardly changes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.live import Api, quantile
from tests.live import LiveServer
from tests.llm.stub_anthropic import AnthropicStub
from tests.llm.stub_http import KEY, Says, StubServer
from tests.llm.stub_openai import OpenAIStub

TURNS, SESSIONS, TURNS_OF_MANY = 60, 50, 10
TARGET_MS, SPREAD = 15.0, 3.0
LS: dict[str, Any] = {"name": "workspace__ls", "arguments": {}}


class QuickAnthropic(AnthropicStub):
    def check(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        """The endpoint's own time is no part of the loop's: tests look at the histories."""


class QuickOpenAI(OpenAIStub):
    def check(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        """The same."""


STUBS: dict[str, type[StubServer]] = {"anthropic": QuickAnthropic, "openai": QuickOpenAI}


@contextmanager
def serving() -> Iterator[tuple[LiveServer, dict[str, StubServer]]]:
    """A server with directories for sandboxes, and the endpoints of two models."""
    with tempfile.TemporaryDirectory(prefix="primer-bench-") as folder:
        Path(folder).chmod(0o755)
        stubs = {kind: make() for kind, make in STUBS.items()}
        for stub in stubs.values():
            stub.steps = [_answer]
            stub.start()
        live = LiveServer(Path(folder) / "server")
        try:
            live.start(PRIMER_ALLOW_LOCAL="1", PRIMER_LLM_HOSTS=",".join(stub.host for stub in stubs.values()))
            yield live, stubs
        finally:
            live.destroy()
            for stub in stubs.values():
                stub.stop()


def _answer(body: dict[str, Any]) -> Says:
    """A call for each turn until as many as the instructions say are done."""
    words = str(body["messages"][:2])
    wanted = int(words.partition("turns=")[2].partition(";")[0])
    replies = sum(message["role"] == "assistant" for message in body["messages"])
    return Says("done") if replies >= wanted else Says(calls=((LS["name"], "{}"),))


def prepare(api: Api, stubs: dict[str, StubServer], folder: Path, turns: int) -> None:
    api.call(
        "POST",
        "workspace_providers",
        {"id": "here", "provider": "local", "config": {"kind": "local", "root_path": str(folder)}},
    )
    api.call("POST", "workspace_templates", {"id": "plain", "provider_id": "here", "backend": {"kind": "local"}})
    script = [{"calls": [LS]}] * turns + [{"text": "done"}]
    many = [{"calls": [LS]}] * TURNS_OF_MANY + [{"text": "done"}]
    models: dict[str, dict[str, Any]] = {"scripted": {"turns": script}, "scripted-many": {"turns": many}}
    for kind, stub in stubs.items():
        models[kind] = {"base_url": stub.url, "api_key": KEY, "default_model": "stub-1", "max_concurrency": 64}
    for name, config in models.items():
        kind = name.partition("-")[0]
        api.call("POST", "llm_providers", {"id": name, "provider": kind, "config": {"kind": kind, **config}})
        limits = {"max_turns": turns + 10}
        api.call("POST", "agents", {"id": name, "model": {"provider_id": name}, "limits": limits})


def start(api: Api, agent: str, workspace: str, turns: int) -> str:
    body = {"agent_id": agent, "workspace_id": workspace, "initial_instructions": f"turns={turns};"}
    return str(api.call("POST", "sessions", body)["id"])


def ended(api: Api, session: str) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while (item := api.call("GET", f"sessions/{session}"))["status"] != "ended":
        if time.monotonic() > deadline:
            raise SystemExit(f"{session}: {item}")
        time.sleep(0.5)  # each look costs the server as much as a turn
    if item["ended_reason"] != "completed":
        raise SystemExit(f"{session}: {item['ended_reason']} {item['ended_detail']}")
    return dict(item)


def overheads(api: Api, session: str) -> list[float]:
    """Milliseconds of each turn beside its call."""
    events, after = [], 0
    while page := api.call("GET", f"sessions/{session}/events?after={after}&limit=500")["items"]:
        events += page
        after = page[-1]["seq"]
    found: list[float] = []
    began, calls = 0.0, 0.0
    for event in events:
        at = datetime.fromisoformat(event["ts"]).timestamp() * 1000
        if event["kind"] == "turn_started":
            if began:
                found.append(at - began - calls)
            began, calls = at, 0.0
        elif event["kind"] == "tool_result":
            calls += event["data"]["duration_ms"]
    return found[1:]  # the first turn also imports and connects


def alone(api: Api, server: psutil.Process, workspace: str, turns: int) -> bool:
    good = True
    for kind in ("scripted", *STUBS):
        ended(api, start(api, kind, workspace, 3))  # the SDK is imported
        before = cpu_ms(server)
        session = start(api, kind, workspace, turns)
        ended(api, session)
        spent = (cpu_ms(server) - before) / turns
        times = overheads(api, session)
        median = statistics.median(times)
        good &= median < TARGET_MS
        print(f"  one session, {kind:10} {len(times)} turns: median {median:5.1f} ms  p95 {quantile(times, 0.95):5.1f} ms"
              f"  target < {TARGET_MS:g} ms; processor {spent:.1f} ms a turn")  # fmt: skip
    return good


def many(api: Api, server: psutil.Process, workspace: str, sessions: int) -> bool:
    good = True
    for agent in ("scripted-many", "anthropic"):
        began, before = time.monotonic(), cpu_ms(server)
        ids = [start(api, agent, workspace, TURNS_OF_MANY) for _ in range(sessions)]
        items = [ended(api, session) for session in ids]
        took, used = time.monotonic() - began, cpu_ms(server) - before
        lives = [_seconds(item["started_at"], item["ended_at"]) for item in items]
        times = [value for session in ids for value in overheads(api, session)]
        median, worst = statistics.median(lives), max(lives)
        good &= worst <= SPREAD * median
        turns = sessions * (TURNS_OF_MANY + 1)
        print(f"  {sessions} sessions, {agent:13} {turns / took:5.0f} turns/s; a session: median {median:.2f} s, slowest {worst:.2f} s"
              f" (target <= {SPREAD:g} x median); a turn: median {statistics.median(times):.0f} ms, processor {used / turns:.1f} ms")  # fmt: skip
    return good


def cpu_ms(server: psutil.Process) -> float:
    """Processor time of the server so far, in all its threads; its sandboxes are other processes."""
    times = server.cpu_times()
    return float(times.user + times.system) * 1000


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


def main(turns: int = TURNS, sessions: int = SESSIONS) -> int:
    with serving() as (live, stubs):
        api = Api(live)
        prepare(api, stubs, live.directory / "sandboxes", turns)
        workspace = str(api.call("POST", "workspaces", {"template_id": "plain"})["id"])
        api.until(f"workspaces/{workspace}", lambda item: item["phase"] == "running")
        print(f"  load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        server = psutil.Process(live.pid)
        good = alone(api, server, workspace, turns)
        good &= many(api, server, workspace, sessions)
        print(f"  load of the machine at the end: {os.getloadavg()[0]:.1f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
