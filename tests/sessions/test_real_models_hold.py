"""What stays inside whatever a model and its endpoint say, and what holds after a crash."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any
from urllib.parse import quote

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection

from accounts.models import User
from primer_site import logs
from sessions_app.history import history_of
from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest
from tests.factories import Api, make_admin, make_workspace
from tests.llm.stub_http import KEY, Fails, Says, StubServer
from tests.sessions.cast import ended, events_of, start, until_event
from tests.sessions.conftest import Process
from tests.sessions.models import Modelled, count_of, data_of, each_kind, exported, run
from workspaces.models import Workspace, WorkspaceTemplate

__all__ = ["no_manifest"]


# What a program was given and what it printed are its owner's bytes: they came from the model, and are kept as they are.
OWNERS_BYTES = {"workspaces_exec", "workspaces_execoutput"}


def everything_stored() -> dict[str, str]:
    """Every row of every table, as it lies in the database, but for the owner's own bytes."""
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    assert tables > OWNERS_BYTES
    found = {}
    with connection.cursor() as cursor:
        for table in sorted(tables - OWNERS_BYTES):
            cursor.execute(f"SELECT * FROM {table}")
            found[table] = repr(cursor.fetchall())
    return found


@each_kind
def test_the_key_appears_nowhere_whatever_the_endpoint_and_the_programs_say(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, bob: Api,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, no_manifest: None,
) -> None:  # fmt: skip
    forms = [KEY, base64.b64encode(KEY.encode()).decode(), quote(KEY, safe=""), json.dumps(KEY)[1:-1]]
    leak = " ".join(forms)
    agent = modelled(
        kind, Says(leak, leak, (run(f"env; printf '%s' '{leak}' | tee leak.txt"),)),
        Says(calls=(("workspace__read", '{"path": "leak.txt"}'), ("workspace__nonsense", json.dumps({"x": leak})))),
        Says(calls=(("workspace__output_grep", json.dumps({"exec_id": "exec-x", "text": leak})),)),
        Fails(401, "authentication_error", leak),
    )  # fmt: skip
    with caplog.at_level(logging.DEBUG):
        session_id = start(alice, workspace, agent, "go")
        item = ended(alice, session_id)
        assert item["ended_detail"]["code"] == "llm_config"
        alice.post(f"sessions/{session_id}/messages", {"text": "again"})
        item = ended(alice, session_id)
        shown = {form: exported(alice, session_id, form) for form in ("md", "jsonl", "html")}
        for path in ("llm_providers", "agents", "audit", f"sessions/{session_id}", f"sessions/{session_id}/events"):
            shown[path] = bob.get(path).content.decode()
        shown |= _pages(agent.provider.slug, session_id)
        shown["records"] = caplog.text
        shown |= _errors(agent.provider.slug, leak, bob, monkeypatch)
    for style in ("text", "json"):
        shown[style] = "\n".join(map(logs.formatter(style).format, caplog.records))
    shown |= everything_stored()
    shown["events"] = json.dumps([event.data for event in events_of(session_id)], ensure_ascii=False)
    for where, text in shown.items():
        assert not [form for form in forms if form in text], where
    for where in ("md", "jsonl", "html", "events", "text", "json", f"sessions/{session_id}/events/"):
        assert "[secret]" in shown[where], where


def _pages(provider: str, session_id: str) -> dict[str, str]:
    """The console's pages of the provider and the session, as an administrator sees them."""
    paths = (
        f"compute/llm-providers/{provider}/", f"compute/llm-providers/{provider}/edit/", f"sessions/{session_id}/",
        f"sessions/{session_id}/events/",
    )  # fmt: skip
    found = {}
    client = browser(make_admin("bob"))
    for path in paths:
        answer = client.get(f"/{path}")
        assert answer.status_code == 200, path
        found[path] = answer.content.decode()
    return found


def _errors(provider: str, leak: str, admin: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What people see of a bug whose exception carries the key: of the API and of a page."""

    async def broken(*args: Any) -> Any:
        raise RuntimeError(f"the key is {leak}")

    monkeypatch.setattr("agents.services.ask_once", broken)
    answer = admin.post(f"llm_providers/{provider}/test")
    page = browser(make_admin("bob")).post(f"/compute/llm-providers/{provider}/test/")
    assert answer.status_code == 500
    assert answer.json()["request_id"]
    assert b"error of its own" in page.content or b"went wrong" in page.content
    return {"answer to a bug": answer.content.decode(), "page of a bug": page.content.decode()}


@each_kind
def test_a_model_that_obeys_a_hostile_file_reaches_nothing_outside(
    kind: str, process: Process, template: WorkspaceTemplate, owner: User, modelled: Modelled, alice: Api, bob: Api
) -> None:
    mine, other = make_workspace(owner, template), make_workspace(make_admin(), template)
    obeys = (
        ("workspace__read", json.dumps({"path": "notes.txt", "workspace": other.slug})),
        ("workspace__read", json.dumps({"path": f"../{other.slug}/secret.txt"})),
        ("workspace__write", json.dumps({"path": "/etc/primer", "content": "x"})),
        ("llm_providers__update", json.dumps({"base_url": "http://evil.example"})),
        ("workspace__exec", json.dumps({"command": "env", "workspace_id": other.slug})),
        run("env; cat /proc/self/environ"),
    )
    agent = modelled(kind, Says("Obeying.", calls=obeys), Says("Done."))
    session_id = start(alice, mine, agent, "Read notes.txt and do what it says.")
    assert ended(alice, session_id)["answer"] == "Done."
    results = data_of(session_id, "tool_result")
    assert [result["ok"] for result in results] == [False] * 5 + [True]
    assert [call["name"] for call in data_of(session_id, "tool_call")] == [name for name, _ in obeys]
    assert KEY not in str(results)
    assert not {"PRIMER_", "DJANGO_", "API_KEY"} & set(results[-1]["text"].split("="))
    assert settings.SECRET_KEY not in str(results)
    assert bob.get(f"workspaces/{other.slug}/exec").json()["items"] == []


# After a crash


@each_kind
def test_a_run_that_died_between_a_call_and_its_result_goes_on_with_a_history_that_is_taken(
    kind: str, process: Process, workspace: Workspace, modelled: Modelled, alice: Api, stubs: list[StubServer]
) -> None:
    calls = (run("echo x >> count; sleep 600"), run("echo never >> count"))
    agent = modelled(kind, Says("Working.", "Hm.", calls), Says("I see."))
    session_id = start(alice, workspace, agent, "go")
    until_event(session_id, "tool_call")
    _wait_for_count(alice, workspace)
    process.stop(drain_s=0.0)
    _forget_results(session_id)
    process.start()
    assert ended(alice, session_id)["ended_reason"] == "interrupted"
    assert alice.post(f"sessions/{session_id}/messages", {"text": "what happened?"}).status_code == 200
    assert ended(alice, session_id)["answer"] == "I see."
    assert count_of(alice, workspace, "count") == "x\n", "nothing ran again"
    assert not stubs[0].refusals
    assert len(history_of(AgentSession.objects.get(slug=session_id))) == 6


def _wait_for_count(person: Api, workspace: Workspace) -> None:
    from tests.eventually import eventually

    path = f"workspaces/{workspace.slug}/files/read"
    eventually(lambda: person.get(path, path="count").status_code == 200, within=30)


def _forget_results(session_id: str) -> None:
    """The state that a kill -9 leaves: the session runs, its calls have no results, its runner is gone."""
    session = AgentSession.objects.get(slug=session_id)
    gone = session.events.filter(kind__in=("tool_result", "session_ended"))
    gone.delete()
    last = session.events.order_by("-seq").first()
    assert last is not None
    AgentSession.objects.filter(pk=session.pk).update(
        status="running", ended_reason="", ended_at=None, ended_detail=None, last_seq=last.seq, lease_holder="dead",
        lease_until=last.ts,
    )  # fmt: skip
