"""The lines of `primer`: one for each step, `ok    engine   20.10.24, cgroup v1, socket`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from cli.invoked import as_invoked
from primer_site.logs import escape


class Level(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. `fix` is what mends it, `mend` does so and returns what it did."""

    level: Level
    name: str
    text: str
    fix: str = ""
    mend: Callable[[], str] | None = field(default=None, compare=False)


def line(level: Level, name: str, text: str, fix: str = "") -> None:
    """Prints one step to stdout; `fix` is the command or sentence that mends it, on a line of its own."""
    # Colour is lost on a pipe (click removes it there) and never carries the meaning alone.
    click.echo(f"{click.style(f'{level.value:<5}', fg=COLORS[level])} {name:<9} {escape(as_invoked(text))}")
    if fix:
        click.echo(f"      {'':<9} {escape(as_invoked(fix))}")


def ok(name: str, text: str) -> None:
    line(Level.OK, name, text)


def warn(name: str, text: str, fix: str = "") -> None:
    line(Level.WARN, name, text, fix)


def fail(name: str, text: str, fix: str = "") -> None:
    line(Level.FAIL, name, text, fix)
