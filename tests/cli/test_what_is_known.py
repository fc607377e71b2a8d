"""What is known of a thing is shown with its reason; what a kind does not have is not waited for."""

from __future__ import annotations

import json

import pytest

from agents import models as agents
from cli.commands.wait import _STATES
from sessions_app import models as sessions
from tests.cli.conftest import Cli
from tests.cli.fake import SESS, WS, Answer, Primer
from workspaces import models as workspaces


@pytest.mark.parametrize(
    ("goal", "ref"), [("phase=running", "agent/code-runner"), ("status=ended", WS), ("health=healthy", SESS)]
)
def test_a_wait_for_what_a_kind_does_not_have_is_refused_at_once(cli: Cli, primer: Primer, goal: str, ref: str) -> None:
    result = cli("wait", ref, f"--for={goal}")
    assert (result.code, primer.requests) == (2, [])
    assert result.err.startswith(f"error: --for={goal}: ")


@pytest.mark.parametrize("goal", ["phase=bogus", "phase=Running", "status=bogus", "health=ok"])
def test_a_wait_for_a_state_that_there_is_not_names_those_that_there_are(cli: Cli, primer: Primer, goal: str) -> None:
    field = goal.partition("=")[0]
    ref = {"phase": WS, "status": SESS, "health": "provider/docker-local"}[field]
    result = cli("wait", ref, f"--for={goal}")
    assert (result.code, primer.requests) == (2, [])
    hint = f"hint: it is one of {', '.join(_STATES[field])}"
    assert result.err.splitlines() == [f"error: --for={goal}: there is no {field} {goal.partition('=')[2]}", hint]


def test_the_states_that_can_be_waited_for_are_those_of_the_server() -> None:
    healths = {*workspaces.Health.values, *agents.Health.values}
    assert _STATES["phase"] == tuple(workspaces.Phase.values)
    assert _STATES["status"] == tuple(sessions.Status.values)
    assert set(_STATES["health"]) == healths


def test_checks_say_why_a_limit_is_not_held_and_what_the_engine_lacks(cli: Cli, primer: Primer) -> None:
    engine, why = {"version": "20.10.24"}, {"disk": "no quota"}
    status = {"health": "healthy", "engine": engine, "enforces": {"disk": "soft"}, "limit_reasons": why}
    item = {"id": "d", "provider": "container", "status": {**status, "reasons": ["it is old"]}}
    primer.on("POST", "/v1/workspace_providers/d/check", Answer(200, item))
    primer.on("GET", "/v1/workspace_providers/d", Answer(200, item))
    rows = [line.split(maxsplit=1) for line in cli("provider", "check", "d").text.splitlines()]
    assert ["limit", "disk  soft: no quota"] in rows
    assert ["reason", "it is old"] in [[row[0], row[1].strip()] for row in rows]
    assert json.loads(cli("provider", "check", "d", "-o", "json").out) == {"kind": "workspace_provider", **item}
    described = cli("describe", "provider", "d").text
    assert "  disk: no quota\n" in described
    assert described.count("it is old") == 1
    held = {"image_present": True, "limits": {"disk": "soft"}, "reasons": why, "problems": ["16 cores of 2"]}
    primer.on("POST", "/v1/workspace_templates/t/check", Answer(200, held))
    shown = cli("template", "check", "t").text
    assert "limit disk  soft: no quota\n" in shown
    assert "problem     16 cores of 2\n" in shown


def test_what_a_check_found_stands_flat_in_the_status_of_a_manifest(cli: Cli, primer: Primer) -> None:
    item = {"id": "d", "provider": "container", "isolates": True, "status": {"health": "healthy"}}
    primer.on("GET", "/v1/workspace_providers/d", Answer(200, item))
    assert cli("get", "provider", "d", "-o", "yaml").text.endswith("status:\n  isolates: true\n  health: healthy\n")
