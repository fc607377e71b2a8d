"""Every adversarial case and every bug report is held by a test that exists, or said to be missing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CASES = yaml.safe_load((TESTS / "cases" / "adversarial.yaml").read_text())["cases"]
WHERE: dict[str, Any] = yaml.safe_load((TESTS / "cases" / "where.yaml").read_text())
PROMISED = ("ESC", "AGT", "RES", "PRC", "OUT", "NET", "FIL", "ENG", "FAI", "CLI")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_case_has_its_place() -> None:
    ids = {case["id"] for case in CASES}
    assert ids == set(WHERE["cases"]) | set(WHERE["later"])
    promised = {name for name in ids if name.startswith(PROMISED)}
    assert promised <= set(WHERE["cases"])


@pytest.mark.parametrize("place", sorted({*WHERE["cases"].values(), *WHERE["bugs"].values()}))
def test_the_test_of_a_case_exists(place: str) -> None:
    file, _, name = place.partition("::")
    assert name in functions(TESTS / file)


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
