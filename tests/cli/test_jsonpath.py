"""The subset of kubectl's jsonpath: what scripts write prints what kubectl would print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import jsonpath
from cli.errors import UsageError
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Primer

VALUE: dict[str, Any] = {
    "items": [{"id": "a", "n": 1, "labels": {"x.y": "z"}}, {"id": "b", "n": None, "ok": True}],
    "total": 2,
}


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("{.items[*].id}", "a b"),
        ("{.items[0].id}", "a"),
        ("{.items[-1].id}", "b"),
        ("{.items[0:1]}", '{"id":"a","n":1,"labels":{"x.y":"z"}}'),
        ("{.items[9].id}", ""),
        ("{.items[1].n}", ""),
        ("{.items[1].ok}", "true"),
        ("{.nothing.at.all}", ""),
        ("{.items[0].labels['x.y']}", "z"),
        ('{.items[0].labels["x.y"]}', "z"),
        (r"{.items[0].labels.x\.y}", "z"),
        ("{$.total}", "2"),
        ("{@.total}", "2"),
        ("{ .total }", "2"),
        (".items[0].id", "a"),
        ("total", "2"),
        ("{.items[0].labels.*}", "z"),
        ('{range .items[*]}{.id}{"\\t"}{.n}{"\\n"}{end}', "a\t1\nb\t\n"),
        ("{range .items[*]}[{.id}]{end}", "[a][b]"),
        ("total: {.total}.", "total: 2."),
        ("{'}'}{.total}", "}2"),
    ],
)
def test_an_expression_prints_what_it_leads_to(expression: str, printed: str) -> None:
    assert jsonpath.parse(expression).render(VALUE) == printed


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("{.a", "a brace is not closed"),
        ("{end}", "{end} without {range …}"),
        ("{range .a}{.b}", "{range …} without {end}"),
        ("{.items[?(@.n==1)]}", "filters are not offered"),
        ("{..id}", "recursive descent is not offered"),
        ("{}", "empty braces"),
        ("{.a[]}", "a path was due"),
        ("{.a b}", "a path was due"),
        ("{'x}", "a brace is not closed"),
    ],
)
def test_what_is_not_in_the_subset_is_named(expression: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        jsonpath.parse(expression)
    assert why in caught.value.lines[0]
    assert "for example" in caught.value.hint


@given(st.text(st.sampled_from("{}[].*$@'\"\\ abrangeed0:-?()"), max_size=40))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    try:
        template = jsonpath.parse(text)
    except UsageError:
        return
    assert isinstance(template.render(VALUE), str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(min_size=1), JSON, min_size=1))
def test_every_key_can_be_reached_in_quotes(value: dict[str, Any]) -> None:
    for name, held in value.items():
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        found = jsonpath.path(f"{{['{quoted}']}}").find(value)
        assert found == [held]


@pytest.fixture
def agents(primer: Primer) -> Primer:
    primer.store["agents"] = {name: {"id": name, "model": {"provider_id": "scripted"}} for name in ("a", "b")}
    return primer


def test_get_prints_over_the_list_for_many_and_over_the_object_for_one(cli: Cli, agents: Primer) -> None:
    assert cli("get", "agents", "-o", "jsonpath={.items[*].id}").text == "a b"
    assert cli("get", "agent", "a", "-o", "jsonpath={.kind}/{.id}").text == "agent/a"
    assert cli("get", "agent", "a", "b", "-o", "jsonpath={.items[1].id}").text == "b"
    assert cli("describe", "agent", "a", "-o", "jsonpath={.model}").text == '{"provider_id":"scripted"}'


def test_on_a_terminal_the_prompt_starts_on_a_line_of_its_own(cli: Cli, agents: Primer) -> None:
    assert cli("get", "agent", "a", "-o", "jsonpath={.id}", out_tty=True).text == "a\n"


def test_hostile_text_is_marked_on_a_terminal_and_untouched_on_a_pipe(cli: Cli, agents: Primer) -> None:
    agents.store["agents"]["a"]["description"] = "x\x1b[2Jy"
    assert cli("get", "agent", "a", "-o", "jsonpath={.description}", out_tty=True).text == "x\\x1b[2Jy\n"
    assert cli("get", "agent", "a", "-o", "jsonpath={.description}").text == "x\x1b[2Jy"


def test_create_prints_what_was_asked_for(cli: Cli) -> None:
    made = cli("create", "workspace", "--set", "template_id=a", "-o", "jsonpath={.id}")
    assert (made.code, made.text) == (0, WS)


def test_wait_takes_a_path_with_and_without_a_value(cli: Cli, agents: Primer) -> None:
    agents.store["agents"]["a"] |= {"flags": [{"ready": True}], "note": "two words"}
    for goal in (
        "jsonpath={.flags[0].ready}=true",
        "jsonpath={.note}='two words'",
        "jsonpath={.note}",
        "jsonpath=.id=a",
    ):
        assert cli("wait", "agent/a", f"--for={goal}").code == 0, goal
    late = cli("wait", "agent/a", "--for=jsonpath={.flags[0].ready}=false", "--timeout=2s")
    assert (late.code, late.err) == (7, 'error: agent/a is "true" after 2s, not "false"\n')
    never = cli("wait", "agent/a", "--for=jsonpath={.missing}", "--timeout=2s")
    assert (never.code, never.err) == (7, 'error: agent/a is "" after 2s, not anything at missing\n')


def test_the_json_of_a_value_can_be_read_again() -> None:
    assert json.loads(jsonpath.parse("{.items}").render(VALUE)) == VALUE["items"]
