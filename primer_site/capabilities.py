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

from agents import llm
from workspaces import providers

DISTRIBUTION = "primer-console"


class SizeLimitsSerializer(serializers.Serializer[Any]):
    json_bytes = serializers.IntegerField(help_text="The largest JSON body.")
    upload_bytes = serializers.IntegerField(help_text="The largest raw body.")


class CapabilitiesSerializer(serializers.Serializer[Any]):
    version = serializers.CharField()
    api = serializers.CharField()
    workspace_providers = serializers.ListField(child=serializers.CharField())
    llm_providers = serializers.ListField(child=serializers.CharField())
    subprotocols = serializers.ListField(child=serializers.CharField())
    limits = SizeLimitsSerializer()


def server_version() -> str:
    """The installed version; a checkout that was never installed has none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


class CapabilitiesView(APIView):
    """Version, kinds of providers and models, sub-protocols, size limits."""

    @extend_schema(responses=CapabilitiesSerializer)
    def get(self, request: Request) -> Response:
        kinds = [kind for kind in providers.CHOICES if kind != "local" or settings.PRIMER_ALLOW_LOCAL]
        body = {
            "version": server_version(),
            "api": "v1",
            "workspace_providers": kinds,
            "llm_providers": list(llm.KINDS),
            "subprotocols": ["primer.v1.json"],
            "limits": {"json_bytes": settings.PRIMER_MAX_BODY_BYTES, "upload_bytes": settings.PRIMER_MAX_UPLOAD_BYTES},
        }
        return Response(CapabilitiesSerializer(body).data)
