"""A sandbox as the engine's API bodies, and the comparison of what the engine made with what was asked. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from workspaces.providers.base import SandboxSpec

UID: Final = "1000:1000"
RUNTIME_PATH: Final = "/opt/primer/runtime.pyz"
RUNTIME_DIR: Final = "/opt/primer"
RUNTIME: Final = ("python3", "-I", "-S", "-E", RUNTIME_PATH)
TMP_OPTIONS: Final = "rw,nosuid,nodev,noexec,size=64m,mode=1777"
SHM_BYTES: Final = 16 * 1024 * 1024
NOFILE: Final = 1024
OOM_SCORE_ADJ: Final = 500  # children of the runtime can return to it, never below
LABEL_INSTANCE: Final = "primer.instance"
LABEL_WORKSPACE: Final = "primer.workspace"
LABEL_GENERATION: Final = "primer.generation"
LABEL_ROLE: Final = "primer.role"  # on helpers only
HELPER: Final = "helper"
LABEL_RUNTIME: Final = "primer.runtime"
INTERNAL_POOL: Final = ipaddress.ip_network("10.231.0.0/16")  # 8192 networks of eight addresses
BYTES_PER_INODE: Final = 16 * 1024

# docker's own grammar of a reference: lower-case path, optional host, tag and digest. Checked before the engine sees it.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::[0-9]{1,5})?"
IMAGE: Final = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[a-f0-9]{64}))?|sha256:[a-f0-9]{64}"
)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the engine says about an image: its id and what a container would take over from it."""

    id: str
    env: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()

    @classmethod
    def from_inspect(cls, data: dict[str, Any]) -> ImageFacts:
        config = data.get("Config") or {}
        labels = tuple(sorted((str(k), str(v)) for k, v in (config.get("Labels") or {}).items()))
        volumes = tuple(sorted(config.get("Volumes") or {}))
        return cls(str(data["Id"]), tuple(config.get("Env") or ()), labels, volumes)

    @property
    def runtime(self) -> str:
        """Digest of the runtime inside, "" when it has none."""
        return dict(self.labels).get(LABEL_RUNTIME, "")


def valid_image(reference: str) -> bool:
    return len(reference) <= 255 and IMAGE.fullmatch(reference) is not None


def registry(reference: str) -> str:
    """The registry that a reference names, "" when it names none (then only the engine's own images are meant)."""
    first = reference.split("/", 1)[0] if "/" in reference else ""
    return first if "." in first or ":" in first or first == "localhost" else ""


def labels(spec: SandboxSpec) -> dict[str, str]:
    return {
        LABEL_INSTANCE: spec.instance_id,
        LABEL_WORKSPACE: spec.workspace_id,
        LABEL_GENERATION: str(spec.generation),
    }


def runtime_volume(digest: str) -> str:
    return f"primer-runtime-{digest[:16]}"


def egress_network(instance_id: str) -> str:
    return f"primer-egress-{instance_id}"


def volume_body(spec: SandboxSpec) -> dict[str, Any]:
    """`POST /volumes/create`. The generation is not in it: a volume outlives containers."""
    body: dict[str, Any] = {
        "Name": spec.workspace_id,
        "Driver": "local",
        "DriverOpts": {},
        "Labels": {LABEL_INSTANCE: spec.instance_id, LABEL_WORKSPACE: spec.workspace_id},
    }
    if spec.disk_medium == "memory":
        inodes = max(1024, spec.disk_bytes // BYTES_PER_INODE)
        options = f"size={spec.disk_bytes},nr_inodes={inodes},uid=1000,gid=1000,mode=0750,nosuid,nodev"
        body["DriverOpts"] = {"type": "tmpfs", "device": "tmpfs", "o": options}
    return body


def egress_network_body(instance_id: str) -> dict[str, Any]:
    """`POST /networks/create` of the one bridge that sandboxes with `allow_all` share; neighbours cannot talk (icc off)."""
    return {
        "Name": egress_network(instance_id),
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": False,
        "Options": {"com.docker.network.bridge.enable_icc": "false"},
        "Labels": {LABEL_INSTANCE: instance_id},
    }


def internal_network_body(spec: SandboxSpec, attempt: int = 0) -> dict[str, Any]:
    """`POST /networks/create` of one workspace's own /29 without an address on the host's side.

    The subnet follows from the workspace id; `attempt` moves on when the engine says that it is taken.
    """
    count = INTERNAL_POOL.num_addresses // 8
    start = int.from_bytes(hashlib.sha256(spec.workspace_id.encode()).digest()[:4], "big")
    offset = (start + attempt) % count
    subnet = ipaddress.ip_network((int(INTERNAL_POOL.network_address) + 8 * offset, 29))
    return {
        "Name": spec.workspace_id,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": True,
        "IPAM": {"Driver": "default", "Config": [{"Subnet": str(subnet)}]},
        "Options": {
            "com.docker.network.bridge.inhibit_ipv4": "true",
            "com.docker.network.bridge.enable_icc": "false",
        },
        "Labels": {LABEL_INSTANCE: spec.instance_id, LABEL_WORKSPACE: spec.workspace_id},
    }


def network_mode(spec: SandboxSpec) -> str:
    if spec.egress == "allow_all":
        return egress_network(spec.instance_id)
    return spec.workspace_id if spec.network_mode == "internal" else "none"


def container_body(spec: SandboxSpec, image: ImageFacts, runtime_digest: str) -> dict[str, Any]:
    """`POST /containers/create` of the reference sandbox. `runtime_digest` is the server's; an image with another is injected."""
    own = image.runtime == runtime_digest
    return {
        "Image": image.id,
        "Entrypoint": [],
        "Cmd": [*RUNTIME, "serve", "--workdir", spec.workdir],
        "Hostname": spec.workspace_id,
        "Domainname": "",
        "User": UID,
        "WorkingDir": spec.workdir,
        "Env": environment(spec, image),
        "Labels": labels(spec),
        "StopSignal": "SIGKILL",  # PID 1 ignores TERM and would cost an engine's shutdown ten seconds
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "HostConfig": host_config(spec, inject="" if own else runtime_digest),
    }


def environment(spec: SandboxSpec, image: ImageFacts) -> list[str]:
    """Ours, and what the image itself declares (PATH, for one): the engine adds that in any case, so it is said openly."""
    ours = [f"HOME={spec.workdir}", "LANG=C.UTF-8"]
    names = {item.partition("=")[0] for item in ours}
    return sorted([*ours, *(item for item in image.env if item.partition("=")[0] not in names)])


def host_config(spec: SandboxSpec, *, inject: str) -> dict[str, Any]:
    """Limits, mounts and everything that could loosen the sandbox, spelled out so that inspect can be held against it."""
    network: dict[str, Any] = {"NetworkMode": network_mode(spec), "Dns": [], "DnsOptions": []}
    if network["NetworkMode"] == spec.workspace_id:
        # Without an own resolver lookups leak to the host's (CVE-2024-29018); without the options they take ten seconds.
        network |= {"Dns": ["127.0.0.1"], "DnsOptions": ["timeout:1", "attempts:1"]}
    return {
        "Init": False,  # PID 1 is the runtime, whatever the engine's default says
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": TMP_OPTIONS},  # noqa: S108 — a mount inside the sandbox
        "ShmSize": SHM_BYTES,
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "Devices": [],
        "DeviceRequests": [],
        "DeviceCgroupRules": [],
        "GroupAdd": [],
        "Sysctls": {},
        "CgroupParent": "",
        "Memory": spec.memory_bytes,
        "MemorySwap": spec.memory_bytes,
        "NanoCpus": round(spec.cpu_cores * 1e9),
        "PidsLimit": spec.pids_limit,
        "OomScoreAdj": OOM_SCORE_ADJ,
        "OomKillDisable": False,
        # No nproc: it counts the user over all sandboxes of the host.
        "Ulimits": [_ulimit("nofile", NOFILE), _ulimit("core", 0), _ulimit("fsize", spec.disk_bytes)],
        "LogConfig": {"Type": "json-file", "Config": {"max-file": "2", "max-size": "1m"}},
        "Mounts": mounts(spec, inject),
        "Binds": [],
        "VolumesFrom": [],
        "Links": [],
        "ExtraHosts": [],
        "PortBindings": {},
        "PublishAllPorts": False,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "Runtime": spec.engine_runtime,
        **network,
    }


def mounts(spec: SandboxSpec, inject: str) -> list[dict[str, Any]]:
    """The workspace, and the runtime where the image has none (`inject` is its digest).

    An image of ours owns /workspace, and an empty volume takes that owner over at the mount. Elsewhere the owner was set
    beforehand, and the mount must not copy: it would give an empty volume back to root.
    """
    no_copy = spec.disk_medium == "memory" or needs_owner(spec, bool(inject))
    found = [_volume(spec.workspace_id, spec.workdir, read_only=False, no_copy=no_copy)]
    if inject:
        found.append(_volume(runtime_volume(inject), RUNTIME_DIR, read_only=True, no_copy=True))
    return found


def needs_owner(spec: SandboxSpec, injected: bool) -> bool:
    """Whether the volume's owner must be set by hand: nothing in the image under the mount gives it to uid 1000."""
    return spec.disk_medium == "volume" and (injected or spec.workdir != "/workspace")


def _volume(source: str, target: str, *, read_only: bool, no_copy: bool) -> dict[str, Any]:
    mount: dict[str, Any] = {"Type": "volume", "Source": source, "Target": target, "ReadOnly": read_only}
    return {**mount, "VolumeOptions": {"NoCopy": True}} if no_copy else mount


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def helper_body(
    spec: SandboxSpec, image: ImageFacts, *, mount: dict[str, Any] | None, command: list[str]
) -> dict[str, Any]:
    """A container of the same image with nothing in it but at most one volume: to fill it, or to look at the interpreter."""
    return {
        "Image": image.id,
        "Entrypoint": [],
        "Cmd": command,
        "User": UID,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            LABEL_INSTANCE: spec.instance_id,
            LABEL_WORKSPACE: spec.workspace_id,
            LABEL_ROLE: HELPER,
        },
        "HostConfig": {
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "NetworkMode": "none",
            "Memory": 256 * 1024 * 1024,
            "MemorySwap": 256 * 1024 * 1024,
            "PidsLimit": 64,
            "Mounts": [mount] if mount else [],
            "LogConfig": {"Type": "json-file", "Config": {"max-file": "1", "max-size": "1m"}},
        },
    }


def exec_body() -> dict[str, Any]:
    """Keyword arguments of the one exec that the engine is ever asked for: the bridge to the runtime's socket.

    Nothing of a run is in it: the engine's events show every exec's whole command line.
    """
    return {"cmd": [*RUNTIME, "bridge"], "stdin": True, "stdout": True, "stderr": True, "tty": False, "user": UID}


def differences(inspect: dict[str, Any], body: dict[str, Any]) -> list[str]:
    """Where a created container differs from the request, as dotted names with both values; [] when it does not.

    Every field of the request is compared, so a field that is added there is checked here without another word.
    """
    config, host = inspect.get("Config") or {}, inspect.get("HostConfig") or {}
    found = [
        *_compare("Image", body["Image"], inspect.get("Image")),
        *(d for name in body if name not in ("Image", "HostConfig") for d in _field(name, body[name], config)),
        *(d for name, asked in body["HostConfig"].items() for d in _field(name, asked, host)),
        *_mounted(body["HostConfig"]["Mounts"], inspect.get("Mounts") or []),
    ]
    if not host.get("MaskedPaths") or not host.get("ReadonlyPaths"):
        found.append("MaskedPaths, ReadonlyPaths: the engine hides nothing of /proc and /sys")
    return found


def _field(name: str, asked: Any, holder: dict[str, Any]) -> Iterator[str]:
    actual = holder.get(name)
    if name == "Labels":
        # The engine adds the image's labels; ours must be what we said.
        actual = {key: value for key, value in (actual or {}).items() if key in asked}
    elif name == "Env":
        actual = sorted(actual or [])
    elif name == "Healthcheck":
        actual = {
            "Test": (actual or {}).get("Test")
        }  # the engine adds the image's intervals: without a test they are idle
    elif name == "Runtime" and not asked:
        return  # the engine's default: it writes the name that this has
    elif name == "Ulimits":
        asked, actual = sorted(asked, key=_by_name), sorted(actual or [], key=_by_name)
    elif name == "SecurityOpt":
        # Both spellings are the same for the engine.
        actual = [str(item).replace("no-new-privileges:true", "no-new-privileges") for item in actual or []]
    yield from _compare(name, asked, actual)


def _by_name(item: dict[str, Any]) -> str:
    return str(item.get("Name"))


def _compare(name: str, asked: Any, actual: Any) -> Iterator[str]:
    if _plain(asked) != _plain(actual):
        yield f"{name}: asked {asked!r}, got {actual!r}"


def _plain(value: Any) -> Any:
    """None, "", 0, [], {} and False are one value to the engine's encoder: it leaves them out."""
    if isinstance(value, dict):
        return {key: plain for key, item in value.items() if (plain := _plain(item)) is not None} or None
    if isinstance(value, list):
        return [_plain(item) for item in value] or None
    return value or None


def _mounted(asked: list[dict[str, Any]], actual: list[dict[str, Any]]) -> Iterator[str]:
    """The mounts that the engine resolved: exactly ours. An image's VOLUME line would add one that nobody limits."""
    ours = {(m["Type"], m["Source"], m["Target"], not m["ReadOnly"]) for m in asked}
    real = {(m.get("Type"), m.get("Name"), m.get("Destination"), m.get("RW")) for m in actual}
    if ours != real:
        yield f"Mounts: asked {sorted(ours, key=str)}, got {sorted(real, key=str)}"
