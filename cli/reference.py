"""`docs/cli.md`, made from the commands themselves: `python -m cli.reference` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from cli.errors import MEANING
from cli.kinds import KINDS
from cli.main import root

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_WIDTH = 100

_HEAD = """\
<!-- Made by `make docs` from the commands themselves; changes here are lost. -->

# `primectl`

The command line of a Primer server. It speaks HTTP only; the server may be anywhere.
`primectl VERB KIND [ID…]` is for things, `primectl NOUN ACTION ID` for work. `KIND/ID` stands wherever an id does, so that
the output of one command is the argument of the next; ids that the server made may be cut to four digits or more.

Standard output carries the result and nothing else; everything for people goes to standard error.
"""


def commands(
    group: click.Group = root, path: tuple[str, ...] = ("primectl",), parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """Every command in the order of the help, groups before their actions, each with the context of its name."""
    context = _context(group, path[-1], parent)
    yield " ".join(path), context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name), context)
        elif command is not None and not command.hidden:
            yield " ".join((*path, name)), _context(command, name, context)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    names = ["-h", "--help"]
    return click.Context(command, info_name=name, parent=parent, terminal_width=_WIDTH, help_option_names=names)


def text() -> str:
    """The whole page."""
    parts = [_HEAD, "## Kinds\n", *_kinds(), "## Exit codes\n", *_codes(), "## Commands\n"]
    for name, context in commands():
        parts.append(f"### `{name}`\n\n```text\n{context.command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


def _kinds() -> Iterator[str]:
    rows = ["| Kind | Short | Also | Id |", "|---|---|---|---|"]
    for kind in KINDS:
        also = ", ".join(f"`{word}`" for word in (kind.plural, *kind.also))
        made = (
            f"the server's: `{kind.prefix}` and 16 hex digits"
            if kind.prefix
            else "yours: lower-case letters, digits, `-`"
        )
        rows.append(f"| `{kind.name}` | `{kind.short}` | {also} | {made} |")
    yield "\n".join(rows) + "\n"


def _codes() -> Iterator[str]:
    rows = ["| Code | Meaning |", "|---|---|", *(f"| {int(code)} | {meaning} |" for code, meaning in MEANING.items())]
    yield "\n".join(rows) + "\n"


def main() -> None:
    TARGET.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
