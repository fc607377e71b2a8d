"""`primectl doctor`: what this program needs, from the file on disk to an image on the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import click

from cli import invoked, present
from cli.app import App
from cli.client import Reply
from cli.command import command
from cli.config import is_loopback
from cli.errors import ApiError, CliError, Done, Exit
from cli.kinds import PROVIDER, TEMPLATE, Ref
from cli.text import dig, image_hint, moment
from cli.versions import capabilities, fits, own_version

_SKEW_S = 60
_SOON_D = 7  # an end of the token that is worth a warning, in days


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `ok`, `warn`, `fail`, or `skip` for what could not be judged; what was found, how to mend it."""

    result: str
    name: str
    text: str
    fix: str = ""


@command(
    "doctor",
    "primectl doctor",
    "primectl doctor -o json",
    short_help="Check configuration, server, token and sandboxes.",
)
@click.pass_obj
def doctor(app: App) -> None:
    """Check what primectl needs, one line each, with the command that mends it. Exit 0, 8 (warnings only) or 1.

    A check that does not apply or could not run is shown as skip, and counts for nothing.
    """
    style = app.format(("json",), "text")
    found = []
    for check in _checks(app):
        found.append(check)
        if style == "text":
            app.console.line(f"{check.result:<4}  {check.name:<10}  {check.text}")
            if check.fix and check.result in ("warn", "fail"):
                app.console.line(f"      fix: {check.fix}")
    if style == "json":
        app.console.json({"kind": "list", "items": [asdict(check) for check in found]})
    results = {check.result for check in found}
    raise Done(Exit.FAILED if "fail" in results else Exit.WARNINGS if "warn" in results else Exit.OK)


def _checks(app: App) -> Iterator[Check]:
    yield from _config(app)
    app.client.patience.reached = False  # whether it is there now is the question: a restart is not waited for
    reached = _try(app, "server", lambda: app.client.get("/healthz"))
    if isinstance(reached, Check):
        yield reached
        return
    yield Check("ok", "server", f"{app.client.server} answers")
    yield _tls(app)
    yield _skew(reached)
    yield _ready(app)
    me = _try(app, "token", lambda: app.client.get("/v1/me"))
    if isinstance(me, Check):
        yield me
        return
    yield _token(me.object)
    yield _versions(app)
    yield from _providers(app)
    yield from _images(app)


def _token(me: dict[str, Any]) -> Check:
    token = dig(me, "token", {})
    scope, ends = dig(token, "scope", "unknown"), dig(token, "expires_at")
    text = f"{me.get('username')} ({me.get('role')}), scope {scope}, expires {ends or 'never'}"
    end = moment(ends)
    if end is not None and end - datetime.now(UTC) < timedelta(days=_SOON_D):
        return Check("warn", "token", text, "primectl token create, then: primectl login")
    if scope == "read":
        return Check("warn", "token", text, "a token with scope write: primectl token create, then: primectl login")
    return Check("ok", "token", text)


def _config(app: App) -> Iterator[Check]:
    config = app.config
    if not config.contexts:
        yield Check("warn", "config", f"{config.path}: no context", f"primectl login {app.settings.server.text}")
    elif config.warnings:
        for warning in config.warnings:
            text, sep, rest = warning.partition(": chmod ")
            yield Check("warn", "config", text, f"chmod {rest}" if sep else "let it be a file of its own")
    else:
        yield Check("ok", "config", f"{config.path}, context {app.settings.context.text or '-'}")


def _try(app: App, name: str, call: Callable[[], Reply]) -> Reply | Check:
    try:
        return call()
    except CliError as exc:
        return Check("fail", name, "; ".join(exc.lines), exc.hint)


def _tls(app: App) -> Check:
    server = app.client.server
    if server.startswith("https://"):
        if app.client.verify is False:
            return Check("warn", "tls", "the certificate is not checked", "use --ca-file PATH")
        return Check("ok", "tls", "the certificate is trusted")
    if is_loopback(server):
        return Check("skip", "tls", "not needed on loopback")
    return Check("warn", "tls", f"{server} is not encrypted", "put TLS in front of it and use https://")


def _skew(reply: Reply) -> Check:
    try:
        there = parsedate_to_datetime(reply.date)
        there = there if there.tzinfo else there.replace(tzinfo=UTC)
    except (TypeError, ValueError, IndexError):  # the parser of the library is not careful with nonsense
        return Check("skip", "clock", "the server gives no time")
    off = abs((datetime.now(UTC) - there).total_seconds())
    if off > _SKEW_S:
        return Check("warn", "clock", f"differs from the server's by {off:.0f} s", "set both clocks, best by NTP")
    return Check("ok", "clock", "agrees with the server's")


def _ready(app: App) -> Check:
    try:
        app.client.get("/readyz")
    except ApiError as exc:
        return Check("fail", "ready", exc.detail, "on the server: primer doctor")
    except CliError as exc:
        if exc.code == "unauthenticated":  # of the token, which has a line of its own
            return Check("skip", "ready", "not told to a token that is not valid")
        return Check("fail", "ready", exc.lines[0], exc.hint)
    return Check("ok", "ready", "database, migrations and runner are up")


def _versions(app: App) -> Check:
    ours = own_version()
    try:
        server = capabilities(app)
    except CliError as exc:
        return Check("warn", "versions", f"primectl {ours}; the server's is not known: {exc.lines[0]}")
    api, theirs = server.get("api"), str(server.get("version") or "unknown")
    text = f"primectl {ours}, server {theirs}"
    if api not in (None, "v1"):
        return Check("warn", "versions", f"{text}: it speaks {api}, this program v1", "install the server's primectl")
    if "unknown" in (ours, theirs):
        return Check("skip", "versions", text)
    return Check("ok" if fits(theirs) else "warn", "versions", text, "install the same major version")


def _providers(app: App) -> Iterator[Check]:
    items = list(app.client.pages("/v1/workspace_providers"))
    if not items:
        yield Check("warn", "provider", "there is none", "primectl create -f docker-provider.yaml")
    for item in items:
        try:
            # Measured now. Who may not ask for that sees what the last check found.
            status = app.client.post(app.path(Ref(PROVIDER, str(item.get("id"))), "check")).object.get("status")
        except CliError as exc:
            if exc.exit is not Exit.DENIED:
                yield Check("fail", "provider", f"{item.get('id')}: {exc.lines[0]}", exc.hint)
                continue
            status = item.get("status")
        health = dig(status, "health", "unknown")
        word = {"healthy": "ok", "degraded": "warn", "unknown": "warn"}.get(str(health), "fail")
        line = present.engine_line(str(item.get("id")), status)
        yield Check(word, "provider", line, f"primectl provider check {invoked.word(str(item.get('id')))}")


def _images(app: App) -> Iterator[Check]:
    for item in app.client.pages("/v1/workspace_templates"):
        ref = Ref(TEMPLATE, str(item.get("id")))
        try:
            there = present.image_present(app.client.post(app.path(ref, "check")).object)
        except CliError as exc:
            # Not ours to ask, or an engine that is away and has its own line: nothing is known of the image.
            word = "skip" if exc.exit in (Exit.DENIED, Exit.UNREACHABLE) else "warn"
            fix = f"primectl template check {invoked.word(ref.id)}"
            yield Check(word, "image", f"{ref.id}: not checked: {exc.lines[0]}", fix)
            continue
        image = str(dig(item, "backend.image", "its image"))
        if there is None:
            yield Check("skip", "image", f"{ref.id}: {image}: the provider does not say whether it is there")
        elif there:
            yield Check("ok", "image", f"{ref.id}: {image}")
        else:
            yield Check("fail", "image", f"{ref.id}: {image} is missing", image_hint(image))
