"""What is known of a thing is shown with its reason; what a kind does not have is not waited for."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import SESS, WS, Answer, Primer


@pytest.mark.parametrize(
    ("goal", "ref"), [("phase=running", "agent/code-runner"), ("status=ended", WS), ("health=healthy", SESS)]
)
def test_a_wait_for_what_a_kind_does_not_have_is_refused_at_once(cli: Cli, primer: Primer, goal: str, ref: str) -> None:
    result = cli("wait", ref, f"--for={goal}")
    assert (result.code, primer.requests) == (2, [])
    assert result.err.startswith(f"error: --for={goal}: ")


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
