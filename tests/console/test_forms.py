"""Forms by plain HTTP: what is stored, what is refused and how, what a deletion asks first."""

from __future__ import annotations

from typing import Any

import pytest

from primer_site import vault
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_llm_provider
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db


def test_a_provider_made_by_the_form_is_the_one_of_the_recipe(settings: Any, tmp_path: Any) -> None:
    import socket

    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        settings.PRIMER_SOCKET_DIRS = [str(tmp_path)]
        form = {
            "id": "docker-local", "config.kind": "container", "config.runtime": "docker", "config.connection.kind": "socket",
            "config.connection.socket_path": str(path), "config.reachability.kind": "host_port", "config.reachability.bind_host": "127.0.0.1",
        }  # fmt: skip
        answer = browser(make_admin()).post("/workspaces/providers/new/", form)
    assert (answer.status_code, answer["Location"]) == (303, "/workspaces/providers/docker-local/")
    config = WorkspaceProvider.objects.get().config
    assert config["connection"] == {"kind": "socket", "socket_path": str(path)}
    assert config["reachability"] == {"kind": "host_port", "bind_host": "127.0.0.1"}


def test_a_refused_form_keeps_what_was_typed_and_names_the_field() -> None:
    make_provider("docker", "container")
    form = {
        "id": "Not A Slug",
        "provider_id": "docker",
        "backend.kind": "container",
        "backend.image": "x y",
        "backend.memory_bytes": "1",
    }
    answer = browser(make_admin()).post("/workspaces/templates/new/", form)
    html = answer.content.decode()
    assert answer.status_code == 422
    assert 'value="Not A Slug"' in html
    assert 'id="f-id-error"' in html
    assert 'id="f-backend-image-error"' in html
    assert 'id="f-backend-memory_bytes-error"' in html
    assert html.count('aria-invalid="true"') >= 3
    assert not WorkspaceTemplate.objects.exists()


def test_naming_a_workspace_tool_is_refused_in_those_words() -> None:
    make_llm_provider()
    form = {"id": "code-runner", "model.provider_id": "scripted", "tools": "workspace__exec"}
    answer = browser(make_user()).post("/compute/agents/new/", form)
    assert answer.status_code == 422
    assert "come with the session" in answer.content.decode()


def test_yaml_posts_to_the_same_validation_and_errors_carry_the_line() -> None:
    make_provider("docker", "container")
    text = "kind: workspace_template\nspec:\n  id: code-sandbox\n  provider_id: docker\n  backend:\n    kind: container\n    image: primer/workspace-runtime:1.0\n    memory_bytes: 12\n"
    client = browser(make_admin())
    refused = client.post("/workspaces/templates/new/", {"_form": "yaml", "yaml": text})
    assert refused.status_code == 422
    assert "line 8" in refused.content.decode()
    made = client.post("/workspaces/templates/new/", {"_form": "yaml", "yaml": text.replace("12", "134217728")})
    assert made.status_code == 303
    assert WorkspaceTemplate.objects.get().backend["memory_bytes"] == 134217728


@pytest.mark.parametrize(
    ("text", "word"),
    [("a: 1\na: 2", "duplicate"), ("a: [", "not YAML"), ("- 1", "mapping"), ("", "mapping"), ("a: *b", "anchor")],
)
def test_yaml_that_is_not_taken_names_its_line(text: str, word: str) -> None:
    answer = browser(make_admin()).post("/workspaces/providers/new/", {"_form": "yaml", "yaml": text})
    assert answer.status_code == 422
    assert "line " in answer.content.decode()
    assert word in answer.content.decode()


def test_an_edit_over_somebody_elses_change_is_refused_and_can_be_forced() -> None:
    agent = make_agent(make_user())
    client = browser(make_user())
    path = f"/compute/agents/{agent.slug}/edit/"
    form = {
        "description": "mine",
        "model.provider_id": "scripted",
        "model.model_name": "scripted",
        "_rev": str(agent.spec_rev),
    }
    agent.write_spec({"description": "theirs"})
    refused = client.post(path, form)
    assert refused.status_code == 422
    assert "theirs" in refused.content.decode()
    assert "Overwrite" in refused.content.decode()
    agent.refresh_from_db()
    assert agent.description == "theirs"
    assert client.post(path, {**form, "_overwrite": "1"}).status_code == 303
    agent.refresh_from_db()
    assert agent.description == "mine"


def test_an_edit_keeps_secrets_and_what_its_form_cannot_show() -> None:
    provider = make_provider("docker", "container")
    env: dict[str, Any] = {"PLAIN": "1", "KEY": {"secret": "s3cret-value-of-mine"}}
    template = make_template("box", provider, env=env, init_commands=[["echo", "a b"]])
    client, path = browser(make_admin()), "/workspaces/templates/box/edit/"
    assert "s3cret-value-of-mine" not in client.get(path).content.decode()
    form = {
        "description": "changed", "provider_id": "docker", "backend.kind": "container", "backend.image": "primer/workspace-runtime:1.0",
        "backend.cpu_cores": "1", "backend.memory_bytes": "256", "backend.memory_bytes.unit": "MiB", "backend.network.egress": "deny_all",
        "backend.network.mode": "none", "backend.pids_limit": "128", "backend.disk_bytes": "100", "backend.disk_bytes.unit": "MiB",
        "backend.disk_medium": "volume", "backend.engine_runtime": "", "backend.workdir": "/workspace", "env.key": ["PLAIN", "KEY"],
        "env.value": ["2", ""], "env.kind": ["text", "secret"], "init_commands": "echo a b", "require": "best_effort",
        "_rev": str(template.spec_rev),
    }  # fmt: skip
    assert client.post(path, form).status_code == 303
    template.refresh_from_db()
    assert (template.description, template.env["PLAIN"]) == ("changed", "2")
    assert vault.unseal(template.secrets) == {"KEY": "s3cret-value-of-mine"}
    assert template.init_commands == [["echo", "a b"]], "a list of arguments became a shell line"
    row_taken_out = {"env.key": ["PLAIN"], "env.value": ["2"], "env.kind": ["text"], "_rev": str(template.spec_rev)}
    assert client.post(path, form | row_taken_out | {"init_commands": ""}).status_code == 303
    template.refresh_from_db()
    assert (template.env, vault.unseal(template.secrets)) == ({"PLAIN": "2"}, {})


def test_delete_of_something_in_use_says_by_what(world: dict[str, str]) -> None:
    answer = browser(make_admin()).post("/workspaces/templates/plain/delete/")
    assert answer.status_code == 409
    assert world["workspace"] in answer.content.decode()
    assert WorkspaceTemplate.objects.live().exists()


def test_deleting_a_workspace_with_a_running_session_asks_for_its_id(world: dict[str, str]) -> None:
    client, path = browser(make_user("alice")), f"/workspaces/{world['workspace']}/delete/"
    asked = client.get(path).content.decode()
    assert world["session"] in asked
    assert "Transcripts" in asked
    assert client.post(path, {"confirm": "ws-0"}).status_code == 422
    assert Workspace.objects.get().phase != "deleting"
    assert client.post(path, {"confirm": world["workspace"]}).status_code == 303
    assert Workspace.objects.get().phase == "deleting"


def test_a_bulk_delete_says_what_it_leaves_alone_and_why(world: dict[str, str]) -> None:
    alice = make_user("alice")
    going, mine, hers = make_workspace(alice), make_workspace(alice), make_workspace(make_user("charlie"))
    Workspace.objects.filter(pk=going.pk).update(phase="deleting", desired="gone")
    client, names = browser(alice), [mine.slug, going.slug, hers.slug]
    asked = client.post("/workspaces/bulk/", {"do": "delete", "id": names}).content.decode()
    assert "Delete 1 of 3?" in asked
    assert "is already going" in asked
    assert f"{hers.slug}</bdi></code>: <bdi>is not there" in asked
    assert Workspace.objects.get(pk=mine.pk).phase == "pending", "asked, and already done"
    done = client.post("/workspaces/bulk/", {"do": "delete", "id": names, "sure": "1"}, follow=True)
    assert "1 of 3 done" in done.content.decode()
    phases = dict(Workspace.objects.values_list("slug", "phase"))
    assert (phases[mine.slug], phases[hers.slug]) == ("deleting", "pending")


def test_a_bulk_cancel_takes_only_sessions_that_run(world: dict[str, str]) -> None:
    client = browser(make_user("alice"))
    client.post("/sessions/bulk/", {"do": "cancel", "id": [world["session"]], "sure": "1"})
    assert AgentSession.objects.get().ended_reason == "cancelled"
    again = client.post("/sessions/bulk/", {"do": "cancel", "id": [world["session"]], "sure": "1"}).content.decode()
    assert "has ended" in again
    client.post("/sessions/bulk/", {"do": "delete", "id": [world["session"]], "sure": "1"})
    assert not AgentSession.objects.exists()


def test_a_link_makes_no_call_and_a_test_without_scripts_is_a_page(world: dict[str, str]) -> None:
    from agents.models import LLMProvider

    client, path = browser(make_admin()), "/compute/llm-providers/scripted/test/"
    assert client.get(path).status_code == 302
    assert LLMProvider.objects.get().health == "unknown"
    whole = client.post(path).content.decode()
    assert "<h1>Result</h1>" in whole
    assert "answered in" in whole
    assert "<html" not in client.post(path, headers={"HX-Request": "true"}).content.decode()
    assert LLMProvider.objects.get().health == "healthy"


@pytest.mark.parametrize(
    "path",
    [
        "/workspaces/providers/fake/",
        "/workspaces/templates/plain/",
        "/compute/llm-providers/scripted/",
        "/compute/agents/{agent}/",
    ],
)
def test_each_object_shows_who_did_what_with_it(path: str, world: dict[str, str]) -> None:
    path = path.format(**world)
    client = browser(make_admin())
    shown = client.get(f"{path}activity/").content.decode()
    assert ".create" in shown
    assert "Activity" in client.get(path).content.decode()
    edit = client.get(f"{path}edit/?as=yaml")
    assert edit.status_code == 200
    assert shown.count(".update") == 0
