"""Routes of models and agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.audit import Actor
from accounts.rest import ResourceViewSet, is_dry, refuse_fields, request_user
from agents import services
from agents.llm.base import LLM, LLMError
from agents.models import Agent, LLMProvider
from agents.serializers import (
    AgentSerializer,
    AgentUsageSerializer,
    LLMModelsSerializer,
    LLMProviderSerializer,
    LLMTestSerializer,
)
from primer_site import loop


class LLMProviderViewSet(ResourceViewSet):
    """Model endpoints. Admins write; everybody sees which there are."""

    kind = "llm_provider"
    model = LLMProvider
    admin_only = "write"
    serializer_class = LLMProviderSerializer
    filters = {"provider": "provider", "health": "health"}

    def base_queryset(self) -> QuerySet[Any]:
        return LLMProvider.objects.all()

    def check_outside(self, data: dict[str, Any], obj: Any = None) -> None:
        """Where the base_url leads is checked at every connection; here it is for the sentence."""
        if url := data.get("config", {}).get("base_url"):
            loop.run(services.refuse_address(url), services.RESOLVE_S + 1)

    def service_create(self, by: Actor, data: dict[str, Any]) -> LLMProvider:
        return services.llm_provider_create(by=by, data=data)

    def service_update(self, by: Actor, obj: LLMProvider, data: dict[str, Any]) -> LLMProvider:
        return services.llm_provider_update(by=by, row=obj, data=data)

    def service_delete(self, by: Actor, obj: LLMProvider) -> bool:
        services.llm_provider_delete(by=by, row=obj)
        return False

    @extend_schema(request=None, responses=LLMTestSerializer)
    @action(detail=True, methods=["post"])
    def test(self, request: Request, id: str) -> Response:
        """Makes one tiny call. A failure is an answer: `ok` false with the sentence. A dry run asks nothing: `ok` null."""
        refuse_fields(request)
        row = self.get_object()

        def work() -> Response:
            model = row.config.get("default_model") or ""
            facts = _tested(lambda: services.llm_provider_open(slug=row.slug), model, ask=not is_dry(request))
            if not is_dry(request):
                services.llm_provider_store_test(row=row, ok=facts["ok"], reason=facts["message"])
            return Response(facts)

        return self.once(request, work, outside=True)

    @extend_schema(responses=LLMModelsSerializer)
    @action(detail=True, methods=["get"])
    def models(self, request: Request, id: str) -> Response:
        """Names of the models of this endpoint."""
        llm = services.llm_provider_open(slug=self.get_object().slug)
        return Response({"items": _models_of(llm)})

    def test_unsaved(self, data: dict[str, Any], row: LLMProvider | None) -> dict[str, Any]:
        """The same test of settings that are not stored, of a form; `row` is the stored provider that they would change."""
        open_llm = self._unsaved(data, row)
        return _tested(open_llm, data["config"].get("default_model") or "", ask=True)

    def models_unsaved(self, data: dict[str, Any], row: LLMProvider | None) -> list[str]:
        return _models_of(self._unsaved(data, row)())

    def _unsaved(self, data: dict[str, Any], row: LLMProvider | None) -> Callable[[], LLM]:
        serializer = self.get_serializer(row, data=data)
        serializer.is_valid(raise_exception=True)
        checked = serializer.validated_data
        self.check_outside(checked)
        return lambda: services.llm_provider_try(row=row, kind=checked["provider"], config=checked["config"])


def _models_of(llm: LLM) -> list[str]:
    return loop.run(services.list_models(llm), services.TEST_S + 5)


def _tested(open_llm: Callable[[], LLM], model: str, *, ask: bool) -> dict[str, Any]:
    """What a test of a provider says; without `ask` only whether its settings make a driver, and `ok` is not True."""
    facts: dict[str, Any] = {"ok": True if ask else None, "model": model, "code": "", "message": "", "hint": ""}
    facts["request_id"] = ""
    began = time.monotonic()
    try:
        llm = open_llm()
        facts["model"] = model = llm.default_model
        if ask:
            facts["request_id"] = loop.run(services.ask_once(llm, model), services.TEST_S + 5).request_id
        else:
            loop.run(llm.close(), services.TEST_S + 5)
    except LLMError as exc:
        facts |= {"ok": False, "code": exc.code, "message": exc.detail, "hint": exc.hint_text}
    return facts | {"duration_ms": round((time.monotonic() - began) * 1000, 1)}


class AgentViewSet(ResourceViewSet):
    """Agents. Everybody sees them; their owner and admins change them."""

    kind = "agent"
    model = Agent
    serializer_class = AgentSerializer
    filters = {"provider_id": "provider__slug", "model_name": "model_name"}

    def base_queryset(self) -> QuerySet[Any]:
        return Agent.objects.select_related("owner", "provider")

    def service_create(self, by: Actor, data: dict[str, Any]) -> Agent:
        return services.agent_create(by=by, data=data)

    def service_update(self, by: Actor, obj: Agent, data: dict[str, Any]) -> Agent:
        return services.agent_update(by=by, row=obj, data=data)

    def service_delete(self, by: Actor, obj: Agent) -> bool:
        services.agent_delete(by=by, row=obj)
        return False

    @extend_schema(responses=AgentUsageSerializer)
    @action(detail=True, methods=["get"])
    def usage(self, request: Request, id: str) -> Response:
        """Tokens and cost of the agent's sessions: of the caller's own, of everybody's for an admin."""
        return Response(services.agent_usage(row=self.get_object(), user=request_user(request)))
