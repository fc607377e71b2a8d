"""Django inside a `primer` command: keys made, settings read, database checked."""

from __future__ import annotations

import os
from pathlib import Path

from primer_site import home
from primer_site.errors import PrimerError


class NotPrepared(PrimerError):
    """This install has no usable database yet."""

    code, status = "not_prepared", 409
    hint = "Run: primer up --prepare-only"


def load() -> Path:
    """Makes the data directory and its keys, and sets Django up; returns the directory."""
    os.umask(0o077)  # whatever this process writes belongs to its user alone
    directory = home.prepare()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")
    import django

    django.setup()
    return directory


def configure() -> Path:
    """`load` for commands that work on an existing install; raises `NotPrepared` or `WrongInstance`. It makes none."""
    if not home.setting("INSTANCE_ID", "instance-id"):
        raise NotPrepared(f"There is no install at {home.home_dir()}.", hint=NotPrepared.hint + ", or set PRIMER_HOME")
    directory = load()
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    from primer_site import database

    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise NotPrepared
    database.check_owner()
    return directory
