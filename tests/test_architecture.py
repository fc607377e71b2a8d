"""The shape of the code is a promise too: which way imports go, what is pure, how long things may get."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("primer_site", "accounts", "workspaces", "agents", "sessions_app", "cli")
APPS = ("accounts", "workspaces", "agents", "sessions_app")  # each may import those before it
# What apps may import from primer_site; these import no app themselves.
SHARED = {
    "crashpoints",
    "documents",
    "errors",
    "home",
    "loop",
    "metrics",
    "pagination",
    "prepared",
    "parsing",
    "problems",
    "requests",
    "resource",
    "secret_forms",
    "services",
    "shells",
    "vault",
    "words",
}
PURE = (
    "workspaces/execution.py",
    "workspaces/providers/manifests.py",
    "agents/messages.py",
    "agents/loop.py",
    "agents/events.py",
    "agents/budget.py",
    "agents/compaction.py",
    "agents/prices.py",
    "agents/redact.py",
)
RUNTIME_ONLY_ON_THE_SERVER = {"workspaces/runtime/build.py"}
FILE_LINES, FUNCTION_LINES, FUNCTION_P90 = 400, 60, 30


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute names of the modules a file imports; relative imports are resolved."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return found


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


@pytest.mark.parametrize("index", range(len(APPS)), ids=APPS)
def test_an_app_imports_only_apps_below_it(index: int) -> None:
    forbidden = {*APPS[index + 1 :], "cli"}
    wrong = {name_of(path): found for path in sources(APPS[index]) if (found := roots(path) & forbidden)}
    assert not wrong


def test_apps_take_from_primer_site_only_what_is_shared() -> None:
    wrong = {
        name_of(path): found
        for path in sources(*APPS)
        if (
            found := {
                name for name in imports(path) if name.startswith("primer_site.") and name.split(".")[1] not in SHARED
            }
        )
    }
    assert not wrong


def test_what_apps_share_imports_no_app() -> None:
    shared = [path for path in sources("primer_site") if path.stem in SHARED]
    wrong = {name_of(path): found for path in shared if (found := roots(path) & set(APPS))}
    assert not wrong


def test_the_command_line_imports_nothing_of_the_server() -> None:
    forbidden = {"django", "rest_framework", "channels", "docker", "primer_site", *APPS}
    wrong = {name_of(path): found for path in sources("cli") if (found := roots(path) & forbidden)}
    assert not wrong


def test_the_server_takes_of_the_command_line_only_what_needs_no_client() -> None:
    """The base install is always there, so the server may share its context file and its YAML reader, and no more."""
    taken = {"cli.config", "cli.errors", "cli.invoked", "cli.validate", "cli.yamldoc"}
    found = {
        name_of(path): wrong
        for path in sources("primer_site")
        if (wrong := {".".join(name.split(".")[:2]) for name in imports(path) if name.startswith("cli.")} - taken)
    }
    assert not found


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_neither_django_nor_an_sdk(module: str) -> None:
    assert not roots(ROOT / module) & {
        "django",
        "docker",
        "anthropic",
        "openai",
        "channels",
        "rest_framework",
        "asgiref",
    }


def test_the_runtime_uses_the_standard_library_only() -> None:
    wrong = {}
    for path in sources("workspaces/runtime"):
        if name_of(path) in RUNTIME_ONLY_ON_THE_SERVER:
            continue
        foreign = roots(path) - set(sys.stdlib_module_names) - {"", "__future__", "workspaces", "_blake2", "protocol"}
        local = {name for name in imports(path) if name.startswith("workspaces.")}
        foreign |= {name for name in local if not name.startswith("workspaces.runtime")}
        # These load OpenSSL or an event loop and double the memory of PID 1.
        foreign |= roots(path) & {"asyncio", "hashlib", "hmac", "ssl"}
        if foreign:
            wrong[name_of(path)] = foreign
    assert not wrong


def test_no_sdk_is_imported_before_its_first_use() -> None:
    wrong = {}
    for path in sources(*PACKAGES):
        top = {name.split(".")[0] for name in imports(path, top_level_only=True)}
        if found := top & {"docker", "kubernetes", "anthropic", "openai"}:
            wrong[name_of(path)] = found
    assert not wrong


def test_no_file_is_over_its_budget() -> None:
    long = {name_of(p): n for p in sources(*PACKAGES, "tests", "benchmarks") if (n := len(p.read_text().splitlines())) > FILE_LINES}  # fmt: skip
    assert not long


def function_lengths() -> dict[str, int]:
    lengths: dict[str, int] = {}
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths[f"{name_of(path)}:{node.lineno} {node.name}"] = (
                    (node.end_lineno or node.lineno) - node.lineno + 1
                )
    return lengths


def test_functions_fit_a_screen() -> None:
    lengths = function_lengths()
    assert not {where: n for where, n in lengths.items() if n > FUNCTION_LINES}
    assert sorted(lengths.values())[int(len(lengths) * 0.9)] <= FUNCTION_P90


def test_only_visible_to_and_may_change_compare_owners() -> None:
    """Sharing can come later as a table of grants only if nothing else looks at `owner`."""
    allowed = {"accounts/permissions.py", "accounts/rest.py", "workspaces/querysets.py", "agents/querysets.py", "sessions_app/querysets.py"}  # fmt: skip
    wrong = []
    for path in sources(*APPS):
        if name_of(path) in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(isinstance(side, ast.Attribute) and side.attr in ("owner", "owner_id") for side in sides):
                    wrong.append(f"{name_of(path)}:{node.lineno}")
    assert not wrong


def test_migrations_are_complete() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "django", "makemigrations", "--check", "--dry-run"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "primer_site.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
