"""The kinds of providers and templates as bodies: every field that exists, and the sentence for what does not."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from rest_framework import serializers

from accounts.rest import StrictSerializer
from primer_site.errors import Invalid
from workspaces.fields import ByKind, BytesField, KindSerializer, by_kind
from workspaces.providers.endpoint import refuse_link_local
from workspaces.providers.manifests import valid_image

KIB, MIB, TIB = 1024, 1024**2, 1024**4
RUNTIMES_REFUSED = {
    "podman": "podman is not supported yet: use docker",
    "containerd": "containerd has no API for this: use docker on top of it, or the kubernetes provider",
}
KUBERNETES_REFUSED = "the kubernetes provider is not part of this version: use container"
WORKDIR = re.compile(r"(/[A-Za-z0-9._-]+)+")
ENGINE_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SYSTEM_DIRS = ("bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var")


# -- connections


class ConnectionShape(KindSerializer):
    kind = serializers.CharField(help_text="A socket of the server's host, or an address.")


class SocketConnection(ConnectionShape):
    KIND = "socket"

    socket_path = serializers.CharField(
        max_length=4096, trim_whitespace=False,
        help_text="The unix socket of the engine, on the server's host. Whoever reaches it is root there.",
    )  # fmt: skip

    def validate_socket_path(self, value: str) -> str:
        kept = (self.context.get("kept_connection") or {}).get("socket_path")
        if value != kept and not is_engine_socket(value):
            # Which sentence is a matter of the text alone: which files exist on the server is nobody's business.
            if _is_below_socket_dirs(value):
                raise serializers.ValidationError("there is no engine's socket at this path on the server")
            dirs = ", ".join(settings.PRIMER_SOCKET_DIRS)
            raise serializers.ValidationError(f"must be the absolute path of an engine's socket below {dirs}")
        return value


def _is_below_socket_dirs(path: str) -> bool:
    """Whether a path is written as one below PRIMER_SOCKET_DIRS; wherever it leads, nothing is looked at."""
    plain = path.startswith("/") and "\0" not in path and os.path.normpath(path) == path
    return plain and any(Path(path).is_relative_to(root) for root in settings.PRIMER_SOCKET_DIRS)


def is_engine_socket(path: str) -> bool:
    """Whether a path leads to a unix socket in one of PRIMER_SOCKET_DIRS, links resolved, and is written plainly."""
    if not path.startswith("/") or "\0" in path or os.path.normpath(path) != path:
        return False
    try:
        real = Path(path).resolve(strict=True)
        allowed = any(real.is_relative_to(Path(root).resolve()) for root in settings.PRIMER_SOCKET_DIRS)
        return allowed and stat.S_ISSOCK(real.stat().st_mode)
    except (OSError, RuntimeError):
        return False


class TlsSerializer(StrictSerializer):
    ca = serializers.CharField(
        max_length=64 * KIB, required=False, allow_blank=True, trim_whitespace=False,
        help_text="The CA that signed the engine's certificate, in PEM.",
    )  # fmt: skip
    cert = serializers.CharField(
        max_length=64 * KIB, required=False, allow_blank=True, trim_whitespace=False,
        help_text="The server's certificate as a client of that engine, in PEM.",
    )  # fmt: skip
    key = serializers.JSONField(
        required=False, allow_null=True,
        help_text="The key of that certificate, in PEM; write-only. Another URL drops the stored one.",
    )  # fmt: skip

    def validate_key(self, value: Any) -> Any:
        masked = isinstance(value, dict) and set(value) <= {"set", "last4"}
        if value is not None and not masked and not (isinstance(value, str) and len(value) <= 64 * KIB):
            raise serializers.ValidationError("must be PEM text")
        return value


class TcpConnection(ConnectionShape):
    KIND = "tcp"

    url = serializers.CharField(
        max_length=300,
        help_text="The engine's address, tcp://host:port. Without TLS everybody on the way can run anything on that engine.",
    )
    tls = TlsSerializer(
        required=False, allow_null=True, help_text="Certificates in PEM, for an engine that asks for them."
    )

    def validate_url(self, value: str) -> str:
        try:
            parts = urlsplit(value)
        except ValueError:  # brackets that hold no address
            raise serializers.ValidationError("must be tcp://host:port") from None
        try:
            port = parts.port
        except ValueError:
            port = None
        plain = parts.hostname and not (parts.username or parts.password or parts.query or parts.fragment)
        if parts.scheme != "tcp" or not plain or not port or parts.path not in ("", "/"):
            raise serializers.ValidationError("must be tcp://host:port")
        try:
            refuse_link_local(str(parts.hostname), port)
        except Invalid as exc:
            raise serializers.ValidationError(exc.errors[0].message if exc.errors else exc.detail) from None
        return value


class ConnectionField(ByKind):
    shapes = {"socket": SocketConnection, "tcp": TcpConnection}


class ReachShape(KindSerializer):
    kind = serializers.CharField(
        help_text="How the server talks to what runs in a sandbox. engine: through the engine itself, with no network at all."
    )


class EngineReach(ReachShape):
    KIND = "engine"


class HostPortReach(ReachShape):
    KIND = "host_port"

    bind_host = serializers.IPAddressField(
        default="127.0.0.1",
        help_text="The address that ports would be published on. Any other than a loopback one opens them to a network.",
    )


class ReachField(ByKind):
    shapes = {"engine": EngineReach, "host_port": HostPortReach}


# -- providers


class ConfigShape(KindSerializer):
    kind = serializers.CharField(help_text="The kind of engine that workspaces run on.")


class ContainerConfig(ConfigShape):
    KIND = "container"

    runtime = serializers.CharField(default="docker", max_length=32, help_text="The program behind the connection.")
    connection = by_kind("EngineConnection", ConnectionField)(help_text="Where the engine listens.")
    reachability = by_kind("Reachability", ReachField)(
        default={"kind": "engine"}, help_text="How the server talks to what runs in a sandbox."
    )

    def validate_runtime(self, value: str) -> str:
        if value != "docker":
            raise serializers.ValidationError(RUNTIMES_REFUSED.get(value, "must be docker"))
        return value


class LocalConfig(ConfigShape):
    KIND = "local"

    root_path = serializers.CharField(
        max_length=4096,
        help_text="Where the directories of workspaces are made, on the server's host. Nothing is isolated there.",
    )

    def validate_kind(self, value: str) -> str:
        if not settings.PRIMER_ALLOW_LOCAL:
            raise serializers.ValidationError(
                "the local provider isolates nothing; this server does not allow it (PRIMER_ALLOW_LOCAL=1 would)"
            )
        return super().validate_kind(value)

    def validate_root_path(self, value: str) -> str:
        if not value.startswith("/") or os.path.normpath(value) != value:
            raise serializers.ValidationError("must be an absolute path, written plainly")
        return value


class ProviderConfigField(ByKind):
    shapes = {"container": ContainerConfig, "local": LocalConfig}
    refused = {"kubernetes": KUBERNETES_REFUSED}


# -- backends of templates


class NetworkSerializer(StrictSerializer):
    egress = serializers.ChoiceField(
        ["deny_all", "allow_all"], default="deny_all",
        help_text="deny_all: nothing but loopback. allow_all: the internet, and what the engine's host can reach.",
    )  # fmt: skip
    mode = serializers.ChoiceField(
        ["none", "internal"], default="none",
        help_text="Read only with deny_all. none: no network at all. internal: a network without a way out, that still reaches "
        "what the engine's host serves on 0.0.0.0 and may leak through DNS; neighbours may answer, and no port is published.",
    )  # fmt: skip


class BackendShape(KindSerializer):
    kind = serializers.CharField(help_text="The kind of the provider.")


class ContainerBackend(BackendShape):
    KIND = "container"

    image = serializers.CharField(
        max_length=255,
        help_text="What the sandbox is made from: an image with a full python3 of 3.9 or later, present on the engine.",
    )
    cpu_cores = serializers.FloatField(
        default=1.0, min_value=0.05, max_value=256, help_text="Cores, also parts of one."
    )
    memory_bytes = BytesField(
        default=512 * MIB, min_value=64 * MIB, max_value=4 * TIB,
        help_text="Memory in bytes; a program that passes it is ended (oom).",
    )  # fmt: skip
    pids_limit = serializers.IntegerField(
        default=256, min_value=16, max_value=32768, help_text="Processes and threads at once."
    )
    disk_bytes = BytesField(
        default=1024 * MIB, min_value=1 * MIB, max_value=64 * TIB,
        help_text="Space for files in bytes. On a volume it is soft: a cap for each file, and a watcher.",
    )  # fmt: skip
    disk_medium = serializers.ChoiceField(
        ["volume", "memory"], default="volume",
        help_text="volume: on disk, files stay over a stop. memory: counted as memory, a hard limit, emptied on stop.",
    )  # fmt: skip
    network = NetworkSerializer(
        default={"egress": "deny_all", "mode": "none"}, help_text="What can be reached from inside."
    )
    engine_runtime = serializers.CharField(
        default="", allow_blank=True, allow_null=True, max_length=64,
        help_text="A runtime of the engine, such as runsc; its default without it.",
    )  # fmt: skip
    workdir = serializers.CharField(
        default="/workspace", max_length=255, help_text="Where the files are, and where programs start."
    )

    def validate_image(self, value: str) -> str:
        if not valid_image(value):
            raise serializers.ValidationError("must be an image reference such as primer/workspace-runtime:1.0")
        return value

    def validate_engine_runtime(self, value: str | None) -> str:
        if value and not ENGINE_RUNTIME.fullmatch(value):
            raise serializers.ValidationError("must be the name of a runtime of the engine, such as runsc")
        return value or ""

    def validate_workdir(self, value: str) -> str:
        parts = value.split("/")
        if not WORKDIR.fullmatch(value) or "." in parts or ".." in parts or parts[1] in SYSTEM_DIRS:
            raise serializers.ValidationError("must be an absolute path outside the system's directories")
        return value


class LocalBackend(BackendShape):
    KIND = "local"


class BackendField(ByKind):
    shapes = {"container": ContainerBackend, "local": LocalBackend}
    refused = {"kubernetes": KUBERNETES_REFUSED}
