"""The two networks that sandboxes may have on a docker engine; with neither of them a sandbox has loopback only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from workspaces.providers import manifests
from workspaces.providers.base import SandboxSpec, StartFailed
from workspaces.providers.engine import Busy, Engine, Missing

SUBNET_TRIES: Final = 64
Undo = Callable[[], Awaitable[object]]


class Networks:
    """Networks of one instance on one engine."""

    def __init__(self, engine: Engine, instance_id: str) -> None:
        self._engine = engine
        self._instance_id = instance_id
        self._first = asyncio.Lock()

    async def ensure(self, spec: SandboxSpec, undo: list[Undo]) -> None:
        """The network that the spec's container will name exists; appends to `undo` what this call made."""
        mode = manifests.network_mode(spec)
        if mode == spec.workspace_id:
            await self._internal(spec, undo)
        elif mode != "none":
            async with self._first:  # while there are two of the name, a container that names it does not start
                await self._egress()

    async def _egress(self) -> None:
        """One bridge per instance; it stays. The engine's check for a second one of the name has a race, so we look again."""
        name = manifests.egress_network(self._instance_id)
        if await self._own(name):
            return
        with contextlib.suppress(Busy):
            await self._create(manifests.egress_network_body(self._instance_id))
        _, *surplus = await self._own(name)
        for network in surplus:
            await self.remove(network["Id"])  # another process made it at the same time; it is unused

    async def _internal(self, spec: SandboxSpec, undo: list[Undo]) -> None:
        if await self._own(spec.workspace_id):
            return
        for attempt in range(SUBNET_TRIES):
            try:
                made = await self._create(manifests.internal_network_body(spec, attempt))
            except Busy:  # the subnet is taken, by us or by somebody else on that host
                continue
            undo.append(partial(self.remove, made["Id"]))
            return
        raise StartFailed("No free subnet was found for the workspace's internal network.")

    async def all(self) -> list[dict[str, Any]]:
        """Every network of this instance."""
        filters = {"label": f"{manifests.LABEL_INSTANCE}={self._instance_id}"}
        found: list[dict[str, Any]] = await self._engine.call("networks", filters=filters)
        return found

    async def _own(self, name: str) -> list[dict[str, Any]]:
        """Ours of this exact name (the engine's filter matches parts), oldest first."""
        filters = {"name": name, "label": f"{manifests.LABEL_INSTANCE}={self._instance_id}"}
        found = await self._engine.call("networks", filters=filters)
        return sorted((n for n in found if n["Name"] == name), key=lambda n: (n.get("Created", ""), n["Id"]))

    async def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = await self._engine.call(
            "create_network",
            body["Name"],
            driver=body["Driver"],
            options=body["Options"],
            ipam=body.get("IPAM"),
            check_duplicate=body["CheckDuplicate"],
            internal=body["Internal"],
            labels=body["Labels"],
        )
        return made

    async def remove(self, network_id: str) -> bool:
        """Whether this call removed it; a network that is still in use is left for the next try."""
        try:
            await self._engine.call("remove_network", network_id)
            return True
        except (Missing, Busy):
            return False
