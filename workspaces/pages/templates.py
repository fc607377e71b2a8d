"""Workspaces > Templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from accounts.pages.editing import Item
from accounts.pages.form import Field, Option, Section, dig
from accounts.pages.resource import ResourcePages
from accounts.pages.table import Column, Filter
from accounts.pages.views import page, part
from primer_site import problems
from primer_site.errors import PrimerError
from workspaces.api import TemplateViewSet
from workspaces.kinds import KUBERNETES_REFUSED
from workspaces.models import WorkspaceProvider, WorkspaceTemplate
from workspaces.serializers import TemplateVersionSerializer

VERSIONS = 100
NOT_ISOLATED = "This provider runs code on the server's own host. Nothing is isolated."
INTERNAL_LEAKS = "an own network without a way out; reaches what the engine's host serves on 0.0.0.0 unless the probe proves otherwise"


def egress(worth: str) -> Field:
    """What each choice does on this provider, in its own words."""
    held = f", {worth}" if worth else ""
    return Field(
        "backend.network.egress", "Egress", "cards", default="deny_all",
        options=(
            Option("deny_all", "deny_all", f"no network at all: loopback only{held}"),
            Option("allow_all", "allow_all", "reaches the internet and what the engine's host can reach; neighbours do not answer"),
        ),
    )  # fmt: skip


class TemplatePages(ResourcePages):
    kind = "workspace_template"
    viewset = TemplateViewSet
    base = "/workspaces/templates/"
    section = "Workspaces"
    title = "Templates"
    noun = "template"
    icon = "square-3-stack-3d"
    templates = "templates"
    empty = "A template fixes image, limits and network."
    empty_cli = "primectl create -f code-sandbox.yaml"
    tabs = (("", "Overview"), ("workspaces", "Workspaces"), ("history", "History"), ("yaml", "YAML"))
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Description", "description", narrow=True),
        Column("Provider", "provider_id", "link", href="/workspaces/providers/{}/"),
        Column("Image", "backend.image", "code"),
        Column("CPU", "backend.cpu_cores", "number"),
        Column("Memory", "backend.memory_bytes", "bytes"),
        Column("Egress", "backend.network.egress", "chip", vocabulary="egress"),
        Column("Workspaces", "workspaces", "number"),
        Column("Updated", "updated_at", "time", sort="updated_at", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (Filter("provider_id", "Provider", "provider__slug"),)

    def start_body(self, request: HttpRequest) -> Item:
        asked = request.GET.get("provider_id", "")
        providers = list(WorkspaceProvider.objects.live().values_list("slug", flat=True)[:2])
        return {"provider_id": asked or (providers[0] if len(providers) == 1 else "")}

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        providers = list(WorkspaceProvider.objects.live().order_by("slug"))
        chosen = next((row for row in providers if row.slug == body.get("provider_id")), None)
        kind = chosen.provider if chosen is not None else dig(body, "backend.kind") or "container"
        enforces = chosen.enforces if chosen is not None else {}
        options = tuple(
            Option(row.slug, f"{row.slug} · {row.provider} · {row.get_health_display().lower()}") for row in providers
        )
        main = (
            Field("id", "ID", required=True, fixed=True, placeholder="code-sandbox"),
            Field("description", "Description"),
            Field("provider_id", "Provider", "select", options=(Option("", "Choose a provider"), *options), required=True,
                  warn=NOT_ISOLATED if kind == "local" else "", empty="", redraw=True),
            Field("backend.kind", "Kind", "select", default=kind, options=(
                Option("container", "container", disabled=kind != "container"),
                Option("kubernetes", "kubernetes", KUBERNETES_REFUSED, disabled=True),
                Option("local", "local", disabled=kind != "local"),
            ), help="The kind of the provider."),
        )  # fmt: skip
        rest = [self._life(), Section("Labels", (Field("labels", "Labels", "pairs"),), advanced=True, id="labels")]
        if kind != "container":
            return [Section("", main), *rest]
        return [Section("", main), *self._container(enforces), *rest]

    @staticmethod
    def _container(enforces: Mapping[str, str]) -> list[Section]:
        def note(name: str) -> str:
            return f"{enforces[name]} on this provider" if name in enforces else ""

        sandbox = (
            Field("backend.image", "Image", default="primer/workspace-runtime:1.0", required=True,
                  help="An image with a full python3 of 3.9 or later, present on the engine."),
            Field("backend.cpu_cores", "CPU", "number", default=1, help=f"Cores. {note('cpu')}".strip()),
            Field("backend.memory_bytes", "Memory", "bytes", default=512 * 1024**2, help=note("memory")),
        )  # fmt: skip
        limits = (
            Field("backend.network.mode", "Mode", "select", default="none", options=(
                Option("none", "none"), Option("internal", "internal", INTERNAL_LEAKS)), help="Read only with deny_all. internal is " + INTERNAL_LEAKS + "."),
            Field("backend.pids_limit", "Processes", "number", default=256, help=note("pids")),
            Field("backend.disk_bytes", "Disk", "bytes", default=1024**3, help=note("disk")),
            Field("backend.disk_medium", "Disk medium", "select", default="volume", options=(
                Option("volume", "volume"), Option("memory", "memory: emptied on stop, counts as memory"))),
            Field("backend.engine_runtime", "Engine runtime", placeholder="the engine's own", help="For example runsc, where the engine has it."),
            Field("backend.workdir", "Workdir", default="/workspace"),
        )  # fmt: skip
        return [
            Section("Sandbox", sandbox),
            Section("Network", (egress(enforces.get("egress", "")),)),
            Section("Advanced limits", limits, advanced=True, id="limits"),
        ]

    @staticmethod
    def _life() -> Section:
        fields = (
            Field("env", "Environment", "env", help="Reaches each program through the runtime, never the container's own settings."),
            Field("init_commands", "Init commands", "lines", help="One shell line each; run once, before the workspace is running."),
            Field("files", "Files", "yaml", help="A list of {path, content, mode}.", placeholder="- path: data/in.csv\n  content: |\n    a,b"),
            Field("idle_timeout_s", "Idle timeout", "number", empty=None, help="Seconds without use until it is stopped; empty for never."),
            Field("max_age_s", "Maximum age", "number", empty=None, help="Seconds from its creation until it is deleted; empty for never."),
            Field("require", "Require", "select", default="best_effort", options=(
                Option("best_effort", "best_effort"), Option("enforced", "enforced: refuse limits that do not hold"))),
        )  # fmt: skip
        return Section("Environment and lifetime", fields, advanced=True, id="life")

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        body = super().body_of(request, base, editing=editing)
        if body.get("files") == "":
            body["files"] = []
        return body

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        live = Count("workspaces", filter=Q(workspaces__deleted_at=None))
        found = WorkspaceTemplate.objects.filter(pk__in=[row.pk for row in rows]).annotate(n=live)
        return {row.pk: {"workspaces": row.n} for row in found}

    def more_urls(self) -> list[URLPattern]:
        return [path("<str:id>/check/", page(self.check), name="template-check")]

    def check(self, request: HttpRequest, id: str) -> HttpResponse:
        """Whether the image is there and what the limits are worth, as a part of the page."""
        found: Any = None
        error: PrimerError | None = None
        door = self.door(request)
        row = door.get(id)
        if request.method != "POST":
            return HttpResponseRedirect(self.href(id))
        try:
            found = door.call("POST", "check", id=id).data
        except Exception as exc:
            error = problems.to_error(exc)
        return part(request, "templates/checked.html", {"found": found, "error": error, "row": row, "pages": self})

    def actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        from workspaces.pages.workspaces import WORKSPACES

        if not WORKSPACES.may_create(request):
            return []
        url = f"/workspaces/new/?template_id={row.slug}"
        return [{"label": "New workspace", "url": url, "icon": "plus", "primary": True, "method": "get"}]

    def tab_context(self, request: HttpRequest, row: WorkspaceTemplate, item: Item, tab: str) -> dict[str, Any]:
        from workspaces.pages.workspaces import WORKSPACES

        if tab == "workspaces":
            rows = WORKSPACES.door(request).rows().filter(template=row)
            return {"listing": WORKSPACES.listing(request, rows), "listed": WORKSPACES}
        if tab == "history":
            return {"versions": self._versions(row)}
        return {"enforces": row.provider.enforces}

    def _versions(self, row: WorkspaceTemplate) -> list[dict[str, Any]]:
        """Each version with what it changed, newest first."""
        items = TemplateVersionSerializer(row.versions.order_by("-number")[:VERSIONS], many=True).data
        found = []
        for item, older in zip(items, [*items[1:], None], strict=True):
            before = older["spec"] if older else {}
            changes = [
                (name, before.get(name), value) for name, value in item["spec"].items() if before.get(name) != value
            ]
            found.append({**item, "changes": changes if older else [], "first": older is None})
        return found

    def consequences(self, request: HttpRequest, row: WorkspaceTemplate) -> dict[str, Any]:
        lines = ["The template and its history. Transcripts of sessions that used it stay."]
        return {"lines": lines, "type_id": False}


TEMPLATES = TemplatePages()
