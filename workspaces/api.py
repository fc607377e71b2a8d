"""Routes of providers, templates and workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.audit import Actor
from accounts.lists import ListOf, StrictQuery
from accounts.permissions import require_change
from accounts.rest import ResourceViewSet, is_dry, refuse_fields, request_user
from primer_site import loop, vault
from primer_site.errors import NotFound, Timeout, printable
from primer_site.parsing import bad_text
from workspaces import access, bringup, engines, services
from workspaces.models import TemplateVersion, Workspace, WorkspaceProvider, WorkspaceTemplate
from workspaces.providers.base import Check, ImageCheck
from workspaces.references import refuse_unenforced
from workspaces.secret_fields import split_config
from workspaces.serializers import (
    EngineStatusSerializer,
    ImageCheckSerializer,
    ProviderSerializer,
    TemplateSerializer,
    TemplateVersionSerializer,
    WorkspaceChangeSerializer,
    WorkspaceSerializer,
)
from workspaces.snapshot import backend_spec
from workspaces.stored_shapes import ConfinementSerializer

ENGINE_TIMEOUT_S = 30.0
UNSAVED_TIMEOUT_S = 5.0  # somebody waits in front of a form
IMAGES_TIMEOUT_S = 5.0  # for suggestions only
VERIFY_TIMEOUT_S = 60.0
NOTHING_DONE = OpenApiResponse(None, "A dry run: it could be done, and was not.")


class ProviderViewSet(ResourceViewSet):
    """Engines that hold sandboxes. Everyone sees them; admins define them and see their config."""

    kind = "workspace_provider"
    model = WorkspaceProvider
    admin_only = "write"
    serializer_class = ProviderSerializer
    queryset = WorkspaceProvider.objects.none()
    filters = {"provider": "provider", "health": "health"}

    def base_queryset(self) -> QuerySet[WorkspaceProvider]:
        return WorkspaceProvider.objects.all()

    def service_create(self, by: Actor, data: dict[str, Any]) -> WorkspaceProvider:
        return services.provider_create(by=by, data=data)

    def service_update(self, by: Actor, obj: WorkspaceProvider, data: dict[str, Any]) -> WorkspaceProvider:
        return services.provider_update(by=by, row=obj, data=data)

    def service_delete(self, by: Actor, obj: WorkspaceProvider) -> bool:
        services.provider_delete(by=by, row=obj)
        return False

    @extend_schema(request=None, responses={200: ProviderSerializer, 204: NOTHING_DONE})
    @action(detail=True, methods=["post"])
    def check(self, request: Request, **kwargs: Any) -> Response:
        """Measures the engine now and stores what was found."""
        row = self.get_object()

        def work() -> Response:
            loop.run(engines.measure(row.pk), ENGINE_TIMEOUT_S)
            row.refresh_from_db()
            return self.answer(row)

        refuse_fields(request)
        return Response(status=204) if is_dry(request) else self.once(request, work, outside=True)

    @extend_schema(
        operation_id="v1_workspace_providers_check_unsaved",
        request=ProviderSerializer,
        responses={200: EngineStatusSerializer, 204: NOTHING_DONE},
    )
    @action(detail=False, methods=["post"])
    def check_body(self, request: Request, **kwargs: Any) -> Response:
        """Tests settings without storing them."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        if is_dry(request):
            return Response(status=204)
        return self.once(request, lambda: _checked(serializer.validated_data, ENGINE_TIMEOUT_S), outside=True)

    def check_unsaved(self, data: dict[str, Any], row: WorkspaceProvider | None) -> dict[str, Any]:
        """The same of a form; `row` is the stored provider that it would change, whose credentials it may go on using."""
        serializer = self.get_serializer(row, data=data)
        serializer.is_valid(raise_exception=True)
        return dict(_checked(serializer.validated_data, UNSAVED_TIMEOUT_S, row).data)


def _checked(data: dict[str, Any], within_s: float, row: WorkspaceProvider | None = None) -> Response:
    same = row is not None and row.provider == data["provider"]
    old = (row.config, vault.unseal(row.secrets)) if row is not None and same else ({}, {})
    config, secrets = split_config(data["provider"], data["config"], *old)
    try:
        check = loop.run(_check_settings(data["provider"], config, secrets), within_s)
    except Timeout:
        check = Check("unreachable", (f"The engine did not answer within {within_s:g} s.",))
    shown = WorkspaceProvider(
        health=check.health, reasons=list(check.reasons), engine=check.engine, enforces=check.enforces
    )
    return Response(EngineStatusSerializer(shown).data)


async def _check_settings(kind: str, config: dict[str, Any], secrets: dict[str, Any]) -> Check:
    engine = engines.build(kind, config, secrets)
    try:
        return await engine.check()
    finally:
        await engine.close()


class TemplateViewSet(ResourceViewSet):
    """Settings of new workspaces. Everyone uses them; admins define them."""

    kind = "workspace_template"
    model = WorkspaceTemplate
    admin_only = "write"
    serializer_class = TemplateSerializer
    queryset = WorkspaceTemplate.objects.none()
    filters = {"provider_id": "provider__slug"}

    def base_queryset(self) -> QuerySet[WorkspaceTemplate]:
        return WorkspaceTemplate.objects.select_related("provider")

    def check_outside(self, data: dict[str, Any], obj: WorkspaceTemplate | None = None) -> None:
        names = ("provider", "backend", "require")
        merged = {name: data[name] if name in data else getattr(obj, name) for name in names}
        if obj is None or any(merged[name] != getattr(obj, name) for name in names):
            _refuse_loose(**merged)

    def service_create(self, by: Actor, data: dict[str, Any]) -> WorkspaceTemplate:
        return services.template_create(by=by, data=data)

    def service_update(self, by: Actor, obj: WorkspaceTemplate, data: dict[str, Any]) -> WorkspaceTemplate:
        return services.template_update(by=by, row=obj, data=data)

    def service_delete(self, by: Actor, obj: WorkspaceTemplate) -> bool:
        services.template_delete(by=by, row=obj)
        return False

    @extend_schema(request=None, responses={200: ImageCheckSerializer, 204: NOTHING_DONE})
    @action(detail=True, methods=["post"])
    def check(self, request: Request, **kwargs: Any) -> Response:
        """Whether the image is there, and what each limit is worth on this engine."""
        row = self.get_object()

        def work() -> Response:
            return Response(_image_facts(row.provider_id, row.backend))

        refuse_fields(request)
        return Response(status=204) if is_dry(request) else self.once(request, work, outside=True)

    def check_unsaved(self, data: dict[str, Any]) -> dict[str, Any]:
        """The same check of settings that are not stored: of a form."""
        serializer = self.get_serializer(data=data)
        serializer.is_valid(raise_exception=True)
        checked = serializer.validated_data
        return _image_facts(checked["provider"].pk, checked["backend"])

    def images(self, provider: WorkspaceProvider) -> list[str]:
        """Names of the images on a provider's engine."""
        return loop.run(_images(provider.pk), IMAGES_TIMEOUT_S)


class TemplateVersionViewSet(StrictQuery, ListOf):
    """Earlier settings of a template and the present ones, newest first, with who and when."""

    serializer_class = TemplateVersionSerializer
    model = TemplateVersion
    queryset = TemplateVersion.objects.none()
    search_fields = ("by_name",)
    filters = {"by": "by_name"}
    times = {"since": "at__gte", "until": "at__lt"}
    sorts = {"created_at": "at", "version": "number"}

    def get_queryset(self) -> QuerySet[TemplateVersion]:
        slug = self.kwargs["id"]
        templates = WorkspaceTemplate.objects.visible_to(request_user(self.request))
        row = None if bad_text(slug) else templates.filter(slug=slug).first()
        if row is None:
            raise NotFound(f"There is no workspace template {printable(slug)}.")
        versions: QuerySet[TemplateVersion] = row.versions.all()
        return versions


def _refuse_loose(provider: WorkspaceProvider, backend: dict[str, Any], require: str) -> None:
    if require == "enforced":
        refuse_unenforced(loop.run(_check_image(provider.pk, backend), ENGINE_TIMEOUT_S), require)


def _image_facts(provider_pk: int, backend: dict[str, Any]) -> dict[str, Any]:
    found = loop.run(_check_image(provider_pk, backend), ENGINE_TIMEOUT_S)
    body: dict[str, Any] = {"image_present": found.present, "image_digest": found.digest, "detail": found.detail}
    body |= {"image_can_be_pulled": found.pullable, "limits": found.limits, "reasons": found.reasons}
    return dict(ImageCheckSerializer(body | {"problems": found.problems}).data)


async def _images(provider_pk: int) -> list[str]:
    return await (await engines.engine_of(provider_pk)).images()


async def _check_image(provider_pk: int, backend: dict[str, Any]) -> ImageCheck:
    engine = await engines.engine_of(provider_pk)
    return await engine.check_image(backend_spec(backend, workspace_id="ws-check", generation=0, fresh=True))


# What a list reads: of the objects behind a workspace their names alone, since each row brings them along.
SHOWN = (
    *[field.name for field in Workspace._meta.concrete_fields],
    "owner__username", "template__slug", "provider__slug", "provider__provider",
)  # fmt: skip


@extend_schema_view(
    update=extend_schema(request=WorkspaceChangeSerializer),
    partial_update=extend_schema(request=WorkspaceChangeSerializer),
    destroy=extend_schema(
        responses={202: None}, description="Removes container and files; 202 while that goes on, then 404."
    ),
)
class WorkspaceViewSet(ResourceViewSet):
    """Sandboxes. A new one is `pending` at once and boots in the background."""

    kind = "workspace"
    model = Workspace
    counted = ("create",)
    serializer_class = WorkspaceSerializer
    queryset = Workspace.objects.none()
    search_fields = ("slug", "name")
    sorts = {
        "created_at": "created_at", "updated_at": "updated_at", "last_activity_at": "last_activity_at", "id": "slug",
        "name": "name",
    }  # fmt: skip
    filters = {"phase": "phase", "template_id": "template__slug", "provider_id": "provider__slug", "name": "name"}

    def base_queryset(self) -> QuerySet[Workspace]:
        rows = Workspace.objects.select_related("owner", "template", "provider")
        return rows.only(*SHOWN) if self.action == "list" else rows

    def get_object(self) -> Workspace:
        row: Workspace = super().get_object()
        services.audit_opening(self.actor, row)
        return row

    def made_up(self, obj: Workspace) -> tuple[str, ...]:
        return ("id", "container_name", "volume_name")

    def service_create(self, by: Actor, data: dict[str, Any]) -> Workspace:
        return services.workspace_create(by=by, **data)

    def service_update(self, by: Actor, obj: Workspace, data: dict[str, Any]) -> Workspace:
        return services.workspace_update(by=by, row=obj, data=data)

    def service_delete(self, by: Actor, obj: Workspace) -> bool:
        services.workspace_delete(by=by, row=obj)
        return True

    def _changeable(self, request: Request) -> Workspace:
        row = self.get_object()
        require_change(self.actor.user, row, request.auth)
        return row

    @extend_schema(request=None, responses={202: WorkspaceSerializer})
    @action(detail=True, methods=["post"])
    def start(self, request: Request, **kwargs: Any) -> Response:
        """Starts a stopped, failed or lost workspace over the files that are there. Already running is success."""
        return self._moved(request, services.workspace_start)

    @extend_schema(request=None, responses={202: WorkspaceSerializer})
    @action(detail=True, methods=["post"])
    def stop(self, request: Request, **kwargs: Any) -> Response:
        """Ends the sandbox with all its programs and keeps its files. Already stopped is success."""
        return self._moved(request, services.workspace_stop)

    @extend_schema(request=None, responses={200: ConfinementSerializer, 204: NOTHING_DONE})
    @action(detail=True, methods=["post"])
    def verify(self, request: Request, **kwargs: Any) -> Response:
        """Runs the probes of the confinement again, inside the sandbox, and meets its limits.

        One process too many and one byte too many must be refused. What would disturb programs that run in the
        workspace is not tried, and says so (`ok: null`); a command that starts meanwhile waits, for about a second.
        """
        row = self._changeable(request)
        refuse_fields(request)
        if is_dry(request):
            access.require_up(access.facts_of(row))
            return Response(status=204)
        return self.once(request, lambda: Response(loop.run(bringup.verify(row), VERIFY_TIMEOUT_S)), outside=True)

    def _moved(self, request: Request, service: Callable[..., Workspace]) -> Response:
        row = self._changeable(request)
        refuse_fields(request)
        return self.once(request, lambda: self.answer(self._fresh(service(by=self.actor, row=row)), 202))

    def _fresh(self, row: Workspace) -> Workspace:
        return self.base_queryset().get(pk=row.pk)
