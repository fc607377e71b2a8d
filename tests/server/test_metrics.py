"""/metrics: who may read it, what it costs, and that nothing in it names anybody."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from accounts.models import Scope
from primer_site import metrics, services
from sessions_app.models import AgentSession
from tests.eventually import eventually
from tests.factories import Api, make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent
from tests.workspaces.conftest import create, until
from workspaces.models import Phase, Workspace

pytestmark = pytest.mark.django_db
TOKEN = "a-token-of-the-scraper"


def scrape(client, token: str = "", api: Api | None = None):
    headers = {"Authorization": f"Bearer {token}"} if token else api.headers if api else {}
    return client.get("/metrics", headers=headers)


def read(client) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names) -> value."""
    text = scrape(client, api=Api(make_admin())).content.decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *[s.labels[k] for k in sorted(s.labels)]): s.value for f in families for s in f.samples}


# who


def test_nobody_is_refused(client):
    assert scrape(client).status_code == 401


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_only_admins_may_read_it(client, role):
    answer = scrape(client, api=Api(make_user("carol", role)))
    assert answer.status_code == 403
    assert "This needs the role admin" in answer.json()["detail"]


@pytest.mark.parametrize("scope", [Scope.READ, Scope.ADMIN])
def test_an_admins_token_of_any_scope_reads_it(client, scope):
    answer = scrape(client, api=Api(make_admin(), scope))
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=")


def test_the_scrapers_own_token_opens_metrics_and_nothing_else(client, settings):
    settings.PRIMER_METRICS_TOKEN = TOKEN
    assert scrape(client, TOKEN).status_code == 200
    assert scrape(client, TOKEN + "x").status_code == 401
    for path in ("/v1/me", "/v1/workspaces", "/readyz"):
        assert client.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 401


def test_without_the_setting_an_empty_token_opens_nothing(client, settings):
    settings.PRIMER_METRICS_TOKEN = ""
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 401


# what


def test_live_workspaces_are_counted_by_phase_with_every_phase_named(client):
    make_workspace()
    Workspace.objects.filter(pk=make_workspace().pk).update(phase=Phase.FAILED)
    found = read(client)
    phases = {key[1]: value for key, value in found.items() if key[0] == "primer_workspaces"}
    assert phases == dict.fromkeys(Phase.values, 0.0) | {"pending": 1.0, "failed": 1.0}


def test_the_age_of_the_queue_is_that_of_its_oldest_session(client):
    assert read(client)[("primer_queue_age_seconds",)] == 0
    owner = make_user()
    agent, workspace = make_agent(owner), make_workspace(owner)
    for minutes in (1, 10):
        AgentSession.objects.create(
            owner=owner, agent=agent, workspace=workspace, agent_spec={}, initial_instructions="x",
            queued_at=timezone.now() - timedelta(minutes=minutes),
        )  # fmt: skip
    found = read(client)
    assert 600 <= found[("primer_queue_age_seconds",)] < 700
    assert found[("primer_sessions", "queued")] == 2


def test_the_number_of_queries_does_not_grow_with_the_rows(client, django_assert_num_queries, settings):
    settings.PRIMER_METRICS_TOKEN = TOKEN
    with django_assert_num_queries(4):
        scrape(client, TOKEN)
    template = make_template(provider=make_provider())
    for _ in range(20):
        make_workspace(template=template)
    with django_assert_num_queries(4):
        scrape(client, TOKEN)


def test_requests_are_counted_without_their_paths(client):
    before = read(client).get(("primer_http_requests_total", "GET", "4xx"), 0)
    client.get("/v1/workspaces/ws-0123456789abcdef")
    client.generic("BREW", "/v1/coffee")
    found = read(client)
    assert found[("primer_http_requests_total", "GET", "4xx")] == before + 1
    assert any(key[:2] == ("primer_http_requests_total", "other") for key in found)


def test_no_label_holds_an_id_a_name_or_an_address(client, monkeypatch):
    monkeypatch.setattr(services, "_up", {"runner": True})
    workspace = make_workspace(make_user("a-name-to-look-for"))
    client.get(f"/v1/workspaces/{workspace.slug}")
    text = scrape(client, api=Api(make_admin())).content.decode()
    assert not re.search(r"(ws|sess|exec)-[0-9a-f]{16}|a-name-to-look-for|127\.0\.0\.1|/v1/", text)


def test_a_command_counts_with_its_verdict_and_its_overhead(client, template, process, alice):
    """A real run through the fake engine."""
    before = read(client)
    workspace = create(alice)
    until(alice, workspace, "running")
    assert alice.post(f"workspaces/{workspace}/exec", {"command": "exit 3"}).json()["exit_code"] == 3
    after = eventually(lambda: counted(read(client), before, "primer_execs_total", "exit"), within=10)

    def grew(*key: str) -> float:
        return float(after[key] - before.get(key, 0))

    assert grew("primer_execs_total", "exit") == 1
    assert grew("primer_exec_overhead_seconds_count") == 1
    assert 0 <= grew("primer_exec_overhead_seconds_sum") < 60
    assert grew("primer_workspace_start_seconds_count") == 1


def counted(after, before, *key: str):
    """The new state once the counter has grown: it does so just after the answer."""
    return after if after.get(key, 0) > before.get(key, 0) else None


def test_a_clock_that_was_set_back_gives_no_negative_time():
    metrics.events_seen(timezone.now() + timedelta(hours=1))
    metrics.workspace_seen(
        [{"phase": "pending", "at": (timezone.now() + timedelta(hours=1)).isoformat(), "reason": ""}]
    )
    for family in metrics.REGISTRY.collect():
        assert all(sample.value >= 0 for sample in family.samples if sample.name.endswith("_sum"))


def test_tokens_and_failures_of_models_are_counted_by_kind(client):
    before = read(client)
    metrics.llm_used("scripted", {"input_tokens": 5, "output_tokens": 0, "cost": 1.5})
    metrics.llm_failed("scripted", "llm_unavailable")
    after = read(client)
    tokens, errors = (
        ("primer_llm_tokens_total", "input", "scripted"),
        ("primer_llm_errors_total", "llm_unavailable", "scripted"),
    )
    assert after[tokens] - before.get(tokens, 0) == 5
    assert after[errors] - before.get(errors, 0) == 1


def test_a_full_disk_is_counted_by_itself_and_not_as_a_fault_of_the_server(client):
    before = read(client)
    metrics.request_seen("PUT", 507, 0.001)
    metrics.request_seen("PUT", 503, 0.001)
    after = read(client)
    for status in ("507", "5xx"):
        name = ("primer_http_requests_total", "PUT", status)
        assert after[name] - before.get(name, 0) == 1, status
