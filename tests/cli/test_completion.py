"""Completion in the shells themselves: each one sources what `primectl completion` prints and is asked what comes next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli
from tests.conftest import unusable

BASH = """
source "$1"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_primectl_completion primectl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# The completion system itself wants a line editor; what it would be given is printed instead.
ZSH = """
compdef() {{ : }}
_describe() {{ local name; for name in $3 $5; do [[ $name == completions* ]] && print -rl -- ${{(P)name}}; done }}
compadd() {{ local name; for name in $@; do [[ $name == completions* ]] && print -rl -- ${{(P)name}}; done }}
_arguments() {{ : }}
zstyle() {{ : }}
source "$1"
words=({words}); CURRENT=$#words
_primectl_completion
"""
FISH = "source $argv[1]; complete -C {line}"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with a `primectl` in front that is the one of this checkout."""
    program = tmp_path / "bin" / "primectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def completed(shell: str, script: Path, path: str, *words: str) -> set[str]:
    program = shutil.which(shell)
    if program is None:
        unusable(shell, "it is not installed")
    quoted = " ".join(f"'{word}'" for word in words)
    flags = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["--no-config", "-c"]}[shell]
    source = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell].format(words=quoted, line=f'"{" ".join(words)}"')
    arguments = [str(script)] if shell == "fish" else [shell, str(script)]
    result = subprocess.run(
        [program, *flags, source, *arguments],
        env={"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(script.parent), "LANG": "C.UTF-8"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return {line.split("\t")[0].split(":")[0] for line in result.stdout.splitlines() if line}


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def script(cli: Cli, shell: str, tmp_path: Path) -> Path:
    place = tmp_path / f"completion.{shell}"
    place.write_text(cli("completion", shell).text)
    return place


def test_the_shell_completes_commands_and_actions(shell: str, script: Path, path: str) -> None:
    assert completed(shell, script, path, "primectl", "work") == {"workspace"}
    assert completed(shell, script, path, "primectl", "workspace", "ex") == {"exec", "execs"}


def test_the_shell_completes_flags_and_their_values(shell: str, script: Path, path: str) -> None:
    assert "--recursive" in completed(shell, script, path, "primectl", "explain", "--rec")
    found = completed(shell, script, path, "primectl", "token", "create", "--scope", "")
    assert {"read", "write", "admin"} <= found


def test_completion_asks_no_server(cli: Cli, shell: str) -> None:
    assert cli("completion", shell, PRIMECTL_SERVER="nonsense://").code == 0
