"""Routes below /v1/."""

from typing import Any

from django.urls import path

from sessions_app.api import SessionViewSet

LIST: dict[str, Any] = {"get": "list", "post": "create"}
ONE: dict[str, Any] = {"get": "retrieve", "patch": "partial_update", "delete": "destroy"}

urlpatterns = [
    path("sessions", SessionViewSet.as_view(LIST)),
    path("sessions/<str:id>", SessionViewSet.as_view(ONE)),
    path("sessions/<str:id>/messages", SessionViewSet.as_view({"post": "messages"})),
    path("sessions/<str:id>/cancel", SessionViewSet.as_view({"post": "cancel"})),
    path("sessions/<str:id>/rerun", SessionViewSet.as_view({"post": "rerun"})),
    path("sessions/<str:id>/events", SessionViewSet.as_view({"get": "events"})),
    path("sessions/<str:id>/transcript", SessionViewSet.as_view({"get": "transcript"})),
]
