"""Whatever the engine does to one field of the sandbox: the container is removed before it starts, and the start fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from docker import APIClient

from tests.engine import DockerView
from workspaces.providers.base import SandboxSpec, SpecMismatch
from workspaces.providers.container import ContainerProvider
from workspaces.providers.manifests import ImageFacts, container_body, differences

pytestmark = pytest.mark.docker

CONFIG: dict[str, Any] = {
    "Cmd": ["sleep", "1000"],
    "Entrypoint": ["sh", "-c"],
    "Hostname": "elsewhere",
    "Domainname": "example.com",
    "User": "0:0",
    "WorkingDir": "/",
    "Env": ["HOME=/workspace", "LANG=C.UTF-8", "LD_PRELOAD=/tmp/x.so"],
    "Labels": {},
    "StopSignal": "SIGTERM",
    "Healthcheck": {"Test": ["CMD", "true"], "Interval": 10**9},
    "Tty": True,
    "OpenStdin": True,
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": True,
}
HOST: dict[str, Any] = {
    "Init": True,
    "CapAdd": ["SYS_PTRACE"],
    "CapDrop": ["NET_RAW"],
    "SecurityOpt": ["no-new-privileges", "seccomp=unconfined"],
    "Privileged": True,
    "ReadonlyRootfs": False,
    "Tmpfs": {"/tmp": "rw,exec"},
    "ShmSize": 64 * 1024 * 1024,
    "IpcMode": "shareable",
    "PidMode": "host",
    "UsernsMode": "host",
    "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
    "Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/xnull", "CgroupPermissions": "rwm"}],
    "DeviceCgroupRules": ["c 1:3 rwm"],
    "GroupAdd": ["27"],
    "Sysctls": {"kernel.msgmax": "65536"},
    "CgroupParent": "/elsewhere",
    "Memory": 256 * 1024**2,
    "MemorySwap": -1,
    "NanoCpus": 2_000_000_000,
    "PidsLimit": -1,
    "OomScoreAdj": -500,
    "OomKillDisable": True,
    "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
    "LogConfig": {"Type": "json-file", "Config": {}},
    "Mounts": [],
    "Binds": ["/tmp:/host"],
    "ExtraHosts": ["host:172.17.0.1"],
    "PortBindings": {"80/tcp": [{"HostPort": ""}]},
    "PublishAllPorts": True,
    "RestartPolicy": {"Name": "always"},
    "AutoRemove": True,
    "NetworkMode": "bridge",
    "Dns": ["192.0.2.1"],
    "DnsOptions": ["ndots:5"],
    "MaskedPaths": [],
    "ReadonlyPaths": [],
}
# An engine takes none of these together with the rest of the request, so no container comes of them; and without a wish the
# engine's own default runtime is no difference. They are held against the request like every other field.
REFUSED = {"UTSMode", "VolumesFrom", "Links", "Runtime"}
OURS_ALONE = {"MaskedPaths", "ReadonlyPaths"}  # never asked for: the engine's own lists, which must not be empty


def tamper(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """An engine that makes something else than what it was asked for."""
    real = APIClient.create_container_from_config

    def create(self: APIClient, config: dict[str, Any], *args: Any) -> Any:
        other = copy.deepcopy(config)
        if args:  # a name: the sandbox, not one of the nameless helpers
            change(other)
        return real(self, other, *args)

    monkeypatch.setattr(APIClient, "create_container_from_config", create)


@pytest.mark.parametrize("name", [*CONFIG, *(f"HostConfig.{name}" for name in HOST)])
async def test_a_container_that_differs_in_a_field_is_removed(
    name: str,
    container: ContainerProvider,
    make_spec: Callable[..., SandboxSpec],
    docker_view: DockerView,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field = name.rpartition(".")[2]
    if name.startswith("HostConfig."):
        tamper(monkeypatch, lambda body: body["HostConfig"].update({field: HOST[field]}))
    else:
        tamper(monkeypatch, lambda body: body.update({field: CONFIG[field]}))
    spec = make_spec()
    with pytest.raises(SpecMismatch, match=field):
        await container.start(spec)
    assert docker_view.names(spec.workspace_id) == []


def test_every_field_of_the_request_is_changed_here(make_spec: Callable[..., SandboxSpec]) -> None:
    body = container_body(make_spec(), ImageFacts("sha256:0"), "")
    assert set(body) - {"Image", "HostConfig"} == set(CONFIG)
    assert set(body["HostConfig"]) == (set(HOST) - OURS_ALONE) | REFUSED


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_no_engine_makes_is_compared_all_the_same(field: str, make_spec: Callable[..., SandboxSpec]) -> None:
    body = container_body(make_spec(engine_runtime="runsc"), ImageFacts("sha256:0"), "")
    made = {
        "Image": body["Image"],
        "Config": body,
        "HostConfig": {**body["HostConfig"], "MaskedPaths": ["x"], "ReadonlyPaths": ["x"]},
    }
    ours = [
        {"Type": m["Type"], "Name": m["Source"], "Destination": m["Target"], "RW": True}
        for m in body["HostConfig"]["Mounts"]
    ]
    made["Mounts"] = ours
    assert differences(made, body) == []
    made["HostConfig"][field] = "host" if field in ("UTSMode", "Runtime") else ["another"]
    assert [one.partition(":")[0] for one in differences(made, body)] == [field]


async def test_a_container_of_another_image_is_removed(
    container: ContainerProvider,
    make_spec: Callable[..., SandboxSpec],
    docker_view: DockerView,
    monkeypatch: pytest.MonkeyPatch,
    runtime_image: str,
) -> None:
    base = docker_view.client.history(runtime_image)[-1]["Id"]
    base = base if base.startswith("sha256:") else docker_view.client.inspect_image(runtime_image)["Parent"]
    tamper(monkeypatch, lambda body: body.update(Image=base))
    spec = make_spec()
    with pytest.raises(SpecMismatch, match="Image"):
        await container.start(spec)
    assert docker_view.names(spec.workspace_id) == []
