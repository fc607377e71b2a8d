"""Which version we are, which the server is, and the warning, once a day, when they do not belong together."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cli.errors import ApiError, CliError

if TYPE_CHECKING:
    from cli.app import App

_DISTRIBUTION: Final = "primer-console"
_DAY_S: Final = 86400.0
_QUICK_S: Final = 3.0  # for a question that nobody asked
WARNING: Final = "warning: client and server differ in their major version; some lines may not work"


def own_version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def capabilities(app: App) -> dict[str, Any]:
    """What the server says about itself: version, api, providers, limits; empty when it is too old to tell."""
    try:
        return app.client.get("/v1/capabilities").object
    except ApiError as exc:
        if exc.status == 404:
            return {}
        raise


def server_version(app: App) -> str:
    """The server's version; "unknown" when it does not tell."""
    return str(capabilities(app).get("version") or "unknown")


def fits(theirs: str) -> bool:
    """Whether a server's version is one that we belong to: the same major number, or nobody knows."""
    ours = own_version()
    return "unknown" in (ours, theirs) or ours.partition(".")[0] == theirs.partition(".")[0]


def newer(theirs: str) -> bool:
    return _numbers(theirs) > _numbers(own_version())


def known_version(app: App) -> str:
    """The server's version, asked once a day and then remembered; empty when it cannot be had quickly.

    The day's question is also the day's warning when the major versions differ.
    """
    from cli import cache

    now = datetime.now(UTC).timestamp()  # of the calendar: the day goes on while nothing of ours runs
    name = cache.name_of("version", app.client.server, "")
    kept = cache.read(app.console.env, name) or {}
    at, version = kept.get("at"), kept.get("version")
    if isinstance(at, int | float) and isinstance(version, str) and 0 <= now - at < _DAY_S:
        return version
    # Kept first: where nothing can be kept, the question would come with every command.
    if not cache.write(app.console.env, name, {"at": now, "version": ""}):
        return ""
    client = copy.copy(app.client)
    client.timeout_s = min(client.timeout_s, _QUICK_S)
    try:
        version = str(client.call("GET", "/v1/capabilities", retry=False).object.get("version") or "")
    except CliError:
        return ""
    cache.write(app.console.env, name, {"at": now, "version": version})
    if version and not fits(version):
        app.console.note(WARNING)
    return version


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isascii() and part.isdigit())
