"""Engines for tests that must hold a verb at its door, or let it fail; the rest is the fake one."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from workspaces.providers.base import ImageCheck, ProviderError, Ref, SandboxSpec, Status
from workspaces.providers.fake import FakeProvider


class GatedProvider(FakeProvider):
    """Verbs named in `gated` say that they were entered, and wait until they may go on; `half` removes nothing so often."""

    gated: ClassVar[set[str]] = set()
    entered: ClassVar[threading.Event] = threading.Event()
    go: ClassVar[threading.Event] = threading.Event()
    half: ClassVar[int] = 0
    broken: ClassVar[bool] = False

    @classmethod
    def reset(cls, *gated: str) -> None:
        cls.gated, cls.half, cls.broken = set(gated), 0, False
        cls.entered.clear()
        cls.go.clear()

    async def _gate(self, verb: str) -> None:
        if verb in self.gated:
            self.entered.set()
            await asyncio.to_thread(self.go.wait, 60)

    async def stop(self, ref: Ref) -> None:
        await self._gate("stop")
        await super().stop(ref)

    async def status(self, ref: Ref) -> Status:
        await self._gate("status")
        return await super().status(ref)

    async def check_image(self, spec: SandboxSpec) -> ImageCheck:
        await self._gate("check_image")
        return await super().check_image(spec)

    async def lacks_image(self, spec: SandboxSpec) -> bool:
        return "fetch_image" in self.gated

    async def fetch_image(self, spec: SandboxSpec) -> None:
        await self._gate("fetch_image")

    async def destroy(self, ref: Ref) -> list[str]:
        await self._gate("destroy")
        if self.broken:
            raise ProviderError("The engine refused to remove it.")
        if GatedProvider.half:
            GatedProvider.half -= 1
            return []
        return await super().destroy(ref)
