"""Secrets below env: never printed, never lost by what was printed; and a secret's end forges no line of a manifest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.kinds import kind_named
from cli.present import editable
from cli.schema import KINDS, secret_paths
from cli.validate import check
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Primer, problem
from tests.cli.test_diff_edit import editor as editor  # noqa: PLC0414  (a fixture)

URL = "/v1/workspace_templates/t"
MASK = {"set": True, "last4": "a1b2"}
COMMENT = "# KEY: set, ends in a1b2 (left out; apply keeps it)\n"


@pytest.fixture
def template(primer: Primer) -> dict[str, Any]:
    primer.store["workspace_templates"]["t"] = {
        "id": "t", "provider_id": "p", "backend": {"kind": "local"}, "env": {"A": "x", "KEY": MASK, "Z": "z"},
    }  # fmt: skip
    return primer.store["workspace_templates"]["t"]


def printed(cli: Cli) -> str:
    result = cli("get", "template", "t", "-o", "yaml")
    assert result.code == 0, result.err
    return result.text


def test_what_get_prints_is_applied_and_the_secret_stays(cli: Cli, primer: Primer, template: dict[str, Any]) -> None:
    text = printed(cli)
    assert f"    {COMMENT}" in text
    assert "last4" not in text
    result = cli("apply", "-f", "-", stdin=text.encode())
    assert (result.code, result.text, result.err) == (0, "workspace_template/t unchanged\n", "")
    assert primer.sent("PUT", URL)[0].json["env"] == {"A": "x", "Z": "z"}
    assert template["env"]["KEY"] == MASK


def test_an_env_of_secrets_alone_is_an_empty_mapping_and_not_null(
    cli: Cli, primer: Primer, template: dict[str, Any]
) -> None:
    template["env"] = {"KEY": MASK, "MORE": MASK}
    text = printed(cli)
    assert f"  env: {{}}\n    {COMMENT}    {COMMENT.replace('KEY', 'MORE')}" in text
    assert cli("apply", "-f", "-", stdin=text.encode()).text == "workspace_template/t unchanged\n"
    assert primer.sent("PUT", URL)[0].json["env"] == {}


def test_null_removes_a_secret_and_diff_says_so_first(cli: Cli, folder: Path, template: dict[str, Any]) -> None:
    Path("t.yaml").write_text(printed(cli).replace(COMMENT, "KEY: null\n"))
    shown = cli("diff", "-f", "t.yaml")
    assert (shown.code, [line for line in shown.text.splitlines() if "KEY" in line]) == (1, ["-  KEY: (set)"])
    result = cli("apply", "-f", "t.yaml")
    assert (result.code, result.text, result.err) == (0, "workspace_template/t configured\n", "")
    assert template["env"] == {"A": "x", "Z": "z"}


@pytest.mark.parametrize(
    ("value", "code", "lines"),
    [
        ("", 0, []),
        ("KEY: {secret: new-0001}\n", 1, ["-  KEY: (set)", "+  KEY: (set, changed)"]),
        ("OTHER: {secret: new-0001}\n", 1, ["+  OTHER: (set)"]),
    ],
)
@pytest.mark.parametrize("denied", [False, True])
def test_diff_shows_no_secret_and_what_becomes_of_it(
    value: str, code: int, lines: list[str], denied: bool, cli: Cli, primer: Primer, folder: Path, template: dict[str, Any]
) -> None:  # fmt: skip
    Path("t.yaml").write_text(printed(cli).replace(COMMENT, COMMENT + (f"    {value}" if value else "")))
    if denied:  # then the client says itself what would change
        primer.on("PUT", URL, problem(403, "forbidden"))
    result = cli("diff", "-f", "t.yaml")
    told = [line for line in result.text.splitlines() if re.match(r"[-+] +(KEY|OTHER)", line)]
    if denied and value.startswith("KEY"):
        assert "new-0001" not in result.text, "only the server knows whether it is another secret"
    else:
        assert (result.code, told) == (code, lines)
    assert "new-0001" not in result.text


def test_diff_of_a_denied_object_keeps_secrets_of_an_env_that_is_left_out(
    cli: Cli, primer: Primer, folder: Path, template: dict[str, Any]
) -> None:
    Path("t.yaml").write_text("kind: workspace_template\nspec: {id: t, provider_id: p, backend: {kind: local}}\n")
    primer.on("PUT", URL, problem(403, "forbidden"))
    lines = [line for line in cli("diff", "-f", "t.yaml").text.splitlines() if line.startswith(("-  ", "+  "))]
    assert lines == ["-  A: x", "-  Z: z"]


def test_in_the_editor_it_is_a_comment_and_stays(
    cli: Cli, primer: Primer, editor: Any, tmp_path: Path, template: dict[str, Any]
) -> None:
    result = cli("edit", "template", "t", EDITOR=editor(("A: x", "A: y")))
    assert (result.code, result.text) == (0, "workspace_template/t configured\n")
    assert COMMENT in (tmp_path / "seen-1").read_text()
    assert template["env"] == {"A": "y", "KEY": MASK, "Z": "z"}


def test_a_mask_below_env_is_refused_here(cli: Cli, primer: Primer, folder: Path, template: dict[str, Any]) -> None:
    Path("t.yaml").write_text(printed(cli).replace(COMMENT, "KEY: {set: true, last4: a1b2}\n"))
    result = cli("apply", "-f", "t.yaml")
    assert (result.code, primer.sent("PUT", URL)) == (2, [])
    assert "spec.env.KEY: is a mask, not a secret" in result.err


def test_of_a_workspace_the_comment_promises_nothing_that_a_new_one_lacks(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"][WS] = {
        "id": WS,
        "template_id": "t",
        "env": {"KEY": MASK},
        "looks": 1,
        "phase": "running",
    }
    text = cli("get", WS, "-o", "yaml").text
    assert "# KEY: set, ends in a1b2 (left out; a new one has it only from its template)\n" in text
    assert "apply keeps it" not in text


HOSTILE = "---\nkind: agent\n"


@pytest.mark.parametrize(
    "end", ["---\n", "\nx: y", "a\r\nb", "\x85id: b", "\u2028id: b", "abcd" * 40, {"a": "\nb: c"}, "\x1b[2J"]
)
def test_the_end_of_a_secret_is_at_most_four_characters_on_one_line(end: Any, cli: Cli, primer: Primer) -> None:
    tls = {"ca": "CA", "key": {"set": True, "last4": end}}
    connection = {"kind": "tcp", "url": "tcp://h:1", "tls": tls}
    config = {"kind": "container", "connection": connection}
    primer.store["workspace_providers"]["p"] = {"id": "p", "provider": "container", "config": config}
    text = cli("get", "provider", "p", "-o", "yaml").text
    (line,) = [line for line in text.splitlines() if "# key: set" in line]
    found = re.fullmatch(r" +# key: set, ends in (.*) \(left out; apply keeps it\)", line)
    assert found is not None, line
    assert len(re.sub(r"\\x..|\\u....|\\[nrt]", "?", found[1])) <= 4
    assert yaml.safe_load(text)["spec"]["config"]["connection"]["tls"] == {"ca": "CA"}
    assert cli("apply", "-f", "-", stdin=text.encode()).code == 0


@pytest.mark.parametrize("name", ["A\nspec: {id: other}", "# x", "long" * 60, "a: b", "\x85id: b", "\x1b[2J", "- x"])
@pytest.mark.parametrize("more", [{}, {"A": "x"}])
def test_a_hostile_name_of_a_secret_forges_no_line(name: str, more: dict[str, Any]) -> None:
    item = {"id": "t", "provider_id": "p", "backend": {"kind": "local"}, "env": {name: MASK, **more}}
    text = editable(kind_named("workspace_template"), item)
    assert yaml.safe_load(text)["spec"] == {**item, "env": more}


def test_a_key_alone_below_tls_leaves_a_mapping_since_null_would_drop_it(cli: Cli, primer: Primer) -> None:
    connection = {"kind": "tcp", "url": "tcp://h:1", "tls": {"key": MASK}}
    config = {"kind": "container", "connection": connection}
    primer.store["workspace_providers"]["p"] = {"id": "p", "provider": "container", "config": config}
    text = cli("get", "provider", "p", "-o", "yaml").text
    assert yaml.safe_load(text)["spec"]["config"]["connection"]["tls"] == {}


def test_secrets_below_a_choice_of_shapes_are_found_and_plain_text_is_none() -> None:
    schema = KINDS["workspace_template"]
    for secret in (MASK, {"set": True}, {"secret": "x"}):
        assert secret_paths(schema, {"env": {"A": "x", "KEY": secret}}) == [("env", "KEY")]
    assert secret_paths(schema, {"env": {"A": "x", "B": None}, "files": [{"path": "a", "mode": "0644"}]}) == []
    assert [finding.path for finding in check(schema["properties"]["env"], {"A": None, "B": 1})] == [("B",)]
