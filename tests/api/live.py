"""One of everything on a real server whose sandboxes are directories, so that programs run and nothing needs an engine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import requests

from tests.eventually import eventually
from tests.live import LiveServer

ENV = {"PRIMER_ALLOW_LOCAL": "1", "PRIMER_LOGIN_RATE": "100000/min", "PRIMER_LOGIN_ADDRESS_RATE": "100000/min"}
PASSWORD = "correct horse battery"
CODE = "Run this code: print(6 * 7)"


class LiveWorld:
    """`ids` are what the placeholders of routes stand for; alice owns the workspace and the session, both at rest or running."""

    def __init__(self, directory: Path) -> None:
        self.server = LiveServer(directory)
        # Reachable for the sandboxes' own user: pytest's directories are closed to everybody else.
        self.root = Path(tempfile.mkdtemp(prefix="primer-api-"))
        self.root.chmod(0o755)
        self.alice = ""
        self.ids: dict[str, str] = {}

    def start(self, **extra: str) -> None:
        self.server.start(**ENV, **extra)

    def restart(self, **extra: str) -> None:
        self.server.restart(**ENV, **extra)

    def destroy(self) -> None:
        self.server.destroy()
        shutil.rmtree(self.root, ignore_errors=True)

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None, key: str = "") -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        value = self.alice if token is None else token
        return self.server.request(method, f"/v1/{path}", token=value, json=body, headers=headers)

    def made(self, path: str, body: Any, *, token: str | None = None) -> dict[str, Any]:
        answer: requests.Response = self.call("POST", path, body, token=token)
        assert answer.status_code in (200, 201), (path, answer.text)
        return dict(answer.json())

    def build(self) -> None:
        """Makes everything; returns when the workspace runs and the session has ended."""
        admin = self.server.token
        local = {"provider": "local", "config": {"kind": "local", "root_path": str(self.root / "engine")}}
        for name in ("alice", "dave"):
            self.made("users", {"username": name, "password": PASSWORD}, token=admin)
        self.alice = self.login("alice")
        for slug in ("here", "spare"):
            self.made("workspace_providers", {"id": slug, **local}, token=admin)
        for slug in ("plain", "unused"):
            body = {"id": slug, "provider_id": "here", "backend": {"kind": "local"}}
            self.made("workspace_templates", body, token=admin)
        for slug in ("scripted", "unused-model"):
            body = {"id": slug, "provider": "scripted", "config": {"kind": "scripted"}}
            self.made("llm_providers", body, token=admin)
        for slug in ("code-runner", "free"):
            self.made("agents", {"id": slug, "model": {"provider_id": "scripted", "model_name": "scripted"}})
        workspace = self.made("workspaces", {"template_id": "plain"})["id"]
        self.until(f"workspaces/{workspace}", "phase", "running")
        body = {"agent_id": "code-runner", "workspace_id": workspace, "initial_instructions": CODE}
        session = self.made("sessions", body)["id"]
        self.until(f"sessions/{session}", "status", "ended")
        run = self.made(f"workspaces/{workspace}/exec", {"argv": ["true"]})["id"]
        token = self.made("tokens", {"name": "spare", "scope": "read"})["id"]
        self.ids = {
            "agents": "free", "llm_providers": "unused-model", "sessions": session, "tokens": token, "users": "dave",
            "workspace_providers": "spare", "workspace_templates": "unused", "workspaces": workspace, "exec": run,
        }  # fmt: skip

    def login(self, name: str) -> str:
        return str(self.made("auth/login", {"username": name, "password": PASSWORD}, token="")["token"])

    def until(self, path: str, field: str, value: str) -> dict[str, Any]:
        def check() -> Any:
            item = self.call("GET", path).json()
            assert item[field] == value, item
            return item

        return dict(eventually(check, within=60, message=f"{path} {field} {value}"))

    def total(self, path: str) -> int:
        return int(self.call("GET", path, token=self.server.token).json()["total"])
