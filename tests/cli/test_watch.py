"""get -w: one line for each change, nothing twice, one object by its ETag."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Primer

Steps = Callable[..., None]


@pytest.fixture
def steps(cli: Cli) -> Steps:
    """`steps(f, g)`: what happens during the first and the second pause; then Ctrl-C."""

    def prepare(*things: Callable[[], Any]) -> None:
        left = list(things)
        pass_time = cli.clock.sleep

        def sleep(seconds: float) -> None:
            pass_time(seconds)
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        cli.clock.sleep = sleep  # type: ignore[method-assign]

    return prepare


@pytest.fixture(autouse=True)
def agents(primer: Primer) -> dict[str, dict[str, Any]]:
    primer.store["agents"] = {"a": {"id": "a"}, "b": {"id": "b"}}
    return primer.store["agents"]


def test_the_header_comes_once_and_later_rows_stand_below_it(cli: Cli, agents: dict[str, Any], steps: Steps) -> None:
    steps(lambda: agents["b"].update(model={"provider_id": "scripted"}), lambda: agents.pop("a"))
    result = cli("get", "agents", "-w")
    header, *rows = result.text.splitlines()
    assert result.code == 130
    assert [row.split()[0] for row in rows] == ["a", "b", "b", "agent/a"]
    assert rows[2].index("scripted") == header.index("LLM-PROVIDER")
    assert rows[3] == "agent/a gone"


def test_a_list_that_begins_empty_gets_its_header_with_the_first_row(
    cli: Cli, agents: dict[str, Any], steps: Steps
) -> None:
    agents.clear()
    steps(lambda: agents.update(new={"id": "new"}))
    lines = cli("get", "agents", "-w").text.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "new"]


def test_json_is_one_object_a_line_and_says_gone_as_one(cli: Cli, agents: dict[str, Any], steps: Steps) -> None:
    steps(lambda: agents.pop("b"))
    lines = [json.loads(line) for line in cli("get", "agents", "-w", "-o", "json").text.splitlines()]
    assert lines == [
        {"kind": "agent", "id": "a"},
        {"kind": "agent", "id": "b"},
        {"kind": "agent", "id": "b", "gone": True},
    ]


def test_jsonpath_is_a_line_for_each_change(cli: Cli, agents: dict[str, Any], steps: Steps) -> None:
    steps(lambda: agents["a"].update(n=1))
    assert cli("get", "agents", "-w", "-o", "jsonpath={.id} {.n}").text == "a \nb \na 1\n"


def test_one_object_is_asked_for_by_its_etag_and_shown_again_when_it_moved(
    cli: Cli, primer: Primer, steps: Steps
) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running", "looks": 1}

    def move() -> None:
        primer.store["workspaces"][WS] |= {"phase": "stopped", "looks": 2}

    steps(lambda: None, move, primer.store["workspaces"].clear, lambda: None)
    result = cli("get", "ws", WS, "-w", "-o", "name")
    assert result.text == f"workspace/{WS}\nworkspace/{WS}\nworkspace/{WS} gone\n"
    asked = primer.sent("GET", f"/v1/workspaces/{WS}")
    assert [request.headers.get("if-none-match") for request in asked[:4]] == [None, '"1.1"', '"1.1"', '"1.2"']


def test_it_looks_each_second_and_less_often_when_nothing_happens(cli: Cli, steps: Steps) -> None:
    pauses: list[float] = []
    before = cli.clock.sleep

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        before(seconds)
        if len(pauses) == 8:
            raise KeyboardInterrupt

    cli.clock.sleep = sleep  # type: ignore[method-assign]
    cli("get", "agents", "-w")
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_a_missing_one_is_told_and_the_others_are_watched(cli: Cli, steps: Steps) -> None:
    steps(lambda: None)
    result = cli("get", "agent", "a", "nobody", "-w", "-o", "name")
    assert result.text == "agent/a\n"
    assert result.err.count("error: agent nobody not found\n") == 1
