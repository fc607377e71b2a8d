"""Workspaces as directories of the server itself, with the same runtime as a process. Isolates nothing, and says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, ClassVar, Final, TypeVar

from primer_site.crashpoints import reach
from primer_site.errors import FieldError, Invalid
from workspaces.providers import processes
from workspaces.providers.base import (
    Channel,
    ChannelClosed,
    Check,
    DataLost,
    Enforced,
    EngineUnavailable,
    ImageCheck,
    Provider,
    Ref,
    SandboxSpec,
    StartFailed,
    StartTimeout,
    State,
    Status,
)
from workspaces.providers.channel import StreamChannel, greeted
from workspaces.providers.directory import Directory, Home, Record

T = TypeVar("T")
GREETING_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.02
# A limit per file is all that a plain process has.
ENFORCES: Final[dict[str, Enforced]] = {
    "cpu": "unavailable",
    "memory": "unavailable",
    "pids": "unavailable",
    "disk": "soft",
    "egress": "unavailable",
}


class LocalProvider(Provider):
    """`config: {root_path}`, an absolute directory. Under a root server the runtime runs as uid 65534."""

    kind = "local"
    isolates: ClassVar[bool] = False

    def __init__(self, config: dict[str, Any], secrets: dict[str, Any], *, instance_id: str) -> None:
        super().__init__(config, secrets, instance_id=instance_id)
        root = str(config.get("root_path") or "")
        if not os.path.isabs(root) or "\0" in root:
            message = "must be an absolute path"
            raise Invalid(f"config.root_path {message}.", errors=[FieldError("config.root_path", message)])
        self._home = Home(root, instance_id)
        self._warm: dict[str, StreamChannel] = {}  # by workspace id, see ContainerProvider

    async def check(self) -> Check:
        try:
            await asyncio.to_thread(self._home.prepare)
        except OSError as exc:
            return Check("unreachable", (f"The directory {self._home.root} cannot be used: {exc.strerror}.",))
        user = "uid 65534" if self._home.uid != os.getuid() else "the server's own user"
        reason = f"NOT ISOLATED: programs run on this machine as {user} and see its files, network and processes."
        return Check("healthy", (reason,), {"name": "local", "version": ""}, dict(ENFORCES))

    async def check_image(self, spec: SandboxSpec) -> ImageCheck:
        why = "The provider isolates nothing: programs run on this machine like any other."
        detail = "There is no image: programs are those of this machine."
        return ImageCheck(True, detail=detail, limits=dict(ENFORCES), reasons=dict.fromkeys(ENFORCES, why))

    async def start(self, spec: SandboxSpec) -> Ref:
        self.refuse_other_kind(spec)
        place = self._home.directory(spec.workspace_id)
        try:
            async with asyncio.timeout(spec.start_timeout_s):
                await self._prepare()
                async with self._home.locked(spec.workspace_id):
                    if (record := await self._adopt(spec, place)) is None:
                        record = await self._create(spec, place)
                    return self._ref(record)
        except TimeoutError as exc:
            raise StartTimeout(f"The sandbox was not ready within {spec.start_timeout_s:g} s.") from exc

    async def _prepare(self) -> None:
        try:
            await asyncio.to_thread(self._home.prepare)
        except OSError as exc:
            raise EngineUnavailable(
                "The provider's directory cannot be used.", log=f"{self._home.root}: {exc}"
            ) from exc

    async def _adopt(self, spec: SandboxSpec, place: Directory) -> Record | None:
        record = place.record()
        if record is None:
            return None
        if record.generation > spec.generation:
            raise StartFailed("A newer start of this workspace has taken over.")
        if record.generation == spec.generation and record.alive:
            await self._handshake(record, place)
            return record
        await asyncio.to_thread(processes.end_tree, record.pid, record.started)
        return None

    async def _create(self, spec: SandboxSpec, place: Directory) -> Record:
        """Makes directory and process; on failure removes what it made and raises the first error."""
        made = not place.exists
        if made and not spec.fresh:
            raise DataLost()
        record: Record | None = None
        try:
            await asyncio.to_thread(place.make)
            reach("after-volume")
            record = await shielded(asyncio.to_thread(place.launch, spec))
            reach("after-start")
            await self._handshake(record, place)
            reach("after-handshake")
        except BaseException as exc:
            # The record is on disk also when the launch was cut off after it.
            lines = place.boot_lines()
            await shielded(asyncio.to_thread(place.take_back, made))
            if isinstance(exc, StartFailed):
                exc.boot_lines = lines
            raise
        return record

    async def _handshake(self, record: Record, place: Directory) -> None:
        while True:
            try:
                channel = await self._open(record, place)
            except ChannelClosed as exc:
                if not record.alive:
                    raise StartFailed("The runtime ended while it started.", log=exc.log) from exc
                await asyncio.sleep(POLL_S)
            else:
                old, self._warm[record.workspace_id] = self._warm.get(record.workspace_id), channel
                if old is not None:
                    await old.close()
                return

    async def _open(self, record: Record, place: Directory) -> StreamChannel:
        """A channel on which the process of the record, and no other, has greeted."""
        try:
            channel = await place.connect(record.pid)
            try:
                async with asyncio.timeout(GREETING_TIMEOUT_S):
                    await greeted(channel)
            except BaseException:
                await channel.close()
                raise
        except OSError as exc:  # TimeoutError is one
            raise ChannelClosed("The runtime does not answer.", log=str(exc)) from exc
        return channel

    def _ref(self, record: Record) -> Ref:
        return Ref(
            kind=self.kind,
            workspace_id=record.workspace_id,
            generation=record.generation,
            extra={
                "pid": str(record.pid),
                "started": record.started,
                "path": self._home.directory(record.workspace_id).files,
            },
        )

    async def connect(self, ref: Ref) -> Channel:
        warm = self._warm.pop(ref.workspace_id, None)
        if warm is not None:
            if not warm.ended:
                return warm
            await warm.close()
        place = self._home.directory(ref.workspace_id)
        record = place.record()
        if record is None or record.generation != ref.generation or not record.alive:
            raise ChannelClosed("The sandbox is not running.")
        return await self._open(record, place)

    async def status(self, ref: Ref) -> Status:
        place = self._home.directory(ref.workspace_id)
        record = place.record()
        if not place.exists or place.foreign:
            return Status(State.GONE, "data_lost", volume_exists=False)
        if record is None:
            return Status(State.GONE, "removed")
        if record.alive:
            return Status(State.RUNNING)
        return Status(State.STOPPED, "exited", boot_lines=place.boot_lines())

    async def stop(self, ref: Ref) -> None:
        await self._drop_warm(ref.workspace_id)
        if (record := self._home.directory(ref.workspace_id).record()) is not None:
            await asyncio.to_thread(processes.end_tree, record.pid, record.started)

    async def destroy(self, ref: Ref) -> list[str]:
        await self._drop_warm(ref.workspace_id)
        place = self._home.directory(ref.workspace_id)
        if not self._home.used:
            return []
        async with self._home.locked(ref.workspace_id):
            removed = await asyncio.to_thread(place.remove)
        return removed

    async def discover(self) -> list[Ref]:
        return [self._ref(record) for record in await asyncio.to_thread(self._home.records)]

    async def _drop_warm(self, workspace_id: str) -> None:
        if (channel := self._warm.pop(workspace_id, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        for workspace_id in list(self._warm):
            await self._drop_warm(workspace_id)


async def shielded(work: Awaitable[T]) -> T:
    """Waits for `work` to its end even when the caller is cancelled meanwhile: a thread cannot be stopped half-way."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
