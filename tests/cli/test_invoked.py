"""Hints name a command as this shell can run it: by its name where that is found, else by its path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.invoked import as_invoked, command
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    command.cache_clear()
    yield
    command.cache_clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with both programs, of which `primectl` runs; it is not on the PATH."""
    place = tmp_path / "venv" / "bin"
    place.mkdir(parents=True)
    for name in ("primer", "primectl"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(place / "primectl")])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return place


LINE = "start it with: primer up, then primectl get ws; see /opt/primer up there, and primer-console"


def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(programs: Path) -> None:
    assert as_invoked(LINE) == (
        "start it with: venv/bin/primer up, then venv/bin/primectl get ws; see /opt/primer up there, and primer-console"
    )


def test_from_elsewhere_the_path_is_whole(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = programs.parents[1] / "some where"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert as_invoked("primer up") == f"{programs}/primer up"


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_program_on_the_path_keeps_its_name(
    programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, through_a_link: bool
) -> None:
    if through_a_link:  # as tool installers make it
        for name in ("primer", "primectl"):
            (tmp_path / name).symlink_to(programs / name)
    else:
        monkeypatch.setenv("PATH", str(programs))
    assert as_invoked(LINE) == LINE


def test_another_program_of_that_name_is_not_meant(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "primer").write_text("#!/bin/sh\n")
    (tmp_path / "primer").chmod(0o755)
    assert as_invoked("primer up") == "venv/bin/primer up"


def test_a_module_or_a_test_has_no_path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [os.path.abspath("cli/main.py")])
    assert as_invoked(LINE) == LINE


def test_the_hints_of_primectl_can_be_typed_as_they_stand(cli: Cli, programs: Path) -> None:
    away = cli("get", "agents", PRIMECTL_SERVER="http://127.0.0.1:1").err
    assert away.endswith("hint: start it with: venv/bin/primer up\n")
    denied = cli("get", "agents", PRIMECTL_TOKEN="wrong").err.splitlines()
    assert denied[-1].startswith("hint: venv/bin/primectl login http://")
    assert denied[0].startswith("error: the token is not valid on http://")


def test_what_is_to_be_typed_on_another_machine_stays_as_it_is(cli: Cli, programs: Path) -> None:
    from cli.text import image_hint

    console_line = image_hint("primer/workspace-runtime:1.0")
    assert console_line == "build it on the server: primer image build"
    assert as_invoked(console_line, ("primectl",)) == console_line
