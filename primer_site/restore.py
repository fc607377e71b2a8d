"""`primer restore`: a backup into an empty data directory, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from primer_site import archive, home, report
from primer_site.archive import DATABASE, KEYS, Damaged, Manifest
from primer_site.errors import Conflict, PrimerError
from primer_site.lock import LOCK_FILE, ServerLock

SLACK = 16 * 1024**2  # bytes that a file system needs beside the files themselves


class NotEmpty(Conflict):
    """The data directory is not empty: a restore would mix two installs."""

    code = "not_empty"


def restore(file: str) -> int:
    """Checks the whole file before the data directory is touched; then everything is there at once."""
    directory = home.home_dir()
    _require_empty(directory)
    try:
        with staging(directory) as stage, _locked(directory if stage.parent == directory else stage):
            manifest = _unpack(Path(file), stage)
            _check_database(stage / DATABASE, manifest)
            _publish(stage, directory)
    except OSError as exc:
        raise PrimerError(
            f"The backup could not be restored: {exc.strerror or exc}.", hint="Nothing was changed."
        ) from exc
    report.ok("backup", f"of {manifest.created_at}, Primer {manifest.server_version}")
    report.ok("data", f"{directory}, install {manifest.instance_id}")
    report.warn(
        "twins", "another copy of this install must not run: both would hold the same sandboxes for theirs",
        "sandboxes made after the backup are removed from the engine by the next start",
    )  # fmt: skip
    report.ok("next", "primer up")
    return 0


def _require_empty(directory: Path, besides: tuple[str, ...] = ()) -> None:
    if not directory.exists():
        return
    if not directory.is_dir() or any(path.name not in besides for path in directory.iterdir()):
        raise _not_empty(directory)


def _not_empty(directory: Path) -> NotEmpty:
    hint = "Set PRIMER_HOME to a new directory, or remove this install first: primer destroy"
    return NotEmpty(f"The data directory {directory} is not empty.", hint=hint)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """No server and no other restore in `directory` meanwhile. The lock moves with a stage that becomes the data directory.

    Of a restore that failed nothing stays, the lock neither. `ServerRuns` when somebody has it.
    """
    lock = ServerLock(directory)
    try:
        yield
    except BaseException:
        (directory / LOCK_FILE).unlink(missing_ok=True)
        raise
    finally:
        lock.release()


@contextlib.contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """A private directory on the file system of the data directory; whatever is left in it goes."""
    # Beside it, so that one rename publishes everything. A mount point has to be filled from inside.
    inside = directory.is_dir() and (os.path.ismount(directory) or not os.access(directory.parent, os.W_OK))
    made = [] if inside else [path for path in (directory.parent, *directory.parent.parents) if not path.exists()]
    stage = (directory if inside else directory.parent) / f".primer-restore-{secrets.token_hex(4)}"
    stage.mkdir(parents=True, mode=home.DIRECTORY_MODE)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for path in made:  # what was made for a restore that failed
            with contextlib.suppress(OSError):
                path.rmdir()


def _unpack(source: Path, stage: Path) -> Manifest:
    with archive.opened(source) as (manifest, parts):
        free = shutil.disk_usage(stage).free
        if manifest.bytes + SLACK > free:
            need = f"{(manifest.bytes + SLACK) / 1024**2:.0f} MiB are needed, {free / 1024**2:.0f} MiB are free"
            raise PrimerError(f"There is no room at {stage.parent}: {need}.", hint="Nothing was changed.")
        for part, content in parts:
            archive.copy(part, content, stage / part.name)
    return manifest


def _check_database(database: Path, manifest: Manifest) -> None:
    """It is whole, of the install that the keys belong to, and of no later version than this one."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as connection:
            whole = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            owner = connection.execute("SELECT instance_id FROM primer_site_install").fetchone()
            applied = set(connection.execute("SELECT app, name FROM django_migrations").fetchall())
    except sqlite3.DatabaseError as exc:
        raise Damaged("The database in the backup cannot be read.", log=str(exc)) from exc
    kept = (database.parent / "instance-id").read_text().strip()
    if whole != "ok" or owner is None or {owner[0], kept} != {manifest.instance_id}:
        raise Damaged("The database in the backup is damaged, or of another install than its keys.")
    if unknown := sorted(applied - _known_migrations()):
        from primer_site.capabilities import server_version

        raise Damaged(
            f"The backup was made by a later version, Primer {manifest.server_version}; this is {server_version()}.",
            hint="Nothing was changed. Install that version first.", log=str(unknown[:5]),
        )  # fmt: skip


def _known_migrations() -> set[tuple[str, str]]:
    """Of this code; asks no database and makes no data directory."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")
    import django

    django.setup()
    from django.db.migrations.loader import MigrationLoader

    return set(MigrationLoader(None).disk_migrations)


def _publish(stage: Path, directory: Path) -> None:
    """Whoever put something into the data directory since it was found empty keeps it: then `NotEmpty`."""
    if stage.parent == directory:
        _fill(stage, directory)
        return
    try:
        stage.rename(directory)  # also onto an empty directory, never onto one with anything in it
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _not_empty(directory) from exc
        with _locked(directory):  # a mount that does not look like one
            _fill(stage, directory)


def _fill(stage: Path, directory: Path) -> None:
    _require_empty(directory, besides=(LOCK_FILE, stage.name))
    directory.chmod(home.DIRECTORY_MODE)
    placed: list[Path] = []
    try:
        # The database first: without the instance id, which comes last, every command refuses to work on it.
        for name in (DATABASE, *KEYS):
            _move(stage / name, directory / name)
            placed.append(directory / name)
    except BaseException as exc:
        for path in placed:
            path.unlink(missing_ok=True)
        if isinstance(exc, FileExistsError):
            raise _not_empty(directory) from exc
        raise


def _move(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # fails when somebody made the target meanwhile: keys are made without the lock
    except FileExistsError:
        raise
    except OSError:  # another file system, or one without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        shutil.move(source, target)
