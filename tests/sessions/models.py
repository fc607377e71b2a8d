"""Agents on models behind HTTP, and what their transcripts say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from django.conf import settings

from accounts.audit import Actor
from accounts.models import User
from agents import services as agents
from agents.llm import llm_class
from agents.models import Agent
from tests.factories import Api, make_admin
from tests.llm.conftest import STUBS, endpoint_config
from tests.llm.stub_http import KEY, Step, StubServer
from tests.sessions.cast import EXEC, events_of, make_agent
from tests.workspaces.test_files import body_of
from workspaces.models import Workspace

KINDS = ("anthropic", "openai")
each_kind = pytest.mark.parametrize("kind", KINDS)
PRICES = {"stub-1": {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}}


class Modelled(Protocol):
    def __call__(self, kind: str, *steps: Step, agent: dict[str, Any] | None = None, **config: Any) -> Agent: ...


@pytest.fixture(scope="module")
def sdks() -> None:
    """Imported before the clock of a test runs: on a busy machine each takes many seconds."""
    for kind in KINDS:
        assert llm_class(kind).configured({"kind": kind}, KEY, kind)


@pytest.fixture
def stubs(sdks: None) -> Iterator[list[StubServer]]:
    started: list[StubServer] = []
    yield started
    for stub in started:
        stub.stop()


@pytest.fixture
def modelled(owner: User, stubs: list[StubServer], monkeypatch: pytest.MonkeyPatch) -> Modelled:
    """Makes an agent whose model is an endpoint of this machine that says the given things; `stubs[-1]` is the endpoint."""

    def make(kind: str, *steps: Step, agent: dict[str, Any] | None = None, **config: Any) -> Agent:
        stub = STUBS[kind](*steps)
        stub.start()
        stubs.append(stub)
        monkeypatch.setattr(settings, "PRIMER_LLM_HOSTS", [one.host for one in stubs])
        data = {
            "slug": f"{kind}-{len(stubs)}", "provider": kind,
            "config": endpoint_config(stub, kind, **{"api_key": KEY, "prices": PRICES, **config}),
        }  # fmt: skip
        llm = agents.llm_provider_create(by=Actor(make_admin()), data=data)
        return make_agent(owner, f"real-{len(stubs)}", llm, **{"model_name": "", **(agent or {})})

    return make


def run(command: str, **arguments: Any) -> tuple[str, str]:
    return EXEC, json.dumps({"command": command, **arguments})


def data_of(session_id: str, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in events_of(session_id) if event.kind == kind]


def exported(person: Api, session_id: str, form: str) -> str:
    return body_of(person.get(f"sessions/{session_id}/transcript", format=form)).decode()


def count_of(person: Api, workspace: Workspace, path: str) -> str:
    return str(person.get(f"workspaces/{workspace.slug}/files/read", path=path).json()["content"])
