"""The published recipe: its snippet, its files, and what must hold afterwards."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import requests
import yaml

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
DOCUMENTS = ("docker-provider.yaml", "code-sandbox.yaml", "code-runner.yaml")
SNIPPET = """\
import socket, os
print('RESULT', 6 * 7)
open('/workspace/out.txt', 'w').write(str(6 * 7))
open('/workspace/sandbox_host.txt', 'w').write(socket.gethostname())
open('/workspace/host_sock.txt', 'w').write(str(os.path.exists('/var/run/docker.sock')))
"""
WORKSPACE_ID = re.compile(r"ws-[0-9a-f]{16}")
SCRIPTED = {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}


def sample(name: str) -> dict[str, Any]:
    """The document of one sample file."""
    document: dict[str, Any] = yaml.safe_load((SAMPLES / name).read_text())
    return document


def assert_confined(files: dict[str, str]) -> None:
    """The recipe's expected outcome, by the files that the snippet wrote."""
    assert files["out.txt"] == "42"
    assert files["sandbox_host.txt"].strip()
    assert files["sandbox_host.txt"] != socket.gethostname()
    assert files["host_sock.txt"] == "False"


def left_on_the_engine(workspace_id: str) -> list[str]:
    """Containers (running or not), volumes and networks that carry the workspace's name or label."""
    import docker

    client = docker.from_env()
    try:
        label: dict[str, Any] = {"label": f"primer.workspace={workspace_id}"}
        found = {c.name for c in client.containers.list(all=True, filters=label, ignore_removed=True)}
        found |= {c.name for c in client.containers.list(all=True, filters={"name": workspace_id}, ignore_removed=True)}
        found |= {v.name for v in client.volumes.list(filters={"name": workspace_id})}
        found |= {v.name for v in client.volumes.list(filters=label)}
        found |= {n.name for n in client.networks.list(filters=label)}
        return sorted(str(name) for name in found)
    finally:
        client.close()


class Api:
    """A plain HTTP client of the server under test; `call` returns the answer, `ok` its JSON after checking the status."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return self.http.request(method, f"{self.url}/v1/{path}", timeout=60, **kwargs)

    def ok(
        self, method: str, path: str, body: Any = None, *, status: int | tuple[int, ...] = (200, 201, 202, 204)
    ) -> Any:
        answer = self.call(method, path, json=body)
        wanted = (status,) if isinstance(status, int) else status
        assert answer.status_code in wanted, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def close(self) -> None:
        self.http.close()


def remove_everything(api: Api) -> None:
    """Deletes what the recipe made, so that the next test starts from an empty server."""
    for plural in ("sessions", "workspaces"):
        for item in api.ok("GET", f"{plural}?limit=500")["items"]:
            if plural == "sessions" and item["status"] != "ended":
                api.call("POST", f"sessions/{item['id']}/cancel")
            api.call("DELETE", f"{plural}/{item['id']}")
