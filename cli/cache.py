"""Small JSON files that may be lost at any time: below `$XDG_CACHE_HOME/primectl`, named after server and version."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.wire import wire

_MOST_BYTES = 4 * 1024 * 1024


def directory(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "primectl"


def name_of(what: str, server: str, version: str) -> str:
    """A file name for what belongs to one server and one version of it."""
    digest = hashlib.sha256(wire(f"{server}\n{version}")).hexdigest()
    return f"{what}-{digest[:32]}.json"


def read(env: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """What was kept; None when there is nothing that can be read."""
    try:
        with open(directory(env) / name, "rb") as file:
            value = json.loads(file.read(_MOST_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write(env: Mapping[str, str], name: str, value: Mapping[str, Any]) -> bool:
    """Keeps a value, whole or not at all; False when it cannot be kept, which is nobody's failure."""
    place = directory(env)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=place, prefix=".partial-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(value, file)
            Path(partial).replace(place / name)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True
