"""The way to a first run: steps that are true by facts, each with what does it here and in a terminal."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from accounts.models import Role, User
from agents.models import Agent, LLMProvider
from primer_site import shells
from sessions_app.models import AgentSession, EndedReason
from sessions_app.pages.transcript import changed_files
from workspaces.models import Health, Phase, Workspace, WorkspaceProvider, WorkspaceTemplate

Step = dict[str, Any]
SAMPLE = "Run this code: print(6 * 7)"
RESULT = "out.txt"


def checklist(user: User) -> list[Step]:
    """What is left for this person: what only an admin can do is an admin's step, and who makes nothing has none."""
    if user.role == Role.VIEWER:
        return []
    place = Workspace.objects.live().filter(owner=user, phase=Phase.RUNNING).order_by("-created_at").first()
    template = WorkspaceTemplate.objects.live().order_by("created_at").values_list("slug", flat=True).first() or ""
    agent = Agent.objects.live().order_by("created_at").values_list("slug", flat=True).first() or ""
    there = LLMProvider.objects.live().exists()  # admins make models, everybody makes agents
    ran = AgentSession.objects.visible_to(user).filter(owner=user, ended_reason=EndedReason.COMPLETED)
    run = ran.select_related("workspace").order_by("-created_at").first()
    return [
        *([_provider(), _template(template)] if user.is_admin else []),
        *([_model(agent, there=there)] if there or user.is_admin else []),
        _sample(place, template, agent, done=run is not None),
        _look(run, done=ran.filter(tool_calls__gt=1).exclude(confinement="").exists()),
    ]


def _provider() -> Step:
    known = WorkspaceProvider.objects.live().order_by("created_at").values_list("slug", flat=True).first()
    return {
        "done": WorkspaceProvider.objects.live().filter(health=Health.HEALTHY).exists(), "label": "A provider that answers",
        "url": f"/workspaces/providers/{known or 'new'}/", "button": "Check it" if known else "New provider",
        "cli": f"primectl provider check {known}" if known else "primectl create -f docker-provider.yaml",
    }  # fmt: skip


def _template(known: str) -> Step:
    # An image is known to be there once a sandbox was made from it; what has no image needs none.
    started = Workspace.objects.filter(template__deleted_at=None).filter(
        ~Q(image_digest="") | Q(provider__provider="local")
    )
    return {
        "done": bool(known) and started.exists(), "label": "A template whose image is present",
        "url": f"/workspaces/templates/{known or 'new'}/", "button": "Check its image" if known else "New template",
        "cli": f"primectl template check {known}" if known else "primectl create -f code-sandbox.yaml",
    }  # fmt: skip


def _model(agent: str, *, there: bool) -> Step:
    return {
        "done": there and bool(agent), "label": "A model and an agent",
        "url": "/compute/agents/new/" if there else "/compute/llm-providers/new/",
        "button": "New agent" if there else "New LLM provider",
        "cli": f"primectl create -f {'code-runner' if there else 'scripted-model'}.yaml",
    }  # fmt: skip


def _sample(place: Workspace | None, template: str, agent: str, *, done: bool) -> Step:
    """Runs where there is a sandbox already, else in a throw-away one; names only what exists."""
    where = place.slug if place is not None else f"--template {template}" if template else "WORKSPACE"
    form = f"workspace_id={place.slug}" if place is not None else f"template_id={template}"
    return {
        "done": done, "label": "Run the sample", "url": f"/sessions/new/?sample=1&agent_id={agent}&{form}", "button": "New session",
        "cli": f'primectl session run {where} --agent {agent or "AGENT"} -i "{SAMPLE}"',
    }  # fmt: skip


def _look(run: AgentSession | None, *, done: bool) -> Step:
    """Leads to what the run left: its file, the proof of its sandbox, or the transcript where the sandbox is gone."""
    step: Step = {
        "done": done,
        "label": f"Read {RESULT} and the confinement report",
        "button": "Open",
        "url": "",
        "cli": "",
    }
    if run is None or done:  # there is nothing to open yet, or no more
        return step
    workspace = run.workspace
    if workspace.deleted_at is not None or workspace.phase != Phase.RUNNING:
        cli = shells.line("primectl describe session", run.slug)
        return step | {
            "label": "Read what the run printed, and its verdict",
            "url": f"/sessions/{run.slug}/",
            "cli": cli,
        }
    if any(one["path"] == RESULT for one in changed_files(run)):
        cli = shells.line("primectl workspace files get", workspace.slug, RESULT, options="--content")
        return step | {"url": f"/files/{workspace.slug}/{RESULT}", "cli": cli}
    cli = shells.line("primectl describe workspace", workspace.slug)
    return step | {
        "label": "Read the confinement report",
        "url": f"/workspaces/{workspace.slug}/confinement/",
        "cli": cli,
    }
