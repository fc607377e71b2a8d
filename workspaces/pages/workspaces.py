"""Workspaces > Workspaces: sandboxes, what they are doing, and what is proven about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db.models import Case, TextField, Value, When
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils.dateparse import parse_datetime

from accounts.models import AuditEntry
from accounts.pages.editing import Item
from accounts.pages.form import Field, Option, Section
from accounts.pages.resource import ResourcePages
from accounts.pages.table import Column, Filter
from accounts.pages.views import page
from accounts.permissions import may_change
from primer_site.errors import NotFound
from workspaces.api import WorkspaceViewSet
from workspaces.models import COMING, Phase, Workspace, WorkspaceTemplate
from workspaces.pages import confinement
from workspaces.reconcile import BOOT_DEADLINE_S

DAY_S = 24 * 3600
STEPS = (Phase.PENDING, Phase.PULLING, Phase.STARTING, Phase.RUNNING)


def verdict(item: Item, row: Any) -> str:
    """The chip of the confinement: a local workspace is never anything but not isolated."""
    if not item["isolates"]:
        return "not_isolated"
    return str((item.get("confinement") or {}).get("verdict") or "unknown")


VERDICTS = (
    ("proven", "Proven"), ("degraded", "Degraded"), ("failed", "Failed"), ("unknown", "Unknown"), ("not_isolated", "Not isolated"),
)  # fmt: skip


def _verdict_column() -> Any:
    """What `verdict` says, as the database sees it."""
    stored = Coalesce(KeyTextTransform("verdict", "confinement"), Value("unknown"), output_field=TextField())
    return Case(When(provider__provider="local", then=Value("not_isolated")), default=stored, output_field=TextField())


class WorkspacePages(ResourcePages):
    kind = "workspace"
    viewset = WorkspaceViewSet
    base = "/workspaces/"
    section = "Workspaces"
    title = "Workspaces"
    noun = "workspace"
    icon = "cube"
    templates = "workspaces"
    live_tabs = frozenset({"", "confinement", "activity"})
    search = "Search by id or name"
    empty = "No sandbox exists."
    empty_cli = "primectl create workspace --set template_id=code-sandbox"
    bulk_verbs = (("delete", "Delete"),)
    bulk_warning = "Containers and volumes with all their files go away, and running sessions end; transcripts stay."
    tabs = (
        ("", "Overview"), ("files", "Files"), ("sessions", "Sessions"), ("exec", "Exec"), ("confinement", "Confinement"),
        ("activity", "Activity"), ("yaml", "YAML"),
    )  # fmt: skip
    page_sorts: ClassVar[Mapping[str, str]] = {
        "template_id": "template__slug", "provider_id": "provider__slug", "phase": "phase", "owner": "owner__username",
        "last_activity_at": "last_activity_at",
    }  # fmt: skip
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Name", "name", sort="name"),
        Column("Template", "template_id", "link", sort="template_id", href="/workspaces/templates/{}/"),
        Column("Provider", "provider_id", "link", sort="provider_id", href="/workspaces/providers/{}/", narrow=True),
        Column("Phase", "phase", "phase", sort="phase"),
        Column("Confinement", "confinement", "chip", vocabulary="verdict", value=verdict),
        Column("Sessions", "sessions", "text", narrow=True),
        Column("Owner", "owner", sort="owner"),
        Column("Age", "created_at", "time", sort="created_at"),
        Column("Last activity", "last_activity_at", "time", sort="last_activity_at", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("phase", "Phase", "phase", tuple(Phase.choices)),
        Filter("template_id", "Template", "template__slug"),
        Filter("provider_id", "Provider", "provider__slug"),
        Filter("confinement", "Confinement", options=VERDICTS, by=_verdict_column),
        Filter("owner", "Owner", "owner__username", admin_only=True),
        Filter("created", "Created", since="created_at"),
    )

    def moving(self, row: Workspace) -> bool:
        return row.phase in COMING or row.phase == Phase.DELETING or row.unknown_since is not None or _wishes(row)

    def watched(self, row: Workspace) -> str:
        """An engine may lose a sandbox at any time, and somebody else may start or stop one."""
        final = (Phase.FAILED, Phase.LOST, Phase.DELETING)
        return "" if row.phase in final else f"{row.phase} {row.phase_since.timestamp():.3f} {row.desired}"

    def lacks(self) -> str:
        return "" if WorkspaceTemplate.objects.live().exists() else "It needs a template first."

    def row_actions(self, request: HttpRequest, row: Any, item: Item) -> list[dict[str, Any]]:
        """What the page of the workspace offers first, and the way to its end."""
        if not may_change(self.user(request), row):
            return []
        delete = {
            "label": "Delete",
            "url": self.href(row.slug, "delete"),
            "icon": "trash",
            "method": "get",
            "dialog": True,
        }
        first = [one for one in self.actions(request, row, item)[:1] if not one.get("disabled")]
        return [*first, *([] if row.phase == Phase.DELETING else [delete])]

    def start_body(self, request: HttpRequest) -> Item:
        asked = request.GET.get("template_id", "")
        known = list(WorkspaceTemplate.objects.live().values_list("slug", flat=True)[:2])
        return {"template_id": asked or (known[0] if len(known) == 1 else "")}

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        more = (Field("name", "Name"), Field("labels", "Labels", "pairs"))
        if editing:
            return [Section("", more)]
        rows = list(WorkspaceTemplate.objects.live().select_related("provider").order_by("slug"))
        chosen = next((row for row in rows if row.slug == body.get("template_id")), None)
        warn = _warning(chosen) if chosen is not None else ""
        template = Field(
            "template_id", "Template", "select", required=True, empty="", warn=warn, redraw=True,
            options=(Option("", "Choose a template"), *(Option(row.slug, _described(row)) for row in rows)),
        )  # fmt: skip
        life = (
            Field("env", "Environment", "env"),
            Field("ttl_s", "Lifetime", "span", empty=None),
        )  # fmt: skip
        return [Section("", (template, *more)), Section("Advanced", life, advanced=True, id="advanced")]

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        if editing:  # everything else was fixed when it was made
            base = {name: base[name] for name in ("name", "labels")}
        return super().body_of(request, base, editing=editing)

    def more_urls(self) -> list[URLPattern]:
        return [
            path("<str:id>/start/", self.act("start", "Workspace {} is starting."), name="workspace-start"),
            path("<str:id>/stop/", self.act("stop", "Workspace {} is stopping; its files stay."), name="workspace-stop"),
            path("<str:id>/verify/", self.act("verify", "The probes of {} ran again just now.", then=self._to_proof), name="workspace-verify"),
            path("<str:id>/files/", page(self.files), name="workspace-files"),
        ]  # fmt: skip

    def _to_proof(self, item: Item, id: str) -> str:
        return self.href(id, "confinement")

    def files(self, request: HttpRequest, id: str) -> HttpResponse:
        self.door(request).get(id)
        return HttpResponseRedirect(f"/files/{id}/")

    def detail(self, request: HttpRequest, id: str, tab: str = "") -> HttpResponse:
        return self.or_gone(request, id, lambda: super(WorkspacePages, self).detail(request, id, tab))

    def or_gone(self, request: HttpRequest, id: str, view: Callable[[], HttpResponse]) -> HttpResponse:
        """What `view` answers; for a deleted workspace what is left of it, for whoever has something of it."""
        try:
            return view()
        except NotFound:
            if (answer := self._gone(request, id)) is not None:
                return answer
            raise

    def _gone(self, request: HttpRequest, id: str) -> HttpResponse | None:
        """When a deleted workspace went, by whom, and its transcripts and outputs, which stay; None for anything else."""
        if self.session_pages is None or not Workspace.objects.filter(slug=id, deleted_at__isnull=False).exists():
            return None
        rows = self.session_pages.door(request).rows().filter(workspace__slug=id)
        runs = self.runs_of(request, id)
        if not runs and not rows.exists():
            return None
        entry = (
            AuditEntry.objects.filter(kind=self.kind, object_id=id, action="workspace.delete").order_by("-at").first()
        )
        context = self.context(
            id=id, entry=entry, listing=self.session_pages.listing(request, rows), listed=self.session_pages, runs=runs
        )
        return render(request, "workspaces/gone.html", context, status=404)

    def actions(self, request: HttpRequest, row: Workspace, item: Item) -> list[dict[str, Any]]:
        """What the phase allows; what it forbids stays visible with the reason."""
        if not self.may_create(request):
            return []
        session = {
            "label": "New session", "url": f"/sessions/new/?workspace_id={row.slug}", "icon": "play", "method": "get",
            "primary": row.phase == Phase.RUNNING,
        }  # fmt: skip
        start = {"label": "Start", "url": self.href(row.slug, "start"), "icon": "play", "primary": True}
        stop = {"label": "Stop", "url": self.href(row.slug, "stop"), "icon": "stop"}
        match row.phase:
            case Phase.RUNNING:
                return [session, stop]
            case Phase.STOPPED:
                return [start, session]
            case Phase.FAILED:
                return [{**start, "label": "Try again", "icon": "arrow-path"}]
            case Phase.LOST:
                gone = row.phase_reason == "data_lost"
                return [{**start, "disabled": "its files are gone" if gone else ""}]
            case Phase.DELETING:
                return []
        return [{**session, "primary": False}]

    def tab_context(self, request: HttpRequest, row: Workspace, item: Item, tab: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "steps": _steps(row), "verdict": verdict(item, row), "is_coming": row.phase in COMING, "deadline": _deadline(row),
            "limits": confinement.limits(item), "fell": _fell(row), "why_stopped": _why_stopped(row),
        }  # fmt: skip
        if tab == "confinement":
            found |= {"proof": confinement.table(item), "proved": item.get("confinement") or {}}
        elif tab == "activity":
            found |= {"entries": confinement.activity(row)}
        elif tab == "exec":
            found |= {"runs": self.runs_of(request, row.slug)}
        elif tab == "sessions":
            found |= {"listing": self.sessions_of(request, row), "listed": self.session_pages}
        return found

    # The arrow of imports goes from sessions to here: their pages are put in by whoever wires both.
    session_pages: Any = None

    def sessions_of(self, request: HttpRequest, row: Workspace) -> Any:
        pages = self.session_pages
        return pages.listing(request, pages.door(request).rows().filter(workspace=row)) if pages is not None else None

    @staticmethod
    def runs_of(request: HttpRequest, id: str) -> list[dict[str, Any]]:
        from workspaces.pages.execs import recent

        return recent(request, id)

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        if self.session_pages is None:
            return {}
        counts: Mapping[int, tuple[int, int]] = self.session_pages.counts([row.pk for row in rows])
        return {pk: {"sessions": f"{running} / {total}"} for pk, (running, total) in counts.items()}

    def bulk_refusal(self, verb: str, row: Workspace) -> str:
        return "is already going" if row.phase == Phase.DELETING else ""

    def consequences(self, request: HttpRequest, row: Workspace) -> dict[str, Any]:
        running = self.session_pages.active_in(row) if self.session_pages is not None else []
        lines = [
            f"Container {row.slug} and everything that runs in it.",
            f"Volume {row.slug} with all files of the workspace.",
        ]
        if running:
            lines.append(f"Running sessions end as cancelled: {', '.join(running)}.")
        return {"lines": lines, "keeps": "Transcripts of its sessions stay readable.", "type_id": bool(running)}


def _wishes(row: Workspace) -> bool:
    """Whether what people want is not what is there yet."""
    return (row.desired, row.phase) in (("stopped", Phase.RUNNING), ("running", Phase.STOPPED))


def _described(row: WorkspaceTemplate) -> str:
    backend = row.backend
    network = (backend.get("network") or {}).get("egress", "")
    parts = [row.slug, backend.get("image") or backend["kind"], network, row.provider.get_health_display().lower()]
    return " · ".join(part for part in parts if part)


def _warning(row: WorkspaceTemplate) -> str:
    if row.provider.provider == "local":
        return "Code of this workspace runs on the server's own host. Nothing is isolated."
    if row.provider.health == "unreachable":
        return f"Provider {row.provider.slug} does not answer now; the workspace waits for it."
    return ""


def _steps(row: Workspace) -> list[dict[str, Any]]:
    """The way to running, each step with its seconds; what failed says where."""
    seen = _current(row.phases)
    found = []
    for phase in STEPS:
        entry = next((item for item in seen if item["phase"] == phase), None)
        if phase == Phase.PULLING and entry is None:
            continue  # the image was there
        state = "done" if entry else "todo"
        if phase == row.phase and row.phase in COMING:
            state = "now"
        found.append({"label": phase.label, "state": state, "took": _took(seen, entry), "since": row.phase_since})
    return found


def _took(seen: list[dict[str, Any]], entry: dict[str, Any] | None) -> float | None:
    """Seconds from one phase to the next; None for the last one."""
    later = seen[seen.index(entry) + 1 :] if entry else []
    at = [parse_datetime(str(one["at"])) for one in (entry, *later[:1]) if one]
    return (at[1] - at[0]).total_seconds() if len(at) > 1 and at[0] and at[1] else None


def _deadline(row: Workspace) -> datetime | None:
    """When a start that goes on now is given up."""
    if row.phase not in COMING or not (seen := _current(row.phases)):
        return None
    began = parse_datetime(str(seen[0]["at"]))
    return began + timedelta(seconds=BOOT_DEADLINE_S) if began else None


def _fell(row: Workspace) -> dict[str, Any]:
    """The step that a failed workspace failed at, how long it had been there, and what is left of it."""
    seen = _current(row.phases)
    if row.phase != Phase.FAILED or len(seen) < 2:
        return {}
    left = (
        "Something of it may still be on the engine; it is removed as soon as the engine answers." if row.unknown_since is not None
        else "Its container is ended, and its files are kept." if row.prepared
        else "What the attempt had made on the engine is removed."
    )  # fmt: skip
    return {"step": seen[-2]["phase"], "took": _took(seen, seen[-2]), "left": left}


def _why_stopped(row: Workspace) -> str:
    """A sentence: what stopped it. A stop that was wished for is told by its line in the audit log."""
    if row.phase != Phase.STOPPED:
        return ""
    if row.phase_reason != "stopped":
        return row.phase_detail or f"The sandbox ended: {row.phase_reason.replace('_', ' ') or 'unknown why'}."
    lines = AuditEntry.objects.filter(kind=row.KIND, object_id=row.slug, action="workspace.stop").order_by("-at", "-pk")
    if (line := lines.first()) is None:
        return "Stopped."
    idle = (line.after or {}).get("reason") == "idle"
    return "Stopped: nobody used it for its idle timeout." if idle else f"Stopped by {line.actor_name}."


def _current(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries since the last time it was started."""
    starts = [index for index, item in enumerate(phases) if item["phase"] == Phase.PENDING]
    return phases[starts[-1] :] if starts else phases


WORKSPACES = WorkspacePages()
