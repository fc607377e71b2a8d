"""Compute > Agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils import timezone

from accounts.models import Role
from accounts.pages.editing import Item
from accounts.pages.form import LEFT_OUT, Body, Field, Option, Section
from accounts.pages.resource import ResourcePages, audited
from accounts.pages.table import Column, Filter
from accounts.pages.views import page, suggestions
from agents.api import AgentViewSet
from agents.limits import DEFAULTS
from agents.models import Agent, LLMProvider
from agents.pages.llm_providers import names_of

SAMPLE = {
    "id": "default-runner", "description": "Runs the code it is given, in its sandbox.",
    "system_prompt": ["You run the user's code in the sandbox and report its output."],
}  # fmt: skip


class AgentPages(ResourcePages):
    kind = "agent"
    viewset = AgentViewSet
    base = "/compute/agents/"
    section = "Compute"
    title = "Agents"
    noun = "agent"
    icon = "command-line"
    templates = "agents"
    empty = "An agent is a model and a prompt."
    empty_cli = "primectl create -f code-runner.yaml"
    tabs = (("", "Overview"), ("sessions", "Sessions"), ("activity", "Activity"), ("yaml", "YAML"))
    page_sorts: ClassVar[Mapping[str, str]] = {
        "provider_id": "provider__slug", "model_name": "model_name", "owner": "owner__username",
    }  # fmt: skip
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Description", "description", narrow=True),
        Column("LLM provider", "model.provider_id", "link", sort="provider_id", href="/compute/llm-providers/{}/"),
        Column("Model", "model.model_name", "code", sort="model_name"),
        Column("Tools", "tools", "list", narrow=True),
        Column("Sessions 24 h", "sessions_day", "number"),
        Column("Completed", "completed", "text", narrow=True),
        Column("Owner", "owner", sort="owner"),
        Column("Updated", "updated_at", "time", sort="updated_at", narrow=True),
    )
    filters: ClassVar[Sequence[Filter]] = (
        Filter("provider_id", "LLM provider", "provider__slug"),
        Filter("model_name", "Model", "model_name"),
    )

    def start_body(self, request: HttpRequest) -> Item:
        rows = list(LLMProvider.objects.live().order_by("created_at")[:2])
        only = rows[0] if len(rows) == 1 else None
        body: Body = {
            "model": {"provider_id": only.slug if only else "", "model_name": _model_of(only) if only else ""}
        }
        return body | SAMPLE if "sample" in request.GET else body

    def starters(self) -> list[tuple[str, str]]:
        return [("Add sample", f"{self.base}new/?sample=1")]

    def sections(self, request: HttpRequest, body: Mapping[str, Any], *, editing: bool) -> list[Section]:
        rows = list(LLMProvider.objects.live().order_by("slug"))
        options = tuple(
            Option(row.slug, f"{row.slug} · {row.provider} · {row.get_health_display().lower()}") for row in rows
        )
        models = tuple(dict.fromkeys(_model_of(row) for row in rows if _model_of(row)))
        general = (
            Field("id", "ID", required=True, fixed=True, placeholder="code-runner"),
            Field("description", "Description"),
            Field("model.provider_id", "LLM provider", "select", options=(Option("", "Choose an LLM provider"), *options), empty="", required=True),
            Field("model.model_name", "Model", suggestions=models, fetch=f"{self.base}new/models/", fetch_with="f-model-provider_id"),
            Field("tools", "Tools", "lines", rows=2),
        )  # fmt: skip
        return [Section("General", general), self._advanced()]

    @staticmethod
    def _advanced() -> Section:
        budget = Field("thinking.budget_tokens", "Budget", "number", placeholder="4096")
        thinking = (Option("off", "off"), Option("auto", "auto"), Option("budget", "budget", fields=(budget,)))
        limits = tuple(
            Field(f"limits.{name}", label, "number", default=DEFAULTS[name], empty=LEFT_OUT if DEFAULTS[name] else None)
            for name, label in (
                ("max_turns", "Turns"), ("max_tool_calls", "Tool calls"), ("timeout_s", "Time"), ("max_tokens", "Tokens"),
            )
        )  # fmt: skip
        fields = (
            Field("system_prompt", "System prompt", "texts", rows=6),
            *limits,
            Field("temperature", "Temperature", "number", empty=None),
            Field("max_output_tokens", "Output tokens", "number", default=8192, empty=8192),
            Field("thinking", "Thinking", "cards", default="off", options=thinking, empty="off"),
            Field("labels", "Labels", "pairs"),
        )  # fmt: skip
        return Section("Advanced", fields, advanced=True, id="advanced")

    def more_urls(self) -> list[URLPattern]:
        return [path("new/models/", page(self.models), name="agent-models")]

    def models(self, request: HttpRequest) -> HttpResponse:
        """Names for the field's list, of the provider that is chosen in the form."""
        return suggestions(request, lambda: names_of(request, request.GET.get("model.provider_id", "")))

    def more_of(self, request: HttpRequest, rows: Sequence[Any]) -> Mapping[int, Mapping[str, Any]]:
        day = Q(sessions__created_at__gt=timezone.now() - timedelta(days=1))
        counts = Agent.objects.filter(pk__in=[row.pk for row in rows]).annotate(
            n=Count("sessions", filter=day),
            ended=Count("sessions", filter=day & Q(sessions__status="ended")),
            good=Count("sessions", filter=day & Q(sessions__ended_reason="completed")),
        )
        return {
            row.pk: {"sessions_day": row.n, "completed": f"{round(100 * row.good / row.ended)} %" if row.ended else ""}
            for row in counts
        }

    # Their pages are put in by whoever wires both: imports go from sessions to agents.
    session_pages: Any = None

    def tab_context(self, request: HttpRequest, row: Agent, item: Item, tab: str) -> dict[str, Any]:
        if tab == "sessions" and self.session_pages is not None:
            rows = self.session_pages.door(request).rows().filter(agent=row)
            return {"listing": self.session_pages.listing(request, rows), "listed": self.session_pages}
        if tab == "activity":
            return {"entries": audited(row)}
        return {"llm": row.provider}

    def actions(self, request: HttpRequest, row: Agent, item: Item) -> list[dict[str, Any]]:
        if getattr(request.user, "role", "") == Role.VIEWER:
            return []
        url = f"/sessions/new/?agent_id={row.slug}"
        return [{"label": "Try it", "url": url, "icon": "play", "primary": True, "method": "get"}]

    def consequences(self, request: HttpRequest, row: Agent) -> dict[str, Any]:
        lines = ["The agent. Sessions keep the settings they ran with, and their transcripts."]
        return {"lines": lines, "type_id": False}


def _model_of(row: LLMProvider) -> str:
    return str(row.config.get("default_model") or ("scripted" if row.provider == "scripted" else ""))


AGENTS = AgentPages()
