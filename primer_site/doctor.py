"""`primer doctor`: what is missing on this host and the command that mends it. Changes nothing without `--fix`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from primer_site import home, report
from primer_site.errors import PrimerError
from primer_site.report import Finding, Level

WARNINGS_ONLY = 8
LOW_SPACE = 2 * 1024**3  # bytes
OLD_S = 600.0  # a `--deep` that still runs is younger
KEYS = ("secret-key", "encryption-keys", "instance-id")


def doctor(output: str, deep: bool = False, fix: bool = False) -> int:
    """Prints the findings as they come; 0 all well, 8 warnings only, 1 something fails.

    `deep` runs a sandbox as well; `fix` mends what it can, and what was mended counts as well.
    """
    found = []
    for finding in examine(deep=deep):
        told = mended(finding) if fix and finding.mend is not None else finding
        found.append(told)
        if output == "text":
            report.line(told.level, told.name, told.text, told.fix)
    if output == "json":
        checks = [{"level": one.level, "name": one.name, "text": one.text, "fix": one.fix} for one in found]
        click.echo(json.dumps({"checks": checks}, indent=2))
    levels = {finding.level for finding in found}
    return 1 if Level.FAIL in levels else WARNINGS_ONLY if Level.WARN in levels else 0


def mended(finding: Finding) -> Finding:
    """What became of a finding that can be mended."""
    assert finding.mend is not None  # noqa: S101 - the caller looked
    try:
        return Finding(Level.OK, finding.name, f"mended: {finding.mend()}")
    except (PrimerError, OSError) as exc:
        why = exc.detail if isinstance(exc, PrimerError) else str(exc)
        return Finding(finding.level, finding.name, f"{finding.text}; it could not be mended: {why}", finding.fix)


def examine(*, deep: bool = False) -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them: what is mended in between is seen by those that follow."""
    directory = home.home_dir()
    prepared = (directory / "instance-id").is_file()
    yield _python()
    yield from _data(directory, prepared)
    ours: list[Callable[[], Iterator[Finding]]] = []
    if prepared and _load():
        ours = [_settings, lambda: _database(directory), _static]
    for check in [*ours, lambda: _server(directory), _engine, _image, _remains, *([_providers] if ours else [])]:
        yield from check()
    yield from _space(directory)
    if deep:
        from primer_site import deep as deeper
        from primer_site import engine

        yield from deeper.examine(engine.config())


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "python", f"{version} in {sys.prefix}")


def _data(directory: Path, prepared: bool) -> Iterator[Finding]:
    if not prepared:
        yield Finding(Level.WARN, "data", f"{directory} is not prepared yet", "primer up")
        return
    yield Finding(Level.OK, "data", str(directory))
    for path in [directory, *(directory / name for name in KEYS)]:
        if not path.exists():
            continue  # may come from the environment; the settings check says so when it does not
        status = path.stat()
        if status.st_uid != os.geteuid():
            yield Finding(Level.FAIL, "data", f"{path} belongs to another user", f"sudo chown -R $USER {directory}")
        elif stat.S_IMODE(status.st_mode) & 0o077:
            mode = home.DIRECTORY_MODE if path.is_dir() else home.FILE_MODE
            text, fix = f"others can read {path}", f"chmod {mode:o} {path}"
            yield Finding(Level.FAIL, "data", text, fix, lambda path=path, mode=mode: _close(path, mode))  # type: ignore[misc]


def _close(path: Path, mode: int) -> str:
    path.chmod(mode)
    return f"others can no longer read {path}"


def _load() -> bool:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "primer_site.settings")
    import django

    django.setup()
    return True


def _settings() -> Iterator[Finding]:
    from django.core import checks

    problems = checks.run_checks(tags=["primer"])
    for problem in problems:
        level = Level.FAIL if problem.is_serious() else Level.WARN
        yield Finding(level, "settings", f"{problem.id}: {problem.msg}", problem.hint or "")
    if not problems:
        yield Finding(Level.OK, "settings", "no complaints")


def _database(directory: Path) -> Iterator[Finding]:
    from django.db import DatabaseError, connection
    from django.db.migrations.executor import MigrationExecutor

    from primer_site import database

    try:
        executor = MigrationExecutor(connection)
        if plan := executor.migration_plan(executor.loader.graph.leaf_nodes()):
            text = f"{len(plan)} migrations are not applied"
            yield Finding(Level.WARN, "database", text, "primer up --prepare-only", lambda: _migrate(directory))
            return
        database.check_owner()
    except database.WrongInstance as exc:
        yield Finding(Level.FAIL, "database", exc.detail, exc.hint_text)
    except DatabaseError as exc:
        hint = "restore it from the directory copies of the data directory, or move it away"
        yield Finding(Level.FAIL, "database", f"cannot be read: {exc}", hint)
    else:
        yield Finding(Level.OK, "database", "up to date, of this install")


def _migrate(directory: Path) -> str:
    from primer_site import database
    from primer_site.lock import ServerLock

    lock = ServerLock(directory)  # a server that runs is of the version whose migrations it has
    try:
        done = database.migrate()
        database.claim()
        return f"database: {done}"
    finally:
        lock.release()


def _static() -> Iterator[Finding]:
    from primer_site import assets

    if assets.collected():
        yield Finding(Level.OK, "static", "collected")
    else:
        text = "the files of the pages are missing or old"
        yield Finding(
            Level.WARN, "static", text, "primer up --prepare-only", lambda: f"static files {assets.collect()}"
        )


def _server(directory: Path) -> Iterator[Finding]:
    from primer_site.lock import holder

    found = holder(directory)
    if found is None:
        yield Finding(Level.WARN, "server", "does not run", "primer up")
    elif not found.url:
        yield Finding(Level.WARN, "server", f"process {found.pid} is just starting")
    else:
        yield _ready(found.url, found.pid)


def _ready(url: str, pid: int) -> Finding:
    import requests

    try:
        answer = requests.get(f"{url}/readyz", timeout=5)
    except requests.RequestException:
        return Finding(
            Level.FAIL, "server", f"process {pid} holds the data but does not answer at {url}", f"kill {pid}"
        )
    if answer.status_code != 200:
        return Finding(Level.FAIL, "server", f"{url} answers that it is not ready", f"its log says why (process {pid})")
    return Finding(Level.OK, "server", f"{url}, process {pid}")


def _engine() -> Iterator[Finding]:
    from primer_site import engine

    found = engine.check(home.setting("INSTANCE_ID", "instance-id") or "doctor")
    if found.health == "unreachable":
        reason = found.reasons[0] if found.reasons else f"nothing answers at {engine.socket_path()}"
        yield Finding(Level.FAIL, "engine", reason, engine.how_to_get_one())
        return
    yield Finding(Level.OK, "engine", engine.describe(found))
    for reason in found.reasons:
        yield Finding(Level.WARN, "engine", reason)
    yield hardening(set(found.engine.get("security", [])))
    words = ", ".join(f"{name} {state}" for name, state in found.enforces.items())
    lacking = "unavailable" in found.enforces.values()
    yield Finding(Level.WARN if lacking else Level.OK, "limits", words)


def hardening(security: set[str]) -> Finding:
    """What the engine adds to a sandbox's own confinement; versions and kernels differ, so this is a hint and no verdict."""
    if "seccomp" not in security:
        return Finding(Level.WARN, "hardening", "the engine's kernel has no seccomp: system calls are not filtered")
    if not security & {"apparmor", "selinux"}:
        text = "seccomp, but neither AppArmor nor SELinux: one barrier less between a sandbox and this host"
        return Finding(Level.WARN, "hardening", text)
    return Finding(Level.OK, "hardening", ", ".join(sorted(security)))


def _image() -> Iterator[Finding]:
    from primer_site import engine
    from workspaces import image
    from workspaces.providers.base import ProviderError
    from workspaces.runtime import build as runtime

    try:
        found = image.runtime_digest(engine_url=engine.url())
    except ProviderError:
        return  # the line about the engine says it
    if found is None:
        yield Finding(Level.FAIL, "image", f"{image.TAG} is missing", "primer image build", _build_image)
    elif found != runtime.digest():
        text = f"{image.TAG} carries another runtime than this server"
        yield Finding(Level.WARN, "image", text, "primer image build", _build_image)
    else:
        yield Finding(Level.OK, "image", image.TAG)


def _build_image() -> str:
    from primer_site import engine
    from workspaces import image

    return list(image.build(force=True, engine_url=engine.url()))[-1]


def _remains() -> Iterator[Finding]:
    """Sandboxes of a `--deep` that was killed: no server knows them."""
    from primer_site import deep, engine
    from workspaces.providers.base import ProviderError

    try:
        old = engine.instances(deep.PREFIX, before=time.time() - OLD_S)
    except ProviderError:
        return  # the line about the engine says it
    if old:
        text = f"an earlier doctor --deep that was cut off left {len(old)} sandbox{'es' if len(old) > 1 else ''}"
        yield Finding(Level.WARN, "remains", text, "primer doctor --fix", lambda: _sweep(old))


def _sweep(instances: list[str]) -> str:
    from primer_site import destroy, engine

    for instance in instances:
        destroy.remove_objects(instance, [("container", engine.config(), {})])
    return "what an earlier doctor --deep left was removed"


def _providers() -> Iterator[Finding]:
    """The engines that the providers of this install name, beside the one of this host."""
    from django.db import DatabaseError

    from primer_site import engine
    from workspaces.models import WorkspaceProvider

    here = engine.config()["connection"]
    try:
        rows = [row for row in WorkspaceProvider.objects.live() if row.config.get("connection") != here]
    except DatabaseError:
        return  # the line about the database says it
    for row in rows:
        yield _provider(row)


def _provider(row: Any) -> Finding:
    from primer_site import vault
    from workspaces import engines
    from workspaces.providers.base import Check

    async def measure() -> tuple[Check, bool]:
        made = engines.build(row.provider, row.config, vault.unseal(row.secrets))
        try:
            return await made.check(), made.isolates
        finally:
            await made.close()

    try:
        found, isolates = asyncio.run(measure())
    except PrimerError as exc:
        return Finding(Level.FAIL, "provider", f"{row.slug}: {exc.detail}", exc.hint_text)
    levels = {"unreachable": Level.FAIL, "degraded": Level.WARN}
    level = levels.get(found.health, Level.OK if isolates else Level.WARN)
    return Finding(level, "provider", " ".join([f"{row.slug}: {found.health}.", *found.reasons]))


def _space(directory: Path) -> Iterator[Finding]:
    """Free space where the database grows; a full disk is the commonest way for a server to stop."""
    place = next(path for path in [directory, *directory.parents] if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free at {place}"
    yield Finding(Level.OK if free > LOW_SPACE else Level.WARN, "space", text, "" if free > LOW_SPACE else "make room")
    if shares_disk(place):
        text = "the engine keeps its data on the same file system: a sandbox that fills it fills the database's too"
        yield Finding(Level.WARN, "space", text, "put PRIMER_HOME, or the engine's data, on a file system of its own")


def shares_disk(place: Path) -> bool:
    """Whether the engine of this host keeps its data where this directory is; False where nobody can tell."""
    from primer_site import engine
    from workspaces.providers.base import ProviderError

    try:
        return os.stat(engine.data_root()).st_dev == place.stat().st_dev
    except (ProviderError, OSError):
        return False
