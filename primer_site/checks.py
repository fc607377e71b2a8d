"""System checks of the settings; the hint of each is what mends it. `primer up` and `primer doctor` run them too."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from primer_site.variables import BY_NAME

OLDEST_SQLITE = (3, 35, 0)  # UPDATE … RETURNING
SHORTEST_TOKEN = 20  # characters


@register("primer")
def keys(**_: Any) -> list[CheckMessage]:
    if not settings.PRIMER_PREPARED:
        return [Error("This install has no keys yet.", hint="Run: primer up --prepare-only", id="primer.E001")]
    try:
        for key in settings.PRIMER_ENCRYPTION_KEYS:
            Fernet(key)
    except ValueError:
        hint = "Put back the file encryption-keys of the data directory, or correct PRIMER_ENCRYPTION_KEYS."
        return [
            Error(
                "An encryption key is not a Fernet key, so no stored secret can be read.", hint=hint, id="primer.E002"
            )
        ]
    return []


@register("primer")
def instance(**_: Any) -> list[CheckMessage]:
    if settings.PRIMER_PREPARED and not settings.PRIMER_INSTANCE_ID:
        hint = "Run: primer up --prepare-only, or set PRIMER_INSTANCE_ID."
        return [Error("This install has no instance id, by which it knows its sandboxes.", hint=hint, id="primer.E003")]
    if not settings.PRIMER_INSTANCE_ID.replace("-", "").isalnum() and settings.PRIMER_INSTANCE_ID:
        hint = "Use letters, digits and dashes: it becomes a label and a network's name on the engine."
        return [
            Error("The instance id has other characters than letters, digits and dashes.", hint=hint, id="primer.E004")
        ]
    return []


@register("primer")
def database(**_: Any) -> list[CheckMessage]:
    engine = str(settings.DATABASES["default"]["ENGINE"])
    if engine.endswith("sqlite3") and sqlite3.sqlite_version_info < OLDEST_SQLITE:
        hint = "Use a Python whose SQLite is 3.35 or later: python3 -c 'import sqlite3; print(sqlite3.sqlite_version)'"
        return [Error(f"SQLite {sqlite3.sqlite_version} is too old.", hint=hint, id="primer.E005")]
    return []


@register("primer")
def limits(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.PRIMER_DRAIN_S < 0:
        found.append(Error("PRIMER_DRAIN_S is negative.", hint="Use seconds, 0 or more.", id="primer.E006"))
    if settings.PRIMER_KEEP_DAYS < 0:
        found.append(Error("PRIMER_KEEP_DAYS is negative.", hint="Use days, or 0 for ever.", id="primer.E008"))
    if settings.PRIMER_MAX_BODY_BYTES > settings.PRIMER_MAX_UPLOAD_BYTES:
        hint = "Raise PRIMER_MAX_UPLOAD_BYTES, which bounds every body."
        found.append(
            Error("PRIMER_MAX_BODY_BYTES is larger than PRIMER_MAX_UPLOAD_BYTES.", hint=hint, id="primer.E007")
        )
    return found


@register("primer")
def spelling(**_: Any) -> list[CheckMessage]:
    """A misspelled variable would be ignored without a word."""
    known = {*BY_NAME, *(f"{name}_FILE" for name, variable in BY_NAME.items() if variable.secret)}
    hint = "docs/settings.md has them all: correct or unset it."
    return [
        checks.Warning(f"There is no setting {name}.", hint=hint, id="primer.W004")
        for name in sorted(os.environ)
        if name.startswith("PRIMER_") and name not in known
    ]


@register("primer")
def exposure(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if 0 < len(settings.PRIMER_METRICS_TOKEN) < SHORTEST_TOKEN:
        hint = f"Use {SHORTEST_TOKEN} characters or more: openssl rand -hex 20"
        found.append(Error("PRIMER_METRICS_TOKEN can be guessed: it is too short.", hint=hint, id="primer.E009"))
    if "*" in settings.ALLOWED_HOSTS:
        hint = "List the names people use in PRIMER_ALLOWED_HOSTS."
        found.append(checks.Warning("The server answers to every host name.", hint=hint, id="primer.W001"))
    if settings.DEBUG:
        found.append(
            checks.Warning("Debug mode shows internals to everybody.", hint="Unset PRIMER_DEBUG.", id="primer.W002")
        )
    if settings.PRIMER_ALLOW_LOCAL:
        hint = "Unset PRIMER_ALLOW_LOCAL unless all code is trusted."
        found.append(checks.Warning("The local provider is allowed: it isolates nothing.", hint=hint, id="primer.W003"))
    return found
