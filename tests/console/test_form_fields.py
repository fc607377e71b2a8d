"""Fields of the forms: their words are the API's, their names stand once, and what a browser posts is what is stored."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import URLResolver, get_resolver

from agents.models import Agent, LLMProvider
from cli.published import kinds_of
from cli.wording import SOURCE, described
from primer_site import vault
from primer_site.resource import RESERVED_IDS
from tests.console.filling import Controls, fill, filled_in
from tests.console.site import browser, no_manifest, world
from tests.factories import api, make_admin, make_provider, make_template, make_user
from tests.sessions.cast import make_agent, make_llm_provider
from workspaces.models import WorkspaceProvider, WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
FORMS = {
    "workspace_provider": "/workspaces/providers/new/",
    "workspace_template": "/workspaces/templates/new/?provider_id=docker",
    "workspace": "/workspaces/new/",
    "llm_provider": "/compute/llm-providers/new/",
    "agent": "/compute/agents/new/",
    "session": "/sessions/new/",
}
# Every field of the page that fixes them; `provider` and `kind` of a config are one choice.
FIELDS = {
    "workspace_provider": "id config.kind config.runtime config.connection.kind config.connection.socket_path config.connection.url config.connection.tls.ca "
    "config.connection.tls.cert config.connection.tls.key config.reachability.kind config.reachability.bind_host config.root_path description labels",
    "workspace_template": "id description provider_id backend.kind backend.image backend.cpu_cores backend.memory_bytes backend.network.egress "
    "backend.network.mode backend.pids_limit backend.disk_bytes backend.disk_medium backend.engine_runtime backend.workdir env files init_commands "
    "idle_timeout_s max_age_s require labels",
    "workspace": "template_id name labels env ttl_s",
    "llm_provider": "id config.kind config.api_key config.api_key_env config.base_url config.default_model config.timeout_s config.max_retries "
    "config.max_concurrency config.prices config.turns description labels",
    "agent": "id description model.provider_id model.model_name tools system_prompt limits.max_turns limits.max_tool_calls limits.timeout_s "
    "limits.max_tokens temperature max_output_tokens thinking thinking.budget_tokens labels",
    "session": "agent_id workspace_id initial_instructions limits.max_turns limits.max_tool_calls limits.timeout_s limits.max_tokens labels",
}  # fmt: skip


@pytest.fixture
def admin(world: dict[str, str]) -> Any:
    make_provider("docker", "container")
    return browser(make_admin())


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_has_every_field_and_says_what_the_api_says_of_it(kind: str, admin: Any) -> None:
    published: dict[str, str] = {}
    for path, text in described(kinds_of(yaml.safe_load(SOURCE.read_text()))[kind]):
        published.setdefault(path, text)
    answer = admin.get(FORMS[kind])
    shown = {one.field.path: one.field.help for one in answer.context["form"].bound()}
    shown.pop("_known", None)  # is asked of a person, and no part of the object
    assert sorted(shown) == sorted(FIELDS[kind].split())
    assert shown == {path: published[path] for path in shown}
    text = re.sub(r"\s+", " ", answer.content.decode())
    for path, sentence in shown.items():
        place = re.search(rf'id="f-{re.escape(path.replace(".", "-"))}-help">(.*?)</p>', text)
        assert place is not None, path
        assert unescape(re.sub(r"</?code>", "`", place.group(1))).startswith(sentence), path


def test_no_page_writes_the_words_of_a_field_by_hand() -> None:
    found = [
        path.name for app in ("workspaces", "agents", "sessions_app") for path in (ROOT / app / "pages").glob("*.py")
        if "help=" in path.read_text()
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("path", FORMS.values())
def test_no_name_and_no_id_stands_twice_in_a_form(path: str, admin: Any) -> None:
    controls = Controls(admin.get(path).content.decode())
    rows = {name for name, _ in controls.pairs if name.endswith((".key", ".value", ".kind")) or name == "system_prompt"}
    names = Counter(name for name, _ in controls.pairs if name not in rows)
    assert [name for name, count in names.items() if count > 1] == []
    assert [one for one, count in Counter(controls.ids).items() if count > 1] == []


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_model_with_a_key_is_made_by_its_form(kind: str, admin: Any) -> None:
    values = {
        "id": "claude", "config.kind": kind, "config.api_key": "sk-a-key-of-mine", "config.default_model": "a-model", "config.timeout_s": "30",
        "config.prices.model": "a-model", "config.prices.input": "3", "config.prices.output": "15",
    }  # fmt: skip
    answer = fill(admin, "/compute/llm-providers/new/", values)
    assert answer.status_code == 303, re.findall(r'class="error"[^>]*>.*?</p>', answer.content.decode())
    row = LLMProvider.objects.get(slug="claude")
    assert (row.provider, row.config["default_model"], row.config["timeout_s"]) == (kind, "a-model", 30)
    assert row.config["prices"] == {"a-model": {"input": 3, "output": 15}}
    assert vault.unseal(row.secrets) == {"api_key": "sk-a-key-of-mine"}


def test_a_scripted_model_takes_its_turns_from_the_form(admin: Any) -> None:
    values = {
        "id": "played",
        "config.kind": "scripted",
        "config.turns": "- text: Hello.",
        "config.default_model": "play",
    }
    assert fill(admin, "/compute/llm-providers/new/", values).status_code == 303
    config = LLMProvider.objects.get(slug="played").config
    assert (config["turns"], config["default_model"]) == ([{"text": "Hello."}], "play")
    assert "api_key" not in config


def test_a_template_made_by_its_form_has_what_the_form_shows(admin: Any) -> None:
    answer = fill(
        admin, FORMS["workspace_template"], {"id": "box", "backend.cpu_cores": "0.5", "idle_timeout_s": "600"}
    )
    assert answer.status_code == 303, re.findall(r'class="error"[^>]*>.*?</p>', answer.content.decode())
    template = WorkspaceTemplate.objects.get(slug="box")
    assert (template.provider.slug, template.backend["kind"], template.backend["cpu_cores"]) == (
        "docker",
        "container",
        0.5,
    )
    assert (template.backend["network"]["egress"], template.idle_timeout_s) == ("deny_all", 600)


def test_a_budget_for_thinking_is_given_kept_and_taken_back_by_the_form(admin: Any) -> None:
    make_llm_provider()
    LLMProvider.objects.filter(slug="scripted").update(provider="anthropic", config={"kind": "anthropic"})
    values = {"id": "deep", "model.provider_id": "scripted", "thinking": "budget", "thinking.budget_tokens": "2048"}
    assert fill(admin, "/compute/agents/new/", values).status_code == 303
    assert Agent.objects.get(slug="deep").thinking == {"budget_tokens": 2048}
    assert fill(admin, "/compute/agents/deep/edit/", {"description": "more"}).status_code == 303
    assert Agent.objects.get(slug="deep").thinking == {"budget_tokens": 2048}
    assert fill(admin, "/compute/agents/deep/edit/", {"thinking": "off"}).status_code == 303
    assert Agent.objects.get(slug="deep").thinking == "off"


def test_limits_carry_what_they_are_worth_on_the_chosen_provider(admin: Any) -> None:
    row = WorkspaceProvider.objects.get(slug="docker")
    row.enforces = {"cpu": "enforced", "memory": "soft", "pids": "unavailable", "disk": "soft", "egress": "enforced"}
    row.engine = {
        "cpus": 2,
        "memory_bytes": 2**30,
        "limit_reasons": {"memory": "The kernel does not count swap."},
        "runtimes": ["runsc"],
    }
    row.save()
    html = admin.get(FORMS["workspace_template"]).content.decode()

    def beside(name: str) -> str:
        found = re.search(rf'id="f-backend-{name}-help">(.*?)</p>', html, re.DOTALL)
        assert found is not None, name
        return found.group(1)

    for name, word in (("cpu_cores", "enforced"), ("memory_bytes", "soft"), ("pids_limit", "unavailable"), ("disk_bytes", "soft"), ("network-egress", "enforced")):  # fmt: skip
        assert f"<span>{word}</span>" in beside(name), name
    assert "The kernel does not count swap." in beside("memory_bytes")
    assert '<option value="runsc">' in html
    more = {"backend.cpu_cores": "64", "backend.memory_bytes": "2048", "id": "", "_redraw": "1"}
    html = admin.post(
        "/workspaces/templates/new/", {"provider_id": "docker", "backend.kind": "container", **more}
    ).content.decode()
    assert "The engine has 2 cores." in beside("cpu_cores")
    assert "The engine has 1073741824 bytes of memory." in beside("memory_bytes")


def test_another_provider_brings_its_own_kind_along(admin: Any, settings: Any) -> None:
    settings.PRIMER_ALLOW_LOCAL = True
    make_provider("here", "local", {"root_path": "/tmp/x"})
    body = {"id": "x", "provider_id": "here", "backend.kind": "container", "backend.image": "a:1", "_redraw": "1"}
    answer = admin.post("/workspaces/templates/new/", body)
    assert answer.status_code == 200
    assert '<option value="local" selected>' in answer.content.decode()
    assert "Nothing is isolated" in answer.content.decode()


def test_require_enforced_names_the_limit_that_is_not(admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from workspaces import api
    from workspaces.providers.base import ImageCheck

    async def found(*_: Any) -> ImageCheck:
        return ImageCheck(True, limits={"cpu": "enforced", "disk": "soft"}, reasons={"disk": "A volume has no quota."})

    monkeypatch.setattr(api, "_check_image", found)
    answer = fill(admin, FORMS["workspace_template"], {"id": "strict", "require": "enforced"})
    assert answer.status_code == 422
    html = answer.content.decode()
    assert "disk (soft)" in html
    assert 'href="#f-require"' in html
    assert "A volume has no quota." in html


@pytest.mark.parametrize("word", ["new", "bulk", "check"])
def test_an_id_that_is_a_page_of_its_own_is_refused_in_a_sentence(word: str, admin: Any) -> None:
    make_template("there", provider=WorkspaceProvider.objects.get(slug="docker"))
    answer = fill(admin, "/compute/agents/new/", {"id": word, "model.provider_id": "scripted"})
    assert answer.status_code == 422
    assert (
        "is one of the words that have a page of their own (bulk, check, new): choose another"
        in answer.content.decode()
    )


def test_a_size_says_how_many_bytes_it_is(admin: Any) -> None:
    html = admin.get(FORMS["workspace_template"]).content.decode()
    assert "= 536870912 bytes" in html


def test_the_summary_of_a_refusal_is_escaped_once(admin: Any) -> None:
    html = admin.post("/compute/agents/new/", {"id": "No", "labels.key": "!", "labels.value": "<b>"}).content.decode()
    summary = html[html.index('role="alert"') : html.index('class="edit"')]
    assert "key &#x27;!&#x27; must be" in summary
    assert "&amp;" not in summary


def test_a_refused_choice_is_marked_where_it_is_made(admin: Any) -> None:
    answer = admin.post("/workspaces/providers/new/", {"id": "x", "config.kind": "kubernetes"})
    assert answer.status_code == 422
    html = answer.content.decode()
    assert 'data-guard="touched"' in html, "what was typed is not lost without a question"
    assert 'data-guard=""' in admin.get("/workspaces/providers/new/").content.decode()
    assert re.search(r'role="radiogroup" aria-labelledby="f-config-kind-legend"[^>]*aria-invalid="true"', html)
    assert 'class="choice" id="f-config-kind"' in html
    assert 'href="#f-config-kind"' in html


def test_a_conflict_shows_what_differs_and_never_a_secret_that_was_typed() -> None:
    row = make_llm_provider("claude")
    LLMProvider.objects.filter(pk=row.pk).update(provider="anthropic", config={"kind": "anthropic"})
    client, path = browser(make_admin()), "/compute/llm-providers/claude/edit/"
    html = client.get(path).content.decode()
    row.refresh_from_db()
    row.write_spec({"description": "theirs"})
    refused = client.post(path, filled_in(html, {"config.api_key": "sk-typed-just-now", "description": "mine"}))
    assert refused.status_code == 422
    assert "Overwrite" in refused.content.decode()
    assert "typed in this form" in refused.content.decode()
    assert "sk-typed-just-now" not in refused.content.decode()


def test_a_conflict_of_the_yaml_form_shows_what_differs() -> None:
    agent = make_agent(make_user())
    client, path = browser(make_user()), f"/compute/agents/{agent.slug}/edit/?as=yaml"
    text = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", client.get(path).content.decode(), re.DOTALL)
    assert text is not None
    form = {
        "_form": "yaml",
        "yaml": re.sub(r"description: .*", "description: mine", unescape(text.group(1))),
        "_rev": str(agent.spec_rev),
    }
    agent.write_spec({"description": "theirs"})
    html = client.post(path, form).content.decode()
    assert "<code><bdi>&quot;theirs&quot;</bdi></code>" in html
    assert "<code><bdi>&quot;mine&quot;</bdi></code>" in html


def words_at_ids() -> dict[str, set[str]]:
    """Where a route has an id: the words that other routes have there, by what stands before it."""
    routes = [route.split("/") for route in routes_below(get_resolver().url_patterns, "")]
    found: dict[str, set[str]] = {}
    for route in routes:
        for place, part in enumerate(route):
            if part.startswith("<str:"):
                words = {other[place] for other in routes if len(other) > place and other[:place] == route[:place]}
                found["/".join(route[:place])] = {word for word in words if word and "<" not in word}
    return found


def routes_below(patterns: list[Any], before: str) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        here = before + str(pattern.pattern)
        found += routes_below(pattern.url_patterns, here) if isinstance(pattern, URLResolver) else [here]
    return found


def test_every_word_that_shadows_an_id_is_reserved_and_no_other() -> None:
    words = words_at_ids()
    made_here = {
        "v1/workspaces",
        "workspaces",
        "v1/sessions",
        "sessions",
        "files",
    }  # ids of the server: no word is like them
    chosen = [found for before, found in words.items() if before not in made_here and not before.endswith("/exec")]
    assert {"v1/agents", "compute/agents", "workspaces/templates", "v1/workspace_providers"} <= set(words)
    assert set().union(*chosen) <= RESERVED_IDS, "an object of that name could not be reached"
    assert set().union(*words.values()) >= RESERVED_IDS, "refused for nothing"


KINDS_WITH_IDS: dict[str, dict[str, Any]] = {
    "workspace_providers": {"provider": "container", "config": {"kind": "container"}},
    "workspace_templates": {"provider_id": "docker", "backend": {"kind": "container", "image": "a:1"}},
    "llm_providers": {"provider": "scripted", "config": {"kind": "scripted"}},
    "agents": {"model": {"provider_id": "scripted"}},
}  # fmt: skip


@pytest.mark.parametrize("plural", KINDS_WITH_IDS)
def test_a_reserved_id_is_refused_at_creation_and_kept_where_it_is_stored(plural: str, admin: Any) -> None:
    bob = api(make_admin())
    for word in RESERVED_IDS:
        refused = bob.post(plural, {"id": word, **KINDS_WITH_IDS[plural]})
        assert refused.status_code == 422
        messages = {one["field"]: one["message"] for one in refused.json()["errors"]}
        assert "have a page of their own (bulk, check, new)" in messages["id"], word
    if plural == "agents":  # one of an earlier version can still be changed and removed
        row = make_agent(make_user(), slug="check")
        assert bob.patch(f"agents/{row.slug}", {"description": "more"}).status_code == 200
        assert bob.put("agents/check", {"id": "check", **KINDS_WITH_IDS[plural]}).status_code == 200
        assert bob.delete("agents/check").status_code == 204


def test_a_local_provider_is_made_only_by_who_ticked_that_nothing_is_isolated(admin: Any, settings: Any) -> None:
    settings.PRIMER_ALLOW_LOCAL = True
    values = {"id": "here", "config.kind": "local", "config.root_path": "/tmp/primer-local"}
    refused = fill(admin, "/workspaces/providers/new/", values)
    assert refused.status_code == 422
    assert 'href="#f-_known"' in refused.content.decode()
    page = admin.get("/workspaces/providers/new/").content.decode()
    form = filled_in(page, values) | {"_known": ["1"]}
    assert admin.post("/workspaces/providers/new/", form).status_code == 303
    assert WorkspaceProvider.objects.get(slug="here").provider == "local"


def test_limits_of_a_new_session_show_what_the_chosen_agent_has(admin: Any) -> None:
    make_agent(make_user(), slug="short", limits={"max_turns": 7})
    html = admin.get("/sessions/new/?agent_id=short").content.decode()
    assert re.search(r'name="limits.max_turns" value="" placeholder="7"', html)
