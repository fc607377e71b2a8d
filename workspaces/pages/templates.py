"""Workspaces > Templates."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Count, F, Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from accounts.pages.editing import Item
from accounts.pages.form import Field, Option, Part, Section, Worth, dig
from accounts.pages.resource import ResourcePages, audited
from accounts.pages.table import Column, Filter
from accounts.pages.views import page, part, suggestions
from primer_site import problems
from primer_site.errors import PrimerError
from workspaces.api import TemplateViewSet
from workspaces.kinds import KUBERNETES_REFUSED
from workspaces.models import ProviderKind, WorkspaceProvider, WorkspaceTemplate
from workspaces.pages import confinement, line_ends
from workspaces.serializers import TemplateVersionSerializer

VERSIONS = 100
UNSHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # in a text: what no control of a page shows, or takes back
NEWEST = 20  # workspaces among which one with the present settings is looked for
DEFAULT_IMAGE = "primer/workspace-runtime:1.0"
SAMPLE = {"id": "code-sandbox", "description": "Isolated sandbox for untrusted code."}  # everything else is the default
NOT_ISOLATED = "This provider runs code on the server's own host. Nothing is isolated."
INTERNAL_LEAKS = "an own network without a way out; reaches what the engine's host serves on 0.0.0.0 unless the probe proves otherwise"


def _raw(entry: Mapping[str, Any]) -> bytes:
    """The bytes beside a row's control; b"" for none, or for what is not Base64."""
    with contextlib.suppress(ValueError):
        return base64.b64decode(str(entry.get("content_base64") or ""), validate=True)
    return b""


def _plain(raw: bytes) -> str | None:
    """The text that a control can show: None for bytes that are none, or that hold characters which it changes or hides."""
    with contextlib.suppress(UnicodeDecodeError):
        text = raw.decode()
        return None if UNSHOWN.search(text) else text
    return None


def _drawn(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A file as its row shows it: what would not come back from the control as it is travels beside it."""
    raw = _raw(entry) or str(entry.get("content") or "").encode(errors="surrogatepass")
    facts = {name: value for name, value in entry.items() if name not in ("content", "content_base64")}
    text, beside = _plain(raw), base64.b64encode(raw).decode()
    if text is None:
        return facts | {"content_base64": beside}
    return facts | {"content": text} | ({"content_base64": beside} if "\r" in text or line_ends.BOM in text else {})


# Bytes that are no text travel beside the control, which shows none of them; what is typed there takes their place. Text
# that a control would change, by its line ends, is shown and travels beside it as well.
FILES_FIELD = Field("files", "Files", "table", parts=(
    Part("path", "Path", placeholder="data/in.csv"), Part("mode", "Mode", placeholder="0644"), Part("content", "Content", "area"),
    Part("content_base64", "Bytes", "hidden"),
), drawn=_drawn)  # fmt: skip
UNTAGGED = "No fixed version: this name may mean another image tomorrow. Name a tag other than latest, or a digest."


def moves(image: object) -> bool:
    """Whether an image's name means another image when a newer one is made: `:latest`, or no tag at all."""
    name = str(image or "").rpartition("/")[2]
    return bool(name) and "@" not in name and (":" not in name or name.endswith(":latest"))


def _file(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the form as the API takes it: with text, whose line ends are those it had, or with bytes."""
    before, content = _plain(_raw(entry)), str(entry.get("content") or "")
    if not content and entry.get("content_base64") and not before:
        return {name: value for name, value in entry.items() if name != "content"}
    kept = {name: value for name, value in entry.items() if name != "content_base64"}
    return kept | {"content": line_ends.restored(before, content) if before else content}


def worth_on(provider: WorkspaceProvider | None, body: Mapping[str, Any], name: str) -> Worth | None:
    """What a limit of the body is worth on the chosen provider, and why, as its last check found."""
    if provider is None or name not in provider.enforces:
        return None
    worth, engine = provider.enforces[name], provider.engine
    why = str(engine.get("limit_reasons", {}).get(name, ""))
    path, has, unit = {
        "cpu": ("backend.cpu_cores", "cpus", "cores"), "memory": ("backend.memory_bytes", "memory_bytes", "bytes of memory"),
    }.get(name, ("", "", ""))  # fmt: skip
    asked, there = dig(body, path), engine.get(has)
    if isinstance(asked, int | float) and there and asked > there:
        return Worth("unavailable", f"The engine has {there} {unit}.")
    if name == "disk" and dig(body, "backend.disk_medium") == "memory":
        return Worth("enforced")
    if name == "egress" and dig(body, "backend.network.mode") == "internal":
        return Worth("soft", "What such a network lets through differs between engines: the probe decides.")
    return Worth(worth, why)


def egress(worth: Worth | None) -> Field:
    """What each choice does on this provider, in its own words."""
    held = f", {worth.word}" if worth is not None else ""
    return Field(
        "backend.network.egress", "Egress", "cards", default="deny_all", worth=worth,
        options=(
            Option("deny_all", "deny_all", f"no network at all: loopback only{held}"),
            Option("allow_all", "allow_all", "reaches the internet and what the engine's host can reach; neighbours do not answer"),
        ),
    )  # fmt: skip


def _egress_column() -> Any:
    """What the template lets out, "" of a kind that has no such choice."""
    stored = KeyTextTransform("egress", KeyTransform("network", "backend"))
    return Coalesce(stored, Value(""), output_field=TextField())  # as text: a key of JSON is compared as JSON


class TemplatePages(ResourcePages):
    kind = "workspace_template"
    viewset = TemplateViewSet
    base = "/workspaces/templates/"
    section = "Workspaces"
    title = "Templates"
    noun = "template"
    icon = "square-3-stack-3d"
    templates = "templates"
    form_template = "templates/form.html"
    empty = "A template fixes image, limits and network."
    empty_cli = "primectl create -f code-sandbox.yaml"
    tabs = (
        ("", "Overview"),
        ("workspaces", "Workspaces"),
        ("history", "History"),
        ("activity", "Activity"),
        ("yaml", "YAML"),
    )
    page_sorts: ClassVar[Mapping[str, str]] = {"provider_id": "provider__slug"}
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Description", "description", narrow=True),
        Column("Provider", "provider_id", "link", sort="provider_id", href="/workspaces/providers/{}/"),
        Column("Image", "backend.image", "code"),
        Column("CPU", "backend.cpu_cores", "number"),
        Column("Memory", "backend.memory_bytes", "bytes"),
        Column("Egress", "backend.network.egress", "chip", vocabulary="egress"),
        Column("Workspaces", "workspaces", "number"),
        Column("Updated", "updated_at", "time", sort="updated_at", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("provider_id", "Provider", "provider__slug"),
        Filter("kind", "Kind", options=tuple(ProviderKind.choices), by=lambda: F("provider__provider")),
        Filter("egress", "Egress", by=_egress_column),
    )

    def starters(self) -> list[tuple[str, str]]:
        return [("Add sample", f"{self.base}new/?sample=1")]

    def start_body(self, request: HttpRequest) -> Item:
        asked = request.GET.get("provider_id", "")
        providers = list(WorkspaceProvider.objects.live().values_list("slug", flat=True)[:2])
        body: Item = {"provider_id": asked or (providers[0] if len(providers) == 1 else "")}
        return body | SAMPLE if "sample" in request.GET else body

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        providers = list(WorkspaceProvider.objects.live().order_by("slug"))
        chosen = next((row for row in providers if row.slug == body.get("provider_id")), None)
        kind = chosen.provider if chosen is not None else dig(body, "backend.kind") or "container"
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
            )),
        )  # fmt: skip
        rest = [self._life(), Section("Labels", (Field("labels", "Labels", "pairs"),), advanced=True, id="labels")]
        if kind != "container":
            return [Section("", main), *rest]
        return [Section("", main), *self._container(chosen, body), *rest]

    def _container(self, chosen: WorkspaceProvider | None, body: Mapping[str, Any]) -> list[Section]:
        def worth(name: str) -> Worth | None:
            return worth_on(chosen, body, name)

        runtimes = tuple(chosen.engine.get("runtimes", ())) if chosen is not None else ()
        sandbox = (
            Field("backend.image", "Image", default=DEFAULT_IMAGE, required=True, fetch=f"{self.base}new/images/", fetch_with="f-provider_id",
                  warn=UNTAGGED if moves(dig(body, "backend.image")) else ""),
            Field("backend.cpu_cores", "CPU", "number", default=1, worth=worth("cpu")),
            Field("backend.memory_bytes", "Memory", "bytes", default=512 * 1024**2, worth=worth("memory")),
        )  # fmt: skip
        limits = (
            Field("backend.network.mode", "Mode", "select", default="none", options=(
                Option("none", "none"), Option("internal", "internal", INTERNAL_LEAKS))),
            Field("backend.pids_limit", "Processes", "number", default=256, worth=worth("pids")),
            Field("backend.disk_bytes", "Disk", "bytes", default=1024**3, worth=worth("disk")),
            Field("backend.disk_medium", "Disk medium", "select", default="volume", options=(
                Option("volume", "volume"), Option("memory", "memory: emptied on stop, counts as memory"))),
            Field("backend.engine_runtime", "Engine runtime", placeholder="the engine's own", suggestions=runtimes),
            Field("backend.workdir", "Workdir", default="/workspace"),
        )  # fmt: skip
        return [
            Section("Sandbox", sandbox),
            Section("Network", (egress(worth("egress")),)),
            Section("Advanced limits", limits, advanced=True, id="limits"),
        ]

    @staticmethod
    def _life() -> Section:
        fields = (
            Field("env", "Environment", "env"),
            Field("init_commands", "Init commands", "texts", rows=2),
            FILES_FIELD,
            Field("idle_timeout_s", "Idle timeout", "span", empty=None),
            Field("max_age_s", "Maximum age", "span", empty=None),
            Field("require", "Require", "select", default="best_effort", options=(
                Option("best_effort", "best_effort"), Option("enforced", "enforced: refuse limits that do not hold"))),
        )  # fmt: skip
        return Section("Environment and lifetime", fields, advanced=True, id="life")

    def _form(
        self, request: HttpRequest, row: Any, body: Item, error: PrimerError | None = None, text: str | None = None
    ) -> HttpResponse:
        """The kind is always that of the provider which is chosen now: the others cannot be."""
        provider = WorkspaceProvider.objects.live().filter(slug=body.get("provider_id")).first()
        if provider is not None and (dig(body, "backend.kind") or provider.provider) != provider.provider:
            body = {**body, "backend": {"kind": provider.provider}}
        return super()._form(request, row, body, error, text)

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        body = super().body_of(request, base, editing=editing)
        body["files"] = [_file(entry) for entry in body.get("files") or []]
        return body

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        live = Count("workspaces", filter=Q(workspaces__deleted_at=None))
        found = WorkspaceTemplate.objects.filter(pk__in=[row.pk for row in rows]).annotate(n=live)
        return {row.pk: {"workspaces": row.n} for row in found}

    def more_urls(self) -> list[URLPattern]:
        return [
            path("new/check/", page(self.check_unsaved), name="template-check-unsaved"),
            path("new/images/", page(self.images), name="template-images"),
            path("<str:id>/check/", page(self.check), name="template-check"),
        ]

    def images(self, request: HttpRequest) -> HttpResponse:
        """Names for the field's list, of the engine that is chosen in the form."""
        self.only_makers(request)
        provider = WorkspaceProvider.objects.live().filter(slug=request.GET.get("provider_id", "")).first()
        view = self.door(request).view("GET", "retrieve")
        return suggestions(request, lambda: view.images(provider) if provider is not None else [])

    def check_unsaved(self, request: HttpRequest) -> HttpResponse:
        """Whether the image in the form is there, saved or not."""
        self.only_makers(request)
        found: Any = None
        error: PrimerError | None = None
        body: Item = {}
        if request.method != "POST":
            return HttpResponseRedirect(self.base + "new/")
        try:
            body = self.posted(request)
            asked: Item = {name: body[name] for name in ("provider_id", "backend") if name in body}
            found = self.door(request).view("POST", "create").check_unsaved({**asked, "id": "unsaved"})
        except Exception as exc:
            error = problems.to_error(exc)
        image = dig(body, "backend.image")
        context = {"found": found, "error": error, "pages": self, "moves": moves(image)}
        return part(request, "templates/checked.html", context)

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
        context = {"found": found, "error": error, "row": row, "pages": self, "moves": moves(row.backend.get("image"))}
        return part(request, "templates/checked.html", context)

    def actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        from workspaces.pages.workspaces import WORKSPACES

        if not WORKSPACES.may_create(request):
            return []
        url = f"/workspaces/new/?template_id={row.slug}"
        return [{"label": "New workspace", "url": url, "icon": "plus", "primary": True, "method": "get"}]

    def row_actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        return self.actions(request, row, item)

    def tab_context(self, request: HttpRequest, row: WorkspaceTemplate, item: Item, tab: str) -> dict[str, Any]:
        from workspaces.pages.workspaces import WORKSPACES

        if tab == "workspaces":
            rows = WORKSPACES.door(request).rows().filter(template=row)
            return {"listing": WORKSPACES.listing(request, rows), "listed": WORKSPACES}
        if tab == "history":
            return {"versions": self._versions(row)}
        if tab == "activity":
            return {"entries": audited(row)}
        return self._truth(request, row)

    def _truth(self, request: HttpRequest, row: WorkspaceTemplate) -> dict[str, Any]:
        """Each limit as asked, what it is worth on the engine, and what the newest sandbox with these settings got and proved."""
        from workspaces.pages.workspaces import WORKSPACES

        door = WORKSPACES.door(request)
        made = (
            door.rows()
            .filter(template=row, provider=row.provider, applied__isnull=False)
            .order_by("-created_at")[:NEWEST]
        )
        seen = next((one for one in made if one.spec.get("backend") == row.backend), None)
        item = dict(door.shown(seen)) if seen is not None else {}
        proofs = {proof.title: proof for proof in confinement.table(item)} if item else {}
        asked = {
            "egress": dig(row.backend, "network.egress"), "cpu": row.backend.get("cpu_cores"), "memory": row.backend.get("memory_bytes"),
            "pids": row.backend.get("pids_limit"), "disk": row.backend.get("disk_bytes"),
        }  # fmt: skip
        limits = [
            {
                "title": confinement.LIMITS[name], "asked": confinement.shown(name, value), "proof": proofs.get(confinement.LIMITS[name]),
                "worth": worth_on(row.provider, {"backend": row.backend}, name),
            }
            for name, value in asked.items() if value is not None
        ]  # fmt: skip
        return {"limits": limits, "seen": item}

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
