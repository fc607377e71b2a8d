"""Everything of one instance on a docker engine by label: listing it, and removing it until nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

from primer_site.crashpoints import reach
from workspaces.providers import manifests
from workspaces.providers.base import ProviderError, Ref, StartFailed
from workspaces.providers.engine import Busy, Engine, Missing
from workspaces.providers.networks import Networks

REMOVE_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.05
LABEL_LOOKS: Final = 4
HELPER_S: Final = 30  # a helper waits for at most two small uploads before it is removed, or it runs


class Objects:
    """Containers, volumes and networks; nothing without this instance's label is touched."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._label = f"{manifests.LABEL_INSTANCE}={instance_id}"
        self._networks = Networks(engine, instance_id)

    async def refs(self, kind: str) -> list[Ref]:
        """One Ref per workspace that left anything on the engine, lone volumes and helpers included."""
        labels = [self._label, manifests.LABEL_WORKSPACE]
        found = await self._engine.run(lambda client: list_objects(client, labels))
        return to_refs(found, kind)

    async def remove_all(self, workspace_id: str) -> list[str]:
        """Removes what carries this workspace's label and looks again until nothing does; returns the removed kinds."""
        labels = [self._label, f"{manifests.LABEL_WORKSPACE}={workspace_id}"]
        removed: list[str] = []
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while left := await self._engine.run(lambda client: list_objects(client, labels)):
            for kind, entry in left:
                reach(f"delete-{kind}")
                if await self._remove(kind, entry) and kind not in removed:
                    removed.append(kind)
            if time.monotonic() > deadline:
                raise ProviderError("The engine did not remove everything of this workspace in time.")
        return removed

    async def remove_shared(self) -> list[str]:
        """Removes what carries this instance's label without belonging to a workspace: the egress bridge."""
        return ["network" for entry in await self._networks.all() if await self._networks.remove(entry["Id"])]

    async def remove_helpers(self) -> None:
        """Removes helpers that do not run and are older than any step with one takes, by the engine's own clock."""
        filters = {"label": [self._label, f"{manifests.LABEL_ROLE}={manifests.HELPER}"], "until": f"{HELPER_S}s"}
        with contextlib.suppress(Busy):  # the engine does one such removal at a time; there is a next round
            await self._engine.call("prune_containers", filters=filters)

    async def _remove(self, kind: str, entry: dict[str, Any]) -> bool:
        if kind == "container":
            return await self.remove_container(entry["Id"])
        if kind == "volume":
            return await self.remove_volume(entry["Name"])
        return await self._networks.remove(entry["Id"])

    async def remove_container(self, container_id: str) -> bool:
        """Whether it was there; waits for a removal that somebody else began."""
        try:
            await self._engine.call("remove_container", container_id, force=True, v=True)
            return True
        except Missing:
            return False
        except Busy:
            return await self._wait_gone(container_id)

    async def _wait_gone(self, container_id: str) -> bool:
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                await self._engine.call("inspect_container", container_id)
            except Missing:
                return True
            await asyncio.sleep(POLL_S)
        raise ProviderError("The engine did not finish the removal of a container.")

    async def volume(self, name: str) -> dict[str, Any] | None:
        """The inspected volume, None when there is none of this name."""
        found: dict[str, Any] = {}
        for _ in range(LABEL_LOOKS):
            try:
                found = await self._engine.call("inspect_volume", name)
            except Missing:
                return None
            if found.get("Labels"):
                break
            await asyncio.sleep(POLL_S)  # a volume that is just being made is shown before its labels are
        return found

    async def create_volume(self, body: dict[str, Any]) -> None:
        options = {"driver": body["Driver"], "driver_opts": body["DriverOpts"], "labels": body["Labels"]}
        try:
            await self._engine.call("create_volume", body["Name"], **options)
        except Busy as exc:
            raise StartFailed("A volume of this name and another kind is on the engine.", log=exc.log) from exc

    async def remove_volume(self, name: str) -> bool:
        """Whether it was there and is gone now."""
        try:
            await self._engine.call("remove_volume", name)
            return True
        except Missing:
            return False
        except Busy:
            # In use: by a container that is just going (the caller looks again), or by another start (then it must stay).
            await asyncio.sleep(POLL_S)
            return False


def list_objects(client: Any, labels: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """(kind, the engine's list entry) of all objects with these labels, in the order of removal."""
    volumes = client.volumes(filters={"label": labels}) or {}
    return [
        *(("container", item) for item in client.containers(all=True, filters={"label": labels})),
        *(("volume", item) for item in volumes.get("Volumes") or []),
        *(("network", item) for item in client.networks(filters={"label": labels})),
    ]


def to_refs(found: list[tuple[str, dict[str, Any]]], kind: str) -> list[Ref]:
    parts: dict[str, dict[str, Any]] = {}
    for what, item in found:
        labels = item["Labels"]
        entry = parts.setdefault(labels[manifests.LABEL_WORKSPACE], {"generation": 0})
        if what == "volume":
            entry["volume_name"] = item["Name"]
        elif what == "network":
            entry["extra"] = {"network": item["Id"]}
        elif manifests.LABEL_ROLE not in labels:
            entry["generation"] = int(labels.get(manifests.LABEL_GENERATION) or 0)
            entry |= {"container_id": item["Id"], "container_name": item["Names"][0].lstrip("/")}
            entry["image_digest"] = str(item.get("ImageID") or "")
    return [Ref(kind=kind, workspace_id=workspace, **entry) for workspace, entry in sorted(parts.items())]
