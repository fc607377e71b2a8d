"""Routes below /v1/."""

from typing import Any

from django.urls import path

from workspaces.api import ProviderViewSet, TemplateVersionViewSet, TemplateViewSet, WorkspaceViewSet
from workspaces.exec_api import ExecViewSet
from workspaces.files_api import FileDirView, FileMoveView, FileReadView, FilesView
from workspaces.files_download import FileDownloadView

COLLECTION: dict[str, Any] = {"get": "list", "post": "create"}
ITEM: dict[str, Any] = {"get": "retrieve", "put": "update", "patch": "partial_update", "delete": "destroy"}

urlpatterns = [
    path("workspace_providers", ProviderViewSet.as_view(COLLECTION)),
    path("workspace_providers/check", ProviderViewSet.as_view({"post": "check_body"})),
    path("workspace_providers/<str:id>", ProviderViewSet.as_view(ITEM)),
    path("workspace_providers/<str:id>/check", ProviderViewSet.as_view({"post": "check"})),
    path("workspace_templates", TemplateViewSet.as_view(COLLECTION)),
    path("workspace_templates/<str:id>", TemplateViewSet.as_view(ITEM)),
    path("workspace_templates/<str:id>/check", TemplateViewSet.as_view({"post": "check"})),
    path("workspace_templates/<str:id>/versions", TemplateVersionViewSet.as_view({"get": "list"})),
    path("workspaces", WorkspaceViewSet.as_view(COLLECTION)),
    path("workspaces/<str:id>", WorkspaceViewSet.as_view(ITEM)),
    path("workspaces/<str:id>/start", WorkspaceViewSet.as_view({"post": "start"})),
    path("workspaces/<str:id>/stop", WorkspaceViewSet.as_view({"post": "stop"})),
    path("workspaces/<str:id>/verify", WorkspaceViewSet.as_view({"post": "verify"})),
    path("workspaces/<str:id>/exec", ExecViewSet.as_view(COLLECTION)),
    path("workspaces/<str:id>/exec/<str:exec_id>", ExecViewSet.as_view({"get": "retrieve", "delete": "destroy"})),
    path("workspaces/<str:id>/exec/<str:exec_id>/output", ExecViewSet.as_view({"get": "output"})),
    path("workspaces/<str:id>/files", FilesView.as_view()),
    path("workspaces/<str:id>/files/read", FileReadView.as_view()),
    path("workspaces/<str:id>/files/download", FileDownloadView.as_view()),
    path("workspaces/<str:id>/files/dir", FileDirView.as_view()),
    path("workspaces/<str:id>/files/move", FileMoveView.as_view()),
]
