"""The database of an install: copy before a migration, migrate, and check whose it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from primer_site.errors import Conflict
from primer_site.models import Install

KEEP_COPIES = 3


class WrongInstance(Conflict):
    """The database belongs to another install."""

    code = "wrong_instance"


def migrate() -> str:
    """Brings the database up to date and returns what was done; an existing one is copied first."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not plan:
        return "up to date"
    fresh = not executor.loader.applied_migrations
    copied = "" if fresh else f"; the state before is in {_copy()}"
    call_command("migrate", interactive=False, verbosity=0)
    return f"{len(plan)} migrations applied{copied}" if not fresh else "created"


def copy_to(target: Path) -> None:
    """Copies the database of this install as it is at one moment into an empty file; others may write meanwhile.

    The backup interface copies what the write-ahead log holds too, which copying the file would lose.
    """
    source = Path(connection.settings_dict["NAME"])
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _copy() -> Path:
    directory = settings.PRIMER_HOME / "copies"
    directory.mkdir(mode=0o700, exist_ok=True)
    target: Path = directory / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}.sqlite3"
    target.touch(mode=0o600)
    copy_to(target)
    for path in sorted(directory.glob("*.sqlite3"))[:-KEEP_COPIES]:
        path.unlink()
    return target


def claim() -> None:
    """Writes this install's id into a new database; raises `WrongInstance` when another id is there."""
    Install.objects.get_or_create(pk=1, defaults={"instance_id": settings.PRIMER_INSTANCE_ID})
    check_owner()


def check_owner() -> None:
    """Raises `WrongInstance` when the database is of another install.

    Engine objects carry the id: with another one this process would neither find its sandboxes nor remove them.
    """
    row = Install.objects.filter(pk=1).first()
    if row is not None and row.instance_id != settings.PRIMER_INSTANCE_ID:
        raise WrongInstance(
            f"The database belongs to the install {row.instance_id}, this process is {settings.PRIMER_INSTANCE_ID}.",
            hint="Set PRIMER_INSTANCE_ID to the first one, or use another PRIMER_HOME.",
        )
