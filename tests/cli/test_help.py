"""Help of every command and completion for every shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from cli.main import root
from tests.cli.conftest import Cli, Spawn


def commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_has_help_with_two_examples(cli: Cli, path: tuple[str, ...]) -> None:
    for flag in ("-h", "--help"):
        result = cli(*path, flag)
        assert (result.code, result.err) == (0, "")
    examples = result.text.partition("Examples:\n")[2]
    assert sum("primectl " in line for line in examples.splitlines() if line.startswith("  ")) >= 2


@pytest.mark.parametrize(
    "path", [path for path, command in commands() if isinstance(command, click.Group)], ids=" ".join
)
def test_a_noun_alone_prints_its_help(cli: Cli, path: tuple[str, ...]) -> None:
    result = cli(*path)
    assert (result.code, result.err) == (0, "")
    assert "Commands:" in result.text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_installed(cli: Cli, shell: str, tmp_path: Any) -> None:
    assert "_PRIMECTL_COMPLETE" in cli("completion", shell).text
    result = cli("completion", shell, "--install")
    assert result.code == 0
    assert any("primectl" in path.name for path in tmp_path.rglob("*primectl*"))


def test_the_app_needs_no_configuration_to_print_help(cli: Cli, environment: dict[str, str]) -> None:
    assert cli("get", "--help", PRIMECTL_SERVER="nonsense").code == 0


def test_completion_completes_commands(spawn: Spawn) -> None:
    env = {"_PRIMECTL_COMPLETE": "bash_complete", "COMP_WORDS": "primectl workspace ex", "COMP_CWORD": "2"}
    out, err = spawn(env=env).communicate(timeout=20)
    assert (out.split(), err) == ([b"plain,exec", b"plain,execs"], b"")
