"""A provider that fails on purpose. Ships with the product: what it does to the rest is a promise, and tests hold us to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import tempfile
from typing import Any, ClassVar, Final

from primer_site.errors import FieldError, Invalid
from workspaces.providers import processes
from workspaces.providers.base import (
    Channel,
    Check,
    EngineUnavailable,
    ImageCheck,
    Ref,
    SandboxSpec,
    StartTimeout,
    Status,
)
from workspaces.providers.local import LocalProvider
from workspaces.runtime import protocol

FAULTS: Final = ("", "slow", "never", "refuses", "dies_later", "lies")
LIES: Final = ("types", "greeting", "frame", "endless")
DEFAULT_DELAY_S: Final = 0.2


class FakeProvider(LocalProvider):
    """`config: {fault, lie, delay_s, root_path}`; without a fault it is the local provider in a directory of its own.

    `slow` waits `delay_s` before each verb; `never` does not answer: verbs give up after `delay_s`, a start at its own
    deadline; `refuses` has nobody listening; `dies_later` ends each sandbox `delay_s` after its start; `lies` starts
    properly, and then its channels say `lie`: wrong types in the greeting, a garbage greeting, a frame of 2^32-1 bytes,
    or bytes without an end.
    """

    kind = "fake"
    isolates: ClassVar[bool] = False

    def __init__(self, config: dict[str, Any], secrets: dict[str, Any], *, instance_id: str) -> None:
        # The directory follows from the instance, so that a provider made after a restart finds what is there.
        root = config.get("root_path") or os.path.join(tempfile.gettempdir(), f"primer-fake-{instance_id}")
        super().__init__({**config, "root_path": root}, secrets, instance_id=instance_id)
        self.fault = _one_of("fault", str(config.get("fault") or ""), FAULTS)
        self.lie = _one_of("lie", str(config.get("lie") or "greeting"), LIES)
        self.delay_s = float(config.get("delay_s", DEFAULT_DELAY_S))
        self._timers: list[asyncio.TimerHandle] = []

    async def _fault(self) -> None:
        if self.fault == "refuses":
            raise EngineUnavailable("No container engine answers at the fake address.")
        if self.fault in ("slow", "never"):
            await asyncio.sleep(self.delay_s)
        if self.fault == "never":
            raise EngineUnavailable("The container engine at the fake address did not answer in time.")

    async def check(self) -> Check:
        try:
            await self._fault()
        except EngineUnavailable as exc:
            return Check("unreachable", (f"{exc.detail} {exc.hint_text}",))
        return await super().check()

    async def check_image(self, spec: SandboxSpec) -> ImageCheck:
        await self._fault()
        return await super().check_image(spec)

    async def start(self, spec: SandboxSpec) -> Ref:
        if self.fault == "never":
            try:
                await asyncio.wait_for(asyncio.Event().wait(), spec.start_timeout_s)
            except TimeoutError as exc:
                raise StartTimeout(f"The sandbox was not ready within {spec.start_timeout_s:g} s.") from exc
        await self._fault()
        ref = await super().start(spec)
        if self.fault == "dies_later":
            pid, since = int(ref.extra["pid"]), ref.extra["started"]
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(self.delay_s, processes.end_tree, pid, since))
        return ref

    async def connect(self, ref: Ref) -> Channel:
        await self._fault()
        channel = await super().connect(ref)
        return LyingChannel(channel, self.lie) if self.fault == "lies" else channel

    async def status(self, ref: Ref) -> Status:
        await self._fault()
        return await super().status(ref)

    async def stop(self, ref: Ref) -> None:
        await self._fault()
        await super().stop(ref)

    async def destroy(self, ref: Ref) -> list[str]:
        await self._fault()
        return await super().destroy(ref)

    async def discover(self) -> list[Ref]:
        await self._fault()
        return await super().discover()

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await super().close()


class LyingChannel:
    """Takes everything and answers with one kind of nonsense; after it, silence (`endless` never stops)."""

    def __init__(self, real: Channel, lie: str) -> None:
        self._real, self._lie = real, lie
        self._waiting = {
            "types": protocol.Encoder().encode(
                protocol.GREETING, 0, b'{"version":[],"protocol":"one","nonce":7,"boot_id":null,"claimed":"no"}'
            ),
            "greeting": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>welcome</html>",
            "frame": struct.pack(">IBI", 2**32 - 1, protocol.GREETING, 0),
            "endless": b"",
        }[lie]
        self._closed = asyncio.Event()

    async def read(self, limit: int) -> bytes:
        if self._lie == "endless":
            await asyncio.sleep(0)
            return b"\0" * limit
        if self._waiting:
            data, self._waiting = self._waiting[:limit], self._waiting[limit:]
            return data
        await self._closed.wait()
        return b""

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            await self._real.close()


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        message = "must be one of " + ", ".join(item for item in allowed if item)
        raise Invalid(f"config.{name} {message}.", errors=[FieldError(f"config.{name}", message)])
    return value
