"""The container engine of this host as the operator's commands see it."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from workspaces.providers.base import Check

USUAL_SOCKET = "/var/run/docker.sock"


def socket_path() -> str:
    """Where the engine's socket is: of DOCKER_HOST, else the usual places; the usual one when there is none."""
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host.removeprefix("unix://")
    places = [USUAL_SOCKET]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(f"{runtime}/docker.sock")
    return next((place for place in places if Path(place).is_socket()), places[0])


def url() -> str:
    """The engine's address as the SDK spells it."""
    return f"unix://{socket_path()}"


def config() -> dict[str, Any]:
    """A container provider's config for that socket."""
    return {
        "kind": "container",
        "runtime": "docker",
        "connection": {"kind": "socket", "socket_path": socket_path()},
        "reachability": {"kind": "engine"},
    }


def check(instance_id: str) -> Check:
    """Measures the engine; an unreachable one is an answer, not an error. Not for use on an event loop."""
    from workspaces.providers import provider_class

    async def measure() -> Check:
        provider = provider_class("container")(config(), {}, instance_id=instance_id)
        try:
            return await provider.check()
        finally:
            await provider.close()

    return asyncio.run(measure())


def describe(found: Check) -> str:
    """`20.10.24, cgroup v1, socket`."""
    facts = found.engine
    return f"{facts.get('version', 'unknown version')}, cgroup {facts.get('cgroup', '?')}, socket"


def objects_named(name: str) -> list[str]:
    """Containers (in any state) and volumes of that name, asked from the engine itself: `["container ws-…"]`."""
    from workspaces.providers.engine import open_local

    client = open_local(url())
    try:
        containers = client.containers(all=True, filters={"name": name})
        volumes = (client.volumes(filters={"name": name}) or {}).get("Volumes") or []
    finally:
        client.close()
    return [f"container {name}" for _ in containers] + [f"volume {volume['Name']}" for volume in volumes]


def data_root() -> str:
    """Where the engine keeps images, containers and volumes: a path on its host."""
    from workspaces.providers.engine import open_local

    client = open_local(url())
    try:
        return str(client.info().get("DockerRootDir") or "")
    finally:
        client.close()


def instances(prefix: str, *, before: float) -> list[str]:
    """Instance labels with that beginning on containers (in any state) and volumes made before that time (Unix seconds)."""
    from workspaces.providers.engine import open_local
    from workspaces.providers.manifests import LABEL_INSTANCE

    client = open_local(url())
    try:
        filters = {"label": LABEL_INSTANCE}
        found = [(one["Labels"], float(one["Created"])) for one in client.containers(all=True, filters=filters)]
        for one in (client.volumes(filters=filters) or {}).get("Volumes") or []:
            made = datetime.fromisoformat(one["CreatedAt"].replace("Z", "+00:00")).timestamp()
            found.append((one["Labels"], made))
    finally:
        client.close()
    names = {labels[LABEL_INSTANCE] for labels, made in found if made < before}
    return sorted(name for name in names if name.startswith(prefix))


def how_to_get_one() -> str:
    """The command or sentence that leads to an engine on this machine."""
    if os.geteuid() == 0 and Path("/etc/debian_version").exists():
        return "apt-get install -y docker.io, then start dockerd (make demo does both)"
    if Path(USUAL_SOCKET).is_socket():
        return f"Let this user use {USUAL_SOCKET}: sudo usermod -aG docker $USER, then sign in again"
    return "Install an engine (Debian, Ubuntu: sudo apt-get install docker.io) and start it"
