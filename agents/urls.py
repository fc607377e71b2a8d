"""Routes below /v1/."""

from typing import Any

from django.urls import path

from agents.api import AgentViewSet, LLMProviderViewSet

LIST: dict[str, Any] = {"get": "list", "post": "create"}
ONE: dict[str, Any] = {"get": "retrieve", "put": "update", "patch": "partial_update", "delete": "destroy"}

urlpatterns = [
    path("llm_providers", LLMProviderViewSet.as_view(LIST)),
    path("llm_providers/<str:id>", LLMProviderViewSet.as_view(ONE)),
    path("llm_providers/<str:id>/test", LLMProviderViewSet.as_view({"post": "test"})),
    path("llm_providers/<str:id>/models", LLMProviderViewSet.as_view({"get": "models"})),
    path("agents", AgentViewSet.as_view(LIST)),
    path("agents/<str:id>", AgentViewSet.as_view(ONE)),
    path("agents/<str:id>/usage", AgentViewSet.as_view({"get": "usage"})),
]
