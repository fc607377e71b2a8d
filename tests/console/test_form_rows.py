"""Fields of several values: a row for each, added, moved and removed without scripts; nothing of what is stored gets lost."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from agents.models import Agent, LLMProvider
from tests.console.filling import Controls, filled_in
from tests.console.site import browser, no_manifest, world
from tests.factories import make_admin, make_provider, make_template
from tests.sessions.cast import make_llm_provider
from workspaces.models import WorkspaceTemplate

__all__ = ["no_manifest", "world"]
pytestmark = pytest.mark.django_db
BYTES = base64.b64encode(bytes(range(256))).decode()


@pytest.fixture
def admin(world: dict[str, str]) -> Any:
    return browser(make_admin())


@pytest.fixture
def box() -> WorkspaceTemplate:
    files = [
        {"path": "a.txt", "content_base64": base64.b64encode(b"one\ntwo\n").decode(), "mode": 0o600},
        {"path": "b.bin", "content_base64": BYTES, "mode": 0o644},
    ]
    commands = [["echo", "a b"], ["sh", "-c", "set -e\nmake"]]
    return make_template("box", make_provider("docker", "container"), files=files, init_commands=commands)


def press(client: Any, path: str, button: str, value: str, **typed: str) -> str:
    """The page that comes back when a button of the form is pressed; nothing may have been stored."""
    posted = filled_in(client.get(path).content.decode(), {k.replace("__", "."): v for k, v in typed.items()})
    answer = client.post(path, posted | {button: [value]})
    assert answer.status_code == 200
    return str(answer.content.decode())


def values(html: str, name: str) -> list[str]:
    return [value for key, value in Controls(html).pairs if key == name]


def test_files_and_commands_that_nobody_touches_stay_as_they_are(admin: Any, box: WorkspaceTemplate) -> None:
    before = (box.files, box.init_commands)
    page = admin.get("/workspaces/templates/box/edit/").content.decode()
    assert admin.post("/workspaces/templates/box/edit/", filled_in(page, {"description": "x"})).status_code == 303
    box.refresh_from_db()
    assert (box.files, box.init_commands) == before
    assert box.description == "x"


def test_a_file_is_added_changed_and_removed_by_its_row(admin: Any, box: WorkspaceTemplate) -> None:
    path = "/workspaces/templates/box/edit/"
    posted = filled_in(admin.get(path).content.decode(), {})
    assert posted["files.path"] == ["a.txt", "b.bin", ""]
    posted["files.path"] = ["", "b.bin", "c.txt"]
    posted["files.content"], posted["files.mode"] = ["", "text now", "new\r\n"], ["", "0644", ""]
    assert admin.post(path, posted).status_code == 303
    box.refresh_from_db()
    found = [(one["path"], base64.b64decode(one["content_base64"]), one["mode"]) for one in box.files]
    assert found == [("b.bin", b"text now", 0o644), ("c.txt", b"new\n", 0o644)]


def test_a_wrong_file_is_named_by_its_row_and_what_was_typed_comes_back(admin: Any, box: WorkspaceTemplate) -> None:
    path = "/workspaces/templates/box/edit/"
    posted = filled_in(admin.get(path).content.decode(), {})
    posted["files.path"][2], posted["files.content"][2] = "../out", "<b>"
    answer = admin.post(path, posted)
    html = answer.content.decode()
    assert answer.status_code == 422
    assert "row 3: path" in html
    assert values(html, "files.path")[2] == "../out"
    assert values(html, "files.content_base64")[1] == BYTES
    assert re.search(r'<details class="section" open><summary>Environment and lifetime', html)


def test_rows_are_removed_and_moved_without_scripts_and_nothing_is_stored(admin: Any, box: WorkspaceTemplate) -> None:
    path = "/workspaces/templates/box/edit/"
    html = press(admin, path, "_rows", "drop files 0")
    assert values(html, "files.path") == ["b.bin", ""]
    assert values(html, "files.content_base64") == [BYTES, ""]
    html = press(admin, path, "_rows", "up init_commands 1")
    assert values(html, "init_commands") == ["set -e\nmake", "echo a b", ""]
    assert re.search(r'<details class="section" open><summary>Environment and lifetime', html)
    box.refresh_from_db()
    assert len(box.files) == 2


def test_a_form_whose_rows_are_full_gets_another_one(admin: Any) -> None:
    posted = filled_in(admin.get("/workspaces/new/").content.decode(), {})
    posted["labels.key"], posted["labels.value"] = ["a", "b"], ["1", "2"]
    html = admin.post("/workspaces/new/", posted | {"_redraw": ["labels"]}).content.decode()
    assert values(html, "labels.key") == ["a", "b", "", ""]


@pytest.mark.parametrize(
    "asked", ["drop files 99", "drop files -1", "drop", "up nothing 0", "drop files x", "x files 0"]
)
def test_a_row_that_there_is_not_changes_nothing(asked: str, admin: Any, box: WorkspaceTemplate) -> None:
    assert values(press(admin, "/workspaces/templates/box/edit/", "_rows", asked), "files.path")[:2] == [
        "a.txt",
        "b.bin",
    ]


def test_enter_in_a_field_creates_and_does_not_press_a_button_of_a_row(admin: Any) -> None:
    html = admin.get("/compute/agents/new/").content.decode()
    buttons = re.findall(r"<button[^>]*>", html[html.index('class="edit"') :])
    assert buttons[0] == "<button hidden>"


def test_paragraphs_of_a_prompt_keep_the_order_they_were_put_in(admin: Any) -> None:
    make_llm_provider()
    path = "/compute/agents/new/"
    posted = filled_in(admin.get(path).content.decode(), {"id": "writer"})
    posted |= {"system_prompt": ["second", "first"], "_rows": ["up system_prompt 1"]}
    html = admin.post(path, posted).content.decode()
    assert values(html, "system_prompt") == ["first", "second", ""]
    assert admin.post(path, filled_in(html, {})).status_code == 303
    assert Agent.objects.get(slug="writer").system_prompt == ["first", "second"]


def test_what_is_emptied_in_a_form_is_gone(admin: Any) -> None:
    make_llm_provider("priced")
    prices = {"m": {"input": 3, "output": 15, "cache_read": 0.3}}
    config = {
        "kind": "anthropic",
        "base_url": "https://models.example",
        "default_model": "m",
        "timeout_s": 30,
        "prices": prices,
    }
    LLMProvider.objects.filter(slug="priced").update(provider="anthropic", config=config)
    path = "/compute/llm-providers/priced/edit/"
    page = admin.get(path).content.decode()
    assert admin.post(path, filled_in(page, {})).status_code == 303
    assert LLMProvider.objects.get(slug="priced").config == config
    emptied = {"config.default_model": "", "config.timeout_s": "", "config.prices.model": "", "config.prices.input": "",
               "config.prices.output": "", "config.prices.cache_read": ""}  # fmt: skip
    assert admin.post(path, filled_in(admin.get(path).content.decode(), emptied)).status_code == 303
    left = LLMProvider.objects.get(slug="priced").config
    assert {name for name, value in left.items() if value is not None} == {"kind", "base_url"}


def test_a_price_without_its_model_is_refused_beside_the_field(admin: Any) -> None:
    path = "/compute/llm-providers/new/"
    typed = {"id": "dear", "config.kind": "anthropic", "config.base_url": "https://models.example", "config.prices.input": "3",
             "config.prices.output": "4"}  # fmt: skip
    answer = admin.post(path, filled_in(admin.get(path).content.decode(), typed))
    assert answer.status_code == 422
    assert [one.field.path for one in answer.context["form"].failed] == ["config.prices"]


@pytest.mark.parametrize(
    ("number", "unit", "seconds"), [("10", "min", 600), ("2", "h", 7200), ("90", "s", 90), ("1", "d", 86400)]
)
def test_a_duration_is_given_and_shown_in_a_unit(number: str, unit: str, seconds: int, admin: Any) -> None:
    make_provider("docker", "container")
    path = "/workspaces/templates/new/?provider_id=docker"
    typed = {"id": "timed", "idle_timeout_s": number, "idle_timeout_s.unit": unit}
    assert admin.post(path, filled_in(admin.get(path).content.decode(), typed)).status_code == 303
    assert WorkspaceTemplate.objects.get(slug="timed").idle_timeout_s == seconds
    html = admin.get("/workspaces/templates/timed/edit/").content.decode()
    assert (values(html, "idle_timeout_s"), values(html, "idle_timeout_s.unit")) == ([number], [unit])
