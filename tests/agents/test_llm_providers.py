"""Model endpoints over the API: keys that are written and never read, addresses that are refused, one tiny call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from accounts.models import AuditEntry
from agents.models import LLMProvider
from agents.services import llm_provider_key, llm_provider_open
from primer_site import vault
from tests.agents.test_api import RUNNER, refused
from tests.factories import Api, api, make_admin, make_user
from tests.llm.conftest import STUBS, endpoint_config
from tests.llm.stub_http import KEY, Fails, StubServer

pytestmark = pytest.mark.django_db
KINDS = ("anthropic", "openai")
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def alice() -> Api:
    return api(make_user("alice"))


@pytest.fixture
def bob() -> Api:
    return api(make_admin("bob"))


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StubServer]]:
    started: list[StubServer] = []

    def start(kind: str, *steps: Any) -> StubServer:
        stub = STUBS[kind](*steps)
        stub.start()
        started.append(stub)
        monkeypatch.setattr(settings, "PRIMER_LLM_HOSTS", [one.host for one in started])
        return stub

    yield start
    for stub in started:
        stub.stop()


def provider(kind: str, /, **config: Any) -> dict[str, Any]:
    return {"id": "real", "provider": kind, "config": {"kind": kind} | config}


def stored() -> str:
    """Everything of the provider's row and of the audit log, as it lies in the database."""
    with connection.cursor() as cursor:
        rows = []
        for table in (LLMProvider._meta.db_table, AuditEntry._meta.db_table, "accounts_idempotencykey"):
            cursor.execute(f"SELECT * FROM {table}")
            rows += cursor.fetchall()
    return repr(rows)


@each_kind
def test_a_key_is_written_and_never_read(kind: str, bob: Api, alice: Api) -> None:
    answer = bob.post("llm_providers", provider(kind, api_key=KEY), headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201, answer.content
    shown = {"set": True, "last4": "alue"}
    assert answer.json()["config"]["api_key"] == shown
    assert bob.get("llm_providers/real").json()["config"]["api_key"] == shown
    assert alice.get("llm_providers/real").json()["config"] == {"kind": kind}
    assert KEY not in stored()
    assert KEY not in answer.content.decode()
    assert vault.unseal(LLMProvider.objects.get().secrets) == {"api_key": KEY}


@each_kind
def test_what_was_read_may_be_put_back_and_changes_nothing(kind: str, bob: Api) -> None:
    shown = bob.post("llm_providers", provider(kind, api_key=KEY, default_model="m")).json()
    etag = bob.get("llm_providers/real")["ETag"]
    answer = bob.put("llm_providers/real", shown)
    assert (answer.status_code, answer["ETag"], answer.json()) == (200, etag, shown)
    assert llm_provider_key(LLMProvider.objects.get()) == KEY


@each_kind
def test_a_key_that_is_left_out_stays_null_removes_it_and_another_address_drops_it(
    kind: str, bob: Api, endpoint: Callable[..., StubServer]
) -> None:
    bob.post("llm_providers", provider(kind, api_key=KEY))
    kept = bob.patch("llm_providers/real", {"config": {"kind": kind, "default_model": "m"}}).json()
    assert kept["config"]["api_key"]["set"]
    stub = endpoint(kind)
    moved = bob.patch("llm_providers/real", {"config": endpoint_config(stub, kind)}).json()
    assert moved["config"]["api_key"] == {"set": False, "last4": None}
    assert KEY not in repr(vault.unseal(LLMProvider.objects.get().secrets))
    bob.patch("llm_providers/real", {"config": endpoint_config(stub, kind, api_key=KEY)})
    gone = bob.patch("llm_providers/real", {"config": endpoint_config(stub, kind, api_key=None)}).json()
    assert not gone["config"]["api_key"]["set"]


def test_a_key_never_goes_to_another_kind_of_provider(bob: Api) -> None:
    bob.post("llm_providers", provider("anthropic", api_key=KEY))
    changed = bob.put("llm_providers/real", provider("openai")).json()
    assert not changed["config"]["api_key"]["set"]


def test_a_key_of_the_environment_is_named_and_used(bob: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_API_KEY", KEY)
    shown = bob.post("llm_providers", provider("openai", api_key_env="TEST_MODEL_API_KEY")).json()
    assert shown["config"]["api_key_env"] == "TEST_MODEL_API_KEY"
    assert KEY not in json.dumps(shown)
    row = LLMProvider.objects.get()
    assert llm_provider_key(row) == KEY
    assert llm_provider_open(slug="real").endpoint.key == KEY  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"api_key_env": "PRIMER_SECRET_KEY"}, "config.api_key_env", "_API_KEY"),
        ({"api_key_env": "PRIMER_X_API_KEY"}, "config.api_key_env", "_API_KEY"),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, "config.api_key_env", "_API_KEY"),
        ({"api_key_env": "X_API_KEY", "api_key": "sk-1"}, "config.api_key_env", "together"),
        ({"api_key": "********"}, "config.api_key", "masked"), ({"api_key": ""}, "config.api_key", "1 to 4096"),
        ({"api_key": "a\nb"}, "config.api_key", "printable"), ({"api_key": 5}, "config.api_key", "printable"),
        ({"base_url": "http://models.example/v1"}, "config.base_url", "must be https"),
        ({"base_url": "https://user:pw@models.example"}, "config.base_url", "api_key"),
        ({"base_url": "file:///etc/passwd"}, "config.base_url", "must look like"),
        ({"base_url": "https://127.0.0.1:9/v1"}, "config.base_url", "PRIMER_LLM_HOSTS"),
        ({"base_url": "https://2130706433/v1"}, "config.base_url", "PRIMER_LLM_HOSTS"),
        ({"base_url": "https://[::ffff:10.0.0.1]/v1"}, "config.base_url", "PRIMER_LLM_HOSTS"),
        ({"base_url": "https://169.254.169.254/latest"}, "config.base_url", "private address"),
        ({"prices": {"m": {"input": -1, "output": 1}}}, "config.prices.m.input", ""),
        ({"prices": {"m": {"input": 1}}}, "config.prices.m.output", "required"),
        ({"prices": {"m": {"input": 1, "output": 1, "in": 2}}}, "config.prices.m.in", "unknown"),
        ({"timeout_s": 0}, "config.timeout_s", ""), ({"max_concurrency": 0}, "config.max_concurrency", ""),
        ({"max_retries": 21}, "config.max_retries", ""), ({"turns": []}, "config.turns", "unknown"),
        ({"model": "x"}, "config.model", "unknown"),
    ],
)  # fmt: skip
@each_kind
def test_a_configuration_that_cannot_be_kept_is_refused_by_its_field(
    kind: str, change: dict[str, Any], field: str, words: str, bob: Api
) -> None:
    problem = refused(bob.post("llm_providers", provider(kind, **change)), 422, "invalid", field, words)
    assert KEY not in json.dumps(problem)
    assert not LLMProvider.objects.exists()


def test_a_name_that_leads_nowhere_yet_is_stored(bob: Api) -> None:
    answer = bob.post("llm_providers", provider("openai", base_url="https://models.invalid/v1", default_model="m"))
    assert answer.status_code == 201, answer.content
    tested = bob.post("llm_providers/real/test").json()
    assert (tested["ok"], tested["code"]) == (False, "llm_unavailable")
    assert "models.invalid" in tested["message"]


@each_kind
def test_a_test_asks_the_endpoint_once_and_lists_its_models(
    kind: str, bob: Api, endpoint: Callable[..., StubServer]
) -> None:
    stub = endpoint(kind)
    assert bob.post("llm_providers", provider(kind, **endpoint_config(stub, kind, api_key=KEY))).status_code == 201
    tested = bob.post("llm_providers/real/test").json()
    assert (tested["ok"], tested["model"]) == (True, "stub-1"), tested
    assert len(stub.asked) == 1
    assert bob.get("llm_providers/real/models").json() == {"items": ["stub-1", "stub-2"]}
    assert bob.get("llm_providers/real").json()["status"]["health"] == "healthy"


@each_kind
def test_a_test_that_fails_says_why_without_the_key(kind: str, bob: Api, endpoint: Callable[..., StubServer]) -> None:
    stub = endpoint(kind, Fails(401, "authentication_error", f"Incorrect API key provided: {KEY}"))
    bob.post("llm_providers", provider(kind, **endpoint_config(stub, kind, api_key=KEY)))
    tested = bob.post("llm_providers/real/test")
    assert (tested.json()["ok"], tested.json()["code"]) == (False, "llm_config")
    assert "does not accept the key" in tested.json()["message"]
    assert KEY not in tested.content.decode() + bob.get("llm_providers/real").content.decode() + stored()


@each_kind
def test_an_endpoint_without_a_key_of_its_own_needs_none(
    kind: str, bob: Api, endpoint: Callable[..., StubServer]
) -> None:
    stub = endpoint(kind)
    stub.needs_key = False
    bob.post("llm_providers", provider(kind, **endpoint_config(stub, kind)))
    assert bob.post("llm_providers/real/test").json()["ok"]
    wrong = refused(
        bob.post("llm_providers", {**provider(kind), "id": "own"}), 422, "invalid", "config.api_key", "is required"
    )
    assert "api_key_env" in wrong["errors"][0]["message"]
    bob.post("llm_providers", {**provider(kind, api_key=KEY), "id": "own"})
    bob.patch("llm_providers/own", {"config": {"kind": kind, "api_key": None}})
    assert "has no key" in bob.post("llm_providers/own/test").json()["message"]


def test_thinking_that_the_kind_cannot_keep_is_refused(bob: Api, alice: Api) -> None:
    bob.post("llm_providers", provider("openai", api_key=KEY))
    bob.post("llm_providers", {**provider("anthropic", api_key=KEY), "id": "deep"})
    body = {**RUNNER, "model": {"provider_id": "real", "model_name": "m"}, "thinking": "auto"}
    refused(alice.post("agents", body), 422, "invalid", "thinking", "must be off")
    assert alice.post("agents", {**body, "model": {"provider_id": "deep"}}).status_code == 201
    refused(
        alice.patch("agents/code-runner", {"model": {"provider_id": "real"}}), 422, "invalid", "thinking", "must be off"
    )
