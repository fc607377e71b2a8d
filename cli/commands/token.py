"""`primectl token`: named, scoped, expiring tokens; the value of a new one is shown once."""

from __future__ import annotations

from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import Group, command
from cli.errors import ApiError, CliError, ClosedPipe, Exit, OutputFailed, Unreachable, UsageError
from cli.text import duration, local_time, nearest, whole_seconds
from cli.wire import segment

token = Group(
    "token",
    help="Create, list and revoke tokens.",
    short_help="Create, list and revoke tokens.",
    examples=("primectl token create --name ci --scope write --expires 30d", "primectl token list"),
)


@command(
    "create",
    "primectl token create --name ci --scope write --expires 30d",
    "primectl token create --name backup --scope read -o json",
    short_help="Create a token and print its value, once.",
)
@click.option("--name", required=True, metavar="NAME", help="What it is for.")
@click.option(
    "--scope", type=click.Choice(["read", "write", "admin"]), default="write", show_default=True, help="What it may do."
)
@click.option(
    "--expires", metavar="DURATION", help="When it ends: 30d, 12h. Without it never, or with the token that asks."
)
@click.pass_obj
def token_create(app: App, *, name: str, scope: str, expires: str | None) -> None:
    """Create a token. Its value is printed once and stored nowhere: keep it now."""
    style = app.format(("json",), "text")
    body: dict[str, Any] = {"name": name, "scope": scope}
    if expires:
        body["expires_in_s"] = whole_seconds(duration(expires, "--expires"))
    try:
        # Sent once, without a key: the answer holds a secret that no repeat would show.
        item = app.client.post_once("/v1/tokens", body).object
    except ApiError as exc:
        flags = {"expires_in_s": "--expires", "name": "--name", "scope": "--scope"}
        exc.lines = [f"{flags.get(f.field, f.field)}: {f.message}" for f in exc.fields] or exc.lines
        raise
    except Unreachable as exc:
        if "connection refused" not in exc.lines[0]:
            exc.hint = "it may have been created all the same, and nobody has its value: primectl token list"
        raise
    value = item.get("token")
    if not isinstance(value, str) or not value:
        raise CliError("the server gave no token", exit=Exit.UNREACHABLE)
    try:
        _shown_once(app, item, value, style)
    except (OutputFailed, ClosedPipe) as exc:
        _take_back(app, item, exc)
        raise


def _take_back(app: App, item: dict[str, Any], exc: OutputFailed | ClosedPipe) -> None:
    """Nobody has the value: a token that stayed would be one that nobody knows of."""
    pk = str(item.get("id"))
    try:
        app.client.delete(f"/v1/tokens/{segment(pk)}")
        hint = "nobody saw the token, so it was revoked: make room and run this again"
    except CliError:
        hint = f"nobody saw the token; revoke it: primectl token revoke {pk}"
        if isinstance(exc, ClosedPipe):
            app.console.note(f"warning: {hint}")
    if isinstance(exc, OutputFailed):
        exc.hint = hint


def _shown_once(app: App, item: dict[str, Any], value: str, style: str) -> None:
    if style == "json":
        app.console.json(item)
        return
    app.console.line(value)
    name, scope = item.get("name"), item.get("scope")
    if app.console.err_tty:
        ends = local_time(item.get("expires_at"), utc=bool(app.flags.get("utc"))) or "never"
        app.console.info(f"token {name}, scope {scope}, expires {ends}; it is shown this once")


@command(
    "list",
    "primectl token list",
    "primectl token list --all -o json",
    short_help="List tokens; never their values.",
)
@click.option("--all", "everybody", is_flag=True, help="Everybody's tokens (admins).")
@click.pass_obj
def token_list(app: App, *, everybody: bool) -> None:
    """List your tokens: what each may do, when it ends, when it was last used."""
    style = "name" if app.quiet else app.format(("json", "name", "table", "wide"), "table")
    items = _tokens(app, everybody=everybody)
    if style == "json":
        app.console.json({"kind": "list", "items": items})
    elif style == "name":
        for item in items:
            app.console.line(str(item.get("id")))
    elif items:
        wide, utc = style == "wide", bool(app.flags.get("utc"))

        def build(time: tables.Time) -> list[list[str]]:
            return [_HEADER, *(_row(item, time, wide=wide, utc=utc) for item in items)]

        tables.write(app.console, tables.timed(app.console, build, wide=wide, utc=utc))
    else:
        app.console.info("No tokens found.")


_HEADER = ["ID", "NAME", "SCOPE", "USER", "AGE", "USED", "EXPIRES"]


def _row(item: dict[str, Any], time: tables.Time, *, wide: bool, utc: bool) -> list[str]:
    ends = local_time(item.get("expires_at"), utc=utc)  # in the future: no age tells it
    shown = ends if wide else ends[:10]  # the day is enough in a narrow table
    names = [str(item.get(key) or "") for key in ("id", "name", "scope", "user")]
    return [*names, time(item.get("created_at")), time(item.get("last_used")) or "never", shown or "never"]


@command(
    "revoke",
    "primectl token revoke ci",
    "primectl token revoke 6f1d2c3b-4a5e-6978-8a9b-0c1d2e3f4a5b",
    short_help="End tokens, and the live connections that use them.",
)
@click.argument("names", nargs=-1, required=True, metavar="ID|NAME…")
@click.pass_obj
def token_revoke(app: App, *, names: tuple[str, ...]) -> None:
    """End tokens by id, by eight digits of it or more, or by a name that only one of yours has.

    With a program's token go those that it made.
    """
    own, gone = _tokens(app), set[str]()
    failures: list[CliError] = []
    for name in names:
        try:
            found = _named(app, own, name.removeprefix("token/"))
            if found not in gone:
                app.client.delete(f"/v1/tokens/{segment(found)}")
        except CliError as exc:
            failures.append(_missing(exc, own, name))
        else:
            ended = [one for one in (found, *_made_by(own, found)) if one not in gone]
            gone.update(ended)
            for one in [] if app.quiet else ended:
                app.console.line(f"token/{one} revoked")
    app.fail_all(failures)


def _made_by(own: list[dict[str, Any]], pk: str) -> list[str]:
    """The tokens that a token made, directly or not: they go with it."""
    makers = [pk]
    for maker in makers:  # which grows meanwhile
        makers += [str(item.get("id")) for item in own if item.get("made_by") == maker]
    return makers[1:]


def _tokens(app: App, *, everybody: bool = False) -> list[dict[str, Any]]:
    return list(app.client.pages("/v1/tokens", all="true" if everybody else None))


def _named(app: App, own: list[dict[str, Any]], name: str) -> str:
    """The id that a word means: whole, its beginning, or the name of one token."""
    ids = [str(item.get("id")) for item in own]
    if name in ids or (len(name) == 36 and name.count("-") == 4):
        return name
    fitting = [str(i.get("id")) for i in own if i.get("name") == name]
    fitting = fitting or [one for one in ids if len(name) >= 8 and one.startswith(name.lower())]
    if len(fitting) > 1:
        raise UsageError(f'"{name}" is ambiguous: {", ".join(fitting)}')
    if not fitting:
        raise CliError(f"token {name} not found", exit=Exit.NOT_FOUND, code="not_found")
    return fitting[0]


def _missing(exc: CliError, own: list[dict[str, Any]], name: str) -> CliError:
    if exc.exit is Exit.NOT_FOUND:
        close = nearest(name, [str(item.get("name")) for item in own])
        exc.lines, exc.hint = [f"token {name} not found"], f"did you mean {close}?" if close else "primectl token list"
    return exc


for action in (token_create, token_list, token_revoke):
    token.add_command(action)
