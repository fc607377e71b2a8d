"""What may be stored of an event: secrets masked by value, and nothing that a database refuses. Pure."""

from __future__ import annotations

import re
from typing import Any

from agents.redact import Redactor

MAX_DEPTH = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(value: Any, redactor: Redactor, depth: int = 0) -> Any:
    """A JSON value as it may be stored: secrets masked, NUL and half surrogates (which no database takes) made visible."""
    if isinstance(value, str):
        return redactor.hide(_SURROGATE.sub("\ufffd", value.replace("\x00", "\u2400")))
    if depth > MAX_DEPTH and isinstance(value, dict | list):
        return "[nested too deep]"
    if isinstance(value, dict):
        return {clean(str(key), redactor): clean(item, redactor, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item, redactor, depth + 1) for item in value]
    return value
