"""explain and api-resources; and the bundled schema against the published one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agents.limits import DEFAULTS
from cli import fields, wording
from cli.kinds import KINDS, Kind
from cli.published import kinds_of
from cli.schema import KINDS as BUNDLED
from cli.schema import Schema
from cli.sentences import SENTENCES
from tests.cli.conftest import ROOT, Cli
from tests.cli.fake import Answer, Primer
from tests.cli.test_help import commands


def published() -> dict[str, Schema]:
    return kinds_of(yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text()))


def paths(schema: Schema, path: str = "") -> Iterator[str]:
    """Every field below a schema, as `explain` names it."""
    for option in schema.get("oneOf", ()):
        yield from paths(option, path)
    for case in schema.get("x-cases", {}).values():
        yield from paths(case, path)
    if schema.get("items") and not path.endswith("[]"):
        yield f"{path}[]"
        yield from paths(schema["items"], f"{path}[]")
    more = schema.get("additionalProperties")
    named = schema.get("properties", {}) | ({"NAME": more} if isinstance(more, dict) and more else {})
    for name, below in named.items():
        here = f"{path}.{name}" if path else name
        yield here
        yield from paths(below, here)


def pairs_of(api: Schema, ours: Schema, path: str) -> Iterator[tuple[str, Schema, Schema]]:
    """Each schema of the API with ours at the same place; an empty one of ours where we have none."""
    yield path, api, ours
    if ours.get("x-secret"):
        return  # what a read shows in place of a secret has no fields that anybody fills in
    for name, below in api.get("x-cases", {}).items():
        yield from pairs_of(below, ours.get("x-cases", {}).get(name, {}), f"{path}({name})")
    for name, below in api.get("properties", {}).items():
        yield from pairs_of(below, ours.get("properties", {}).get(name, {"missing": True}), f"{path}.{name}")
    for number, below in enumerate(api.get("oneOf", ())):
        options = ours.get("oneOf", ())
        yield from pairs_of(below, options[number] if number < len(options) else {}, path)
    if api.get("items") and ours.get("items"):
        yield from pairs_of(api["items"], ours["items"], f"{path}[]")


@pytest.mark.parametrize("kind", sorted(BUNDLED))
def test_the_bundled_schema_holds_what_the_server_publishes(kind: str) -> None:
    differences = []
    for path, api, ours in pairs_of(published()[kind], BUNDLED[kind], kind):
        if ours.get("missing"):
            differences.append(f"{path} is not known here")
            continue
        # The published document leaves choices and types out here and there; what it says must be said here too.
        for word in ("minimum", "maximum", "default", "type"):
            if word in api and ours.get(word) != api[word] and ours:
                differences.append(f"{path} {word}: {api[word]!r} there, {ours.get(word)!r} here")
        if "required" in api and "properties" in ours and not set(api["required"]) <= set(ours["required"]):
            differences.append(f"{path} required: {api['required']} there, {ours['required']} here")
    assert differences == []


@pytest.mark.parametrize("kind", sorted(BUNDLED))
def test_every_field_has_a_sentence_and_every_sentence_a_field(kind: str) -> None:
    known = set(paths(BUNDLED[kind]))
    assert [path for path in known if not fields.words(kind, path)[0]] == []
    assert [path for path in fields.WORDS[kind] if path and path not in known] == []


def test_the_sentences_are_those_of_the_published_document() -> None:
    assert wording.TARGET.read_text() == wording.text(), "make docs writes cli/sentences.py anew"


@pytest.mark.parametrize("kind", sorted(BUNDLED))
def test_no_sentence_is_written_twice(kind: str) -> None:
    """What the server says of a field is not said again here; only an example stands beside it."""
    known = {**fields.WORDS["*"], **fields.WORDS[kind]}
    assert [path for path, (text, _) in known.items() if text and path in SENTENCES[kind]] == []


@pytest.mark.parametrize("kind", sorted(BUNDLED))
def test_every_field_can_be_explained(cli: Cli, kind: str) -> None:
    for path in paths(BUNDLED[kind]):
        result = cli("explain", f"{kind}.{path}", PRIMECTL_TOKEN="")
        assert result.code == 0, result.err
        # A list is named without the sign of its items when it is what was asked for.
        assert f"FIELD:  {path.removesuffix('[]')}  <" in result.text.replace("[]  <", "  <")


def test_explain_shows_type_default_allowed_and_example(cli: Cli, primer: Primer) -> None:
    result = cli("explain", "template.backend.memory_bytes", PRIMECTL_TOKEN="")
    assert result.text == (
        "KIND:   workspace_template\n"
        "FIELD:  backend.memory_bytes  <whole number>\n"
        "  Memory in bytes; a program that passes it is ended (oom).\n"
        "\n"
        "  default   536870912 (512 MiB)\n"
        "  allowed   67108864 (64 MiB) to 4398046511104 (4 TiB)\n"
        "  example   536870912\n"
    )
    assert primer.requests == []


def test_explain_of_a_kind_lists_its_fields_and_recursive_all_of_them(cli: Cli) -> None:
    text = cli("explain", "wt", PRIMECTL_TOKEN="").text
    assert "  provider_id  <text>, required\n      The workspace provider that its workspaces run on.\n" in text
    assert "  require  <text>, default best_effort\n" in text
    tree = cli("explain", "wt", "--recursive", PRIMECTL_TOKEN="").text
    for line in ("  id*  <text>\n", "    kind: container:\n", "        egress  <text>\n", "    path*  <text>\n"):
        assert line in tree


def test_a_field_that_is_not_there_names_the_nearest(cli: Cli) -> None:
    result = cli("explain", "template.bckend", PRIMECTL_TOKEN="")
    assert (result.code, result.err) == (
        2,
        "error: workspace_template has no field bckend\nhint: did you mean backend?\n",
    )
    assert cli("explain", "template.id.more", PRIMECTL_TOKEN="").code == 2


NEW = {
    "components": {
        "schemas": {
            "AgentRequest": {
                "type": "object",
                "required": ["mood"],
                "properties": {
                    "mood": {"allOf": [{"$ref": "#/components/schemas/Mood"}], "default": "calm"},
                    "loop": {"$ref": "#/components/schemas/AgentRequest"},
                },
            },
            "Mood": {"type": "string", "enum": ["calm", "wild"], "description": "How it feels.\x1b[2J"},
        }
    }
}


def test_a_newer_server_explains_its_own_fields_and_is_asked_once(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/capabilities", Answer(200, {"version": "99.0.0"}))
    primer.on("GET", "/v1/schema/", Answer(200, NEW))
    for _ in range(2):
        result = cli("explain", "agent.mood")
        assert result.code == 0, result.err
        assert "FIELD:  mood  <text>, required\n  How it feels.\\x1b[2J\n" in result.text
        assert "  default   calm\n  allowed   calm, wild\n" in result.text
    assert len(primer.sent("GET", "/v1/schema/")) == len(primer.sent("GET", "/v1/capabilities")) == 1
    assert "backend" in cli("explain", "wt").text  # what it does not publish is ours


@pytest.mark.parametrize("body", [{}, {"components": 5}, {"components": {"schemas": {"AgentRequest": 7}}}])
def test_a_schema_that_says_nothing_leaves_ours(cli: Cli, primer: Primer, body: Any) -> None:
    primer.on("GET", "/v1/capabilities", Answer(200, {"version": "99.0.0"}))
    primer.on("GET", "/v1/schema/", Answer(200, body))
    assert cli("explain", "agent").code == 0


def test_a_server_that_is_away_leaves_ours_at_once(cli: Cli) -> None:
    before = cli.clock.now
    assert "tools" in cli("explain", "agent", PRIMECTL_SERVER="http://127.0.0.1:1").text
    assert cli.clock.now == before


def test_a_schema_of_one_server_is_not_used_for_another(cli: Cli, primer: Primer) -> None:
    primer.on("GET", "/v1/capabilities", Answer(200, {"version": "99.0.0"}))
    primer.on("GET", "/v1/schema/", Answer(200, NEW))
    assert "mood" in cli("explain", "agent").text
    assert "mood" not in cli("explain", "agent", PRIMECTL_SERVER="http://127.0.0.1:1").text


def test_api_resources_lists_the_kinds_with_verbs_and_actions_that_exist(cli: Cli) -> None:
    lines = cli("api-resources").text.splitlines()
    assert lines[0].split() == ["NAME", "SHORT", "PLURAL", "VERBS", "ACTIONS"]
    assert [line.split()[0] for line in lines[1:]] == [kind.name for kind in KINDS]
    assert cli("api-resources", "-o", "name").text.splitlines() == [kind.name for kind in KINDS]
    known = {" ".join(path) for path, _ in commands()}
    for line in lines[1:]:
        _, _, _, verbs, noun, *actions = [*line.split(), ""][: len(line.split()) + 1]
        assert set(verbs.split(",")) <= known
        assert {f"{noun} {action}" for action in actions if action} <= known


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_short_name_explains_its_kind(cli: Cli, kind: Kind) -> None:
    assert cli("explain", kind.short, PRIMECTL_TOKEN="").text.startswith(f"KIND:   {kind.name}\n")


def test_limits_of_an_agent_have_their_defaults_and_those_of_a_session_are_its_agents(cli: Cli) -> None:
    assert "  default   50\n" in cli("explain", "agent.limits.max_turns", PRIMECTL_TOKEN="").text
    assert "default" not in cli("explain", "session.limits.max_turns", PRIMECTL_TOKEN="").text
    assert BUNDLED["agent"]["properties"]["limits"]["properties"].keys() == DEFAULTS.keys()
    for name, limit in BUNDLED["agent"]["properties"]["limits"]["properties"].items():
        assert limit.get("default") == DEFAULTS[name], name


def test_what_may_be_null_says_what_else_it_may_be(cli: Cli) -> None:
    text = cli("explain", "llm_provider.config.api_key", PRIMECTL_TOKEN="").text
    assert "  allowed   secret text or null\n" in text
