"""What a form must not change or drop without a word: bytes it cannot show, secrets it does not carry, rows of one name."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from agents.models import Agent, LLMProvider
from primer_site import vault
from tests.console.filling import filled_in
from tests.console.site import browser, no_manifest, world
from tests.console.test_form_rows import admin, press, values
from tests.factories import make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent
from workspaces.models import WorkspaceTemplate

__all__ = ["admin", "no_manifest", "world"]
pytestmark = pytest.mark.django_db
NEW, EDIT = "/workspaces/templates/new/?provider_id=docker", "/workspaces/templates/box/edit/"
LLM = "/compute/llm-providers/new/"
ENDPOINT = {"id": "dear", "config.kind": "anthropic", "config.base_url": "https://models.example"}


def as_sent(posted: dict[str, list[str]]) -> dict[str, list[str]]:
    """What a browser makes of the values: every line end is two characters, and NUL is none of HTML."""
    ends = re.compile(r"\r\n|\r|\n")
    return {name: [ends.sub("\r\n", one).replace("\0", "\ufffd") for one in found] for name, found in posted.items()}


def with_file(raw: bytes) -> WorkspaceTemplate:
    files = [{"path": "a.bat", "content_base64": base64.b64encode(raw).decode(), "mode": 0o644}]
    return make_template("box", make_provider("docker", "container"), files=files)


def file_of(template: WorkspaceTemplate) -> bytes:
    template.refresh_from_db()
    return base64.b64decode(template.files[0]["content_base64"])


BYTES = [
    b"a\r\nb\r\n",
    b"a\rb\r",
    b"a\nb\r\n",
    b"x\x00y\n",
    b"\x1b[1mx\x1b[0m\r\n",
    b"\n\nlead",
    b"\xef\xbb\xbfmark\n",
    b"\xff\xfe",
]


@pytest.mark.parametrize("raw", BYTES)
def test_an_edit_of_something_else_leaves_every_byte_of_a_file(raw: bytes, admin: Any) -> None:
    template = with_file(raw)
    posted = as_sent(filled_in(admin.get(EDIT).content.decode(), {"description": "x"}))
    assert admin.post(EDIT, posted).status_code == 303
    assert file_of(template) == raw
    html = admin.post(EDIT, as_sent(filled_in(admin.get(EDIT).content.decode(), {})) | {"_redraw": ["env"]})
    again = filled_in(html.content.decode(), {"description": "y"})
    assert admin.post(EDIT, as_sent(again)).status_code == 303
    assert file_of(template) == raw


def test_an_edited_line_of_a_file_takes_its_line_ends_from_the_others(admin: Any) -> None:
    template = with_file(b"a\r\nb\r\n")
    posted = filled_in(admin.get(EDIT).content.decode(), {})
    posted["files.content"][0] = "a\nc\nd\n"
    assert admin.post(EDIT, as_sent(posted)).status_code == 303
    assert file_of(template) == b"a\r\nc\r\nd\r\n"


@pytest.mark.parametrize("raw", [b"a\r\nb", b"\x00"])
def test_a_file_that_is_emptied_or_written_anew_is_what_was_typed(raw: bytes, admin: Any) -> None:
    template = with_file(raw)
    posted = filled_in(admin.get(EDIT).content.decode(), {})
    posted["files.content"][0] = "new"
    assert admin.post(EDIT, posted).status_code == 303
    assert file_of(template) == b"new"
    assert admin.post(EDIT, filled_in(admin.get(EDIT).content.decode(), {"files.content": ""})).status_code == 303
    assert file_of(template) == b""


def test_texts_of_several_lines_stay_as_they_are_when_something_else_is_edited(admin: Any) -> None:
    facts: dict[str, Any] = {
        "env": {"PEM": "one\ntwo\n"},
        "labels": {"a": "x"},
        "init_commands": [["sh", "-c", "a\r\nb"], ["c", "d\re"]],
    }
    template = make_template("box", make_provider("docker", "container"), description=" of\ntwo lines", **facts)
    page = admin.get(EDIT).content.decode()
    posted = as_sent(filled_in(page, {"labels.value": "y"}))
    for name in ("env.value", "description"):  # controls of one line, from which a browser drops line ends
        posted[name] = [one.replace("\r\n", "") for one in posted[name]]
    assert admin.post(EDIT, posted).status_code == 303
    template.refresh_from_db()
    assert (template.env, template.init_commands) == (facts["env"], facts["init_commands"])
    assert (template.description, template.labels) == (" of\ntwo lines", {"a": "y"})


def test_a_prompt_with_other_line_ends_stays_as_it_is(admin: Any, world: dict[str, str]) -> None:
    agent = make_agent(make_user("erin"), "typist", system_prompt=["a\r\nb", "c"])
    path = f"/compute/agents/{agent.slug}/edit/"
    page = as_sent(filled_in(admin.get(path).content.decode(), {"description": "x"}))
    assert admin.post(path, page).status_code == 303
    assert Agent.objects.get(slug="typist").system_prompt == ["a\r\nb", "c"]


# -- secrets


def with_secret(client: Any) -> None:
    make_provider("docker", "container")
    posted = filled_in(client.get(NEW).content.decode(), {"id": "box"})
    posted |= {"env.key": ["TOKEN"], "env.value": ["the-old-one"], "env.kind": ["secret"]}
    assert client.post(NEW, posted).status_code == 303


def secrets() -> dict[str, Any]:
    return vault.unseal(WorkspaceTemplate.objects.get(slug="box").secrets)


def refused(answer: Any, path: str, words: str) -> None:
    """The form is drawn anew, with the words beside that field."""
    assert answer.status_code == 422
    found = {one.field.path: " ".join(one.errors) for one in answer.context["form"].failed}
    assert words in found[path], found


def test_a_stored_secret_stays_where_its_value_is_left_empty(admin: Any) -> None:
    with_secret(admin)
    posted = filled_in(admin.get(EDIT).content.decode(), {"description": "x"})
    assert admin.post(EDIT, posted).status_code == 303
    assert secrets() == {"TOKEN": "the-old-one"}


def test_a_renamed_secret_has_to_be_typed_once_more(admin: Any) -> None:
    with_secret(admin)
    posted = filled_in(admin.get(EDIT).content.decode(), {"env.key": "API_TOKEN"})
    answer = admin.post(EDIT, posted)
    refused(answer, "env", "row 1: API_TOKEN needs its value")
    assert secrets() == {"TOKEN": "the-old-one"}
    again = filled_in(answer.content.decode(), {"env.value": "the-old-one"})
    assert admin.post(EDIT, again).status_code == 303
    assert secrets() == {"API_TOKEN": "the-old-one"}


def test_a_stored_secret_that_becomes_text_has_to_be_typed(admin: Any) -> None:
    with_secret(admin)
    posted = filled_in(admin.get(EDIT).content.decode(), {"env.kind": "text"})
    refused(admin.post(EDIT, posted), "env", "row 1: TOKEN is stored as a secret")
    assert secrets() == {"TOKEN": "the-old-one"}


@pytest.mark.parametrize("again", [{"_redraw": ["env"]}, {"_rows": ["drop labels 0"]}, {"backend.cpu_cores": ["-4"]}])
@pytest.mark.parametrize("stored", [True, False])
def test_a_typed_secret_that_does_not_come_back_is_never_empty_or_the_old_one(
    stored: bool, again: dict[str, list[str]], admin: Any
) -> None:
    path = EDIT
    if stored:
        with_secret(admin)
    else:
        make_provider("docker", "container")
        path = NEW
    posted = filled_in(admin.get(path).content.decode(), {} if stored else {"id": "box"})
    posted |= {"env.key": ["TOKEN"], "env.value": ["the-new-one"], "env.kind": ["secret"]}
    html = admin.post(path, posted | again).content.decode()
    for _ in range(2):  # the note stays, however often the form is drawn
        assert "the-new-one" not in html
        assert 'id="f-env-typed"' in html
        html = admin.post(path, filled_in(html, {}) | {"_redraw": ["labels"]}).content.decode()
    left = filled_in(html, {"backend.cpu_cores": "1"})
    refused(admin.post(path, left), "env", "row 1: TOKEN")
    assert not WorkspaceTemplate.objects.filter(slug="box").exists() or secrets() == {"TOKEN": "the-old-one"}
    left["env.value"][0] = "the-new-one"
    assert admin.post(path, left).status_code == 303
    assert secrets() == {"TOKEN": "the-new-one"}


def test_an_api_key_that_a_row_button_loses_is_asked_for_again(admin: Any) -> None:
    html = press(admin, LLM, "_redraw", "config.prices", **(ENDPOINT | {"config.api_key": "sk-a-typed-key"}))
    assert "sk-a-typed-key" not in html
    assert 'id="f-config-api_key-typed"' in html
    answer = admin.post(LLM, filled_in(html, {}))
    refused(answer, "config.api_key", "type it once more")
    assert 'id="f-config-api_key-typed"' in answer.content.decode()
    tried = admin.post("/compute/llm-providers/new/test/", filled_in(html, {})).content.decode()
    assert "type it once more" in tried
    assert not LLMProvider.objects.filter(slug="dear").exists()
    assert admin.post(LLM, filled_in(html, {"config.api_key": "sk-a-typed-key"})).status_code == 303
    assert vault.unseal(LLMProvider.objects.get(slug="dear").secrets) == {"api_key": "sk-a-typed-key"}
    path = "/compute/llm-providers/dear/edit/"
    html = press(admin, path, "_redraw", "config.prices", **{"config.api_key": "sk-another-key"})
    refused(admin.post(path, filled_in(html, {})), "config.api_key", "to keep the stored one")


def test_a_typed_key_can_be_done_without(admin: Any) -> None:
    html = press(admin, LLM, "_redraw", "config.prices", **(ENDPOINT | {"config.api_key": "sk-a-typed-key"}))
    posted = filled_in(html, {}) | {"config.api_key.remove": ["1"]}
    assert admin.post(LLM, posted).status_code == 303
    assert LLMProvider.objects.get(slug="dear").secrets == ""


# -- rows of one name


@pytest.mark.parametrize("name", ["labels", "env"])
def test_two_rows_of_one_name_are_refused_at_the_second_and_both_come_back(name: str, admin: Any) -> None:
    make_provider("docker", "container")
    posted = filled_in(admin.get(NEW).content.decode(), {"id": "box"})
    posted |= {f"{name}.key": ["A", "B", " A"], f"{name}.value": ["1", "2", "3"], f"{name}.kind": ["text"] * 3}
    answer = admin.post(NEW, posted)
    refused(answer, name, 'row 3: "A" is there already, in row 1')
    assert values(answer.content.decode(), f"{name}.value")[:3] == ["1", "2", "3"]


def priced(client: Any, models: list[str], prices: list[str]) -> Any:
    posted = filled_in(client.get(LLM).content.decode(), ENDPOINT)
    posted |= {
        "config.prices.model": models,
        "config.prices.input": prices,
        "config.prices.output": ["9"] * len(models),
    }
    posted |= {f"config.prices.{part}": [""] * len(models) for part in ("cache_read", "cache_write")}
    return client.post(LLM, posted)


def test_two_prices_of_one_model_are_refused_at_the_second_and_both_come_back(admin: Any) -> None:
    answer = priced(admin, ["m", "m"], ["1", "2"])
    refused(answer, "config.prices", 'row 2: "m" is there already, in row 1')
    assert values(answer.content.decode(), "config.prices.input")[:2] == ["1", "2"]


# -- numbers


@pytest.mark.parametrize("text", ["1_0", "\u0661", "nan", "inf", "1e400", "9" * 5000])
def test_a_price_that_is_no_number_is_refused_and_comes_back(text: str, admin: Any) -> None:
    answer = priced(admin, ["m"], [text])
    refused(answer, "config.prices", "must be a")
    assert values(answer.content.decode(), "config.prices.input")[0] == text
    assert not LLMProvider.objects.filter(slug="dear").exists()


@pytest.mark.parametrize("text", ["1_0", "nan", "inf", "1e400", "1e305", "9" * 299, "9" * 5000])
@pytest.mark.parametrize("name", ["idle_timeout_s", "backend.memory_bytes"])
def test_a_duration_or_a_size_without_end_is_refused_beside_its_field(name: str, text: str, admin: Any) -> None:
    make_provider("docker", "container")
    unit = "d" if name == "idle_timeout_s" else "GiB"
    posted = filled_in(admin.get(NEW).content.decode(), {"id": "box", name: text, f"{name}.unit": unit})
    assert admin.post(NEW, posted | {"_redraw": ["env"]}).status_code == 200
    refused(admin.post(NEW, posted), name, "")


# -- texts that are no addresses, names that are numbers


@pytest.mark.parametrize("url", ["tcp://[::1", "tcp://[bad]:1"])
@pytest.mark.parametrize("kind", ["form", "yaml"])
def test_brackets_that_hold_no_address_are_refused_beside_the_url(kind: str, url: str, admin: Any) -> None:
    path = "/workspaces/providers/new/"
    spec = f"id: p\nprovider: container\nconfig: {{kind: container, connection: {{kind: tcp, url: '{url}'}}}}"
    page = filled_in(admin.get(path).content.decode(), {"id": "p", "config.connection.kind": "tcp"})
    posted = page | {"config.connection.url": [url]} if kind == "form" else {"_form": ["yaml"], "yaml": [spec]}
    answer = admin.post(path, posted)
    assert answer.status_code == 422
    assert "must be tcp://host:port" in answer.content.decode()
    assert admin.post(f"{path}test/", posted).status_code == 200


@pytest.mark.parametrize("url", ["https://[::1", "https://[bad]/v1"])
def test_a_base_url_with_wrong_brackets_is_refused_beside_its_field(url: str, admin: Any) -> None:
    answer = admin.post(LLM, filled_in(admin.get(LLM).content.decode(), ENDPOINT | {"config.base_url": url}))
    assert answer.status_code == 422
    assert [one.field.path for one in answer.context["form"].failed] == ["config.base_url"]


@pytest.mark.parametrize("config", ["5", "[a]", "{kind: anthropic, prices: 5}", "{kind: anthropic, prices: abc}"])
def test_yaml_of_another_shape_is_refused_with_its_field(config: str, admin: Any) -> None:
    answer = admin.post(LLM, {"_form": "yaml", "yaml": f"id: x\nprovider: anthropic\nconfig: {config}"})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert "line 3: config" in text
    assert "without its model" not in text


@pytest.mark.parametrize("name", ["a[\u00b2]", "a[9]"])
def test_a_name_with_brackets_in_yaml_is_refused_with_its_line(name: str, admin: Any) -> None:
    make_provider("docker", "container")
    text = f"id: box\nprovider_id: docker\nlabels:\n  '{name}': {{}}\n"
    answer = admin.post(NEW, {"_form": "yaml", "yaml": text})
    assert answer.status_code == 422
    assert re.search(r"line [34]: labels", answer.content.decode())


def test_a_template_with_as_much_as_the_api_takes_is_edited_by_its_form(admin: Any) -> None:
    raw = base64.b64encode(b"x").decode()
    facts: dict[str, Any] = {
        "env": {f"A{number}": "x" for number in range(256)}, "init_commands": [["true", str(number)] for number in range(50)],
        "files": [{"path": f"f{number}", "content_base64": raw, "mode": 0o644} for number in range(100)],
    }  # fmt: skip
    template = make_template("box", make_provider("docker", "container"), **facts)
    posted = filled_in(admin.get(EDIT).content.decode(), {"description": "x"})
    assert admin.post(EDIT, posted).status_code == 303
    template.refresh_from_db()
    assert (template.description, template.env, template.files) == ("x", facts["env"], facts["files"])
    too_many = posted | {"labels.key": ["a"] * 5000}
    assert admin.post(EDIT, too_many).status_code == 413


def test_a_name_of_digits_is_not_taken_for_a_row(admin: Any) -> None:
    make_provider("docker", "container")
    posted = filled_in(admin.get(NEW).content.decode(), {"id": "box"})
    posted |= {
        "env.key": ["2024"],
        "env.value": ["x"],
        "env.kind": ["text"],
        "labels.key": ["7"],
        "labels.value": ["\0"],
    }
    answer = admin.post(NEW, posted)
    errors = {one.field.path: one.errors for one in answer.context["form"].failed}
    assert set(errors) == {"env", "labels"} or set(errors) == {"labels"}
    assert "row" not in str(errors)
    assert "7" in str(errors["labels"])


# -- what is proven


def test_what_was_applied_on_another_provider_is_not_shown_as_proof_of_this_one(
    admin: Any, world: dict[str, str]
) -> None:
    first, second = make_provider("first", "container"), make_provider("second", "container")
    template = make_template("box", first)
    workspace = make_workspace(make_user("erin"), template)
    workspace.applied = {"network": "none", "limits": {}}
    workspace.spec = {**(workspace.spec or {}), "backend": template.backend}
    workspace.save()
    html = admin.get("/workspaces/templates/box/").content.decode()
    assert workspace.slug in html
    assert "the newest workspace with these settings" in html, "it is none of the admin's"
    assert "your workspaces" in browser(make_user("frank")).get("/workspaces/templates/box/").content.decode()
    template.provider = second
    template.save()
    assert workspace.slug not in admin.get("/workspaces/templates/box/").content.decode()
    assert "your workspaces" not in browser(make_admin("other")).get("/workspaces/templates/box/").content.decode()
