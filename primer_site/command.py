"""`primer`, the server side of the command line. Django and the engine's SDK are imported inside the commands."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from cli.invoked import as_invoked

EXTRA = """error: the server part is not installed
hint: in a checkout of Primer, run: pip install '.[server]'"""
HALF = """error: the installation in {prefix} was broken off, so parts of it may be missing
hint: make venv finishes it"""
CONTEXT = {"help_option_names": ["-h", "--help"]}


def call(module: str, function: str, **options: Any) -> NoReturn:
    """Runs `primer_site.<module>.<function>` and ends the process with its exit code; an error of ours is two lines."""
    if Path(sys.prefix, ".unfinished").exists():  # scripts/venv.py leaves it there until the last package is in
        _end(HALF.format(prefix=sys.prefix), 2)
    try:
        importlib.import_module("django")
        importlib.import_module("daphne")
    except ImportError:
        _end(EXTRA, 2)
    from primer_site.errors import PrimerError

    try:
        code = getattr(importlib.import_module(f"primer_site.{module}"), function)(**options)
    except PrimerError as exc:
        _end(f"error: {exc.detail}" + (f"\nhint: {exc.hint_text}" if exc.hint_text else ""), 1)
    except KeyboardInterrupt:
        _end("", 130)
    except BrokenPipeError:
        _end("", 141)
    except OSError as exc:
        where = f": {exc.filename}" if exc.filename else ""
        _end(f"error: {exc.strerror or exc}{where}\nhint: primer doctor says what is wrong with the data directory", 1)
    except Exception as exc:
        if (told := _database_error(exc)) is None:
            raise
        _end(told, 1)
    sys.exit(code or 0)


def _database_error(exc: Exception) -> str | None:
    """The lines about a database that cannot be used; None for anything else, which is a mistake of ours."""
    from django.db import DatabaseError

    if not isinstance(exc, DatabaseError):
        return None
    return f"error: the database cannot be used: {exc}\nhint: primer doctor says what is wrong with it"


def _end(text: str, code: int) -> NoReturn:
    if text:
        click.echo(as_invoked(text), err=True)
    sys.exit(code)


@click.group(context_settings=CONTEXT)
def main() -> None:
    """Runs and looks after a Primer server. `primectl` is the command for its users.

    \b
    primer up                     start the server
    primer doctor                 what is missing, and what mends it
    """


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--open", "open_browser", is_flag=True, help="Open the server's page in a browser.")
@click.option("--no-samples", is_flag=True, help="Leave an empty database empty; build no image.")
@click.option("--prepare-only", is_flag=True, help="Do every step but serving.")
@click.option("-y", "--yes", is_flag=True, help="Replace a CLI context `local` that belongs to another server.")
def up(**options: Any) -> None:
    """Prepares what is missing and serves until Ctrl-C. Called again it changes nothing.

    \b
    primer up
    primer up --port 0 --no-samples
    """
    call("up", "up", **options)


@main.command()
def worker(**options: Any) -> None:
    """Runs sessions beside web processes, without serving itself. Refuses on SQLite, where `primer up` does both.

    The scaled mode that it belongs to has its data in Postgres, shared by web processes and workers. This version keeps
    everything in SQLite.

    \b
    primer worker
    PRIMER_HOME=/srv/primer primer worker
    """
    call("worker", "worker", **options)


@main.command()
@click.option("--deep", is_flag=True, help="Run a sandbox too, and prove what it can and cannot do.")
@click.option("--fix", is_flag=True, help="Mend what can be mended, and say what was done.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor(**options: Any) -> None:
    """Says what is missing and the command that mends it. Exit 0: all well, 8: warnings only, 1: something fails.

    \b
    primer doctor
    primer doctor --deep
    primer doctor --fix -o json
    """
    call("doctor", "doctor", **options)


@main.command()
@click.option("--keep", is_flag=True, help="Keep the demo's server data; prints where it is.")
@click.option("--local", is_flag=True, help="Without an engine: run on this host. NOT ISOLATED.")
def demo(**options: Any) -> None:
    """Runs the code-interpreter recipe on a server of its own, without an API key, and leaves nothing behind.

    \b
    primer demo
    primer demo --keep
    """
    call("demo", "demo", **options)


@main.group()
def image() -> None:
    """The sandbox image."""


@image.command("build")
@click.option("--tag", default="primer/workspace-runtime:1.0", show_default=True, help="Name of the image.")
@click.option("--base", default="", help="Image to build on; the default is found or made.")
@click.option("--packages", default="", help="Distribution packages to add, separated by commas.")
def image_build(**options: Any) -> None:
    """Builds the sandbox image on the engine, from files that come with Primer.

    \b
    primer image build
    primer image build --packages git,jq --tag primer/workspace-runtime:tools
    """
    call("images", "build", **options)


@main.group()
def admin() -> None:
    """People."""


@admin.command("create-user")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "member", "admin"]), default="member", show_default=True)
def create_user(**options: Any) -> None:
    """Makes a user with a random password, printed once.

    \b
    primer admin create-user alice
    primer admin create-user bob --role admin
    """
    call("people", "create_user", **options)


@admin.command("reset-password")
@click.argument("name", default="admin")
def reset_password(**options: Any) -> None:
    """Sets a new random password, printed once, and ends that user's sign-ins and tokens.

    \b
    primer admin reset-password
    primer admin reset-password alice
    """
    call("people", "reset_password", **options)


@main.command()
def prune(**options: Any) -> None:
    """Removes what is older than PRIMER_KEEP_DAYS (90): ended sessions, ended commands with their output, audit entries.

    Also expired keys and sign-ins, and what no container uses any more of runtime volumes of earlier versions and of images
    that newer builds replaced. The running server does the same once a day; this may run beside it.

    \b
    primer prune
    PRIMER_KEEP_DAYS=7 primer prune
    """
    call("prune", "prune", **options)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False))
def backup(**options: Any) -> None:
    """Writes database, keys and instance id into one new file (0600), also while the server runs.

    The file opens everything that this install holds: keep it like a password. Files of workspaces are on their engines
    and not in it.

    \b
    primer backup /safe/place/primer.backup
    primer backup "primer-$(date +%F).backup"
    """
    call("backup", "backup", **options)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False))
def restore(**options: Any) -> None:
    """Brings a backup into an empty PRIMER_HOME. A file that is damaged or not a backup changes nothing.

    \b
    primer restore primer.backup
    PRIMER_HOME=/srv/primer primer restore primer.backup
    """
    call("restore", "restore", **options)


@main.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def destroy(**options: Any) -> None:
    """Removes every sandbox of this install from the engine and then, after a question, the data directory.

    \b
    primer destroy
    primer destroy --yes
    """
    call("destroy", "destroy", **options)


if __name__ == "__main__":
    main()
