"""A template as a workspace remembers it, and that memory as the spec a provider understands."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from workspaces.models import Workspace, WorkspaceTemplate
from workspaces.providers.base import SandboxSpec

_FIELDS = (
    "image", "cpu_cores", "memory_bytes", "pids_limit", "disk_bytes", "disk_medium", "engine_runtime", "workdir",
)  # fmt: skip


def snapshot(template: WorkspaceTemplate) -> dict[str, Any]:
    """The settings a new workspace keeps for its life; env is a column of its own, since it holds secrets."""
    return {
        "backend": template.backend,
        "files": template.files,
        "init_commands": template.init_commands,
        "idle_timeout_s": template.idle_timeout_s,
        "max_age_s": template.max_age_s,
        "require": template.require,
        "template_version": template.spec_rev,
    }


def backend_spec(backend: dict[str, Any], *, workspace_id: str, generation: int, fresh: bool) -> SandboxSpec:
    """The spec of a backend body as the API stores it, defaults filled."""
    values = {name: backend[name] for name in _FIELDS if backend.get(name) not in (None, "")}
    network = backend.get("network") or {}
    return SandboxSpec(
        instance_id=settings.PRIMER_INSTANCE_ID,
        workspace_id=workspace_id,
        generation=generation,
        egress=network.get("egress", "deny_all"),
        network_mode=network.get("mode", "none"),
        fresh=fresh,
        kind=backend.get("kind", ""),
        **values,
    )


def sandbox_spec(workspace: Workspace) -> SandboxSpec:
    return backend_spec(
        workspace.spec["backend"],
        workspace_id=workspace.slug,
        generation=workspace.generation,
        fresh=not workspace.prepared,
    )


def channel(asked: dict[str, Any] | None) -> dict[str, str]:
    """Which way to the runtime is used, and why it is not the one that was asked for."""
    kind = (asked or {}).get("kind", "engine")
    if kind == "engine":
        return {"kind": "engine", "asked": "engine", "reason": ""}
    reason = "No TCP channel is built yet, and a sandbox with deny_all can publish no port: the engine's own channel is used."
    return {"kind": "engine", "asked": kind, "reason": reason}
