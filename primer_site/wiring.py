"""Which parts of the apps the server process runs: the one place of this package that knows them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from primer_site import prune
from primer_site.services import Service
from sessions_app import dispatch, live
from workspaces import execs, reconcile


def services() -> list[Service]:
    return [
        Service("reconciler", reconcile.serve, outlives_drain=True),
        Service("runner", dispatch.serve),
        Service("prune", prune.serve),
    ]


def drains() -> list[Callable[[float], Awaitable[None]]]:
    return [dispatch.drain, execs.drain]


async def close_sockets(code: int) -> None:
    await live.close_all(code)
