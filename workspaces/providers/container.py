"""Sandboxes as containers of a docker engine. Thin: what is asked is in `manifests`, how it is asked in `engine`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from primer_site.crashpoints import reach
from primer_site.errors import FieldError, Invalid
from workspaces.providers import endings, engine_check, images, manifests, networks, objects
from workspaces.providers.base import (
    Channel,
    ChannelClosed,
    Check,
    DataLost,
    ImageCheck,
    Provider,
    ProviderError,
    Ref,
    SandboxSpec,
    SpecMismatch,
    StartFailed,
    StartTimeout,
    State,
    Status,
)
from workspaces.providers.channel import EngineChannel, greeted
from workspaces.providers.endpoint import endpoint
from workspaces.providers.engine import Busy, Engine, Missing
from workspaces.runtime import build as runtime

log = logging.getLogger("primer.providers.container")

BOOT_LINES: Final = 20
LINE_CHARS: Final = 500
GREETING_TIMEOUT_S: Final = 10.0  # of one attempt to reach the runtime
POLL_S: Final = 0.05
CLEAN_UP_TIMEOUT_S: Final = 30.0
RACES: Final = 200  # looks at another start of the same workspace, 50 ms apart, before that is an error
GOING: Final = ("removing", "dead")  # being removed, or removed as far as the engine could
PAUSED: Final = "Somebody paused the container on its engine. The next start makes a fresh one; the files stay."
Undo = Callable[[], Awaitable[object]]


class ContainerProvider(Provider):
    """One docker engine, over its socket or over TCP with TLS."""

    kind = "container"

    def __init__(self, config: dict[str, Any], secrets: dict[str, Any], *, instance_id: str) -> None:
        super().__init__(config, secrets, instance_id=instance_id)
        validate(config)
        self.engine = Engine(endpoint(config, secrets))
        self._images = images.Images(self.engine)
        self._networks = networks.Networks(self.engine, instance_id)
        self._objects = objects.Objects(self.engine, instance_id)
        self._space = engine_check.FreeSpace(self.engine)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._last_lines: dict[str, tuple[str, ...]] = {}  # of a start that ran into its deadline
        self._warm: dict[
            str, EngineChannel
        ] = {}  # by container id: the channel that proved the start, for the first connect

    async def check(self) -> Check:
        return await engine_check.check(self.engine)

    async def check_image(self, spec: SandboxSpec) -> ImageCheck:
        return await engine_check.check_image(self.engine, self._images, spec)

    async def images(self) -> list[str]:
        return await self._images.names()

    async def lacks_image(self, spec: SandboxSpec) -> bool:
        return await self._images.can_be_pulled(spec.image)

    async def fetch_image(self, spec: SandboxSpec) -> None:
        await self._images.pull(spec.image)

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> Ref:
        self.refuse_other_kind(spec)
        lock = self._locks.setdefault(spec.workspace_id, asyncio.Lock())
        try:
            async with lock, asyncio.timeout(spec.start_timeout_s):
                for _ in range(RACES):
                    if (container := await self._adopt(spec)) is not None:
                        return await self._ref(spec, container)
                    try:
                        return await self._create(spec)
                    except Busy:
                        # Another process was faster between our look and our create: adopt what it makes. The engine
                        # holds the name from the beginning of its work, and shows the container only at its end.
                        await asyncio.sleep(POLL_S)
                raise StartFailed("Other starts of this workspace kept getting in the way.")
        except TimeoutError as exc:
            late = f"The sandbox was not ready within {spec.start_timeout_s:g} s."
            raise StartTimeout(late, boot_lines=self._last_lines.pop(spec.workspace_id, ())) from exc
        finally:
            self._last_lines.pop(spec.workspace_id, None)

    async def _adopt(self, spec: SandboxSpec) -> dict[str, Any] | None:
        """The inspected container of this generation, made ready; None when there is none. Older ones are removed."""
        try:
            found: dict[str, Any] = await self.engine.call("inspect_container", spec.workspace_id)
        except Missing:
            return None
        labels = found["Config"].get("Labels") or {}
        if labels.get(manifests.LABEL_INSTANCE) != self.instance_id:
            raise StartFailed(f"A container named {spec.workspace_id} that is not ours is on the engine.")
        generation, state = int(labels.get(manifests.LABEL_GENERATION) or 0), found["State"]["Status"]
        if generation > spec.generation:
            raise StartFailed("A newer start of this workspace has taken over.")
        if generation == spec.generation and state == "created":
            image = await self._images.facts(found["Image"])
            if not manifests.differences(found, manifests.container_body(spec, image, runtime.digest())):
                await self._boot(found["Id"])
                return found
        if generation == spec.generation and state == "running":
            await self._handshake(found["Id"])  # asserted before it was started: nothing of ours starts unasserted
            return found
        await self._discard(found["Id"])
        return None

    async def _create(self, spec: SandboxSpec) -> Ref:
        """Makes volume, network and container; on failure removes what it made, newest first, and raises the first error."""
        undo: list[Undo] = []
        try:
            image = await self._images.find(spec)
            await self._space.require()
            await self._make_volume(spec, image, undo)
            reach("after-volume")
            await self._networks.ensure(spec, undo)
            container = await self._make_container(spec, image, undo)
            await self._boot(container["Id"])
        except Busy:
            raise  # another start is making this sandbox, on the same volume and network: they are not ours to remove
        except BaseException as exc:
            await settle(self._take_back(spec, undo, exc))
            raise
        return await self._ref(spec, container)

    async def _take_back(self, spec: SandboxSpec, undo: list[Undo], exc: BaseException) -> None:
        """The first error is what people need: what cannot be removed now is left to the sweep, which finds it by label."""
        try:
            async with asyncio.timeout(CLEAN_UP_TIMEOUT_S):
                if isinstance(exc, asyncio.CancelledError):  # a deadline: nobody has looked at the log yet
                    self._last_lines[spec.workspace_id] = await self._boot_lines(spec.workspace_id)
                for step in reversed(undo):
                    try:
                        await step()
                    except ProviderError as also:
                        log.warning("clean-up of %s is incomplete: %s", spec.workspace_id, also.log or also)
        except TimeoutError:
            log.warning("clean-up of %s did not end in time", spec.workspace_id)

    async def _make_volume(self, spec: SandboxSpec, image: manifests.ImageFacts, undo: list[Undo]) -> None:
        volume = await self._objects.volume(spec.workspace_id)
        if volume is not None and not self._ours(volume):
            raise StartFailed(f"A volume named {spec.workspace_id} that is not ours is on the engine.")
        if volume is None:
            # Looked for, because the engine makes a missing volume anew, empty, without a word.
            if not spec.fresh:
                raise DataLost()
            undo.append(lambda: self._objects.remove_volume(spec.workspace_id))
            await self._objects.create_volume(manifests.volume_body(spec))
        # Also for a volume that a start left behind which died before this step.
        if spec.fresh and manifests.needs_owner(spec, self._images.needs_runtime(image)):
            await self._images.own_volume(spec, image)

    async def _make_container(self, spec: SandboxSpec, image: manifests.ImageFacts, undo: list[Undo]) -> dict[str, Any]:
        """Creates the container and holds what the engine made against what was asked."""
        if self._images.needs_runtime(image):
            await self._images.ensure_runtime(spec, image)
        body = manifests.container_body(spec, image, runtime.digest())
        made: dict[str, str] = {}
        # Before the call: when it is cut, the engine still finishes it. By name only if the name was free, see Busy.
        undo.append(lambda: self._remove_if_ours(spec, made.get("Id", "")))
        try:
            made |= await self.engine.call("create_container_from_config", body, spec.workspace_id)
        except Busy:
            undo.pop()
            raise
        except ProviderError as exc:
            if exc.retryable:
                raise
            raise StartFailed(await engine_check.refusal(self.engine, spec), log=exc.log) from exc
        container: dict[str, Any] = await self.engine.call("inspect_container", made["Id"])
        reach("after-create")
        if wrong := manifests.differences(container, body):
            fields = ", ".join(item.split(":")[0] for item in wrong)
            raise SpecMismatch(f"The engine made a container that differs in: {fields}.", log="; ".join(wrong))
        await self._require_volume(spec, undo)
        return container

    async def _require_volume(self, spec: SandboxSpec, undo: list[Undo]) -> None:
        """Looked at again: if it was removed between our look and the create, the engine has made one without our labels."""
        volume = await self._objects.volume(spec.workspace_id)
        if volume is not None and self._ours(volume):
            return
        undo.insert(0, lambda: self._objects.remove_volume(spec.workspace_id))
        if not spec.fresh:
            raise DataLost()
        raise StartFailed("The volume of this workspace was removed while its container was made.")

    async def _boot(self, container_id: str) -> None:
        try:
            await self.engine.call("start", container_id)
        except Missing as exc:
            raise StartFailed("The container vanished before it was started.", log=exc.log) from exc
        except ProviderError as exc:
            if exc.retryable:
                raise
            lines = await self._boot_lines(container_id)
            raise StartFailed("The engine could not start the sandbox.", boot_lines=lines, log=exc.log) from exc
        reach("after-start")
        await self._handshake(container_id)
        reach("after-handshake")

    async def _handshake(self, container_id: str) -> None:
        """Ready means that the runtime spoke. The channel is kept: a second one would cost 55 ms."""
        pause = 0.0  # the first try comes a little early on a busy machine; opening again takes long enough by itself
        while True:
            try:
                channel = await self._open(container_id)
            except ChannelClosed as exc:
                state = (await self.engine.call("inspect_container", container_id))["State"]
                if not state["Running"]:
                    lines = await self._boot_lines(container_id)
                    raise StartFailed(
                        f"The sandbox ended while it started (exit code {state['ExitCode']}).", boot_lines=lines
                    ) from exc
                await asyncio.sleep(pause)
                pause = POLL_S
            else:
                await self._keep_warm(container_id, channel)
                return

    async def _open(self, container_id: str) -> EngineChannel:
        """A channel on which the runtime has greeted; `ChannelClosed` when it did not."""
        try:
            created = await self.engine.call("exec_create", container_id, **manifests.exec_body())
        except (Missing, Busy) as exc:
            raise ChannelClosed("The sandbox is not running.", log=exc.log) from exc
        channel = await self.engine.open_exec(created["Id"])
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                await greeted(channel)
        except TimeoutError as exc:
            await channel.close()
            raise ChannelClosed("The runtime in the sandbox does not answer.") from exc
        except BaseException:
            await channel.close()
            raise
        return channel

    async def _keep_warm(self, container_id: str, channel: EngineChannel) -> None:
        old, self._warm[container_id] = self._warm.get(container_id), channel
        if old is not None:
            await old.close()

    async def _boot_lines(self, container_id: str) -> tuple[str, ...]:
        """The last lines of the sandbox's own log: hostile text, cut to size."""
        with contextlib.suppress(ProviderError):
            raw = await self.engine.call("logs", container_id, stdout=True, stderr=True, tail=BOOT_LINES)
            text = bytes(raw[-BOOT_LINES * LINE_CHARS :]).decode("utf-8", "replace")
            return tuple(line[:LINE_CHARS] for line in text.splitlines()[-BOOT_LINES:])
        return ()

    async def _ref(self, spec: SandboxSpec, container: dict[str, Any]) -> Ref:
        return Ref(
            kind=self.kind,
            workspace_id=spec.workspace_id,
            generation=spec.generation,
            container_id=container["Id"],
            container_name=spec.workspace_id,
            volume_name=spec.workspace_id,
            image_digest=container["Image"],
        )

    # -- the rest of the life ------------------------------------------------------------------------------------

    async def connect(self, ref: Ref) -> Channel:
        warm = self._warm.pop(ref.container_id, None)
        if warm is not None:
            if not warm.ended:
                return warm
            await warm.close()  # the runtime ends a connection that proves nothing for two seconds
        return await self._open(ref.container_id or ref.workspace_id)

    async def status(self, ref: Ref) -> Status:
        volume = await self._objects.volume(ref.workspace_id)
        kept = volume is not None and self._ours(volume)
        try:
            found = await self.engine.call("inspect_container", ref.workspace_id)
        except Missing:
            found = None
        # A forced removal kills first, and shows what it has killed for a moment: that is not a sandbox which stopped.
        if found is None or not self._ours(found["Config"]) or found["State"]["Status"] in GOING:
            return Status(State.GONE, "removed" if kept else "data_lost", volume_exists=kept)
        if found["State"]["Running"] and not found["State"].get("Paused"):
            return Status(State.RUNNING, volume_exists=kept)
        if found["State"].get("Paused") and kept:
            # Nothing in it answers, and who froze it may want to look at it: it stays as it is until the next start.
            return Status(State.STOPPED, "paused", PAUSED)
        if found["State"]["Status"] == "created":
            return Status(State.STARTING, volume_exists=kept)
        lines = await self._boot_lines(found["Id"])
        if volume is None or not kept:
            return Status(State.GONE, "data_lost", boot_lines=lines, volume_exists=False)
        reason, detail = await endings.why(self.engine, found, volume)
        return Status(State.STOPPED, reason, detail, boot_lines=lines)

    async def stop(self, ref: Ref) -> None:
        # The container stays as an object, so that "stopped" and "removed behind our back" are told apart; the next
        # start makes a fresh one over the volume. SIGKILL is its stop signal: no grace to wait for.
        await self._drop_warm(ref.container_id)
        with contextlib.suppress(Missing):
            found = await self.engine.call("inspect_container", ref.workspace_id)
            if self._ours(found["Config"]) and found["State"]["Running"]:
                await self.engine.call("stop", found["Id"], timeout=0)

    async def destroy(self, ref: Ref) -> list[str]:
        await self._drop_warm(ref.container_id)
        return await self._objects.remove_all(ref.workspace_id)

    async def discover(self) -> list[Ref]:
        return await self._objects.refs(self.kind)

    async def remove_shared(self) -> list[str]:
        volumes = await self._images.drop_runtimes(self.instance_id, keep_current=False)
        return [*await self._objects.remove_shared(), *("volume" for _ in volumes)]

    async def prune_shared(self) -> list[str]:
        return await self._images.drop_runtimes(self.instance_id, keep_current=True)

    async def sweep_helpers(self) -> None:
        await self._objects.remove_helpers()

    async def close(self) -> None:
        for container_id in list(self._warm):
            await self._drop_warm(container_id)
        await self.engine.close()

    # -- small steps ---------------------------------------------------------------------------------------------

    def _ours(self, labelled: dict[str, Any]) -> bool:
        return (labelled.get("Labels") or {}).get(manifests.LABEL_INSTANCE) == self.instance_id

    async def _discard(self, container_id: str) -> None:
        await self._drop_warm(container_id)
        await self._objects.remove_container(container_id)

    async def _drop_warm(self, container_id: str) -> None:
        if (channel := self._warm.pop(container_id, None)) is not None:
            await channel.close()

    async def _remove_if_ours(self, spec: SandboxSpec, container_id: str) -> None:
        """After a create that was cut there is no id, yet there may be a container under our name and generation."""
        if container_id:
            await self._discard(container_id)
            return
        with contextlib.suppress(Missing):
            found = await self.engine.call("inspect_container", spec.workspace_id)
            asked = manifests.labels(spec)
            if asked.items() <= (found["Config"].get("Labels") or {}).items():
                await self._discard(found["Id"])


def validate(config: dict[str, Any]) -> None:
    """Raises `Invalid` for what this provider does not do, instead of accepting and ignoring it."""
    name = config.get("runtime", "docker")
    if name == "podman":
        message = "podman is not supported yet: use docker"
    elif name == "containerd":
        message = "containerd has no API for this: use docker on top of it, or the kubernetes provider"
    elif name != "docker":
        message = "must be docker"
    else:
        return
    raise Invalid(f"config.runtime: {message}.", errors=[FieldError("config.runtime", message)])


async def settle(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end even when the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
