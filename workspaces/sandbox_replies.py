"""From the JSON of a runtime, which may lie, to our values: types, ranges and sizes are checked, the rest is dropped."""

from __future__ import annotations

import math
from typing import Any, get_args

from workspaces.execution import EndedBy, Evidence, ExecOutcome, FileInfo, FileKind, Listing, Survivor
from workspaces.sandbox_errors import ProtocolError

MAX_INT = 1 << 62
MAX_ITEMS = 1000
_MAX_TEXT = 64 * 1024


def integer(body: dict[str, Any], name: str, low: int = 0, high: int = MAX_INT) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ProtocolError(log=f"{name} is not a number in its range")
    return value


def number(body: dict[str, Any], name: str, low: float = 0.0) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < low:
        raise ProtocolError(log=f"{name} is not a number in its range")
    return float(value)


def text(body: dict[str, Any], name: str, most: int = _MAX_TEXT) -> str:
    value = body.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise ProtocolError(log=f"{name} is not a text")
    return value


def mapping(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise ProtocolError(log=f"{name} is not an object")
    return value


def items(body: dict[str, Any], name: str, most: int = MAX_ITEMS) -> list[dict[str, Any]]:
    value = body.get(name)
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
        raise ProtocolError(log=f"{name} is not a list of objects")
    return value


def _optional_integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    return None if body.get(name) is None else integer(body, name, low, high)


def outcome_from(body: dict[str, Any]) -> ExecOutcome:
    """Raises ProtocolError when a field is missing, of a wrong type or out of range, or the parts contradict."""
    ended_by = text(body, "ended_by", 16)
    if ended_by not in get_args(EndedBy) or ended_by == "lost":  # lost is for us to say, never for the sandbox
        raise ProtocolError(log="an unknown verdict")
    proof = mapping(body, "evidence")
    disk = proof.get("disk")
    if disk not in (None, "sigxfsz", "enospc", "watcher"):
        raise ProtocolError(log="unknown evidence")
    by = proof.get("cancelled_by")
    evidence = Evidence(
        oom_kill=integer(proof, "oom_kill"),
        pids_max=integer(proof, "pids_max"),
        disk=disk,
        limit=None if proof.get("limit") is None else number(proof, "limit"),
        shared=proof.get("shared") is True,
        cancelled_by=by[:200] if isinstance(by, str) else None,
    )
    survivors = tuple(
        Survivor(integer(item, "pid", 1), text(item, "command", 1000)) for item in items(body, "survivors")
    )
    return ExecOutcome(
        ended_by=ended_by,  # type: ignore[arg-type]
        exit_code=_optional_integer(body, "exit_code", 0, 255),
        signal=_optional_integer(body, "signal", 1, 127),
        stdout_bytes=integer(body, "stdout_bytes"),
        stderr_bytes=integer(body, "stderr_bytes"),
        duration_ms=number(body, "duration_ms"),
        cpu_ms=number(body, "cpu_ms"),
        max_rss_bytes=integer(body, "max_rss_bytes"),
        evidence=evidence,
        survivors=survivors,
    )


def file_from(body: dict[str, Any]) -> FileInfo:
    kind = text(body, "kind", 16)
    if kind not in get_args(FileKind):
        raise ProtocolError(log="an unknown kind of file")
    etag = body.get("etag")
    if etag is not None and (not isinstance(etag, str) or not etag.isalnum() or len(etag) > 64):
        raise ProtocolError(log="an odd etag")
    return FileInfo(
        path=text(body, "path", 1 << 20),
        name=text(body, "name", 1024),
        kind=kind,  # type: ignore[arg-type]
        size_bytes=integer(body, "size_bytes"),
        modified_at=number(body, "modified_at", -float(MAX_INT)),
        mode=integer(body, "mode", 0, 0o7777),
        etag=etag,
    )


def listing_from(body: dict[str, Any]) -> Listing:
    cursor = body.get("cursor")
    if cursor is not None and (not isinstance(cursor, str) or len(cursor) > 1 << 20 or not cursor.isascii()):
        raise ProtocolError(log="an odd cursor")
    return Listing(tuple(file_from(item) for item in items(body, "items")), cursor)
