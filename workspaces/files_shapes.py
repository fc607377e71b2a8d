"""Bodies of the routes of files, in and out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rest_framework import serializers

from accounts.rest import StrictSerializer
from workspaces.execution import FileInfo
from workspaces.fields import ModeField, PathField


class FileSerializer(StrictSerializer):
    path = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(["file", "dir", "symlink", "other"])
    size_bytes = serializers.IntegerField()
    modified_at = serializers.DateTimeField()
    mode = serializers.CharField()


class FileListSerializer(StrictSerializer):
    items = FileSerializer(many=True)
    next_cursor = serializers.CharField(allow_null=True)


class FileContentSerializer(StrictSerializer):
    path = serializers.CharField()
    encoding = serializers.ChoiceField(["text", "base64"])
    content = serializers.CharField()
    size_bytes = serializers.IntegerField()
    modified_at = serializers.DateTimeField()
    etag = serializers.CharField(allow_null=True)
    truncated = serializers.BooleanField()


class WriteSerializer(StrictSerializer):
    content = serializers.CharField(allow_blank=True, trim_whitespace=False)
    encoding = serializers.ChoiceField(["text", "base64"], default="text")
    mode = ModeField(default=0o644)


class DirSerializer(StrictSerializer):
    path = PathField()
    parents = serializers.BooleanField(default=True)


class MoveSerializer(StrictSerializer):
    source = PathField()  # type: ignore[assignment]
    target = PathField()
    overwrite = serializers.BooleanField(default=False)


def shown(info: FileInfo) -> dict[str, Any]:
    return {
        "path": info.path, "name": info.name, "kind": info.kind, "size_bytes": info.size_bytes,
        "modified_at": when(info.modified_at), "mode": f"{info.mode:04o}",
    }  # fmt: skip


def when(seconds: float) -> str:
    """RFC 3339; a file may carry any time at all."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00Z"
