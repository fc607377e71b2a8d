"""diff and edit: what would change, and changes by hand; nothing is lost and no secret is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import SESS, WS, Answer, Primer, problem

AGENT = "kind: agent\nspec:\n  id: a\n  model:\n    provider_id: scripted\n  description: one\n"
URL = "/v1/agents/a"


@pytest.fixture(autouse=True)
def agent(primer: Primer) -> dict[str, Any]:
    primer.store["agents"]["a"] = {"id": "a", "model": {"provider_id": "scripted"}, "description": "one"}
    return primer.store["agents"]["a"]


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "agent.yaml"
    path.write_text(AGENT)
    return path


def test_a_file_that_says_what_is_there_is_0_and_prints_nothing(cli: Cli, file: Path) -> None:
    result = cli("diff", "-f", "agent.yaml")
    assert (result.code, result.text, result.err) == (0, "", "")


def test_what_differs_is_a_unified_diff_and_1_and_nothing_is_stored(
    cli: Cli, agent: dict[str, Any], file: Path, primer: Primer
) -> None:
    file.write_text(AGENT.replace("one", "two"))
    result = cli("diff", "-f", "agent.yaml")
    assert (result.code, result.err) == (1, "")
    assert result.text == (
        "--- live/agent/a\n+++ agent.yaml\n@@ -1,4 +1,4 @@\n id: a\n-description: one\n+description: two\n"
        " model:\n   provider_id: scripted\n"
    )
    assert agent["description"] == "one"
    assert [request.query for request in primer.sent("PUT", URL)] == [{"dry_run": ["true"]}]


def test_what_is_not_there_yet_is_all_new(cli: Cli, file: Path, primer: Primer) -> None:
    primer.store["agents"].clear()
    result = cli("diff", "-f", "agent.yaml")
    assert result.code == 1
    assert "+id: a\n" in result.text
    assert primer.store["agents"] == {}


def test_defaults_that_the_server_fills_are_no_difference(
    cli: Cli, agent: dict[str, Any], file: Path, primer: Primer
) -> None:
    agent |= {"max_output_tokens": 8192, "thinking": "off"}
    assert cli("diff", "-f", "agent.yaml").code == 0


@pytest.mark.parametrize(("limit", "code"), [(8192, 0), (100, 1)])
def test_who_may_not_change_it_gets_the_defaults_that_are_known_here(
    cli: Cli, agent: dict[str, Any], file: Path, primer: Primer, limit: int, code: int
) -> None:
    agent |= {"max_output_tokens": limit, "thinking": "off", "tools": [], "labels": {}, "temperature": 1.0}
    file.write_text(AGENT + "  temperature: 1\n")
    primer.on("PUT", URL, problem(403, "forbidden", "You may read."))
    result = cli("diff", "-f", "agent.yaml")
    assert (result.code, result.err) == (code, "")
    assert ("-max_output_tokens: 100\n+max_output_tokens: 8192\n" in result.text) is (code == 1)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(412, "precondition_failed"), 5),
        (problem(422, "invalid", errors=[{"field": "model.provider_id", "message": "no"}]), 2),
        (problem(507, "disk_full"), 2),
        (problem(500, "internal"), 6),
    ],
)
def test_an_error_is_more_than_1(cli: Cli, file: Path, primer: Primer, answer: Answer, code: int) -> None:
    primer.on("PUT", URL, answer)
    assert cli("diff", "-f", "agent.yaml").code == code
    assert cli("diff", "-f", "no-such-file.yaml").code == 2


LLM = "kind: llm_provider\nspec:\n  id: l\n  provider: anthropic\n  config:\n    kind: anthropic\n    api_key: sk-new-0002\n"


@pytest.mark.parametrize(
    ("last4", "expected"), [("0002", []), ("0001", ["-  api_key: (set)", "+  api_key: (set, changed)"])]
)
def test_a_secret_is_shown_as_set_and_a_new_one_as_changed(
    cli: Cli, primer: Primer, folder: Path, last4: str, expected: list[str]
) -> None:
    def item(end: str) -> dict[str, Any]:
        secret = {"set": True, "last4": end}
        return {"id": "l", "provider": "anthropic", "config": {"kind": "anthropic", "api_key": secret}}

    primer.store["llm_providers"]["l"] = item(last4)
    etag = '"1.1"' if last4 == "0002" else '"2.1"'
    primer.on("PUT", "/v1/llm_providers/l", Answer(200, item("0002"), {"ETag": etag}))
    (folder / "l.yaml").write_text(LLM)
    result = cli("diff", "-f", "l.yaml")
    assert [line for line in result.text.splitlines() if "api_key" in line] == expected
    assert "sk-new" not in result.text


def test_hostile_values_forge_no_line_of_a_diff(cli: Cli, agent: dict[str, Any], file: Path) -> None:
    agent["description"] = "x\x1b[2J\u202e"
    text = cli("diff", "-f", "agent.yaml").text
    assert "\x1b" not in text
    assert "\u202e" not in text


# -- edit


@pytest.fixture
def editor(tmp_path: Path) -> Any:
    """`editor(step, step)`: a program that replaces text in the file, another step at each call; returns its command.

    A step is (old, new). What it was given is kept as seen-1, seen-2, ….
    """

    def make(*steps: tuple[str, str], code: int = 0) -> str:
        script = tmp_path / "editor.py"
        script.write_text(
            f"import pathlib, sys\nplace, file = pathlib.Path({str(tmp_path)!r}), pathlib.Path(sys.argv[-1])\n"
            "n = len(list(place.glob('seen-*')))\ntext = file.read_text()\n(place / f'seen-{n + 1}').write_text(text)\n"
            f"(place / 'mode').write_text(oct(file.stat().st_mode))\nsteps = {list(steps)!r}\n"
            "if n < len(steps):\n    assert steps[n][0] in text, (steps[n], text)\n"
            f"    file.write_text(text.replace(*steps[n]))\nsys.exit({code})\n"
        )
        import sys

        return f"{sys.executable} {script}"

    return make


def test_what_was_saved_is_put_unless_somebody_was_faster(
    cli: Cli, primer: Primer, editor: Any, tmp_path: Path
) -> None:
    result = cli("edit", "agent", "a", EDITOR=editor(("one", "two")))
    assert (result.code, result.text, result.err) == (0, "agent/a configured\n", "")
    sent = primer.sent("PUT", URL)[0]
    assert sent.json["description"] == "two"
    assert sent.headers["if-match"] == '"1.1"'
    assert (tmp_path / "mode").read_text() == "0o100600"
    assert (tmp_path / "seen-1").read_text().startswith("# agent/a\n# ")


def test_without_a_terminal_no_editor_of_our_choice_is_opened(cli: Cli, primer: Primer) -> None:
    result = cli("edit", "agent", "a")
    assert (result.code, result.text) == (2, "")
    assert result.err.startswith("error: edit needs a terminal\nhint: ")
    assert primer.requests == []


def test_a_file_saved_as_it_was_changes_nothing(cli: Cli, primer: Primer, editor: Any) -> None:
    result = cli("edit", "agent", "a", EDITOR=editor())
    assert (result.code, result.text) == (0, "Edit cancelled: nothing changed.\n")
    emptied = cli("edit", "agent/a", EDITOR="truncate -s 0")
    assert (emptied.code, emptied.text) == (0, "Edit cancelled: nothing changed.\n")
    assert primer.sent("PUT", URL) == []


def test_a_refused_save_opens_again_with_the_reasons_and_their_lines(
    cli: Cli, primer: Primer, editor: Any, tmp_path: Path
) -> None:
    primer.on("PUT", URL, _refusing(primer))
    program = editor(("description: one", "descripton: one"), ("descripton: one", "description: bad"), ("bad", "good"))
    result = cli("edit", "agent", "a", EDITOR=program)
    assert (result.code, result.text) == (0, "agent/a configured\n")
    second, third = (tmp_path / f"seen-{n}" for n in (2, 3))
    problem_line = next(line for line in second.read_text().splitlines() if "unknown field" in line)
    number = int(problem_line.removeprefix("# error: line ").partition(":")[0])
    assert "descripton" in second.read_text().splitlines()[number - 1]
    assert "spec.description: is not good" in third.read_text()
    assert third.read_text().count("# agent/a\n") == 1


def _refusing(primer: Primer) -> Any:
    def answer(request: Any) -> Answer:
        if request.json["description"] == "bad":
            return problem(422, "invalid", errors=[{"field": "description", "message": "is not good"}])
        primer.versions["a"] = 2
        return Answer(200, {**primer.store["agents"]["a"], **request.json}, {"ETag": '"2.1"'})

    return answer


def test_a_refused_save_that_is_saved_again_as_it_is_ends_it_and_keeps_the_text(cli: Cli, editor: Any) -> None:
    result = cli("edit", "agent", "a", EDITOR=editor(("description: one", "descripton: one")))
    assert result.code == 2
    assert "spec.descripton: unknown field" in result.err
    kept = Path(result.err.split("your text is kept in ")[1].splitlines()[0])
    assert "descripton: one" in kept.read_text()
    assert os.stat(kept.parent).st_mode & 0o777 == 0o700
    kept.unlink()
    kept.parent.rmdir()


def test_somebody_who_was_faster_is_5_and_the_text_is_kept(cli: Cli, primer: Primer, editor: Any) -> None:
    primer.on("PUT", URL, problem(412, "precondition_failed"))
    result = cli("edit", "agent", "a", EDITOR=editor(("one", "two")))
    assert result.code == 5
    assert "changed by someone else since you read it" in result.err
    kept = Path(result.err.split("your text is kept in ")[1].splitlines()[0])
    assert "two" in kept.read_text()
    kept.unlink()
    kept.parent.rmdir()


def test_an_editor_that_fails_sends_nothing(cli: Cli, primer: Primer, editor: Any) -> None:
    result = cli("edit", "agent", "a", EDITOR=editor(("one", "two"), code=3))
    assert (result.code, result.out) == (1, b"")
    assert "ended with 3; nothing was sent" in result.err
    assert primer.sent("PUT", URL) == []


@pytest.mark.parametrize("text", ["no-such-editor-here", "'unclosed"])
def test_an_editor_that_is_not_there_is_2_before_anything_is_read(cli: Cli, primer: Primer, text: str) -> None:
    assert cli("edit", "agent", "a", EDITOR=text).code == 2
    assert primer.requests == []


def test_our_own_variable_comes_before_the_common_ones(cli: Cli, editor: Any) -> None:
    result = cli("edit", "agent", "a", PRIMECTL_EDITOR=editor(("one", "two")), VISUAL="nonsense-a", EDITOR="nonsense-b")
    assert result.text == "agent/a configured\n"


def test_of_a_session_only_what_changed_is_sent(cli: Cli, primer: Primer, editor: Any) -> None:
    primer.store["sessions"][SESS] = {
        "id": SESS,
        "agent_id": "a",
        "initial_instructions": "x",
        "labels": {},
        "status": "ended",
    }
    result = cli("edit", SESS, EDITOR=editor(("labels: {}", "labels: {team: red}")))
    assert (result.code, result.text) == (0, f"session/{SESS} configured\n")
    assert primer.sent("PATCH", f"/v1/sessions/{SESS}")[0].json == {"labels": {"team": "red"}}


def test_a_secret_is_no_text_in_the_editor_and_stays_when_it_is_left_out(
    cli: Cli, primer: Primer, editor: Any, tmp_path: Path
) -> None:
    config = {"kind": "anthropic", "api_key": {"set": True, "last4": "a1b2"}, "default_model": "m"}
    primer.store["llm_providers"]["l"] = {"id": "l", "provider": "anthropic", "config": config}
    cli("edit", "llm", "l", EDITOR=editor(("default_model: m", "default_model: n")))
    assert "# api_key: set, ends in a1b2 (left out; apply keeps it)" in (tmp_path / "seen-1").read_text()
    assert primer.sent("PUT", "/v1/llm_providers/l")[0].json["config"] == {"kind": "anthropic", "default_model": "n"}


# -- create --dry-run, apply


def test_a_dry_run_here_sends_nothing_and_finds_every_mistake(cli: Cli, primer: Primer, file: Path) -> None:
    result = cli("create", "-f", "agent.yaml", "-f", "docker-provider.yaml", "--dry-run=client")
    assert (result.code, result.text) == (
        0,
        "workspace_provider/docker-local created (dry run)\nagent/a created (dry run)\n",
    )
    file.write_text(AGENT.replace("model:", "modl:"))
    assert cli("create", "-f", "agent.yaml", "--dry-run=client").code == 2
    assert (
        cli("create", "workspace", "--set", "template_id=x", "--dry-run=client").text == "workspace created (dry run)\n"
    )
    assert primer.requests == []


def test_a_dry_run_there_asks_the_server_and_stores_nothing(cli: Cli, primer: Primer) -> None:
    result = cli("create", "workspace", "--set", "template_id=x", "--dry-run=server", err_tty=True)
    assert (result.code, result.text, result.err) == (0, "workspace created (dry run)\n", "")
    assert primer.sent("POST", "/v1/workspaces")[0].query == {"dry_run": ["true"]}
    assert primer.store["workspaces"] == {}


def test_an_immutable_field_is_5_and_named(cli: Cli, primer: Primer, file: Path) -> None:
    errors = [{"field": "model.provider_id", "message": "cannot be changed"}]
    primer.on("PUT", URL, problem(422, "invalid", errors=errors))
    result = cli("apply", "-f", "agent.yaml")
    assert result.code == 5
    assert result.err.startswith("error: agent.yaml:5: spec.model.provider_id: cannot be changed\n")


def test_an_immutable_field_that_the_editor_leaves_is_5_with_its_hint(cli: Cli, primer: Primer, editor: Any) -> None:
    errors = [{"field": "description", "message": "cannot be changed: make another one"}]
    primer.on("PUT", URL, problem(422, "invalid", errors=errors))
    result = cli("edit", "agent", "a", EDITOR=editor(("one", "two"), ("two", "two")))
    kept, *lines = result.err.splitlines()
    assert (result.code, kept.startswith("your text is kept in ")) == (5, True)
    assert [line.split(": ")[0] for line in lines] == ["error", "hint"]
    assert lines[0].endswith("spec.description: cannot be changed: make another one")
    assert "delete it first" in lines[1]


def test_json_of_several_is_one_list_also_when_a_later_one_fails(cli: Cli, primer: Primer, file: Path) -> None:
    primer.on("POST", "/v1/workspace_templates", problem(422, "invalid", errors=[{"field": "id", "message": "no"}]))
    result = cli("apply", "-f", "docker-provider.yaml", "-f", "code-sandbox.yaml", "-o", "json")
    assert result.code == 2
    assert [item["id"] for item in json.loads(result.out)["items"]] == ["docker-local"]
    assert json.loads(cli("apply", "-f", "agent.yaml", "-o", "json").out)["kind"] == "agent"


def test_a_reference_as_printed_is_taken_by_set(cli: Cli, primer: Primer) -> None:
    cli("create", "workspace", "--set", "template_id=workspace_template/code-sandbox")
    assert primer.sent("POST", "/v1/workspaces")[0].json == {"template_id": "code-sandbox"}
    assert cli("create", "workspace", "--set", "template_id=agent/x").code == 2


@pytest.mark.parametrize("style", ["json", "yaml"])
def test_a_dry_run_shows_no_id_that_nothing_has(cli: Cli, primer: Primer, style: str) -> None:
    made = {"id": WS, "template_id": "x", "phase": "pending"}
    primer.on("POST", "/v1/workspaces", Answer(201, made))
    result = cli("create", "workspace", "--set", "template_id=x", "--dry-run=server", "-o", style)
    assert result.code == 0
    assert WS not in result.text
    assert "pending" in result.text


def test_a_fixed_field_is_named_as_such_also_where_the_new_value_names_nothing(
    cli: Cli, primer: Primer, editor: Any
) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "template_id": "one", "name": "", "phase": "running"}
    fixed = problem(422, "invalid", errors=[{"field": "template_id", "message": "cannot be changed: create another"}])
    primer.on("PUT", f"/v1/workspaces/{WS}", fixed)
    result = cli("edit", "workspace", WS, EDITOR=editor(("one", "nowhere"), ("nowhere", "nowhere")))
    assert result.code == 5
    assert "spec.template_id: cannot be changed: create another\n" in result.err
    assert f"hint: create another one: workspace/{WS} stays as it is\n" in result.err


def test_the_diff_of_a_new_session_names_what_its_file_names(cli: Cli, primer: Primer, folder: Path) -> None:
    (folder / "s.yaml").write_text("kind: session\nspec: {agent_id: a, template_id: t, initial_instructions: x}\n")
    made = {"id": SESS, "agent_id": "a", "workspace_id": WS, "initial_instructions": "x", "status": "queued"}
    primer.on("POST", "/v1/sessions", Answer(201, made))
    result = cli("diff", "-f", "s.yaml")
    assert result.code == 1
    assert WS not in result.text
    assert "+template_id: t\n" in result.text
