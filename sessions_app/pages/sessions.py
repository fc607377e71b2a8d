"""Workspaces > Sessions: agents at work, live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path

from accounts.pages.editing import Item
from accounts.pages.form import LEFT_OUT, Field, Option, Section
from accounts.pages.resource import ResourcePages
from accounts.pages.table import Column, Filter
from accounts.pages.views import done, page
from agents.models import Agent
from primer_site.errors import NotFound, PrimerError
from sessions_app.api import SessionViewSet
from sessions_app.models import AgentSession, EndedReason, Status
from sessions_app.pages import transcript
from workspaces.models import COMING, Phase, Workspace, WorkspaceTemplate

THROWAWAY = "template:"
SAMPLES = (
    ("Six times seven", "Run this code: print(6 * 7)"),
    (
        "What the sandbox is",
        "Run this code:\n```python\nimport socket, os\nprint('RESULT', 6 * 7)\n"
        "open('/workspace/out.txt', 'w').write(str(6 * 7))\n"
        "open('/workspace/sandbox_host.txt', 'w').write(socket.gethostname())\n"
        "open('/workspace/host_sock.txt', 'w').write(str(os.path.exists('/var/run/docker.sock')))\n```",
    ),
    (
        "Output as it comes",
        "Run this code:\n```python\nimport time\nfor i in range(10):\n    print('line', i, flush=True)\n    time.sleep(0.5)\n```",
    ),
)
LIMITS = (
    ("max_turns", "Turns"),
    ("max_tool_calls", "Tool calls"),
    ("timeout_s", "Time in seconds"),
    ("max_tokens", "Tokens"),
)


def status_of(item: Item, row: Any) -> str:
    """What the chip shows: the status, or how it ended."""
    return str(item["ended_reason"] or item["status"])


def first_line(item: Item, row: Any) -> str:
    text = item["initial_instructions"].strip()
    return text.splitlines()[0][:120] if text else ""


def tokens(item: Item, row: Any) -> str:
    usage = item.get("usage") or {}
    found = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return f"{found[0]} → {found[1]}" if any(found) else ""


def took(item: Item, row: AgentSession) -> Any:
    if row.started_at is None or row.ended_at is None:
        return ""
    return (row.ended_at - row.started_at).total_seconds()


class SessionPages(ResourcePages):
    kind = "session"
    viewset = SessionViewSet
    base = "/sessions/"
    section = "Workspaces"
    title = "Sessions"
    noun = "session"
    icon = "chat-bubble-left-right"
    templates = "sessions"
    detail_template = "sessions/detail.html"
    form_template = "sessions/form.html"
    live_tabs = frozenset()
    search = "Search ids, instructions and answers"
    empty = "No runs yet."
    empty_cli = 'primectl session run WORKSPACE --agent default-runner -i "Run this code: print(6 * 7)"'
    made_by_people = False
    bulk_verbs = (("cancel", "Cancel"), ("delete", "Delete"))
    bulk_warning = "Transcripts go away; workspaces and their files stay."
    yaml_form = False
    tabs = (("", "Transcript"), ("files", "Files"), ("raw", "Raw"))
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Instructions", "initial_instructions", value=first_line),
        Column("Agent", "agent_id", "link", href="/compute/agents/{}/"),
        Column("Workspace", "workspace_id", "workspace"),
        Column("Status", "status", "chip", vocabulary="session", value=status_of),
        Column("Turns", "turns", "number", narrow=True),
        Column("Calls", "tool_calls", "number", narrow=True),
        Column("Tokens", "usage", value=tokens, narrow=True),
        Column("Duration", "duration", "seconds", value=took),
        Column("Started", "created_at", "time", sort="created_at"),
        Column("By", "owner", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("status", "Status", "status", tuple(Status.choices)),
        Filter("ended_reason", "Ended", "ended_reason", tuple(EndedReason.choices)),
        Filter("agent_id", "Agent", "agent__slug"),
        Filter("workspace_id", "Workspace", "workspace__slug"),
        Filter("owner", "By", "owner__username", admin_only=True),
    )

    def moving(self, row: AgentSession) -> bool:
        return bool(row.status != Status.ENDED)

    def more_of(self, request: HttpRequest, rows: Sequence[AgentSession]) -> Mapping[int, Mapping[str, Any]]:
        return {row.pk: {"workspace_gone": row.workspace.deleted_at is not None} for row in rows}

    # -- what the pages below show of sessions

    def counts(self, workspace_pks: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Running and all sessions of workspaces."""
        rows = AgentSession.objects.filter(workspace_id__in=workspace_pks).order_by().values("workspace_id")
        found = rows.annotate(n=Count("pk"), active=Count("pk", filter=~Q(status=Status.ENDED)))
        return {one["workspace_id"]: (one["active"], one["n"]) for one in found}

    def active_in(self, workspace: Workspace) -> list[str]:
        return list(AgentSession.objects.active().filter(workspace=workspace).values_list("slug", flat=True)[:20])

    # -- new

    def start_body(self, request: HttpRequest) -> Item:
        body = {name: request.GET.get(name, "") for name in ("agent_id", "workspace_id", "initial_instructions")}
        if template := request.GET.get("template_id"):
            body["workspace_id"] = THROWAWAY + template
        agents = list(Agent.objects.live().values_list("slug", flat=True)[:2])
        body["agent_id"] = body["agent_id"] or (agents[0] if len(agents) == 1 else "")
        sample = request.GET.get("sample", "")
        if sample.isdigit() and int(sample) < len(SAMPLES):
            body["initial_instructions"] = SAMPLES[int(sample)][1]
        return body

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        agents = Agent.objects.live().select_related("provider").order_by("slug")
        options = tuple(
            Option(row.slug, f"{row.slug} · {row.model_name or row.provider.slug} · {row.provider.get_health_display().lower()}")
            for row in agents
        )  # fmt: skip
        chosen = str(body.get("workspace_id") or "")
        main = (
            Field("agent_id", "Agent", "select", options=(Option("", "Choose an agent"), *options), empty="", required=True),
            Field("workspace_id", "Workspace", "select", options=self._places(request), empty="", required=True,
                  warn=self._warning(request, chosen), redraw=True, help="A stopped one is started. A throw-away one is removed at the end, its files with it."),
            Field("initial_instructions", "Initial instructions", "area", rows=10, required=True,
                  help="Sent as it is: at most 1,000,000 characters."),
        )  # fmt: skip
        limits = tuple(
            Field(f"limits.{name}", label, "number", empty=LEFT_OUT, placeholder="the agent's")
            for name, label in LIMITS
        )
        return [
            Section("", main),
            Section("Advanced", (*limits, Field("labels", "Labels", "pairs")), advanced=True, id="advanced"),
        ]

    def _places(self, request: HttpRequest) -> tuple[Option, ...]:
        """Workspaces that can take a run, running first, then templates for a throw-away one."""
        usable = [Phase.RUNNING, *COMING, Phase.STOPPED]
        rows = Workspace.objects.visible_to(self.user(request)).filter(phase__in=usable).select_related("provider")
        ordered = sorted(rows.order_by("-created_at")[:200], key=lambda row: usable.index(Phase(row.phase)))
        found = [Option(row.slug, " · ".join(filter(None, (row.slug, row.name, row.phase)))) for row in ordered]
        templates = WorkspaceTemplate.objects.live().order_by("slug").values_list("slug", flat=True)
        found += [Option(THROWAWAY + slug, f"throw-away workspace from {slug}") for slug in templates]
        return (Option("", "Choose a workspace"), *found)

    def _warning(self, request: HttpRequest, chosen: str) -> str:
        """The red word about code that would run on the host itself."""
        rows: Any
        if chosen.startswith(THROWAWAY):
            rows = WorkspaceTemplate.objects.live().filter(slug=chosen.removeprefix(THROWAWAY))
        else:
            rows = Workspace.objects.visible_to(self.user(request)).filter(slug=chosen)
        local = rows.filter(provider__provider="local").exists()
        return "This workspace is local: code runs on the server's own host. Nothing is isolated." if local else ""

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        body = super().body_of(request, base, editing=editing)
        body.setdefault("limits", {})
        return body

    def _store(self, request: HttpRequest, row: Any, body: Item) -> HttpResponse:
        place = str(body.get("workspace_id") or "")
        if place.startswith(THROWAWAY):
            body = {**body, "workspace_id": None, "template_id": place.removeprefix(THROWAWAY)}
        elif not place:
            body = {**body, "workspace_id": None}
        return super()._store(request, row, body)

    def context(self, **given: Any) -> dict[str, Any]:
        return super().context(samples=[(number, label) for number, (label, _) in enumerate(SAMPLES)], **given)

    # -- the session's page

    def more_urls(self) -> list[URLPattern]:
        return [
            path("<str:id>/cancel/", page(self.cancel), name="session-cancel"),
            path("<str:id>/rerun/", self.act("rerun", "The same input runs again as a new session.", then=lambda item, _: self.href(item["id"])), name="session-rerun"),
            path("<str:id>/messages/", page(self.message), name="session-message"),
            path("<str:id>/events/", page(transcript.events), name="session-events"),
            path("<str:id>/head/", page(self.head), name="session-head"),
        ]  # fmt: skip

    def cancel(self, request: HttpRequest, id: str) -> HttpResponse:
        if request.method == "POST":
            code = self.door(request).call("POST", "cancel", id=id).status_code
            words = "was cancelled; its command is dead." if code == 200 else "is stopping."
            messages.success(request, f"Session {id} {words}")
        return HttpResponseRedirect(self.href(id), status=303)

    def message(self, request: HttpRequest, id: str) -> HttpResponse:
        """A follow-up opens an ended session again."""
        if request.method != "POST":
            return HttpResponseRedirect(self.href(id))
        text = request.POST.get("text", "").replace("\r\n", "\n")
        try:
            self.door(request).call("POST", "messages", data={"text": text}, id=id)
        except NotFound:
            raise
        except PrimerError as exc:
            problems = "; ".join(one.message for one in exc.errors)
            messages.error(request, " ".join(filter(None, (exc.detail, problems, exc.hint_text))))
            return HttpResponseRedirect(self.href(id), status=303)
        return done(request, "Sent. The session is queued again.", self.href(id) + "#end")

    def head(self, request: HttpRequest, id: str) -> HttpResponse:
        """Header, actions and composer, for a page that follows the session."""
        from django.shortcuts import render

        row = self.door(request).get(id)
        return render(request, "sessions/refresh.html", self.detail_context(request, row, "head"))

    def tab_context(self, request: HttpRequest, row: AgentSession, item: Item, tab: str) -> dict[str, Any]:
        workspace = row.workspace
        found: dict[str, Any] = {
            "status": status_of(item, row), "workspace": workspace, "agent_spec": row.agent_spec,
            "workspace_gone": workspace.deleted_at is not None, "isolates": workspace.provider.provider != "local",
            "ended": row.status == Status.ENDED, "took": took(item, row), "stopping": bool(row.cancel_requested_by) and self.moving(row),
        }  # fmt: skip
        if tab == "files":
            found |= {"files": transcript.changed_files(row)}
        elif tab == "raw":
            found |= transcript.raw_page(request, row)
        elif not tab:
            found |= transcript.first_paint(row)
        return found

    def bulk_refusal(self, verb: str, row: AgentSession) -> str:
        ended = row.status == Status.ENDED
        if verb == "cancel":
            return "has ended" if ended else ""
        return "" if ended else f"is {row.status}: cancel it first"

    def bulk_do(self, request: HttpRequest, verb: str, public_id: str) -> None:
        if verb == "cancel":
            self.door(request).call("POST", "cancel", id=public_id)
        else:
            super().bulk_do(request, verb, public_id)

    def consequences(self, request: HttpRequest, row: AgentSession) -> dict[str, Any]:
        return {"lines": ["The transcript of this session. The workspace and its files stay."], "type_id": False}


SESSIONS = SessionPages()
