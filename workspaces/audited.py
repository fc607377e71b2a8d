"""What the audit log keeps of providers, templates and workspaces: enough to see what changed, secrets masked."""

from __future__ import annotations

import base64
from typing import Any

from primer_site import vault
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate
from workspaces.secret_fields import masked_config, masked_env


def provider_shown(row: WorkspaceProvider) -> dict[str, Any]:
    config = masked_config(row.provider, row.config, vault.unseal(row.secrets))
    return {"provider": row.provider, "config": config, "description": row.description, "labels": row.labels}


def template_shown(row: WorkspaceTemplate) -> dict[str, Any]:
    return template_version(row) | {
        "env": masked_env(row.env, vault.unseal(row.secrets)), "files": [_file_shown(item) for item in row.files],
    }  # fmt: skip


def template_version(row: WorkspaceTemplate) -> dict[str, Any]:
    """A version as everybody may read it later: secrets are None, files are their paths."""
    return {
        "provider_id": row.provider.slug, "backend": row.backend, "env": row.env,
        "files": [item["path"] for item in row.files], "init_commands": row.init_commands,
        "idle_timeout_s": row.idle_timeout_s, "max_age_s": row.max_age_s, "require": row.require,
        "description": row.description, "labels": row.labels,
    }  # fmt: skip


def _file_shown(item: dict[str, Any]) -> dict[str, Any]:
    """The digest is keyed: a file may hold a password, and a plain one would let it be guessed."""
    digest = vault.fingerprint(base64.b64decode(item["content_base64"]))
    return {"path": item["path"], "mode": f"{item['mode']:04o}", "digest": digest}


def workspace_made(row: Workspace, own_env: dict[str, Any], ttl_s: int | None) -> dict[str, Any]:
    """A new workspace: of its own environment the names alone, sorted."""
    return {
        "template_id": row.template.slug, "provider_id": row.provider.slug, "name": row.name, "labels": row.labels,
        "env": sorted(own_env), "ttl_s": ttl_s,
    }  # fmt: skip


def workspace_gone(row: Workspace) -> dict[str, Any]:
    """What is lost with a workspace that is deleted."""
    return {
        "template_id": row.template.slug, "owner": row.owner.username, "name": row.name, "phase": str(row.phase),
        "labels": row.labels,
    }  # fmt: skip


def wish_shown(row: Workspace) -> dict[str, Any]:
    return {"desired": str(row.desired), "phase": str(row.phase)}
