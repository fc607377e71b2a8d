"""`primectl version`, `completion` and `help`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import command
from cli.errors import MEANING, CliError, UsageError
from cli.text import nearest
from cli.versions import WARNING, fits, own_version, server_version


@command("version", "primectl version", "primectl version --client", short_help="Show the versions.")
@click.option("--client", "client_only", is_flag=True, help="Ours alone; no server is asked.")
@click.pass_obj
def version(app: App, *, client_only: bool) -> None:
    """Show the version of this program and of the server."""
    style = app.format(("json",), "text")
    found: dict[str, Any] = {"client": own_version()}
    failure: CliError | None = None
    if not client_only:
        try:
            found["server"] = server_version(app)
        except CliError as exc:
            failure = exc
    if style == "json":
        app.console.json(found)
    else:
        app.console.line(f"primectl {found['client']}")
        if "server" in found:
            app.console.line(f"server {found['server']}")
    if failure is not None:
        raise failure
    if not fits(found.get("server", "unknown")):
        app.console.note(WARNING)


@command(
    "completion",
    "source <(primectl completion bash)",
    "primectl completion zsh --install",
    short_help="Print or install shell completion.",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Write it where the shell looks for it.")
@click.pass_obj
def completion(app: App, *, shell: str, install: bool) -> None:
    """Print the completion script of a shell, or install it."""
    from click.shell_completion import get_completion_class

    from cli.main import COMPLETE, root

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}")
    script = kind(root, {}, "primectl", COMPLETE)
    # click's own source() runs bash to look at its version; the script itself needs no such process.
    text = script.source_template % script.source_vars()
    if not install:
        app.console.text(text)
        return
    path = _place(app, shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise CliError(f"{path}: {(exc.strerror or 'cannot be written').lower()}") from exc
    app.console.note(f"installed {path}; it works in the next shell")
    if shell == "zsh":
        app.console.note(f"zsh looks there if ~/.zshrc has, before compinit: fpath+=({path.parent})")


def _place(app: App, shell: str) -> Path:
    env = app.console.env
    home = env.get("HOME") or os.path.expanduser("~")
    data = Path(env.get("XDG_DATA_HOME") or os.path.join(home, ".local/share"))
    config = Path(env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"))
    return {
        "bash": data / "bash-completion/completions/primectl",
        "zsh": data / "zsh/site-functions/_primectl",
        "fish": config / "fish/completions/primectl.fish",
    }[shell]


@command("help", "primectl help session run", "primectl help exit-codes", short_help="Show help.")
@click.argument("words", nargs=-1, metavar="[COMMAND…|exit-codes]")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, or the table of exit codes."""
    console = ctx.obj.console
    if words == ("exit-codes",):
        rows = [["CODE", "MEANING"], *([str(int(code)), text] for code, text in MEANING.items())]
        tables.write(console, rows, fold=True)
        return
    from cli.main import root

    group: click.Command = root
    parent = click.Context(root, info_name="primectl", obj=ctx.obj, max_content_width=110)
    for word in words:
        if not isinstance(group, click.Group) or (found := group.get_command(parent, word)) is None:
            names = group.list_commands(parent) if isinstance(group, click.Group) else []
            close = nearest(word, names)
            raise UsageError(
                f'no command "{" ".join(words)}"', hint=f"did you mean {close}?" if close else "primectl --help"
            )
        group = found
        parent = click.Context(group, info_name=word, parent=parent, obj=ctx.obj, max_content_width=110)
    console.help(group.get_help(parent) + "\n")
