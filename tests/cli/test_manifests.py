"""Manifests: every mistake with its file and line, before anything is sent."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from cli.errors import UsageError
from cli.manifest import load
from cli.schema import KINDS
from tests.cli.conftest import ROOT, Cli
from tests.cli.fake import Primer, problem

MORE = ("minimum", "maximum")
TEMPLATE = """\
kind: workspace_template
spec:
  id: code-sandbox
  provider_id: docker-local
  backend:
    kind: container
    image: primer/workspace-runtime:1.0
    memory_bytes: 64
    netwrok:
      egress: deny_all
---
kind: agent
spec:
  id: Code_Runner
  tools: workspace
"""


def test_all_mistakes_of_all_documents_are_named_by_file_and_line(cli: Cli, primer: Primer, folder: Path) -> None:
    Path("bad.yaml").write_text(TEMPLATE)
    result = cli("create", "-f", "bad.yaml", "-f", "docker-provider.yaml")
    assert (result.code, result.out) == (2, b"")
    assert result.err == (
        "error: bad.yaml:8: spec.backend.memory_bytes: must be at least 67108864\n"
        "error: bad.yaml:9: spec.backend.netwrok: unknown field\n"
        "error: bad.yaml:13: spec.model: is required\n"
        'error: bad.yaml:14: spec.id: "Code_Runner" is not valid: lower-case letters, digits and dashes, at most 63\n'
        'error: bad.yaml:15: spec.tools: must be a list, not "workspace"\n'
        "hint: 64 MiB is 67108864\n"
    )
    assert primer.requests == []


def wrong(text: str, tmp_path: Path) -> str:
    path = tmp_path / "m.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        load([str(path)], io.BytesIO())
    return "\n".join(caught.value.lines).replace(str(path), "m.yaml") + "\n" + caught.value.hint


def test_a_field_of_the_spec_at_the_top_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert wrong("kind: agent\nid: a\nspec: {}\n", tmp_path).endswith("\nput id below spec")
    assert wrong("id: a\nspec: {}\n", tmp_path).endswith("\nput id below spec")
    assert wrong("kind: agent\nspce: {}\n", tmp_path).endswith("\ndid you mean spec?")


BOUNDED = [(name, word) for name in ("cpu_cores", "memory_bytes", "pids_limit", "disk_bytes") for word in MORE]


@pytest.mark.parametrize(("name", "word"), BOUNDED)
def test_the_bundled_limits_are_those_of_the_api(name: str, word: str) -> None:
    api = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    published = api["components"]["schemas"]["ContainerBackendRequest"]["properties"][name]
    bundled = KINDS["workspace_template"]["properties"]["backend"]["x-cases"]["container"]["properties"][name]
    assert bundled[word] == published[word]


def test_a_number_above_its_limit_is_found_before_anything_is_sent(cli: Cli, primer: Primer) -> None:
    spec = ["--set", "id=t", "--set", "provider_id=p", "--set", "backend.kind=container", "--set", "backend.image=i"]
    result = cli("create", "template", *spec, "--set", "backend.cpu_cores=1000")
    assert result.code == 2
    assert result.err.startswith("error: backend.cpu_cores: must be at most 256\n")
    assert primer.requests == []


HEAD = "kind: workspace\nspec:\n  template_id: a\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "  name: a\n  name: b\n", 'm.yaml:5: duplicate key "name": first on line 4, again on line 5'),
        (HEAD + "  name: yes\n  ttl_s: on\n", 'm.yaml:5: spec.ttl_s: must be a whole number, not "on"'),
        (HEAD + "  name: true\n", "m.yaml:4: spec.name: must be text, not true"),
        (HEAD + "  name: 5\n", 'write it in quotes: "5"'),
        (HEAD + "  name: !!python/object/apply:os.system [id]\n", "m.yaml:4: the tag tag:yaml.org,2002:python/"),
        (HEAD + "  name: [\n", "m.yaml:5: is not YAML"),
        (HEAD + "  labels: " + "{a: " * 70 + "1" + "}" * 70, "m.yaml:4: nested deeper than 64"),
        (HEAD + "  name: \udcff\n", "m.yaml:4: is not UTF-8 text"),
        (HEAD + '  name: "\\0"\n', "m.yaml:4: spec.name: must not hold NUL"),
        (HEAD + "  ttl_s: 1" + "0" * 200 + "\n", "m.yaml:4: spec.ttl_s: is too large"),
        (
            "kind: agent\nspec:\n  id: a\n  model: {provider_id: p}\n  temperature: 1e999\n",
            "temperature: must be a finite number",
        ),
        (HEAD + "  template: b\n", "did you mean template_id?"),
        ("kind: workspace\nspec: {}\n", "m.yaml:2: spec.template_id: is required"),
        ("kind: workspce\nspec: {}\n", "did you mean workspace?"),
        ("kind: agent\n", "m.yaml:1: spec: is required"),
        ("apiVersion: v1\nkind: agent\nmetadata: {}\nspec: {}\n", "manifests here have kind and spec only"),
        ("- 1\n", "m.yaml:1: a document has kind and spec"),
        ("# nothing\n", "nothing in"),
        ("---\n" * 1002 + "a: 1\n", "more than 1000 documents"),
        (HEAD + "  name: &a x\n  labels: {a: *b}\n", "is not YAML"),
        (HEAD + "  labels: &a {x: *a}\n", "m.yaml:4: the alias *a stands inside itself"),
    ],
)
def test_a_document_that_is_not_taken_says_why_and_where(tmp_path: Path, text: str, expected: str) -> None:
    assert expected.replace("is not YAML", "") in wrong(text, tmp_path)


def test_aliases_are_not_expanded_without_end(tmp_path: Path) -> None:
    bomb = "a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    assert "more than 100 aliases are expanded" in wrong(bomb, tmp_path)


def test_scalars_that_only_look_like_something_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(HEAD + "  labels: {a: yes, b: 0755, c: 12:30, d: 2026-01-01, e: 0x1f, f: 1_000, g: .inf, h: NO}\n")
    labels = load([str(path)], io.BytesIO())[0].spec["labels"]
    assert labels == {
        "a": "yes",
        "b": "0755",
        "c": "12:30",
        "d": "2026-01-01",
        "e": "0x1f",
        "f": "1_000",
        "g": ".inf",
        "h": "NO",
    }


def test_json_arrays_and_lists_with_items_are_documents_too(tmp_path: Path) -> None:
    one = '{"kind": "workspace", "spec": {"template_id": "a", "name": "\\ud83d\\ude42 \\\\ud83d"}}'
    path = tmp_path / "m.json"
    path.write_text(f'[{one}, {{"kind": "list", "items": [\n\t{one}]}}]')
    specs = [document.spec for document in load([str(path)], io.BytesIO())]
    assert specs == [{"template_id": "a", "name": "🙂 \\ud83d"}] * 2


def test_documents_are_sent_in_the_order_of_need_and_deleted_in_reverse(cli: Cli, primer: Primer, folder: Path) -> None:
    Path("code-runner.yaml").write_text(Path("code-runner.yaml").read_text().replace("<llm>", "scripted"))
    result = cli("create", "-f", ".")
    assert result.text.splitlines() == [
        "workspace_provider/docker-local created",
        "workspace_template/code-sandbox created",
        "agent/code-runner created",
    ]
    result = cli("delete", "-f", ".")
    assert result.text.splitlines() == [
        "agent/code-runner deleted",
        "workspace_template/code-sandbox deleted",
        "workspace_provider/docker-local deleted",
    ]


def test_a_refusal_of_the_server_stops_and_keeps_what_was_made(cli: Cli, primer: Primer, folder: Path) -> None:
    errors = [{"field": "backend.image", "message": "is not a reference"}]
    primer.on("POST", "/v1/workspace_templates", problem(422, "invalid", errors=errors))
    result = cli("create", "-f", "code-sandbox.yaml", "-f", "docker-provider.yaml")
    assert (result.code, result.text) == (2, "workspace_provider/docker-local created\n")
    assert result.err == (
        "error: code-sandbox.yaml:8: spec.backend.image: is not a reference\n"
        "hint: fix it and run: primectl apply -f code-sandbox.yaml\n"
    )


@pytest.mark.parametrize("mask", ['"***"', '"••••"', "{set: true, last4: a1b2}"])
def test_a_mask_never_becomes_the_key(cli: Cli, primer: Primer, folder: Path, mask: str) -> None:
    Path("llm.yaml").write_text(
        f"kind: llm_provider\nspec:\n  id: a\n  provider: anthropic\n  config:\n    kind: anthropic\n    api_key: {mask}\n"
    )
    result = cli("apply", "-f", "llm.yaml")
    assert result.code == 2
    assert "llm.yaml:7: spec.config.api_key: is a mask, not a secret" in result.err
    assert primer.requests == []


def test_apply_says_created_then_unchanged_then_configured(cli: Cli, primer: Primer, folder: Path) -> None:
    file = Path("code-sandbox.yaml")
    assert cli("apply", "-f", str(file)).text == "workspace_template/code-sandbox created\n"
    assert cli("apply", "-f", str(file)).text == "workspace_template/code-sandbox unchanged\n"
    file.write_text(file.read_text().replace("cpu_cores: 1", "cpu_cores: 2"))
    assert cli("apply", "-f", str(file)).text == "workspace_template/code-sandbox configured\n"
    assert [r.headers["if-match"] for r in primer.sent("PUT", "/v1/workspace_templates/code-sandbox")] == ['"1.1"'] * 2


def test_apply_over_somebody_elses_change_is_5(cli: Cli, primer: Primer, folder: Path) -> None:
    cli("create", "-f", "code-sandbox.yaml")
    primer.on("PUT", "/v1/workspace_templates/code-sandbox", problem(412, "precondition_failed"))
    result = cli("apply", "-f", "code-sandbox.yaml")
    assert result.code == 5
    assert "was changed by someone else since you read it" in result.err


def test_what_get_prints_as_yaml_can_be_applied_and_holds_no_secret(cli: Cli, primer: Primer) -> None:
    config = {"kind": "anthropic", "api_key": {"set": True, "last4": "a1b2"}, "default_model": "m"}
    primer.store["llm_providers"]["anthropic"] = {
        "id": "anthropic",
        "provider": "anthropic",
        "config": config,
        "status": {"health": "healthy"},
    }
    printed = cli("get", "llm", "anthropic", "-o", "yaml")
    assert "    # api_key: set, ends in a1b2 (left out; apply keeps it)\n" in printed.text
    result = cli("apply", "-f", "-", stdin=printed.out)
    assert (result.code, result.text) == (0, "llm_provider/anthropic configured\n")
    assert primer.sent("PUT", "/v1/llm_providers/anthropic")[0].json["config"] == {
        "kind": "anthropic",
        "default_model": "m",
    }


@pytest.mark.parametrize(
    ("flags", "spec"),
    [
        (["--set", "labels.team=red", "--set", "labels.'a.b'=1"], {"labels": {"team": "red", "a.b": "1"}}),
        (["--set", "ttl_s=90"], {"ttl_s": 90}),
        (["--set", "name=a=b,c"], {"name": "a=b,c"}),
        (["--set-json", 'labels={"a": "b"}'], {"labels": {"a": "b"}}),
        (["--set-string", "name=true"], {"name": "true"}),
        (["--set", "env.KEY.secret=x"], {"env": {"KEY": {"secret": "x"}}}),
    ],
)
def test_set_types_values_by_the_schema(cli: Cli, primer: Primer, flags: list[str], spec: dict[str, object]) -> None:
    assert cli("create", "workspace", "--set", "template_id=a", *flags).code == 0
    assert primer.sent("POST", "/v1/workspaces")[0].json == {"template_id": "a", **spec}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ["--set", "templat_id=a"],
            "error: --set templat_id: workspace has no such field\nhint: did you mean template_id?\n",
        ),
        (["--set", "template_id=a", "--set", "ttl_s=soon"], 'error: ttl_s: must be a whole number, not "soon"\n'),
        (["--set", "template_id"], "error: --set template_id: write path=value\n"),
        (["--set-json", "labels={"], "error: --set-json labels={: the value is not JSON\n"),
        (["--set", "name=x"], "error: template_id: is required\n"),
    ],
)
def test_set_refuses_before_any_request(cli: Cli, primer: Primer, flags: list[str], line: str) -> None:
    result = cli("create", "workspace", *flags)
    assert result.code == 2
    assert result.err.startswith(line)
    assert primer.requests == []


@pytest.mark.parametrize(("name", "why"), [("none.txt", "no such file or directory"), ("odd", "is not UTF-8 text")])
def test_a_file_for_a_value_that_cannot_be_read_says_why(cli: Cli, folder: Path, name: str, why: str) -> None:
    (folder / "odd").write_bytes(b"\xff")
    result = cli("create", "agent", "--set", "id=a", "--set-file", f"description=@{name}")
    assert (result.code, result.err) == (2, f"error: {name}: {why}\n")


def test_after_a_refusal_in_the_middle_the_hint_says_how_to_go_on(cli: Cli, primer: Primer, folder: Path) -> None:
    agent = "kind: agent\nspec: {{id: {id}, model: {{provider_id: {llm}}}}}\n"
    (folder / "two.yaml").write_text(
        agent.format(id="one", llm="scripted") + "---\n" + agent.format(id="two", llm="nope")
    )
    errors = [{"field": "model.provider_id", "message": "there is none"}]
    refusal = problem(422, "invalid", errors=errors)
    primer.on(
        "POST", "/v1/agents", lambda request: refusal if b"two" in request.body else primer._create(request, "agents")
    )
    result = cli("create", "-f", "two.yaml")
    assert (result.code, result.text) == (2, "agent/one created\n")
    assert 'error: two.yaml:5: spec.model.provider_id: no llm_provider "nope"\n' in result.err
    assert result.err.splitlines()[1].startswith("hint: there are: scripted")
    assert result.err.splitlines()[1].endswith("; fix it and run: primectl apply -f two.yaml")
    first = cli("create", "-f", "two.yaml", "--dry-run=server")
    assert "apply -f" not in first.err
