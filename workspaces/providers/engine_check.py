"""What a docker engine is, what it can really enforce, and why a container of it stopped."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any, Final

from workspaces.providers import manifests
from workspaces.providers.base import (
    Check,
    Enforced,
    EngineFull,
    EngineUnavailable,
    ImageCheck,
    ImageNotFound,
    ProviderError,
    SandboxSpec,
)
from workspaces.providers.engine import Engine, translate
from workspaces.providers.images import Images, check_reference

ENGINE_FLOOR: Final = (25, 0, 5)
RUNC_FLOORS: Final = ((1, 2, 8), (1, 3, 3))  # of the two maintained series
FREE_SPACE_FLOOR: Final = 1024**3  # bytes; below it creates are refused, so that the host keeps working
CHECK_TIMEOUT_S: Final = 10.0
HARD: Final = ("cpu", "memory", "pids")  # an engine that does not enforce one of these is degraded
WHY_LOOSE: Final = {
    ("cpu", "unavailable"): "The engine's kernel has no quota for CPU time.",
    ("memory", "soft"): "The engine's kernel does not count swap, so a sandbox may swap beyond its limit.",
    ("memory", "unavailable"): "The engine's kernel has no memory limit.",
    ("pids", "unavailable"): "The engine's kernel has no limit on processes.",
    ("disk", "soft"): "A volume has no quota: one file is held at once, their sum by a watcher that is late.",
    ("egress", "soft"): "What such a network lets through differs between engines: the probe decides.",
}


async def check(engine: Engine, timeout_s: float = CHECK_TIMEOUT_S) -> Check:
    """Measures the engine; a dead one is an answer, not an exception."""
    try:
        async with asyncio.timeout(timeout_s):
            version, info = await engine.run(lambda client: (client.version(), client.info()))
            facts = describe(version, info)
            enforced = enforces(info)
    except TimeoutError:
        late = f"The container engine at {engine.endpoint.label} did not answer within {timeout_s:g} s."
        return Check("unreachable", (late,))
    except EngineUnavailable as exc:
        # With the address: reasons are for administrators.
        told = translate(exc.__cause__, engine.endpoint.label) if exc.__cause__ is not None else exc
        return Check("unreachable", (f"{told.detail} {told.hint_text}",))
    except ProviderError as exc:
        return Check("unreachable", (exc.detail,))
    except (KeyError, TypeError, ValueError, AttributeError):
        return Check("unreachable", (f"What answers at {engine.endpoint.label} does not speak the engine's API.",))
    low = free_space(engine, str(info.get("DockerRootDir") or ""))
    facts["limit_reasons"] = limit_reasons(enforced)
    loose = [text for name, text in facts["limit_reasons"].items() if name in HARD]
    reasons = [*version_reasons(facts), *loose]
    if engine.endpoint.host and engine.endpoint.tls is None:
        reasons.append("The connection to the engine is not encrypted: whoever can reach that port is root there.")
    if low is not None:
        reasons.insert(0, full_sentence(low))
    weak = low is not None or any(enforced[name] != "enforced" for name in HARD)
    return Check("degraded" if weak else "healthy", tuple(reasons), facts, enforced)


def describe(version: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """The engine as JSON: strings, lists of strings, and its two sizes."""
    options = [dict(part.split("=", 1) for part in str(o).split(",") if "=" in part) for o in info["SecurityOptions"]]
    components = {str(c["Name"]): str(c["Version"]) for c in version.get("Components") or []}
    return {
        "name": "docker",
        "version": str(version["Version"]),
        "api_version": str(version["ApiVersion"]),
        "storage_driver": str(info["Driver"]),
        "cgroup": f"v{info.get('CgroupVersion') or '1'}",
        "runtimes": sorted(str(name) for name in info.get("Runtimes") or {}),
        "security": sorted(option["name"] for option in options if "name" in option),
        "runc": components.get("runc", ""),
        "cpus": int(info.get("NCPU") or 0),
        "memory_bytes": int(info.get("MemTotal") or 0),
    }


def enforces(info: dict[str, Any]) -> dict[str, Enforced]:
    """What each limit of a template is worth here, from what the engine says its kernel has."""
    return {
        "cpu": "enforced" if info["CpuCfsQuota"] else "unavailable",
        # Without swap accounting a sandbox may swap beyond its limit, if the host has swap.
        "memory": ("enforced" if info["SwapLimit"] else "soft") if info["MemoryLimit"] else "unavailable",
        "pids": "enforced" if info["PidsLimit"] else "unavailable",
        "disk": "soft",  # a named volume has no quota: a limit per file, and a watcher that is late
        "egress": "enforced",
    }


def limit_reasons(enforced: dict[str, Enforced]) -> dict[str, str]:
    """Why each limit that is not enforced is not: limit -> sentence."""
    return {name: WHY_LOOSE[name, worth] for name, worth in enforced.items() if (name, worth) in WHY_LOOSE}


def beyond(info: dict[str, Any], spec: SandboxSpec) -> dict[str, str]:
    """What the spec asks for and the engine's host does not have: limit -> sentence with both numbers."""
    cpus, memory = int(info.get("NCPU") or 0), int(info.get("MemTotal") or 0)
    found = {}
    if 0 < cpus < spec.cpu_cores:
        found["cpu"] = f"The template asks for {spec.cpu_cores:g} CPU cores; the engine has {cpus}."
    if 0 < memory < spec.memory_bytes:
        found["memory"] = (
            f"The template asks for {gib(spec.memory_bytes)} of memory; the engine's host has {gib(memory)}, "
            "which is used up before that limit is met."
        )
    return found


def gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"


async def refusal(engine: Engine, spec: SandboxSpec) -> str:
    """Why an engine may have refused to create this sandbox; asked only after it did."""
    try:
        lacking = beyond(await engine.call("info"), spec).get("cpu", "")
    except ProviderError:
        lacking = ""
    runtime_name = f" Does it have the runtime {spec.engine_runtime}?" if spec.engine_runtime else ""
    return f"The engine refused to create the sandbox. {lacking}{runtime_name}".replace("  ", " ").strip()


def version_reasons(facts: dict[str, Any]) -> list[str]:
    """Sentences, not a verdict: distributions mend old versions without a new number, and only a probe tells."""
    found = []
    if (engine := numbers(facts["version"])) and engine < ENGINE_FLOOR:
        found.append(
            f"The engine is {facts['version']}; versions before 25.0.5 have known holes unless the distribution mended them."
        )
    runc = numbers(facts["runc"])
    if runc and not any(runc >= floor for floor in RUNC_FLOORS if floor[:2] == runc[:2]) and runc < (1, 4):
        found.append(
            f"runc is {facts['runc']}; versions before 1.2.8 and 1.3.3 can be escaped from unless the distribution mended them."
        )
    return found


def numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


async def check_image(engine: Engine, images: Images, spec: SandboxSpec) -> ImageCheck:
    """Whether the image is there, what each limit of the spec is worth on this engine and why, and what keeps it from starting."""
    check_reference(spec.image)
    info = await engine.call("info")
    limits = limits_of(info, spec)
    lacking = beyond(info, spec)
    reasons = {**limit_reasons(limits), **lacking}
    problems = [lacking["cpu"]] if "cpu" in lacking else []
    if spec.engine_runtime and spec.engine_runtime not in (info.get("Runtimes") or {}):
        problems.append(f"The engine has no runtime named {spec.engine_runtime}.")
        return ImageCheck(False, "", " ".join(problems), limits, reasons, tuple(problems))
    try:
        image = await images.facts(spec.image)
    except ImageNotFound as exc:
        problems.append(exc.detail)
        pullable = bool(manifests.registry(spec.image))
        return ImageCheck(False, "", " ".join(problems), limits, reasons, tuple(problems), pullable)
    carried = "The image carries the runtime."
    detail = "The runtime is brought in by a read-only volume." if images.needs_runtime(image) else carried
    return ImageCheck(True, image.id, " ".join([*problems, detail]), limits, reasons, tuple(problems))


def limits_of(info: dict[str, Any], spec: SandboxSpec) -> dict[str, Enforced]:
    """What each limit of a spec is worth; one beyond what the host has is worth nothing."""
    limits = enforces(info)
    if spec.disk_medium == "memory":
        limits["disk"] = "enforced"
    if manifests.network_mode(spec) == spec.workspace_id:
        limits["egress"] = "soft"
    return {**limits, **dict.fromkeys(beyond(info, spec), "unavailable")}


def free_space(engine: Engine, root: str) -> int | None:
    """The free bytes of the engine's data root when they are below the floor; None when enough, or not to be seen from here."""
    if not engine.endpoint.socket_path or not os.path.isdir(root):
        return None
    try:
        found = os.statvfs(root)
    except OSError:
        return None
    free = found.f_bavail * found.f_frsize
    return free if free < FREE_SPACE_FLOOR else None


def full_sentence(free: int) -> str:
    return f"Only {free // 1024**2} MiB are free where the engine keeps its data: new sandboxes are refused."


class FreeSpace:
    """Refuses creates below the floor. Where the data is does not change while an engine lives, so it is asked once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._root: str | None = None

    async def require(self) -> None:
        if self._root is None:
            self._root = str((await self._engine.call("info")).get("DockerRootDir") or "")
        if (free := free_space(self._engine, self._root)) is not None:
            raise EngineFull(full_sentence(free))
