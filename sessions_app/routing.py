"""WebSocket routes."""

from __future__ import annotations

from typing import Any

from django.urls import path

from sessions_app.consumers import EventsConsumer

websocket_urlpatterns: list[Any] = [path("ws/v1/sessions/<str:id>/events/", EventsConsumer.as_asgi())]
