"""`primectl login`, `logout`, `whoami`: who the server takes the caller for."""

from __future__ import annotations

import getpass
from itertools import chain, count
from urllib.parse import urlsplit

import click

from cli.app import App
from cli.client import Client
from cli.command import command
from cli.config import is_loopback, server_url
from cli.errors import CliError, Exit, UsageError
from cli.text import dig


@command(
    "login",
    "primectl login http://127.0.0.1:8000",
    "primectl login https://primer.example --username alice",
    "printenv TOKEN | primectl login https://primer.example --context work --token-stdin",
    short_help="Sign in to a server and remember it as a context.",
)
@click.argument("url", required=False)
@click.option("--username", metavar="NAME", help="Sign in by password; it buys a token. A pipe may hold the password.")
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")
@click.pass_obj
def login(app: App, *, url: str | None, username: str | None, token_stdin: bool) -> None:
    """Sign in and store the token in a context, which becomes the current one.

    Without --username and --token-stdin the token is asked for, without echo.
    """
    if username and token_stdin:
        raise UsageError("--username asks for a password, --token-stdin brings a token: one of them")
    # A new context may be named here, so that settings must not look it up.
    name = app.flags.pop("context", "")
    server = server_url(url) if url else app.settings.server.text
    client = app.client_for(server, "")
    token = _bought(app, client, username) if username else _given(app, token_stdin)
    client.token = token
    me = client.get("/v1/me").object
    name = name or _context_name(app, server, str(me.get("username")))
    app.config.contexts.setdefault(name, {}).update(server=server, token=token)
    if app.settings.ca_file.source == "--ca-file":
        app.config.contexts[name]["ca-file"] = app.settings.ca_file.text
    app.config.current = name
    app.config.save()
    app.console.line(f"logged in to {server} as {me.get('username')} ({me.get('role')})")


def _bought(app: App, client: Client, username: str) -> str:
    password = _secret(app, f"Password of {username}: ", "the password")
    try:
        body = client.post_once("/v1/auth/login", {"username": username, "password": password}).object
    except CliError as exc:
        if exc.code == "unauthenticated":
            exc.lines, exc.hint = ["wrong user name or password"], ""
        raise
    token = body.get("token")
    if not isinstance(token, str) or not token:
        raise CliError("the server gave no token", exit=Exit.UNREACHABLE)
    return token


def _given(app: App, from_stdin: bool) -> str:
    if not from_stdin:
        given = app.flags.get("token") or app.console.env.get("PRIMECTL_TOKEN")
        if given:
            return str(given)
        if not app.console.can_ask:
            raise UsageError(
                "there is no terminal to ask for the token", hint="pipe it to --token-stdin, or set PRIMECTL_TOKEN"
            )
    token = _secret(app, "Token: ", "the token")
    if any(c.isspace() or not c.isprintable() for c in token) or not token.isascii():
        raise UsageError("that is not a token: it holds blanks or special characters")
    return token


def _secret(app: App, prompt: str, what: str) -> str:
    """A line from a terminal without echo, or the first line of a pipe."""
    console = app.console
    text = getpass.getpass(prompt) if console.can_ask else console.inp.readline(4096).decode("utf-8", "replace")
    text = text.rstrip("\r\n")
    if not text:
        raise UsageError(f"{what} is empty")
    return text


def _context_name(app: App, server: str, username: str) -> str:
    """The context of this server and user, else a free name: what another one holds is kept, the new one stands beside."""
    for name, values in app.config.contexts.items():
        if values.get("server") == server and not _is_anothers(app, server, values.get("token", ""), username):
            return name
    name = "local" if is_loopback(server) else urlsplit(server).hostname or "default"
    numbered = (f"{name}-{username}-{number}" for number in count(2))
    free = next(one for one in chain([name, f"{name}-{username}"], numbered) if one not in app.config.contexts)
    if free != name:
        app.console.note(
            f"{name} is for another server or user and stays (primectl context use {name}); this one is {free}"
        )
    return free


def _is_anothers(app: App, server: str, token: str, username: str) -> bool:
    """Whether the server knows the stored token as somebody else's; one that it does not take any more is nobody's."""
    if not token or token.startswith(("env:", "file:")):
        return False
    try:
        return app.client_for(server, token).get("/v1/me").object.get("username") != username
    except CliError:
        return False


@command(
    "logout",
    "primectl logout",
    "primectl logout --context work",
    short_help="End this context's token and forget it.",
)
@click.pass_obj
def logout(app: App) -> None:
    """End the token of the context on the server, and remove it from the file."""
    settings = app.settings
    name = settings.context.text
    stored = app.config.contexts.get(name, {})
    if not stored.get("token"):
        raise CliError(f"not logged in{f' in context {name}' if name else ''}", exit=Exit.DENIED)
    client = app.client_for(server_url(stored.get("server", settings.server.text)), settings.token.text)
    try:
        client.post_once("/v1/auth/logout")
    except CliError as exc:
        if exc.code != "unauthenticated":
            app.console.note(f"warning: the token may still be valid on the server: {exc.lines[0]}")
    del stored["token"]
    app.config.save()
    app.console.line(f"logged out of {client.server}")


@command("whoami", "primectl whoami", "primectl whoami -o json", short_help="Show who the server takes you for.")
@click.pass_obj
def whoami(app: App) -> None:
    """Show user, role, server, and the token's name, scope and end."""
    style = app.format(("json",), "text")
    me = app.client.get("/v1/me").object
    if style == "json":
        app.console.json(me)
        return
    app.console.line(f"{me.get('username')} ({me.get('role')}) on {app.client.server}")
    token = me.get("token")
    if isinstance(token, dict) and not app.quiet:
        ends = dig(token, "expires_at") or "never"
        app.console.line(f"token {token.get('name') or '-'}, scope {token.get('scope')}, expires {ends}")
