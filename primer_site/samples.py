"""What a new install finds: one engine, one template, one model that needs no key, one agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accounts.audit import Actor
from accounts.models import Role, User
from agents import serializers as agent_shapes
from agents import services as agents
from agents.models import Agent, LLMProvider
from primer_site import engine
from primer_site.errors import FieldError, Invalid
from primer_site.problems import field_errors
from workspaces import image, serializers, services
from workspaces.models import WorkspaceProvider, WorkspaceTemplate

ANTHROPIC = {
    "id": "anthropic",
    "description": "The Messages API, with the key in ANTHROPIC_API_KEY.",
    "provider": "anthropic",
    "config": {"kind": "anthropic", "api_key_env": "ANTHROPIC_API_KEY", "default_model": "claude-sonnet-5-5"},
}
MODEL = {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
AGENT = {
    "id": "default-runner",
    "description": "Runs the code it is given, in its sandbox.",
    "model": {"provider_id": "scripted", "model_name": "scripted"},
    "system_prompt": ["You run the user's code in the sandbox and report its output."],
}


def create() -> list[str]:
    """Makes what is missing of the samples where a table never had a row; returns what was made.

    The ids are never the recipe's. A sample that somebody deleted stays deleted: its row is still there.
    """
    by = Actor(User.objects.filter(role=Role.ADMIN, is_active=True).order_by("pk")[0])
    made = []
    if not WorkspaceProvider.objects.exists() and not WorkspaceTemplate.objects.exists():
        made += _sandbox(by)
    if not LLMProvider.objects.exists() and not Agent.objects.exists():
        agents.llm_provider_create(by=by, data=_checked(agent_shapes.LLMProviderSerializer, MODEL))
        agents.agent_create(by=by, data=_checked(agent_shapes.AgentSerializer, AGENT))
        made += ["llm provider scripted", "agent default-runner"]
        if os.environ.get("ANTHROPIC_API_KEY"):
            agents.llm_provider_create(by=by, data=_checked(agent_shapes.LLMProviderSerializer, ANTHROPIC))
            made.append("llm provider anthropic")
    return made


def _sandbox(by: Actor) -> list[str]:
    """Provider and template, once there is an engine to point them at."""
    if not Path(engine.socket_path()).is_socket():
        return []
    provider = {"id": "docker", "description": "The engine of this host.", "provider": "container"}
    template = {
        "id": "default",
        "description": "A sandbox without network: 1 core, 512 MiB.",
        "provider_id": "docker",
        "backend": {"kind": "container", "image": image.TAG},
    }
    data = _checked(serializers.ProviderSerializer, provider | {"config": engine.config()})
    services.provider_create(by=by, data=data)
    services.template_create(by=by, data=_checked(serializers.TemplateSerializer, template))
    return ["provider docker", "template default"]


def _checked(serializer_class: Any, body: dict[str, Any]) -> dict[str, Any]:
    serializer = serializer_class(data=body)
    if not serializer.is_valid():
        errors: list[FieldError] = field_errors(serializer.errors)
        told = "; ".join(f"{error.field} {error.message}" for error in errors)
        raise Invalid(f"The sample {body['id']} is refused: {told}.", errors=errors)
    data: dict[str, Any] = serializer.validated_data
    return data
