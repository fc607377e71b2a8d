"""Durations, sizes, ages and near misses: how numbers and names are read from people and shown to them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNIT_S = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")
MIB = 1024 * 1024
OUR_IMAGE = "primer/workspace-runtime:"


def duration(text: str, what: str = "duration") -> float:
    """Seconds from `200`, `500ms`, `90s`, `10m`, `2h` or `1d`; raises UsageError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'{what}: "{text}" is not a duration', hint="write 200 (seconds), 500ms, 90s, 10m, 2h or 1d")
    return float(match[1]) * _UNIT_S[match[2]]


def time_limit(text: str, what: str) -> float:
    """A duration that ends something: a limit of nothing would end it before it began."""
    found = duration(text, what)
    if found < 0.1:
        raise UsageError(f"{what}: must be at least 100ms, not {text}")
    return found


def whole_seconds(seconds: float) -> int:
    """The API takes whole seconds: never fewer than one, never less than what was asked."""
    return max(1, int(-(-seconds // 1)))


def size(count: float) -> str:
    """`13 B`, `512 MiB`, `1.5 KiB`: one decimal where it says something."""
    value, step = float(count), 0
    while value >= 1024 and step < len(_STEPS) - 1:
        value, step = value / 1024, step + 1
    shown = f"{value:.1f}".removesuffix(".0")
    return f"{shown} {_STEPS[step]}"


def count_bytes(count: int) -> str:
    """`2 bytes`, `1 204 bytes`."""
    return f"{count:,} ".replace(",", " ") + ("byte" if count == 1 else "bytes")


def seconds(value: float) -> str:
    """`0.01 s`, `1.2 s`, `60 s`."""
    if value < 0.1:
        return f"{value:.2f} s"
    return f"{value:.1f}".removesuffix(".0") + " s"


def moment(text: Any) -> datetime | None:
    """An RFC 3339 time as the API writes it, or None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def span(delta: timedelta) -> str:
    """`5s`, `3m`, `2h`, `4d`; never negative, since clocks differ."""
    total = max(0, int(delta.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if total >= length * (2 if unit != "m" else 1):
            return f"{total // length}{unit}"
    return f"{total}s"


def age(text: Any, now: datetime | None = None) -> str:
    """How long ago a time of the API was; empty when it is not a time."""
    then = moment(text)
    return span((now or datetime.now(UTC)) - then) if then else ""


def local_time(text: Any, *, utc: bool) -> str:
    """`2026-02-01 10:00:00+01:00` in the caller's zone, or in UTC; empty when it is not a time."""
    then = moment(text)
    if then is None:
        return ""
    return (then.astimezone(UTC) if utc else then.astimezone()).isoformat(sep=" ", timespec="seconds")


def nearest(word: str, names: Iterable[str]) -> str:
    """The one name that is close enough to be what was meant, or an empty string."""
    import difflib

    lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), list(lower), n=1, cutoff=0.6)
    return lower[found[0]] if found else ""


def image_hint(image: str) -> str:
    """How an image comes to be on the engine: ours is built there, any other is the caller's to bring."""
    if OUR_IMAGE in image:
        return "build it on the server: primer image build"
    return "put the image on the engine, or name another one as backend.image of the template"


def mapping(value: Any) -> dict[str, Any]:
    """A mapping as it is; an empty one for anything else, as where a server leaves a part out."""
    return value if isinstance(value, dict) else {}


def dig(value: Any, path: str, default: Any = None) -> Any:
    """`dig(obj, "a.b")`: the value below dotted keys; `default` where a step is missing or null."""
    for key in path.split("."):
        if not isinstance(value, dict):
            return default
        value = value.get(key)
    return default if value is None else value
