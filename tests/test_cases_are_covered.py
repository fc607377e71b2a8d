"""Every adversarial case and every bug report is held by a test that exists, or said to be missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_crash_points import POINTS

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CASES = yaml.safe_load((TESTS / "cases" / "adversarial.yaml").read_text())["cases"]
WHERE: dict[str, Any] = yaml.safe_load((TESTS / "cases" / "where.yaml").read_text())
PROMISED = ("ESC", "AGT", "RES", "PRC", "OUT", "NET", "FIL", "ENG", "FAI", "CLI")
REPORTS = {1, 4, 6, *range(7, 46, 2)}  # bug reports, by number
# These lie between a deed and the answer that is kept of it, and have a test of their own.
ANSWERS = {"before-kept-answer", "after-kept-answer"}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_case_has_its_place() -> None:
    ids = {case["id"] for case in CASES}
    assert ids == set(WHERE["cases"]) | set(WHERE["later"])
    promised = {name for name in ids if name.startswith(PROMISED)}
    assert promised <= set(WHERE["cases"])


def test_every_bug_report_has_its_place() -> None:
    assert set(WHERE["bugs"]) | set(WHERE["bugs_later"]) == REPORTS
    assert not set(WHERE["bugs"]) & set(WHERE["bugs_later"])


def places() -> set[str]:
    """Each is one test, or a list of those that hold a part of it each."""
    found = [*WHERE["cases"].values(), *WHERE["bugs"].values()]
    return {place for one in found for place in (one if isinstance(one, list) else [one])}


@pytest.mark.parametrize("place", sorted(places()))
def test_the_test_of_a_case_exists(place: str) -> None:
    file, _, name = place.partition("::")
    assert name in functions(TESTS / file)


def test_every_crash_point_is_reached_by_a_test() -> None:
    named: set[str] = set()
    for package in ("primer_site", "accounts", "workspaces", "agents", "sessions_app"):
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r'\breach\(f?"([^"]+)"\)', path.read_text()))
    assert "delete-{kind}" in named  # of each kind of object that a workspace has on its engine
    kinds = {f"delete-{kind}" for kind in ("container", "volume", "network")}
    assert named - {"delete-{kind}"} | kinds == set(POINTS) | ANSWERS


def test_deadlines_are_monotonic() -> None:
    """A clock that jumps must neither end a run nor keep one: wall time is for people, `monotonic` for deadlines."""
    # These ask the engine for events and dates, which are of its clock.
    theirs = ("workspaces/providers/endings.py", "primer_site/doctor.py")
    wrong = []
    for package in ("primer_site", "workspaces", "agents", "sessions_app", "cli"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "datetime.utcnow"):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert [where for where in wrong if not where.startswith(theirs)] == []
