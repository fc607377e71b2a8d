"""What a form can try before it is saved: an image, a model endpoint, an engine. Without scripts the answer is a page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from accounts.models import Role
from agents.models import LLMProvider
from primer_site import loop
from tests.agents.test_llm_providers import endpoint
from tests.console.filling import filled_in
from tests.console.site import browser, no_manifest
from tests.factories import make_admin, make_provider, make_user
from tests.llm.stub_http import KEY, Fails, StubServer
from tests.providers.fake_engine import Connections, FakeEngine, http, ok
from workspaces import engines
from workspaces.models import WorkspaceProvider

__all__ = ["endpoint", "no_manifest"]
pytestmark = pytest.mark.django_db(transaction=True)
IMAGE = {"Id": "sha256:" + "a" * 64, "Os": "linux", "Config": {"Labels": {}, "Volumes": None, "User": "", "Env": []}}
HTMX = {"HX-Request": "true"}


@pytest.fixture
def bob() -> Client:
    return browser(make_admin())


@pytest.fixture
def engine(tmp_path: Path, settings: Any) -> Iterator[FakeEngine]:
    """An engine behind a socket, and a provider `docker` that leads there."""
    path = tmp_path / "engine.sock"
    settings.PRIMER_SOCKET_DIRS = [str(tmp_path)]
    images = ok(
        [{"RepoTags": ["primer/workspace-runtime:1.0", "b:2"]}, {"RepoTags": None}, {"RepoTags": ["<none>:<none>"]}]
    )
    found = FakeEngine(
        {"/images/here:1.0/json": ok(IMAGE), "/images/here:latest/json": ok(IMAGE), "/images/json": images}
    )
    connections = Connections(found.serve)

    async def listen() -> asyncio.Server:
        return await asyncio.start_unix_server(connections, path)

    server = loop.run(listen(), 5)
    make_provider("docker", "container", {"connection": {"kind": "socket", "socket_path": str(path)}})
    yield found

    async def end() -> None:
        await engines.close_all()
        server.close()
        await connections.finish()

    loop.run(end(), 5)


def typed(client: Client, path: str, **values: str) -> dict[str, list[str]]:
    return filled_in(
        client.get(path).content.decode(), {name.replace("__", "."): text for name, text in values.items()}
    )


def checked(client: Client, image: str, **headers: str) -> str:
    form = typed(client, "/workspaces/templates/new/?provider_id=docker", backend__image=image)
    answer = client.post("/workspaces/templates/new/check/", form, headers=headers)
    assert answer.status_code == 200
    return str(answer.content.decode())


@pytest.mark.parametrize(("image", "said"), [
    ("here:1.0", "The image is on the engine."), ("gone:1.0", "<code>primer image build</code>"),
    ("registry.example/team/gone:1.0", "it is pulled when the first workspace needs it"), ("here:latest", "No fixed version"),
    ("not an image", "must be an image reference"),
])  # fmt: skip
def test_an_image_is_looked_for_before_the_template_is_saved(
    engine: FakeEngine, bob: Client, image: str, said: str
) -> None:
    part = checked(bob, image, **HTMX)
    assert said in part
    assert "<html" not in part
    assert ("sha256:aaaa" in part) == image.startswith("here")
    assert ("No fixed version" in part) == image.endswith(":latest")
    page = checked(bob, image)
    assert "<h1>Result</h1>" in page
    assert said in page
    assert bob.get("/workspaces/templates/").content.decode().count("docker/") == 0, "a check stored something"


def test_an_image_of_an_engine_that_is_away_is_a_sentence(engine: FakeEngine, bob: Client) -> None:
    engine.answers["/info"] = http(b"boom", "500 Internal Server Error")
    assert "banner red" in checked(bob, "here:1.0", **HTMX)


def test_images_of_the_chosen_engine_are_offered_and_their_lack_blocks_nothing(engine: FakeEngine, bob: Client) -> None:
    form = bob.get("/workspaces/templates/new/?provider_id=docker").content.decode()
    assert 'hx-get="/workspaces/templates/new/images/"' in form
    offered = bob.get("/workspaces/templates/new/images/?provider_id=docker", headers=HTMX).content.decode()
    assert offered == '<option value="b:2"></option><option value="primer/workspace-runtime:1.0"></option>'
    engine.answers["/images/json"] = http(b"boom", "500 Internal Server Error")
    for path in ("?provider_id=docker", "?provider_id=none", ""):
        assert bob.get(f"/workspaces/templates/new/images/{path}", headers=HTMX).status_code == 204, path


def test_an_engine_is_tested_from_the_form_within_five_seconds(
    engine: FakeEngine, bob: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WorkspaceProvider.objects.get().config["connection"]["socket_path"]
    form = typed(bob, "/workspaces/providers/new/", config__connection__socket_path=path)
    part = bob.post("/workspaces/providers/new/test/", form, headers=HTMX).content.decode()
    for said in ("docker", " ms", "cgroup", "runtimes", "egress"):
        assert said in part, said
    assert WorkspaceProvider.objects.count() == 1

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    engine.answers["/version"] = hangs
    monkeypatch.setattr("workspaces.api.UNSAVED_TIMEOUT_S", 0.2)
    part = bob.post("/workspaces/providers/new/test/", form, headers=HTMX).content.decode()
    assert "did not answer within 0.2 s" in part
    wrong = typed(bob, "/workspaces/providers/new/", config__connection__socket_path="/etc/passwd")
    assert "<h1>Result</h1>" in bob.post("/workspaces/providers/new/test/", wrong).content.decode()


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_model_is_asked_with_what_was_typed_and_the_key_is_not_shown_again(
    kind: str, bob: Client, endpoint: Callable[..., StubServer]
) -> None:
    stub = endpoint(kind)
    form = typed(
        bob, "/compute/llm-providers/new/", config__kind=kind, config__api_key=KEY, config__base_url=stub.url,
        config__default_model="stub-1",
    )  # fmt: skip
    for headers in (HTMX, {}):
        html = bob.post("/compute/llm-providers/new/test/", form, headers=headers).content.decode()
        assert "stub-1" in html
        assert "answered in" in html
        assert "req_stub_7" in html
        assert KEY not in html
    assert len(stub.asked) == 2
    assert not LLMProvider.objects.exists()
    names = bob.post("/compute/llm-providers/new/models/", form, headers=HTMX).content.decode()
    assert names == '<option value="stub-1"></option><option value="stub-2"></option>'


@pytest.mark.parametrize(("status", "kind", "said"), [
    (401, "authentication_error", "does not accept the key"), (403, "permission_error", "does not accept the key"),
    (404, "not_found_error", "does not know this model"), (429, "rate_limit_error", "has a rate limit"),
    (500, "api_error", "has an error of its own"),
])  # fmt: skip
def test_every_failure_of_an_endpoint_is_one_sentence_without_the_key(
    status: int, kind: str, said: str, bob: Client, endpoint: Callable[..., StubServer]
) -> None:
    stub = endpoint("anthropic", Fails(status, kind, f"what the endpoint says of {KEY}"))
    form = typed(bob, "/compute/llm-providers/new/", config__kind="anthropic", config__api_key=KEY, config__base_url=stub.url, config__default_model="m")  # fmt: skip
    html = bob.post("/compute/llm-providers/new/test/", form, headers=HTMX).content.decode()
    assert "banner red" in html
    assert said in html
    assert KEY not in html
    stub.stop()
    assert bob.post("/compute/llm-providers/new/models/", form, headers=HTMX).status_code == 204
    assert "banner red" in bob.post("/compute/llm-providers/new/test/", form, headers=HTMX).content.decode()


def test_a_stored_key_serves_its_own_address_and_no_other(bob: Client, endpoint: Callable[..., StubServer]) -> None:
    mine, other = endpoint("anthropic"), endpoint("anthropic")
    form = typed(bob, "/compute/llm-providers/new/", id="real", config__kind="anthropic", config__api_key=KEY, config__base_url=mine.url, config__default_model="stub-1")  # fmt: skip
    assert bob.post("/compute/llm-providers/new/", form).status_code == 303
    edit = "/compute/llm-providers/real/edit/"
    same = bob.post("/compute/llm-providers/new/test/", typed(bob, edit), headers=HTMX).content.decode()
    assert "answered in" in same
    assert KEY in str(mine.headers)
    moved = bob.post("/compute/llm-providers/new/test/", typed(bob, edit, config__base_url=other.url), headers=HTMX)
    assert "answered in" not in moved.content.decode()
    assert KEY not in str(other.headers)
    assert LLMProvider.objects.get().health == "unknown", "a test of what is not stored says nothing of what is"


def test_models_of_a_stored_provider_are_offered_to_an_agent_and_their_lack_blocks_nothing(
    bob: Client, endpoint: Callable[..., StubServer]
) -> None:
    stub = endpoint("openai")
    form = typed(
        bob,
        "/compute/llm-providers/new/",
        id="real",
        config__kind="openai",
        config__api_key=KEY,
        config__base_url=stub.url,
    )
    assert bob.post("/compute/llm-providers/new/", form).status_code == 303
    alice = browser(make_user())
    assert 'hx-get="/compute/agents/new/models/"' in alice.get("/compute/agents/new/").content.decode()
    path = "/compute/agents/new/models/?model.provider_id="
    assert "stub-2" in alice.get(f"{path}real", headers=HTMX).content.decode()
    stub.stop()
    for slug in ("real", "none", ""):
        assert alice.get(path + slug, headers=HTMX).status_code == 204, slug


def test_who_may_not_make_one_may_not_try_one(bob: Client) -> None:
    for user in (make_user("alice"), make_user("victor", Role.VIEWER)):
        client = browser(user)
        for path in ("/workspaces/templates/new/check/", "/workspaces/providers/new/test/", "/compute/llm-providers/new/test/",
                     "/compute/llm-providers/new/models/"):  # fmt: skip
            assert client.post(path).status_code == 403, path
        assert client.get("/workspaces/templates/new/images/").status_code == 403


@pytest.mark.parametrize(
    "path", ["/workspaces/templates/new/check/", "/workspaces/providers/new/test/", "/compute/llm-providers/new/test/"]
)
def test_a_link_tries_nothing(path: str, bob: Client) -> None:
    assert bob.get(path).status_code == 302
