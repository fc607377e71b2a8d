"""`primer up`: prepares what is missing, one line a step, then serves. Called again it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from cli.invoked import command
from primer_site import report
from primer_site.errors import PrimerError
from primer_site.lock import Holder, ServerLock, ServerRuns, holder

PATIENCE_S = 30.0  # for another `primer up` that is just starting
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::")  # noqa: S104 - what the operator may ask for


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int
    open_browser: bool
    no_samples: bool
    prepare_only: bool
    yes: bool


def up(**given: object) -> int:
    """The command; returns its exit code."""
    options = Options(**given)  # type: ignore[arg-type]
    _trust_host(options.host)
    from primer_site import setup

    home = setup.load()
    lock = _lock(home)
    if isinstance(lock, Holder):
        report.ok("server", f"runs already as process {lock.pid}")
        click.echo(f"Console  {lock.url}/")
        return 0
    report.ok("data", str(home))
    _check_settings()
    admin, password = _prepare(options)
    if options.prepare_only:
        asyncio.run(_samples(options))
        _context(f"http://{_reachable(options.host)}:{options.port}", options) if options.port else None
        return _say_prepared(admin, password)
    _serve(options, lock, admin, password)


def _trust_host(host: str) -> None:
    """The address that the operator names is one this server is called by; read by the settings, so before them."""
    if host not in (*LOOPBACK, *ANY) and "PRIMER_ALLOWED_HOSTS" not in os.environ:
        shown = f"[{host}]" if ":" in host else host
        os.environ["PRIMER_ALLOWED_HOSTS"] = f"localhost,127.0.0.1,[::1],{shown}"


def _lock(home: Path) -> ServerLock | Holder:
    """The lock, or who serves; one that is just starting or ending is waited for. Raises `ServerRuns` when it does neither."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ServerLock(home)
        except ServerRuns as exc:
            found = holder(home)
            if found is not None and found.url:
                return found
            if time.monotonic() >= deadline:
                raise ServerRuns(found) if found else exc from None
            time.sleep(0.1)


def _check_settings() -> None:
    from django.core import checks

    problems = checks.run_checks(tags=["primer"])
    for problem in problems:
        level = report.Level.FAIL if problem.is_serious() else report.Level.WARN
        report.line(level, "settings", f"{problem.id}: {problem.msg}", problem.hint or "")
    if any(problem.is_serious() for problem in problems):
        raise PrimerError("The settings do not allow this server to start.", hint="Each line above names its mend.")


def _prepare(options: Options) -> tuple[str, str]:
    """Everything before serving that needs no event loop; the first admin and a password that was made now."""
    from primer_site import assets, database, people

    report.ok("database", database.migrate())
    database.claim()
    report.ok("static", assets.collect())
    admin, password = people.ensure_admin()
    people.ensure_init_token()
    report.ok("admin", f"{admin} created" if password else admin)
    engine_works = _engine()
    if engine_works and not options.no_samples:
        _image()
    return admin, password


def _engine() -> bool:
    from django.conf import settings

    from primer_site import engine

    found = engine.check(settings.PRIMER_INSTANCE_ID)
    if found.health == "unreachable":
        reason = found.reasons[0] if found.reasons else f"No container engine answers at {engine.socket_path()}."
        report.warn("engine", reason, "primer doctor says how to get one; the server starts without it")
        return False
    report.ok("engine", engine.describe(found))
    return True


def _image() -> None:
    from primer_site import images

    try:
        images.ensure()
    except PrimerError as exc:
        report.warn("image", exc.detail, exc.hint_text)


async def _samples(options: Options) -> None:
    from primer_site import loop, samples

    if options.no_samples:
        return
    made = await loop.in_thread(samples.create)
    report.ok("samples", ", ".join(made) if made else "not needed")


def _context(url: str, options: Options) -> bool:
    """Writes the CLI context; returns whether a bare `primectl` uses it."""
    from primer_site import context

    written = context.ensure(url, replace=options.yes)
    if written.note:
        report.warn("context", written.note, written.fix)
    else:
        report.ok("context", written.text)
    return written.current


def _say_prepared(admin: str, password: str) -> int:
    if password:
        click.echo(f"Admin    {admin} / {password} (shown once)")
    click.echo(f"Next     {command('primer')} up")
    return 0


def _serve(options: Options, lock: ServerLock, admin: str, password: str) -> NoReturn:
    from django.conf import settings

    from primer_site import wiring
    from primer_site.asgi import application
    from primer_site.server import Server, bind

    sock = bind(options.host, options.port)
    port = sock.getsockname()[1]
    url = f"http://{_reachable(options.host)}:{port}"
    if options.host not in LOOPBACK:
        report.warn(
            "address", f"{options.host} is open to the network, without encryption", "put a TLS proxy before it"
        )

    def ready() -> None:
        lock.publish(url)
        _welcome(url, admin, password, current)
        if options.open_browser:
            webbrowser.open(f"{url}/")

    current = _context(url, options)
    server = Server(
        application,
        sock,
        services=wiring.services(),
        drains=wiring.drains(),
        drain_s=settings.PRIMER_DRAIN_S,
        max_body_bytes=settings.PRIMER_MAX_UPLOAD_BYTES,
        on_close_sockets=wiring.close_sockets,
        before_listen=lambda: _samples(options),
        on_ready=ready,
        on_stop=lambda: lock.publish(""),  # whoever starts the next one waits instead of taking this one for serving
    )
    server.run()
    _say_goodbye()
    _exit()


def _say_goodbye() -> None:
    from workspaces.models import Phase, Workspace

    count = Workspace.objects.live().filter(phase=Phase.RUNNING).count()
    if count:
        words = "1 workspace keeps" if count == 1 else f"{count} workspaces keep"
        click.echo(f"Stopped. {words} running on the engine; {command('primer')} up finds them again.")


def _exit() -> NoReturn:
    """Ends the process without joining threads: one may still wait, for minutes, in a view whose client was cut."""
    from primer_site import loop

    with contextlib.suppress(TimeoutError):
        loop.close_database_threads(within_s=2.0)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _welcome(url: str, admin: str, password: str, current: bool) -> None:
    from django.conf import settings

    from accounts.services import INITIAL_PASSWORD_FILE

    kept = settings.PRIMER_HOME / INITIAL_PASSWORD_FILE
    sign_in = f"   {admin} / {password} (shown once)" if password else ""
    if not password and kept.exists():
        sign_in = f"   {admin}, first password in {kept}"
    click.echo(f"Console  {url}/{sign_in}")
    click.echo(f"Try      {command('primectl')} {'' if current else '--context local '}run -c 'print(6*7)'")


def _reachable(host: str) -> str:
    """The address by which this host itself reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
