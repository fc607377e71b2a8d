"""`primer backup`: one file with everything that this install cannot make again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from primer_site import archive, home, report
from primer_site.errors import PrimerError
from primer_site.setup import NotPrepared, load


class BrokenDatabase(PrimerError):
    """The database is damaged."""

    code, status = "database_broken", 500
    hint = "Stop the server and restore an earlier backup, or one of the copies in the data directory."


def backup(file: str) -> int:
    """Writes the backup; the server may run and write meanwhile. A disk that fills up leaves no file behind."""
    if not home.setting("INSTANCE_ID", "instance-id"):
        raise NotPrepared(f"There is no install at {home.home_dir()}.", hint="Set PRIMER_HOME to the one you mean.")
    load()
    _own()
    target = Path(file).absolute()
    try:
        with archive.new_file(target) as packed:
            _pack(packed)
    except (OSError, sqlite3.OperationalError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        hint = f"Nothing was left at {target.parent}. Name a file where there is room, and where you may write."
        raise PrimerError(f"The backup could not be written: {why}.", hint=hint) from exc
    size = target.stat().st_size
    report.ok("backup", f"{target}, {size / 1024**2:.1f} MiB, readable by you alone")
    report.warn("secrets", "it opens everything that this install holds", "keep it like a password")
    return 0


def _own() -> None:
    """A database of another install would be packed with keys that do not open it."""
    from django.db import DatabaseError

    from primer_site import database

    try:
        database.check_owner()
    except DatabaseError as exc:
        raise BrokenDatabase(log=str(exc)) from exc


def _pack(packed: Path) -> None:
    from django.conf import settings

    from primer_site import database
    from primer_site.capabilities import server_version

    keys = {
        "encryption-keys": "\n".join(settings.PRIMER_ENCRYPTION_KEYS),
        "secret-key": settings.SECRET_KEY,
        "instance-id": settings.PRIMER_INSTANCE_ID,
    }
    with archive.scratch(packed) as snapshot:
        database.copy_to(snapshot)
        _check(snapshot)
        sources: dict[str, Path | bytes] = {archive.DATABASE: snapshot}
        sources |= {name: f"{text}\n".encode() for name, text in keys.items()}
        parts = tuple(archive.part_of(name, sources[name]) for name in archive.NAMES)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = archive.Manifest(server_version(), now, settings.PRIMER_INSTANCE_ID, parts)
        archive.write(packed, manifest, sources)


def _check(snapshot: Path) -> None:
    """A backup that cannot be restored is worse than none."""
    try:
        with closing(sqlite3.connect(f"file:{snapshot}?mode=ro&immutable=1", uri=True)) as connection:
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as exc:
        raise BrokenDatabase(log=str(exc)) from exc
    if answer != "ok":
        raise BrokenDatabase(log=str(answer))
