"""The engine's API bodies, by equality: whoever changes one sees the whole of it here."""

from __future__ import annotations

import copy
import ipaddress
from dataclasses import replace
from typing import Any

import pytest

from workspaces.providers import manifests
from workspaces.providers.base import SandboxSpec

SPEC = SandboxSpec("inst", "ws-0123456789abcdef", 3, image="primer/workspace-runtime:1.0")
DIGEST = "d" * 64
OURS = manifests.ImageFacts("sha256:" + "a" * 64, ("PATH=/usr/bin", "LANG=C"), (("primer.runtime", DIGEST),))
OTHER = manifests.ImageFacts("sha256:" + "b" * 64, ("PATH=/opt/bin",))

REFERENCE: dict[str, Any] = {
    "Image": "sha256:" + "a" * 64,
    "Entrypoint": [],
    "Cmd": ["python3", "-I", "-S", "-E", "/opt/primer/runtime.pyz", "serve", "--workdir", "/workspace"],
    "Hostname": "ws-0123456789abcdef",
    "Domainname": "",
    "User": "1000:1000",
    "WorkingDir": "/workspace",
    "Env": ["HOME=/workspace", "LANG=C.UTF-8", "PATH=/usr/bin"],
    "Labels": {
        "primer.instance": "inst",
        "primer.workspace": "ws-0123456789abcdef",
        "primer.generation": "3",
    },
    "StopSignal": "SIGKILL",
    "Healthcheck": {"Test": ["NONE"]},
    "Tty": False,
    "OpenStdin": False,
    "AttachStdin": False,
    "AttachStdout": False,
    "AttachStderr": False,
    "HostConfig": {
        "Init": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": "rw,nosuid,nodev,noexec,size=64m,mode=1777"},
        "ShmSize": 16777216,
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
        "Memory": 536870912,
        "MemorySwap": 536870912,
        "NanoCpus": 1000000000,
        "PidsLimit": 256,
        "OomScoreAdj": 500,
        "OomKillDisable": False,
        "Ulimits": [
            {"Name": "nofile", "Soft": 1024, "Hard": 1024},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": 1073741824, "Hard": 1073741824},
        ],
        "LogConfig": {"Type": "json-file", "Config": {"max-file": "2", "max-size": "1m"}},
        "Mounts": [
            {"Type": "volume", "Source": "ws-0123456789abcdef", "Target": "/workspace", "ReadOnly": False},
        ],
        "Binds": [],
        "VolumesFrom": [],
        "Links": [],
        "ExtraHosts": [],
        "PortBindings": {},
        "PublishAllPorts": False,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "Runtime": "",
        "NetworkMode": "none",
        "Dns": [],
        "DnsOptions": [],
    },
}


def body(image: manifests.ImageFacts = OURS, **over: Any) -> dict[str, Any]:
    return manifests.container_body(replace(SPEC, **over), image, DIGEST)


def test_the_reference_sandbox() -> None:
    assert body() == REFERENCE


def test_limits_of_the_template_are_what_the_container_gets() -> None:
    host = body(cpu_cores=0.5, memory_bytes=2**27, pids_limit=64, disk_bytes=2**23)["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (500_000_000, 2**27, 2**27, 64)
    assert {"Name": "fsize", "Soft": 2**23, "Hard": 2**23} in host["Ulimits"]


def test_an_image_without_our_runtime_gets_it_read_only_and_its_volume_is_not_copied_into() -> None:
    assert body(OTHER)["HostConfig"]["Mounts"] == [
        {
            "Type": "volume",
            "Source": SPEC.workspace_id,
            "Target": "/workspace",
            "ReadOnly": False,
            "VolumeOptions": {"NoCopy": True},
        },
        {
            "Type": "volume",
            "Source": "primer-runtime-dddddddddddddddd",
            "Target": "/opt/primer",
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True},
        },
    ]


def test_an_image_with_the_runtime_of_another_version_gets_ours() -> None:
    old = replace(OURS, labels=(("primer.runtime", "e" * 64),))
    assert [mount["Source"] for mount in body(old)["HostConfig"]["Mounts"]] == [
        SPEC.workspace_id,
        "primer-runtime-" + "d" * 16,
    ]


def test_another_workdir_is_home_working_directory_and_mount() -> None:
    made = body(workdir="/data")
    assert (made["WorkingDir"], made["Cmd"][-1], made["HostConfig"]["Mounts"][0]["Target"]) == (
        "/data",
        "/data",
        "/data",
    )
    assert "HOME=/data" in made["Env"]
    assert made["HostConfig"]["Mounts"][0]["VolumeOptions"] == {"NoCopy": True}


def test_allow_all_is_the_instance_bridge() -> None:
    assert body(egress="allow_all")["HostConfig"]["NetworkMode"] == "primer-egress-inst"
    assert manifests.egress_network_body("inst")["Options"] == {"com.docker.network.bridge.enable_icc": "false"}


def test_network_mode_is_read_only_with_deny_all() -> None:
    assert body(egress="allow_all", network_mode="internal")["HostConfig"]["NetworkMode"] == "primer-egress-inst"


def test_internal_mode_has_its_own_network_and_asks_no_resolver_of_the_host() -> None:
    host = body(network_mode="internal")["HostConfig"]
    assert (host["NetworkMode"], host["Dns"], host["DnsOptions"]) == (
        SPEC.workspace_id,
        ["127.0.0.1"],
        ["timeout:1", "attempts:1"],
    )
    network = manifests.internal_network_body(replace(SPEC, network_mode="internal"))
    assert network["Internal"] is True
    assert network["Options"] == {
        "com.docker.network.bridge.inhibit_ipv4": "true",
        "com.docker.network.bridge.enable_icc": "false",
    }
    assert network["Labels"] == {"primer.instance": "inst", "primer.workspace": SPEC.workspace_id}


def test_every_attempt_of_an_internal_network_is_another_small_subnet_of_the_pool() -> None:
    nets = [
        ipaddress.ip_network(manifests.internal_network_body(SPEC, attempt)["IPAM"]["Config"][0]["Subnet"])
        for attempt in range(64)
    ]
    assert len(set(nets)) == 64
    assert all(net.prefixlen == 29 and net.subnet_of(manifests.INTERNAL_POOL) for net in nets)  # type: ignore[arg-type]


def test_a_named_volume_has_labels_that_outlive_generations() -> None:
    assert manifests.volume_body(SPEC) == {
        "Name": SPEC.workspace_id,
        "Driver": "local",
        "DriverOpts": {},
        "Labels": {"primer.instance": "inst", "primer.workspace": SPEC.workspace_id},
    }


def test_a_memory_volume_is_sized_counted_and_owned() -> None:
    made = manifests.volume_body(replace(SPEC, disk_medium="memory", disk_bytes=2**26))
    assert made["DriverOpts"] == {
        "type": "tmpfs",
        "device": "tmpfs",
        "o": "size=67108864,nr_inodes=4096,uid=1000,gid=1000,mode=0750,nosuid,nodev",
    }


def test_the_one_exec_that_the_engine_sees_says_nothing_of_a_run() -> None:
    assert manifests.exec_body() == {
        "cmd": ["python3", "-I", "-S", "-E", "/opt/primer/runtime.pyz", "bridge"],
        "stdin": True,
        "stdout": True,
        "stderr": True,
        "tty": False,
        "user": "1000:1000",
    }


@pytest.mark.parametrize(
    "name",
    [
        "primer/workspace-runtime:1.0",
        "python",
        "localhost:5000/a/b_c:Tag-1",
        "registry.example.com/x@sha256:" + "0" * 64,
        "sha256:" + "f" * 64,
    ],
)
def test_names_of_images_are_accepted(name: str) -> None:
    assert manifests.valid_image(name)


@pytest.mark.parametrize(
    "name",
    ["", "a/UPPER", "a b", "-x", "x:", "x@sha256:12", "../x", "x\0", "x\n", "http://x/y", "a" * 256, "--privileged"],
)
def test_what_is_not_the_name_of_an_image_is_refused(name: str) -> None:
    assert not manifests.valid_image(name)


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("python:3", ""),
        ("primer/x:1", ""),
        ("localhost/x", "localhost"),
        ("r.example/x", "r.example"),
        ("r:5000/x", "r:5000"),
    ],
)
def test_only_a_name_with_a_registry_can_be_pulled(name: str, registry: str) -> None:
    assert manifests.registry(name) == registry


def inspected(made: dict[str, Any]) -> dict[str, Any]:
    """What an engine answers for a container that is exactly as asked: fields resolved, empties left out or null."""
    config = {name: value for name, value in made.items() if name not in ("Image", "HostConfig")}
    host = copy.deepcopy(made["HostConfig"])
    return {
        "Image": made["Image"],
        "Config": config | {"Entrypoint": None, "Labels": made["Labels"] | {"of.the": "image"}, "Image": made["Image"]},
        "HostConfig": host
        | {"Binds": None, "CapAdd": None, "Devices": None, "Runtime": "runc", "MaskedPaths": ["/proc/kcore"]}
        | {"ReadonlyPaths": ["/proc/sys"], "Ulimits": list(reversed(host["Ulimits"])), "Links": None},
        "Mounts": [
            {"Type": m["Type"], "Name": m["Source"], "Destination": m["Target"], "RW": not m["ReadOnly"]}
            for m in host["Mounts"]
        ],
    }


def test_a_container_that_is_as_asked_does_not_differ() -> None:
    assert manifests.differences(inspected(body()), body()) == []
    assert manifests.differences(inspected(body(OTHER)), body(OTHER)) == []


@pytest.mark.parametrize("field", sorted(REFERENCE["HostConfig"]))
def test_a_field_that_differs_is_named(field: str) -> None:
    if field == "Runtime":
        made = body(engine_runtime="runsc")
        seen = inspected(made)
    else:
        made, seen = body(), inspected(body())
        seen["HostConfig"][field] = "something else"
        if field in ("Ulimits", "SecurityOpt"):
            seen["HostConfig"][field] = []
    assert [difference.split(":")[0] for difference in manifests.differences(seen, made)] == [field]


def test_a_mount_that_nobody_asked_for_is_named() -> None:
    seen = inspected(body())
    seen["Mounts"].append({"Type": "bind", "Name": None, "Destination": "/host", "RW": True})
    assert manifests.differences(seen, body())[0].startswith("Mounts:")


def test_a_volume_that_is_mounted_writable_instead_of_read_only_is_named() -> None:
    seen = inspected(body(OTHER))
    seen["Mounts"][1]["RW"] = True
    assert manifests.differences(seen, body(OTHER))[0].startswith("Mounts:")
