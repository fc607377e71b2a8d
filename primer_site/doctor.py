"""`primer doctor`: what is missing on this host and the command that mends it. Changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from primer_site import home, report
from primer_site.report import Level

WARNINGS_ONLY = 8
LOW_SPACE = 2 * 1024**3  # bytes


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    name: str
    text: str
    fix: str = ""


def doctor(output: str) -> int:
    """Prints the findings; 0 all well, 8 warnings only, 1 something fails."""
    found = list(examine())
    if output == "json":
        click.echo(json.dumps({"checks": [asdict(finding) for finding in found]}, indent=2))
    else:
        for finding in found:
            report.line(finding.level, finding.name, finding.text, finding.fix)
    levels = {finding.level for finding in found}
    return 1 if Level.FAIL in levels else WARNINGS_ONLY if Level.WARN in levels else 0


def examine() -> Iterator[Finding]:
    """Every finding, in the order in which one would mend them."""
    directory = home.home_dir()
    prepared = (directory / "instance-id").is_file()
    yield _python()
    yield from _data(directory, prepared)
    checks: list[Callable[[], Iterator[Finding]]] = [_settings, _database] if prepared and _load() else []
    for check in [*checks, lambda: _server(directory), _engine, _image]:
        yield from check()
    yield from _space(directory)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "python", f"{version} in {sys.prefix}")


def _data(directory: Path, prepared: bool) -> Iterator[Finding]:
    if not prepared:
        yield Finding(Level.WARN, "data", f"{directory} is not prepared yet", "primer up")
        return
    yield Finding(Level.OK, "data", str(directory))
    for path in [directory, *(directory / name for name in ("secret-key", "encryption-keys", "instance-id"))]:
        if not path.exists():
            continue  # may come from the environment; the settings check says so when it does not
        status = path.stat()
        if status.st_uid != os.geteuid():
            yield Finding(Level.FAIL, "data", f"{path} belongs to another user", f"sudo chown -R $USER {directory}")
        elif stat.S_IMODE(status.st_mode) & 0o077:
            mode = 700 if path.is_dir() else 600
            yield Finding(Level.FAIL, "data", f"others can read {path}", f"chmod {mode} {path}")


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


def _database() -> Iterator[Finding]:
    from django.db import DatabaseError, connection
    from django.db.migrations.executor import MigrationExecutor

    from primer_site import database

    try:
        executor = MigrationExecutor(connection)
        if plan := executor.migration_plan(executor.loader.graph.leaf_nodes()):
            yield Finding(Level.WARN, "database", f"{len(plan)} migrations are not applied", "primer up --prepare-only")
            return
        database.check_owner()
    except database.WrongInstance as exc:
        yield Finding(Level.FAIL, "database", exc.detail, exc.hint_text)
    except DatabaseError as exc:
        hint = "restore it from the directory copies of the data directory, or move it away"
        yield Finding(Level.FAIL, "database", f"cannot be read: {exc}", hint)
    else:
        yield Finding(Level.OK, "database", "up to date, of this install")


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
    words = ", ".join(f"{name} {state}" for name, state in found.enforces.items())
    lacking = "unavailable" in found.enforces.values()
    yield Finding(Level.WARN if lacking else Level.OK, "limits", words)


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
        yield Finding(Level.FAIL, "image", f"{image.TAG} is missing", "primer image build")
    elif found != runtime.digest():
        yield Finding(
            Level.WARN, "image", f"{image.TAG} carries another runtime than this server", "primer image build"
        )
    else:
        yield Finding(Level.OK, "image", image.TAG)


def _space(directory: Path) -> Iterator[Finding]:
    """Free space where the database grows; a full disk is the commonest way for a server to stop."""
    place = next(path for path in [directory, *directory.parents] if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free at {place}"
    yield Finding(Level.OK if free > LOW_SPACE else Level.WARN, "space", text, "" if free > LOW_SPACE else "make room")
