"""`/v1/capabilities`: what this server is and can, so that clients need not guess from its version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.lists import StrictQuery
from accounts.models import Role, Scope
from agents import llm
from agents.tools import WORKSPACE_TOOLS
from primer_site.pagination import MAX_LIMIT
from sessions_app.export import RENDERERS
from sessions_app.live import PROTOCOLS
from sessions_app.models import EndedReason, EventKind
from workspaces import image, providers
from workspaces.exec_api import PLAIN_WAIT_S
from workspaces.exec_shapes import MAX_TIMEOUT_S
from workspaces.execs import RUNNING_AT_ONCE
from workspaces.execution import MAX_KEEP_BYTES, OUTPUT_KILL_BYTES
from workspaces.models import ENDED_BY, Phase
from workspaces.runtime import build as runtime

DISTRIBUTION = "primer-console"


class ServerLimitsSerializer(serializers.Serializer[Any]):
    json_bytes = serializers.IntegerField(help_text="The largest JSON body.")
    upload_bytes = serializers.IntegerField(help_text="The largest raw body.")
    page_items = serializers.IntegerField(help_text="The most rows of one page of a list.")
    exec_timeout_s = serializers.IntegerField(help_text="The longest deadline of a command.")
    exec_wait_s = serializers.IntegerField(help_text="How long a plain POST waits for a command; then it answers 202.")
    exec_output_bytes = serializers.IntegerField(help_text="The most that is kept of one stream of a command.")
    exec_output_kill_bytes = serializers.IntegerField(help_text="A command that writes more to one stream is ended.")
    execs_at_once = serializers.IntegerField(help_text="Commands that may run in one workspace at once.")
    token_ttl_s = serializers.IntegerField(help_text="Life of a token that a login buys.")
    keep_days = serializers.IntegerField(help_text="How long ended sessions and output are kept; 0 is for ever.")


class RuntimeSerializer(serializers.Serializer[Any]):
    """What runs inside the sandboxes."""

    version = serializers.CharField()
    digest = serializers.CharField(help_text="SHA-256; the image that carries it needs no second copy.")
    image = serializers.CharField(help_text="The image that carries it.")


class CapabilitiesSerializer(serializers.Serializer[Any]):
    version = serializers.CharField()
    api = serializers.CharField()
    workspace_providers = serializers.ListField(child=serializers.CharField())
    llm_providers = serializers.ListField(child=serializers.CharField())
    roles = serializers.ListField(child=serializers.CharField())
    scopes = serializers.ListField(child=serializers.CharField())
    phases = serializers.ListField(child=serializers.CharField(), help_text="Of workspaces.")
    ended_by = serializers.ListField(child=serializers.CharField(), help_text="Verdicts of commands.")
    ended_reasons = serializers.ListField(child=serializers.CharField(), help_text="Of sessions.")
    event_kinds = serializers.ListField(child=serializers.CharField(), help_text="Of transcripts.")
    tools = serializers.ListField(child=serializers.CharField(), help_text="What an agent can do in its workspace.")
    transcript_formats = serializers.ListField(child=serializers.CharField())
    subprotocols = serializers.ListField(child=serializers.CharField())
    runtime = RuntimeSerializer()
    limits = ServerLimitsSerializer()


def server_version() -> str:
    """The installed version; a checkout that was never installed has none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def limits() -> dict[str, int]:
    return {
        "json_bytes": settings.PRIMER_MAX_BODY_BYTES,
        "upload_bytes": settings.PRIMER_MAX_UPLOAD_BYTES,
        "page_items": MAX_LIMIT,
        "exec_timeout_s": MAX_TIMEOUT_S,
        "exec_wait_s": int(PLAIN_WAIT_S),
        "exec_output_bytes": MAX_KEEP_BYTES,
        "exec_output_kill_bytes": OUTPUT_KILL_BYTES,
        "execs_at_once": RUNNING_AT_ONCE,
        "token_ttl_s": settings.PRIMER_TOKEN_TTL_S,
        "keep_days": settings.PRIMER_KEEP_DAYS,
    }


class CapabilitiesView(StrictQuery, APIView):
    """What this server is and can: its version, every closed set of words that the API uses, and its limits."""

    @extend_schema(responses=CapabilitiesSerializer)
    def get(self, request: Request) -> Response:
        kinds = [kind for kind in providers.CHOICES if kind != "local" or settings.PRIMER_ALLOW_LOCAL]
        body = {
            "version": server_version(),
            "api": "v1",
            "workspace_providers": kinds,
            "llm_providers": list(llm.KINDS),
            "roles": Role.values,
            "scopes": Scope.values,
            "phases": Phase.values,
            "ended_by": ENDED_BY,
            "ended_reasons": EndedReason.values,
            "event_kinds": EventKind.values,
            "tools": [tool.name for tool in WORKSPACE_TOOLS],
            "transcript_formats": list(RENDERERS),
            "subprotocols": list(PROTOCOLS),
            "runtime": {"version": runtime.VERSION, "digest": runtime.digest(), "image": image.TAG},
            "limits": limits(),
        }
        return Response(CapabilitiesSerializer(body).data)
