"""Compute > Agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django.db.models import Count, Q
from django.http import HttpRequest
from django.utils import timezone

from accounts.models import Role
from accounts.pages.editing import Item
from accounts.pages.form import LEFT_OUT, Body, Field, Option, Section, dig
from accounts.pages.resource import ResourcePages
from accounts.pages.table import Column, Filter
from agents.api import AgentViewSet
from agents.limits import DEFAULTS
from agents.models import Agent, LLMProvider

TOOLS_HELP = "workspace__write, workspace__exec and the others come with the workspace; leave this empty."


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
    tabs = (("", "Overview"), ("sessions", "Sessions"), ("yaml", "YAML"))
    columns: ClassVar[Sequence[Column]] = (
        Column("ID", "id", "id", sort="id"),
        Column("Description", "description", narrow=True),
        Column("LLM provider", "model.provider_id", "link", href="/compute/llm-providers/{}/"),
        Column("Model", "model.model_name", "code"),
        Column("Tools", "tools", "list", narrow=True),
        Column("Sessions 24 h", "sessions_day", "number"),
        Column("Completed", "completed", "text", narrow=True),
        Column("Owner", "owner"),
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
        return body

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
            Field("model.model_name", "Model", suggestions=models, help="Empty is the provider's default model."),
            Field("tools", "Tools", "lines", rows=2, help=TOOLS_HELP),
        )  # fmt: skip
        return [Section("General", general), self._advanced(dig(body, "thinking.budget_tokens"))]

    @staticmethod
    def _advanced(budget: Any) -> Section:
        kept = (Option("", f"budget of {budget} tokens"),) if budget else ()
        thinking = (*kept, Option("off", "off"), Option("auto", "auto"))
        limits = tuple(
            Field(f"limits.{name}", label, "number", default=DEFAULTS[name], empty=LEFT_OUT if DEFAULTS[name] else None, help=text)
            for name, label, text in (
                ("max_turns", "Turns", "Replies of the model in one run."),
                ("max_tool_calls", "Tool calls", "In one run."),
                ("timeout_s", "Time", "Seconds of one run."),
                ("max_tokens", "Tokens", "Of one run; empty for no limit."),
            )
        )  # fmt: skip
        fields = (
            Field("system_prompt", "System prompt", "texts", rows=6, help="One or more paragraphs, sent in this order."),
            *limits,
            Field("temperature", "Temperature", "number", empty=None, help="0 to 2; sent only when set."),
            Field("max_output_tokens", "Output tokens", "number", default=8192, empty=8192, help="Of one reply."),
            Field("thinking", "Thinking", "select", default="off", options=thinking, empty="off",
                  help="off or auto here; a budget in tokens can be given in the YAML form."),
            Field("labels", "Labels", "pairs"),
        )  # fmt: skip
        return Section("Advanced", fields, advanced=True, id="advanced")

    def body_of(self, request: HttpRequest, base: Item, *, editing: bool) -> Item:
        body = super().body_of(request, base, editing=editing)
        kept = base.get("thinking")
        if isinstance(kept, dict) and request.POST.get("thinking") == "":
            body["thinking"] = kept  # a budget stays unless something else is chosen
        return body

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
