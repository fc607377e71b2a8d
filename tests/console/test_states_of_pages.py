"""What the pages of workspaces and templates say of a state: what was asked, applied and proven, why it is so, what to do next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from accounts.models import AuditEntry
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_llm_provider
from workspaces.models import Phase, Workspace, WorkspaceProvider, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
REF = {"kind": "fake", "workspace_id": "x", "generation": 1}
CHECKS = [
    {"name": "limit_memory", "expected": "536870912", "observed": "536870912", "ok": True},
    {"name": "network_route", "expected": "none", "observed": "default via 172.17.0.1", "ok": False},
]
APPLIED = {
    "network": "none",
    "limits": {
        "memory": {"asked": 256 * 1024**2, "applied": 256 * 1024**2, "enforced": "enforced"},
        "egress": {"asked": "deny_all", "applied": "deny_all", "enforced": "enforced"},
    },
}


def text_of(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return str(answer.content.decode())


def at(workspace: Workspace, phase: str, *steps: tuple[str, float], **facts: Any) -> None:
    """Puts a workspace into a phase, with the steps before it and the seconds each began after the first."""
    began = timezone.now() - timedelta(seconds=60)
    phases = [
        {"phase": name, "at": (began + timedelta(seconds=after)).isoformat(), "reason": ""} for name, after in steps
    ]
    ref = REF if phase == "running" else None
    Workspace.objects.filter(pk=workspace.pk).update(phase=phase, phases=phases, ref=ref, **facts)


@pytest.fixture
def boxed() -> WorkspaceTemplate:
    provider = make_provider("docker", "container")
    enforces = {"cpu": "enforced", "memory": "enforced", "pids": "enforced", "disk": "soft", "egress": "enforced"}
    engine = {"cpus": 2, "memory_bytes": 2**34, "limit_reasons": {"disk": "A volume has no quota."}}
    WorkspaceProvider.objects.filter(pk=provider.pk).update(enforces=enforces, engine=engine)
    return make_template("boxed", provider)


def test_a_template_says_what_was_asked_applied_and_proven_and_where(boxed: WorkspaceTemplate) -> None:
    alice = make_user("alice")
    path = "/workspaces/templates/boxed/"
    assert "Nothing is applied or proven yet" in text_of(browser(alice), path)
    workspace = make_workspace(alice, boxed)
    Workspace.objects.update(
        applied=APPLIED, confinement={"checks": CHECKS, "verdict": "failed", "checked_at": "2026-01-01T00:00:00Z"}
    )
    found = browser(alice).get(path)
    html = found.content.decode()
    rows = {one["title"]: one for one in found.context["limits"]}
    assert (rows["Memory"]["asked"], rows["Memory"]["proof"].applied, rows["Memory"]["proof"].word) == (
        "256 MiB",
        "256 MiB",
        "holds",
    )
    assert rows["Egress"]["proof"].word == "contradicted"
    assert (rows["Disk"]["worth"].word, rows["Disk"]["proof"].word) == ("soft", "not checked")
    assert "A volume has no quota." in html
    assert f'href="/workspaces/{workspace.slug}/confinement/"' in html


def test_what_another_sandbox_proved_is_not_said_of_a_template(boxed: WorkspaceTemplate) -> None:
    mine, hers = make_workspace(make_user("alice"), boxed), make_workspace(make_user("carol"), boxed)
    Workspace.objects.update(
        applied=APPLIED, confinement={"checks": CHECKS, "verdict": "failed", "checked_at": "2026-01-01T00:00:00Z"}
    )
    html = text_of(browser(mine.owner), "/workspaces/templates/boxed/")
    assert mine.slug in html
    assert hers.slug not in html
    backend = {**boxed.backend, "memory_bytes": 2**30}
    WorkspaceTemplate.objects.filter(pk=boxed.pk).update(
        backend=backend
    )  # other settings: what was proven was of the old ones
    assert "Nothing is applied or proven yet" in text_of(browser(mine.owner), "/workspaces/templates/boxed/")


def test_a_failed_workspace_says_the_step_what_is_left_and_what_to_do(world: dict[str, str]) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    facts = {"phase_reason": "image_not_found", "phase_detail": "The image x:1 is not on the engine."}
    at(workspace, "failed", ("pending", 0), ("starting", 1), ("failed", 4), **facts)
    html = text_of(browser(workspace.owner), f"/workspaces/{workspace.slug}/")
    assert "The image x:1 is not on the engine." in html
    assert "It failed at the step starting, after 3.0 s. What the attempt had made on the engine is removed." in html
    assert "primer image build" in html
    Workspace.objects.update(unknown_since=timezone.now())
    assert "may still be on the engine" in text_of(browser(workspace.owner), f"/workspaces/{workspace.slug}/")
    Workspace.objects.update(unknown_since=None, prepared=True)
    assert "its files are kept" in text_of(browser(workspace.owner), f"/workspaces/{workspace.slug}/")


@pytest.mark.parametrize(
    ("reason", "detail", "line", "said"),
    [
        ("stopped", "", {"reason": "idle"}, "nobody used it for its idle timeout"),
        ("stopped", "", {"reason": "asked"}, "Stopped by alice."),
        ("out_of_memory", "It used more memory than it has.", None, "It used more memory than it has."),
        ("exited", "", None, "The sandbox ended: exited."),
    ],
)
def test_a_stopped_workspace_says_why(
    reason: str, detail: str, line: dict[str, str] | None, said: str, world: dict[str, str]
) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    at(workspace, "stopped", ("pending", 0), ("stopped", 4), phase_reason=reason, phase_detail=detail)
    if line:
        AuditEntry.objects.create(
            actor_name="alice", action="workspace.stop", kind="workspace", object_id=workspace.slug, after=line
        )
    assert said in text_of(browser(workspace.owner), f"/workspaces/{workspace.slug}/")


def test_a_starting_workspace_shows_the_seconds_of_each_step_and_its_deadline(world: dict[str, str]) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    at(workspace, "starting", ("pending", 0), ("pulling", 2), ("starting", 14.5), phase_since=timezone.now())
    found = browser(workspace.owner).get(f"/workspaces/{workspace.slug}/")
    steps = {one["label"]: (one["state"], one["took"]) for one in found.context["steps"]}
    assert steps == {
        "Pending": ("done", 2.0), "Pulling the image": ("done", 12.5), "Starting": ("now", None), "Running": ("todo", None),
    }  # fmt: skip
    assert "12.5 s" in found.content.decode()
    assert found.context["deadline"] > timezone.now()
    assert "Given up <time" in found.content.decode()


def test_a_chip_says_in_its_title_why_and_since_when(world: dict[str, str]) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    at(workspace, "stopped", ("pending", 0), phase_reason="out_of_memory", phase_since=timezone.now())
    since = f"out of memory · since {timezone.localtime():%Y-%m-%d}"
    for path in ("/workspaces/", f"/workspaces/{workspace.slug}/"):
        assert since in text_of(browser(workspace.owner), path)
    WorkspaceProvider.objects.update(health="unreachable", reasons=["No engine answers."], checked_at=timezone.now())
    assert "No engine answers. · checked " in text_of(browser(make_admin()), "/workspaces/providers/")


def test_a_row_of_the_list_offers_what_the_state_allows(world: dict[str, str]) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    offered = {}
    for phase in (Phase.RUNNING, Phase.STOPPED, Phase.FAILED, Phase.DELETING):
        at(workspace, phase, ("pending", 0))
        (row,) = browser(workspace.owner).get("/workspaces/").context["listing"].rows
        offered[phase] = [one["label"] for one in row.actions]
    assert offered == {
        Phase.RUNNING: ["New session", "Delete"], Phase.STOPPED: ["Start", "Delete"], Phase.FAILED: ["Try again", "Delete"], Phase.DELETING: [],
    }  # fmt: skip
    at(workspace, Phase.STOPPED, ("pending", 0))
    html = text_of(browser(workspace.owner), "/workspaces/")
    assert f'form="act" formaction="/workspaces/{workspace.slug}/start/"' in html
    assert '<form id="act" method="post" hidden>' in html


def test_who_has_nothing_yet_is_led_to_a_form_that_is_filled_in(
    world: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workspaces.pages import providers

    admin = browser(make_admin())
    Workspace.objects.update(phase=Phase.DELETING, deleted_at=timezone.now(), ref=None)
    WorkspaceTemplate.objects.update(deleted_at=timezone.now())
    WorkspaceProvider.objects.update(deleted_at=timezone.now())
    assert "It needs a template first." in text_of(admin, "/workspaces/")
    assert 'href="/workspaces/new/"' not in text_of(admin, "/workspaces/").partition("<main")[2]
    assert "Add sample" in text_of(admin, "/workspaces/templates/")
    assert "code-sandbox" in text_of(admin, "/workspaces/templates/new/?sample=1").partition("<main")[2]
    for answers in (True, False):
        monkeypatch.setattr(providers, "_answers", lambda path, answers=answers: answers)
        assert ("Use local Docker" in text_of(admin, "/workspaces/providers/")) is answers
    form = admin.get("/workspaces/providers/new/?local=1").context["form"]
    filled = {one.field.path: one.value for one in form.bound()}
    assert (filled["id"], filled["config.connection.kind"]) == ("docker", "socket")


def test_the_sample_of_an_agent_is_made_by_its_form() -> None:
    from tests.console.filling import fill

    make_llm_provider()
    alice = browser(make_user("alice"))
    assert "Add sample" in text_of(alice, "/compute/agents/")
    assert fill(alice, "/compute/agents/new/?sample=1", {}).status_code == 303
    assert "default-runner" in text_of(alice, "/compute/agents/default-runner/")


def test_the_overview_names_the_contradiction_and_none_of_what_isolates_nothing(boxed: WorkspaceTemplate) -> None:
    workspace = make_workspace(make_user("alice"), boxed)
    Workspace.objects.update(confinement={"verdict": "failed", "checks": CHECKS})
    said = "network route: asked for none, the sandbox shows default via 172.17.0.1"
    assert said in text_of(browser(workspace.owner), "/")
    WorkspaceProvider.objects.update(provider="local")
    assert said not in text_of(browser(workspace.owner), "/")


def test_a_page_and_its_fragment_are_told_apart_by_caches(world: dict[str, str]) -> None:
    admin = browser(make_admin())
    for path in ("/", "/workspaces/", "/admin/audit/", f"/workspaces/{world['workspace']}/"):
        assert "HX-Request" in admin.get(path)["Vary"], path


def test_a_refused_action_carries_the_request_that_was_refused(world: dict[str, str]) -> None:
    workspace = Workspace.objects.get(slug=world["workspace"])
    at(workspace, "lost", ("pending", 0), phase_reason="data_lost")
    answer = browser(workspace.owner).post(f"/workspaces/{workspace.slug}/start/", follow=True)
    html = answer.content.decode()
    assert "its files are gone" in html
    assert "(request " in html


def test_the_footer_says_the_same_for_a_terminal_in_three_ways(world: dict[str, str]) -> None:
    found = browser(make_admin()).get(f"/workspaces/{world['workspace']}/").context["copies"]
    assert [name for name, _ in found] == ["CLI", "curl", "YAML"]
    assert found[2][1] == f"primectl get workspace/{world['workspace']} -o yaml"


def test_a_file_may_have_a_line_end_in_its_name() -> None:
    match = resolve("/files/ws-0123456789abcdef/a\nb/c.txt")
    assert match.kwargs == {"id": "ws-0123456789abcdef", "path": "a\nb/c.txt"}


@pytest.mark.parametrize(
    ("url", "tls", "bind", "warned"),
    [
        ("tcp://engine.example:2375", None, "127.0.0.1", ["Without TLS"]),
        ("tcp://engine.example:2376", {"ca": "PEM"}, "0.0.0.0", ["open to whoever"]),
        ("tcp://127.0.0.1:2375", None, "::1", []),
        ("tcp://localhost:2375", {}, "::", ["open to whoever"]),
    ],
)
def test_an_engine_that_is_open_to_others_is_warned_of(
    url: str, tls: dict[str, str] | None, bind: str, warned: list[str]
) -> None:
    config = {
        "kind": "container", "runtime": "docker", "connection": {"kind": "tcp", "url": url, "tls": tls},
        "reachability": {"kind": "host_port", "bind_host": bind},
    }  # fmt: skip
    make_provider("far", "container", config)
    admin = browser(make_admin())
    for path in ("/workspaces/providers/far/", "/workspaces/providers/far/edit/"):
        html = text_of(admin, path)
        assert [text for text in ("Without TLS whoever", "open to whoever") if text in html] == [
            text + " whoever" * (text == "Without TLS") for text in warned
        ], path
