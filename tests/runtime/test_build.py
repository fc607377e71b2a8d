"""The archive: the same bytes for the same source, nothing but the standard library, any python from 3.9 on."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workspaces import runtime as package
from workspaces.runtime import build

SOURCES = sorted(Path(package.__file__).parent.glob("*.py"))
HEAVY = {"asyncio", "hashlib", "hmac", "subprocess", "socket", "signal", "enum", "re", "typing", "json", "contextlib"}


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    first = build.zipapp_bytes()
    build.zipapp_bytes.cache_clear()
    for path in SOURCES:
        os.utime(path)  # times must not matter
    assert build.zipapp_bytes() == first
    build.build(tmp_path / "runtime.pyz")
    assert (tmp_path / "runtime.pyz").read_bytes() == first
    assert len(build.digest()) == 64


def test_the_archive_is_stored_plainly_and_leaves_out_what_is_the_servers() -> None:
    with zipfile.ZipFile(io.BytesIO(build.zipapp_bytes())) as archive:
        entries = archive.infolist()
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}
    names = {entry.filename for entry in entries}
    assert "__main__.py" in names
    assert "primer_runtime/build.py" not in names
    assert {f"primer_runtime/{path.name}" for path in SOURCES} - names == {
        "primer_runtime/build.py",
        "primer_runtime/__main__.py",
    }


def test_the_build_needs_no_django() -> None:
    code = "import sys; from workspaces.runtime import build; build.digest(); print('django' in sys.modules)"
    root = Path(package.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_module_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def imported(path: Path) -> set[str]:
    """Top-level names a module imports when it runs; what stands under TYPE_CHECKING does not."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name != "build.py"], ids=lambda path: path.name)
def test_no_module_imports_more_than_light_parts_of_the_standard_library(path: Path) -> None:
    names = imported(path)
    assert names <= sys.stdlib_module_names
    assert not names & HEAVY


def test_a_running_runtime_has_loaded_nothing_heavy(archive: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import primer_runtime.server; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert "primer_runtime.server" in done.stdout.split()
    assert not set(done.stdout.split()) & HEAVY


@pytest.mark.parametrize("arguments", [["dance"], ["serve", "--port", "1"], ["--socket"], ["serve", "x"]])
def test_a_wrong_command_line_is_usage_and_nothing_starts(archive: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-I", "-S", "-E", str(archive), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (64, b"")
    assert done.stderr.startswith(b"usage:")


def test_a_workdir_that_is_not_there_is_one_line_and_exit_1(archive: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-E", str(archive), "serve", "--socket", str(tmp_path / "s")]
    done = subprocess.run([*command, "--workdir", str(tmp_path / "nope")], check=False, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"ENOENT" in done.stderr
