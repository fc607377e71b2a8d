"""`primectl mcp serve`: a sandbox of this server as tools for any MCP client."""

from __future__ import annotations

import click

from cli.app import App
from cli.command import Group, command
from cli.errors import UsageError
from cli.sandbox import Sandbox
from cli.versions import own_version

mcp = Group(
    "mcp",
    help="Give MCP clients a sandbox of this server.",
    short_help="Give MCP clients a sandbox of this server.",
    examples=("primectl mcp serve", "primectl mcp serve --workspace <workspace-id>"),
)


@command(
    "serve",
    "primectl mcp serve",
    "primectl mcp serve -t code-sandbox",
    "primectl mcp serve --workspace <workspace-id>",
    short_help="Speak MCP on standard input and output.",
)
@click.option(
    "--workspace", "workspace", metavar="WS", help="Work in this one; else one is made and removed at the end."
)
@click.option(
    "-t", "--template", "template", metavar="ID", help="What to make it from; else the context's, else default."
)
@click.pass_obj
def serve(app: App, *, workspace: str | None, template: str | None) -> None:
    """Speak MCP on standard input and output: run_code, exec, read_file, write_file, list_files in one sandbox.

    The sandbox is made at the first call and removed when the client goes. The token stays here: no tool reaches the
    server's API, and none takes the name of another workspace.
    """
    if workspace and template:
        raise UsageError("--workspace and --template: one of them")
    try:
        from cli.mcp_server import make_server
    except ImportError as exc:
        raise UsageError("mcp serve needs the extra: mcp", hint="in a checkout: pip install '.[mcp]'") from exc
    app.client  # noqa: B018 - a missing login is said now, not to the first call
    sandbox = Sandbox(app, workspace or "", template or "")
    try:
        make_server(sandbox, own_version()).run("stdio")
    finally:
        sandbox.close()


mcp.add_command(serve)
