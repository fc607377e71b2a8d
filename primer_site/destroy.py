"""`primer destroy`: what this install has on the engine, then its data."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import click

from primer_site import engine, home, report, setup
from primer_site.errors import PrimerError
from primer_site.lock import ServerLock
from primer_site.setup import NotPrepared

NOTHING = "nothing of this install on it"


def destroy(yes: bool) -> int:
    """Asks once, then removes by label what this install made on its engines, then the data directory; exit code.

    Refuses while the server runs. The data stay when an engine could not be asked: the id in them is what finds the
    rest later.
    """
    directory = home.home_dir()
    if not (directory / "instance-id").is_file():
        report.ok("data", f"nothing at {directory}")
        return 0
    lock = ServerLock(directory)
    question = f"Remove every sandbox of this install with its files, and {directory} with its database and keys?"
    if not yes and not click.confirm(question, default=False, err=True):
        report.ok("data", f"{directory} kept, nothing removed")
        return 0
    for text in remove_objects(home.setting("INSTANCE_ID", "instance-id"), engines()):
        report.ok("engine", text)
    shutil.rmtree(directory)
    lock.release()
    report.ok("data", f"{directory} removed")
    return 0


def engines() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(kind, config, secrets) of this host's engine and of every provider in the database, each address once."""
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("container", engine.config(), {})]
    try:
        setup.configure()
    except NotPrepared:
        return found  # no database, so no workspace was ever made
    from primer_site import vault
    from workspaces.models import WorkspaceProvider

    known = [engine.config()["connection"]]
    for row in WorkspaceProvider.objects.all():
        if row.config.get("connection") not in known:
            known.append(row.config.get("connection"))
            found.append((row.provider, row.config, vault.unseal(row.secrets)))
    return found


def remove_objects(instance_id: str, where: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Removes every container, volume and network of an instance; returns one line for each engine."""
    return [_sweep(instance_id, *one) for one in where]


def _sweep(instance_id: str, kind: str, config: dict[str, Any], secrets: dict[str, Any]) -> str:
    from workspaces.providers import provider_class
    from workspaces.providers.base import EngineUnavailable

    async def sweep() -> list[str]:
        provider = provider_class(kind)(config, secrets, instance_id=instance_id)
        try:
            removed: list[str] = []
            for ref in await provider.discover():
                removed += await provider.destroy(ref)
            return removed + await provider.remove_shared()
        finally:
            await provider.close()

    try:
        removed = asyncio.run(sweep())
    except EngineUnavailable as exc:
        raise PrimerError(
            f"{exc.detail} The data directory was kept.", hint="Start the engine, then: primer destroy"
        ) from exc
    if not removed:
        return NOTHING
    counts = {kind: removed.count(kind) for kind in dict.fromkeys(removed)}
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items()) + " removed"
