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
from accounts.permissions import may_change
from agents.limits import DEFAULTS
from agents.models import Agent
from primer_site.errors import NotFound, PrimerError
from primer_site.parsing import whole
from sessions_app import services
from sessions_app.api import SessionViewSet
from sessions_app.models import AgentSession, EndedReason, Status
from sessions_app.pages import transcript
from sessions_app.pages.endings import again, ending
from sessions_app.pages.timeline import timeline
from sessions_app.serializers import NewSessionSerializer
from workspaces.models import COMING, Phase, Workspace, WorkspaceTemplate

THROWAWAY = "template:"
SAMPLE = "sample "
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


def _sample(number: str) -> str:
    """The text of a sample by its number; "" where there is none."""
    at = whole(number)
    return SAMPLES[at][1] if at is not None and at < len(SAMPLES) else ""


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
    shape = NewSessionSerializer
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
    tabs = (("", "Transcript"), ("files", "Files"), ("timeline", "Timeline"), ("raw", "Raw"))
    page_sorts: ClassVar[Mapping[str, str]] = {
        "agent_id": "agent__slug", "status": "status", "turns": "turns", "tool_calls": "tool_calls", "owner": "owner__username",
    }  # fmt: skip
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Instructions", "initial_instructions", value=first_line),
        Column("Agent", "agent_id", "link", sort="agent_id", href="/compute/agents/{}/"),
        Column("Workspace", "workspace_id", "workspace"),
        Column("Status", "status", "chip", sort="status", vocabulary="session", value=status_of),
        Column("Turns", "turns", "number", sort="turns", narrow=True),
        Column("Calls", "tool_calls", "number", sort="tool_calls", narrow=True),
        Column("Tokens", "usage", value=tokens, narrow=True),
        Column("Duration", "duration", "seconds", value=took),
        Column("Started", "created_at", "time", sort="created_at"),
        Column("By", "owner", sort="owner", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("status", "Status", "status", tuple(Status.choices)),
        Filter("ended_reason", "Ended", "ended_reason", tuple(EndedReason.choices)),
        Filter("agent_id", "Agent", "agent__slug"),
        Filter("workspace_id", "Workspace", "workspace__slug"),
        Filter("owner", "By", "owner__username", admin_only=True),
        Filter("time", "Started", since="created_at"),
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
        if request.GET.get("again"):
            row = self.door(request).get(request.GET["again"])
            place = THROWAWAY + row.workspace.template.slug if row.throwaway else row.workspace.slug
            return {**again(row, request.GET.dict()), "workspace_id": place}
        body = {name: request.GET.get(name, "") for name in ("agent_id", "workspace_id", "initial_instructions")}
        if template := request.GET.get("template_id"):
            body["workspace_id"] = THROWAWAY + template
        agents = list(Agent.objects.live().values_list("slug", flat=True)[:2])
        body["agent_id"] = body["agent_id"] or (agents[0] if len(agents) == 1 else "")
        if text := _sample(request.GET.get("sample", "")):
            body["initial_instructions"] = text
        return body

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        agents = Agent.objects.live().select_related("provider").order_by("slug")
        options = tuple(
            Option(row.slug, f"{row.slug} · {row.model_name or row.provider.slug} · {row.provider.get_health_display().lower()}")
            for row in agents
        )  # fmt: skip
        chosen = str(body.get("workspace_id") or "")
        agent = next((row for row in agents if row.slug == body.get("agent_id")), None)
        own = {**DEFAULTS, **agent.limits} if agent is not None else {}
        main = (
            Field("agent_id", "Agent", "select", options=(Option("", "Choose an agent"), *options), empty="", required=True),
            Field("workspace_id", "Workspace", "select", options=self._places(request), empty="", required=True,
                  warn=self._warning(request, chosen), redraw=True),
            Field("initial_instructions", "Initial instructions", "area", rows=10, required=True),
        )  # fmt: skip
        limits = tuple(
            Field(f"limits.{name}", label, "number", empty=LEFT_OUT, placeholder=str(own.get(name) or "the agent's"))
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
        sample = request.POST.get("_redraw", "")  # a sample says which one; what else was chosen stays
        if sample.startswith(SAMPLE) and (text := _sample(sample.removeprefix(SAMPLE))):
            body["initial_instructions"] = text
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

    def actions(self, request: HttpRequest, row: AgentSession, item: Item) -> list[dict[str, Any]]:
        """What the header's buttons do, for the palette; the header draws its own."""
        if not may_change(self.user(request), row):
            return []
        verb, label, icon = (
            ("rerun", "Re-run", "arrow-path") if row.status == Status.ENDED else ("cancel", "Cancel", "stop")
        )
        return [{"label": label, "url": self.href(row.slug, verb), "icon": icon}]

    def cancel(self, request: HttpRequest, id: str) -> HttpResponse:
        if request.method == "POST":
            code = self.door(request).call("POST", "cancel", id=id).status_code
            words = "was cancelled." if code == 200 else "is stopping."
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
            "ending": ending(row, item["limits"], self._most(request, row)) if tab in ("", "head") else {},
        }  # fmt: skip
        if tab != "head":
            found |= self._neighbours(request, row)
        if tab == "files":
            found |= {"files": transcript.changed_files(row)}
        elif tab == "raw":
            found |= transcript.raw_page(request, row)
        elif tab == "timeline":
            found |= timeline(request, row)
        elif not tab:
            found |= transcript.opened(request, row)
        return found

    def _most(self, request: HttpRequest, row: AgentSession) -> dict[str, Any] | None:
        """The limits that a new session of this person may have at most: the agent's, or any (None)."""
        return None if services.may_raise(self.user(request), row.agent) else {**DEFAULTS, **row.agent.limits}

    def _neighbours(self, request: HttpRequest, row: AgentSession) -> dict[str, Any]:
        """The sessions that began before and after this one, of those that the list shows."""
        rows = self.door(request).rows()
        before = rows.filter(created_at__lt=row.created_at).order_by("-created_at").values_list("slug", flat=True)
        after = rows.filter(created_at__gt=row.created_at).order_by("created_at").values_list("slug", flat=True)
        return {"previous_session": before.first(), "next_session": after.first()}

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
