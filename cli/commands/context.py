"""`primectl context` and `primectl config`: the contexts on disk and the settings in force."""

from __future__ import annotations

import click

from cli import tables
from cli.app import App
from cli.command import Group, command
from cli.config import ConfigFile, masked
from cli.errors import CliError, Exit, UsageError
from cli.text import nearest

context = Group(
    "context",
    help="List, choose, rename and delete contexts.",
    short_help="List, choose, rename and delete contexts.",
    examples=("primectl context list", "primectl context use work"),
)
config = Group(
    "config",
    help="Show the settings in force and where they come from.",
    short_help="Show the settings in force and where they come from.",
    examples=("primectl config view", "primectl config view --sources"),
)


def _known(file: ConfigFile, name: str) -> None:
    if name not in file.contexts:
        close = nearest(name, file.contexts)
        hint = f"did you mean {close}?" if close else f"there are: {', '.join(file.contexts) or 'none'}"
        raise CliError(f"context {name} not found", exit=Exit.NOT_FOUND, hint=hint)


@command("list", "primectl context list", "primectl context list -o json", short_help="List the contexts.")
@click.pass_obj
def context_list(app: App) -> None:
    """List the contexts; the current one has a star."""
    style = app.format(("json", "name", "table"), "table")
    file = app.config
    if style == "json":
        items = [{"name": n, "current": n == file.current, "server": c.get("server")} for n, c in file.contexts.items()]
        app.console.json({"kind": "list", "items": items})
    elif style == "name" or app.quiet:
        for name in file.contexts:
            app.console.line(name)
    elif not file.contexts:
        app.console.info("No contexts found.")
    else:
        rows = [["NAME", "CURRENT", "SERVER", "TOKEN"]]
        for name, values in file.contexts.items():
            star = "*" if name == file.current else ""
            rows.append([name, star, values.get("server", ""), masked(values.get("token", ""))])
        tables.write(app.console, rows, fold=True)


@command("use", "primectl context use work", "primectl context use local", short_help="Make a context current.")
@click.argument("name")
@click.pass_obj
def context_use(app: App, *, name: str) -> None:
    """Make a context the current one."""
    _known(app.config, name)
    app.config.current = name
    app.config.save()
    if not app.quiet:
        app.console.line(f"using context {name}")


@command(
    "rename", "primectl context rename local laptop", "primectl context rename work old-work", short_help="Rename one."
)
@click.argument("old")
@click.argument("new")
@click.pass_obj
def context_rename(app: App, *, old: str, new: str) -> None:
    """Give a context another name."""
    file = app.config
    _known(file, old)
    if new in file.contexts:
        raise CliError(f"context {new} already exists", exit=Exit.CONFLICT)
    if not new or any(not c.isprintable() or c in "/ " for c in new):
        raise UsageError(f'"{new}" is not a name for a context')
    file.contexts = {new if name == old else name: values for name, values in file.contexts.items()}
    file.current = new if file.current == old else file.current
    file.save()
    if not app.quiet:
        app.console.line(f"context {old} is now {new}")


@command("delete", "primectl context delete work", "primectl context delete old-work", short_help="Forget a context.")
@click.argument("name")
@click.pass_obj
def context_delete(app: App, *, name: str) -> None:
    """Forget a context and its token; the token itself stays valid on the server."""
    _known(app.config, name)
    del app.config.contexts[name]
    if app.config.current == name:
        app.config.current = ""
    app.config.save()
    if not app.quiet:
        app.console.line(f"context {name} deleted")


@command(
    "view",
    "primectl config view",
    "primectl config view --sources",
    short_help="Show each setting, tokens masked.",
)
@click.option("--sources", is_flag=True, help="Also where each value came from.")
@click.pass_obj
def config_view(app: App, *, sources: bool) -> None:
    """Show the settings that a call with these flags goes by."""
    style = app.format(("json",), "text")
    settings = app.settings
    found = {
        "context": settings.context,
        "server": settings.server,
        "token": type(settings.token)(masked(settings.token.text), settings.token.source),
        "ca-file": settings.ca_file,
        "template": settings.template,
        "output": settings.output,
        "request-timeout": settings.request_timeout,
    }
    if style == "json":
        app.console.json({name: {"value": value.text, "source": value.source} for name, value in found.items()})
        return
    if sources:
        rows = [["SETTING", "VALUE", "SOURCE"]]
        rows += [[name, value.text, value.source] for name, value in found.items()]
        tables.write(app.console, rows, fold=True)
        app.console.info(f"file: {app.config.path}")
        return
    for name, value in found.items():
        app.console.line(f"{name}: {value.text}" if value.text else f"{name}: -")


for action in (context_list, context_use, context_rename, context_delete):
    context.add_command(action)
config.add_command(config_view)
