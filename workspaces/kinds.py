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
from workspaces.fields import ByKind, KindSerializer, by_kind
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


class SocketConnection(KindSerializer):
    KIND = "socket"

    socket_path = serializers.CharField(max_length=4096, trim_whitespace=False)

    def validate_socket_path(self, value: str) -> str:
        kept = (self.context.get("kept_connection") or {}).get("socket_path")
        if value != kept and not is_engine_socket(value):
            # One sentence for every reason: which files exist on the server is nobody's business.
            dirs = ", ".join(settings.PRIMER_SOCKET_DIRS)
            raise serializers.ValidationError(f"must be the absolute path of an engine's socket below {dirs}")
        return value


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
    ca = serializers.CharField(max_length=64 * KIB, required=False, allow_blank=True, trim_whitespace=False)
    cert = serializers.CharField(max_length=64 * KIB, required=False, allow_blank=True, trim_whitespace=False)
    key = serializers.JSONField(required=False, allow_null=True, help_text="PEM text; write-only.")

    def validate_key(self, value: Any) -> Any:
        masked = isinstance(value, dict) and set(value) <= {"set", "last4"}
        if value is not None and not masked and not (isinstance(value, str) and len(value) <= 64 * KIB):
            raise serializers.ValidationError("must be PEM text")
        return value


class TcpConnection(KindSerializer):
    KIND = "tcp"

    url = serializers.CharField(max_length=300)
    tls = TlsSerializer(required=False, allow_null=True)

    def validate_url(self, value: str) -> str:
        parts = urlsplit(value)
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


class EngineReach(KindSerializer):
    KIND = "engine"


class HostPortReach(KindSerializer):
    KIND = "host_port"

    bind_host = serializers.IPAddressField(default="127.0.0.1")


class ReachField(ByKind):
    shapes = {"engine": EngineReach, "host_port": HostPortReach}


# -- providers


class ContainerConfig(KindSerializer):
    KIND = "container"

    runtime = serializers.CharField(default="docker", max_length=32)
    connection = by_kind("EngineConnection", ConnectionField)()
    reachability = by_kind("Reachability", ReachField)(default={"kind": "engine"})

    def validate_runtime(self, value: str) -> str:
        if value != "docker":
            raise serializers.ValidationError(RUNTIMES_REFUSED.get(value, "must be docker"))
        return value


class LocalConfig(KindSerializer):
    KIND = "local"

    root_path = serializers.CharField(max_length=4096, help_text="Where the directories of workspaces are made.")

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
    egress = serializers.ChoiceField(["deny_all", "allow_all"], default="deny_all")
    mode = serializers.ChoiceField(["none", "internal"], default="none")


class ContainerBackend(KindSerializer):
    KIND = "container"

    image = serializers.CharField(max_length=255)
    cpu_cores = serializers.FloatField(default=1.0, min_value=0.05, max_value=256)
    memory_bytes = serializers.IntegerField(default=512 * MIB, min_value=64 * MIB, max_value=4 * TIB)
    pids_limit = serializers.IntegerField(default=256, min_value=16, max_value=32768)
    disk_bytes = serializers.IntegerField(default=1024 * MIB, min_value=1 * MIB, max_value=64 * TIB)
    disk_medium = serializers.ChoiceField(["volume", "memory"], default="volume")
    network = NetworkSerializer(default={"egress": "deny_all", "mode": "none"})
    engine_runtime = serializers.CharField(default="", allow_blank=True, allow_null=True, max_length=64)
    workdir = serializers.CharField(default="/workspace", max_length=255)

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


class LocalBackend(KindSerializer):
    KIND = "local"


class BackendField(ByKind):
    shapes = {"container": ContainerBackend, "local": LocalBackend}
    refused = {"kubernetes": KUBERNETES_REFUSED}
