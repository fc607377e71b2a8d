"""The contract of a provider: seven async, idempotent verbs over one engine. `manifests.py` is pure, drivers are thin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from primer_site.errors import PrimerError

Enforced = Literal["enforced", "soft", "unavailable"]
LIMITS = ("cpu", "memory", "pids", "disk", "egress")


class ProviderError(PrimerError):
    """The engine could not do what was asked."""

    code, status = "engine_error", 502


class EngineUnavailable(ProviderError):
    """The container engine did not answer."""

    code, status, retryable = "engine_unavailable", 503, True
    hint = "Start the engine, or correct the provider's connection."


class EngineForbidden(EngineUnavailable):
    """The container engine refused access to its socket."""

    retryable = False
    hint = "Let the server's user use the engine: run it as root, or add it to the engine's group."


class ImageNotFound(ProviderError):
    """The image is not on the engine and could not be pulled."""

    code, status = "image_not_found", 409
    hint = "Build it on the server: primer image build"


class ImageUnsuitable(ProviderError):
    """The image cannot run the sandbox runtime: it needs a full python3 of version 3.9 or later."""

    code, status = "image_unsuitable", 409


class StartFailed(ProviderError):
    """The sandbox did not start."""

    code, status = "start_failed", 409

    def __init__(self, detail: str = "", *, boot_lines: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(detail, **kwargs)
        self.boot_lines = boot_lines  # last lines of the sandbox's own log: hostile text


class StartTimeout(StartFailed):
    """The sandbox was not ready before its deadline."""

    code = "start_timeout"


class SpecMismatch(StartFailed):
    """The engine made a container that differs from what was asked; it was removed."""

    code = "spec_mismatch"


class DataLost(ProviderError):
    """The files of this workspace are gone from the engine."""

    code, status = "data_lost", 409


class EngineFull(ProviderError):
    """The engine's disk is nearly full: new sandboxes are refused."""

    code, status, retryable = "disk_full", 507, True
    hint = "Free space on the engine's host: docker system df shows what holds it."


class ChannelClosed(ProviderError):
    """The channel to the sandbox broke."""

    code, status, retryable = "channel_closed", 503, True


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox must be. Sizes in bytes, times in seconds; the container, volume and host name are `workspace_id`.

    User environment is not in it: it reaches each exec through the runtime, never the container, where inspect shows it.
    """

    instance_id: str
    workspace_id: str  # ws-<16 hex>
    generation: int  # of the container: grows with each fresh start
    image: str = ""
    cpu_cores: float = 1.0
    memory_bytes: int = 536_870_912
    pids_limit: int = 256
    disk_bytes: int = 1_073_741_824
    disk_medium: Literal["volume", "memory"] = "volume"
    egress: Literal["deny_all", "allow_all"] = "deny_all"
    network_mode: Literal["none", "internal"] = "none"  # read only with deny_all
    engine_runtime: str = ""  # "" is the engine's default
    workdir: str = "/workspace"
    start_timeout_s: float = 60.0
    fresh: bool = True  # False: the files must be there already, else DataLost and never a silently empty volume
    kind: str = ""  # of the backend it describes; "" is a spec of no template, which any provider takes


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a sandbox is, as stored on the row: JSON scalars only, so a restart loses nothing."""

    kind: str
    workspace_id: str
    generation: int
    container_id: str = ""
    container_name: str = ""
    volume_name: str = ""
    image_digest: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ref:
        return cls(**data)


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"  # files are there, the sandbox is not running
    GONE = "gone"  # nothing is there, or the files are lost (`reason` says which)


@dataclass(frozen=True, slots=True)
class Status:
    """What the engine says now; `reason` is a stable word (`out_of_memory`, `removed`, `data_lost`, `exited`, …)."""

    state: State
    reason: str = ""
    detail: str = ""
    boot_lines: tuple[str, ...] = ()
    volume_exists: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """The engine as measured: `health` is healthy, degraded or unreachable; `enforces` maps each of LIMITS."""

    health: Literal["healthy", "degraded", "unreachable"]
    reasons: tuple[str, ...] = ()
    engine: dict[str, Any] = field(
        default_factory=dict
    )  # name version api_version storage_driver cgroup runtimes security cpus memory_bytes limit_reasons
    enforces: dict[str, Enforced] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """Whether a template's image is on the engine, and what its limits are worth there."""

    present: bool
    digest: str = ""
    detail: str = ""
    limits: dict[str, Enforced] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why a limit is not enforced: a sentence for each
    problems: tuple[str, ...] = ()  # sentences: why no workspace of the template can start now
    pullable: bool = False  # not there, and its name says where the engine can have it


class Channel(Protocol):
    """A byte stream to the runtime. Its end proves nothing: engines end it cleanly when they die."""

    async def read(self, limit: int) -> bytes:
        """At most `limit` bytes, b"" at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends all of `data` and waits for the transport, so that the sender feels back-pressure."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class PouringChannel(Channel, Protocol):
    """A channel that can hand on what comes without a task that waits for it."""

    async def pour(self, take: Callable[[memoryview], None]) -> None:
        """Calls `take` with what comes until the end of the stream; the bytes are gone when it returns."""
        ...


class Provider(ABC):
    """One engine. Holds configuration and a client, nothing durable; every verb may be called twice or after a restart."""

    kind: ClassVar[str]
    isolates: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any], secrets: dict[str, Any], *, instance_id: str) -> None:
        self.config = config
        self.secrets = secrets
        self.instance_id = instance_id

    @abstractmethod
    async def check(self) -> Check:
        """Measures the engine: reachable and permitted, versions, what it can enforce. Never raises for a dead engine."""

    @abstractmethod
    async def check_image(self, spec: SandboxSpec) -> ImageCheck:
        """Whether the spec's image is there and what each limit is worth on this engine (`EngineUnavailable` when it is down)."""

    async def images(self) -> list[str]:
        """Names of the images that are on the engine; empty for a kind that has none."""
        return []

    async def lacks_image(self, spec: SandboxSpec) -> bool:
        """Whether the spec's image has to be brought to the engine first, and `fetch_image` would try to."""
        return False

    async def fetch_image(self, spec: SandboxSpec) -> None:
        """Brings the image to the engine and takes its time; the caller has the deadline. `ImageNotFound` when it cannot be had."""

    def refuse_other_kind(self, spec: SandboxSpec) -> None:
        """Raises `StartFailed` for a spec of another kind: what was meant for a container must not run on the host."""
        if spec.kind not in ("", self.kind):
            raise StartFailed(
                f"The workspace was made for a {spec.kind} provider, and this one is of the kind {self.kind}."
            )

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> Ref:
        """Adopts the running sandbox that carries this workspace's label and generation, or creates it.

        Ready means that the runtime answered. On failure everything made by this call is removed and the first error
        is raised (`EngineUnavailable`, `ImageNotFound`, `ImageUnsuitable`, `StartFailed`, `DataLost`). Called twice at
        once: one creates, the other adopts. A container of an older generation is removed, its volume kept.
        """

    @abstractmethod
    async def connect(self, ref: Ref) -> Channel:
        """Opens a byte stream to the runtime of a running sandbox; `ChannelClosed` or `EngineUnavailable` otherwise."""

    @abstractmethod
    async def status(self, ref: Ref) -> Status:
        """What is there now; not found is `GONE`, a dead engine is `EngineUnavailable` (never guessed as stopped)."""

    @abstractmethod
    async def stop(self, ref: Ref) -> None:
        """Ends the sandbox and keeps its files. Already stopped or gone is success."""

    @abstractmethod
    async def destroy(self, ref: Ref) -> list[str]:
        """Removes sandbox and files and returns what was removed (`["container", "volume"]`). Gone is success."""

    @abstractmethod
    async def discover(self) -> list[Ref]:
        """Everything of this instance on the engine, by label, for the orphan sweep; lone volumes included."""

    async def remove_shared(self) -> list[str]:
        """Removes what the install keeps on the engine beside its workspaces, and returns the kinds; for its very end."""
        return []

    async def prune_shared(self) -> list[str]:
        """Removes what earlier versions of this install left beside its workspaces and nothing uses; returns the names."""
        return []

    async def sweep_helpers(self) -> None:
        """Removes what starts of a server that died left beside sandboxes which live on; `discover` tells nothing of it."""

    async def close(self) -> None:
        """Releases the client. The sandboxes run on."""
