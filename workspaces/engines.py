"""The provider objects of this process: one for each row, made again when its settings change. On the loop only."""

from __future__ import annotations

import asyncio
import time

import structlog
from django.conf import settings

from primer_site import loop, vault
from primer_site.errors import NotFound, PrimerError
from workspaces import services
from workspaces.models import WorkspaceProvider
from workspaces.providers import provider_class
from workspaces.providers.base import Check, Provider, ProviderError

CREATES_AT_ONCE = 2  # measured: creates saturate an engine at two at a time
CHECK_AGE_S = 60.0  # how long a measurement of an engine stands for new workspaces

_engines: dict[int, tuple[int, Provider]] = {}
_creates: dict[int, asyncio.Semaphore] = {}
_checks: dict[int, tuple[float, Provider, Check]] = {}
_measuring: dict[int, asyncio.Task[None]] = {}

log = structlog.get_logger(__name__)


class ProviderUnusable(ProviderError):
    """The provider's settings cannot be used: an administrator has to correct them."""

    code, status = "provider_unusable", 409


def build(kind: str, config: dict[str, object], secrets: dict[str, object]) -> Provider:
    """A provider object for settings that may not be stored; raises `Invalid` for what the kind does not do."""
    try:
        return provider_class(kind)(config, secrets, instance_id=settings.PRIMER_INSTANCE_ID)
    except PrimerError:
        raise
    except Exception as exc:
        # Settings that an earlier version took, or a mistake of ours: whoever waits must hear of it.
        raise ProviderUnusable(log=repr(exc)) from exc


async def engine_of(provider_pk: int) -> Provider:
    """The provider object of a row, kept until the row's settings change. Raises `NotFound`, `Sealed`."""
    row = await loop.read(_load, provider_pk)
    kept = _engines.get(provider_pk)
    if kept is not None and kept[0] == row.spec_rev:
        return kept[1]
    engine = build(row.provider, row.config, vault.unseal(row.secrets))
    _engines[provider_pk] = (row.spec_rev, engine)
    if kept is not None:
        await kept[1].close()
    return engine


def _load(provider_pk: int) -> WorkspaceProvider:
    row = WorkspaceProvider.objects.filter(pk=provider_pk).first()
    if row is None:
        raise NotFound("The provider of this workspace is gone.")
    return row  # type: ignore[no-any-return]


def creates(provider_pk: int) -> asyncio.Semaphore:
    """Held while an engine makes a sandbox."""
    return _creates.setdefault(provider_pk, asyncio.Semaphore(CREATES_AT_ONCE))


async def check_of(provider_pk: int) -> Check:
    """What the engine can enforce, measured at most CHECK_AGE_S seconds ago."""
    engine = await engine_of(provider_pk)
    known = _checks.get(provider_pk)
    if known is not None and known[1] is engine and time.monotonic() - known[0] < CHECK_AGE_S:
        return known[2]
    return await measure(provider_pk)


async def measure(provider_pk: int) -> Check:
    """Measures the engine now and stores what was found on the provider's row."""
    row = await loop.read(_load, provider_pk)
    engine = await engine_of(provider_pk)
    check = await engine.check()
    _checks.pop(provider_pk, None)
    if check.health != "unreachable":
        _checks[provider_pk] = (time.monotonic(), engine, check)
    await loop.write(services.provider_store_check, row=row, check=check)
    return check


def measure_soon(provider_pk: int) -> None:
    """The same in the background, unless it is under way already."""
    if provider_pk not in _measuring:
        task = asyncio.get_running_loop().create_task(_measure_quietly(provider_pk), name=f"measure {provider_pk}")
        _measuring[provider_pk] = task
        task.add_done_callback(lambda _: _measuring.pop(provider_pk, None))


async def _measure_quietly(provider_pk: int) -> None:
    try:
        await measure(provider_pk)
    except PrimerError as exc:  # settings that cannot be used: nothing answers there
        await loop.write(_store_unusable, provider_pk, Check("unreachable", (exc.detail,)))
    except Exception:
        log.exception("measuring an engine failed", provider=provider_pk)


def _store_unusable(provider_pk: int, check: Check) -> None:
    if (row := WorkspaceProvider.objects.filter(pk=provider_pk).first()) is not None:
        services.provider_store_check(row=row, check=check)


async def close_all() -> None:
    """Releases every client; the sandboxes run on."""
    # Cut first: a client that we close would look like an engine that is down.
    if measuring := list(_measuring.values()):
        for task in measuring:
            task.cancel()
        await asyncio.wait(measuring)
    kept = list(_engines.values())
    _engines.clear()
    _creates.clear()
    _checks.clear()
    for _, engine in kept:
        await engine.close()
