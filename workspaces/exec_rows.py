"""The database side of runs: one insert at the start, one transaction at the end, batches in between. Sync."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.models import IdempotencyKey
from primer_site.errors import Conflict, PrimerError, Unavailable
from primer_site.vault import fingerprint
from workspaces.execution import EndedBy, Evidence, ExecOutcome, ExecRequest, Stream, Survivor
from workspaces.leases import HOLDER
from workspaces.models import OUTPUT_ROW_BYTES, Exec, ExecOutput, ExecState, Workspace
from workspaces.output import Keeper, Kept

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
LONG_MS = 5000.0
NOT_STARTED = "not_started"


class KeyFreed(Unavailable):
    """The first request with this Idempotency-Key was refused just now, and nothing ran."""

    hint = "Repeat the request with the same key."


def describe(request: ExecRequest, keep_bytes: int, background: bool) -> dict[str, Any]:
    """A request without its secrets: names of variables instead of values, the size of stdin instead of its bytes."""
    return {
        "argv": list(request.argv), "cwd": request.cwd, "env_names": sorted(request.env), "stdin_bytes": len(request.stdin),
        "timeout_s": request.timeout_s, "max_output_bytes": keep_bytes, "output_kill_bytes": request.output_kill_bytes,
        "background": background,
    }  # fmt: skip


def digest(request: ExecRequest, keep_bytes: int) -> str:
    """Tells whether two requests under one id are the same. Keyed: env and stdin may hold secrets, which nobody who reads
    the database may guess at."""
    parts: list[Any] = [request.argv, request.cwd, sorted(request.env.items()), request.stdin.hex()]
    parts += [request.timeout_s, request.output_kill_bytes, keep_bytes]
    return fingerprint(json.dumps(parts).encode())


def insert(
    workspace_pk: int,
    request: ExecRequest,
    *,
    keep_bytes: int,
    started_by: int | None,
    session_id: str | None,
    background: bool,
    request_hash: str,
    claim_pk: int | None = None,
) -> tuple[int, bool]:
    """Stores that a run is about to start: its key, and whether a row with this id was there already.

    Raises `Conflict` when the id means another run, and `KeyFreed` when `claim_pk`, the claim of an Idempotency-Key that the
    id comes from, is gone. One statement without a key: this is on the way of every run.
    """
    row = Exec(
        slug=request.id, workspace_id=workspace_pk, session_id=session_id, started_by_id=started_by,
        request_hash=request_hash, request=describe(request, keep_bytes, background), lease_holder=HOLDER,
    )  # fmt: skip
    try:
        # One turn at writing for both: a key that was freed stands for another run the next time, and this one would be a second.
        with transaction.atomic() if claim_pk is not None else nullcontext():
            if claim_pk is not None and not IdempotencyKey.objects.filter(pk=claim_pk).exists():
                raise KeyFreed(retry_after_s=1)
            row.save(force_insert=True)
    except IntegrityError:
        return _known(row), True
    return row.pk, False


def _known(row: Exec) -> int:
    first = Exec.objects.filter(slug=row.slug).first()
    if first is None or not row.request_hash or (first.workspace_id, first.request_hash) != (row.workspace_id, row.request_hash):  # fmt: skip
        raise Conflict("This Idempotency-Key was used for another request.", hint="Use a new key for a new request.")
    return int(first.pk)


def store(exec_pk: int, stream: Stream, offset: int, data: bytes) -> None:
    """Appends kept bytes as rows of at most OUTPUT_ROW_BYTES."""
    ExecOutput.objects.bulk_create(_rows(exec_pk, stream, offset, data))


def _rows(exec_pk: int, stream: Stream, offset: int, data: bytes) -> list[ExecOutput]:
    return [
        ExecOutput(exec_id=exec_pk, stream=stream, offset=offset + at, data=data[at : at + OUTPUT_ROW_BYTES])
        for at in range(0, len(data), OUTPUT_ROW_BYTES)
    ]


@transaction.atomic
def store_all(exec_pk: int, parts: list[tuple[Stream, int, bytes]]) -> None:
    """Stores several pieces at once; empty ones are left out."""
    ExecOutput.objects.bulk_create([row for part in parts for row in _rows(exec_pk, *part)])


@transaction.atomic
def finish(
    exec_pk: int,
    outcome: ExecOutcome,
    gaps: dict[Stream, tuple[int, int] | None],
    parts: list[tuple[Stream, int, bytes]],
    trouble: str = "",
) -> bool:
    """Stores the end of a run with the rest of its output; False when another process holds it, or it ended before.

    `trouble`: why this server did not see the end.
    """
    now = timezone.now()
    rows = Exec.objects.filter(pk=exec_pk, state=ExecState.RUNNING, lease_holder=HOLDER)
    changed = rows.update(
        state=ExecState.ENDED, ended_at=now, ended_by=outcome.ended_by, exit_code=outcome.exit_code, signal=outcome.signal,
        stdout_bytes=outcome.stdout_bytes, stderr_bytes=outcome.stderr_bytes, stdout_gap=gaps["stdout"],
        stderr_gap=gaps["stderr"], duration_ms=outcome.duration_ms, cpu_ms=outcome.cpu_ms,
        max_rss_bytes=outcome.max_rss_bytes, evidence=asdict(outcome.evidence),
        survivors=[asdict(one) for one in outcome.survivors],
        error={"code": "unavailable", "detail": trouble} if trouble else None,
    )  # fmt: skip
    if changed != 1:
        return False
    if output := [row for part in parts for row in _rows(exec_pk, *part)]:
        ExecOutput.objects.bulk_create(output)
    if outcome.duration_ms > LONG_MS:  # its start was the last sign of life
        Workspace.objects.filter(execs=exec_pk).update(last_activity_at=now)
    return True


def refuse(exec_pk: int, error: PrimerError) -> None:
    """A run that never started is kept with its reason: somebody may have been told its id."""
    Exec.objects.filter(pk=exec_pk, state=ExecState.RUNNING, lease_holder=HOLDER).update(
        state=ExecState.ENDED, ended_at=timezone.now(), ended_by=NOT_STARTED,
        error={"code": error.code, "detail": error.detail, "hint": error.hint_text,
               "errors": [one.to_dict() for one in error.errors]},
    )  # fmt: skip


def take_over(pumped: list[int], own_since_s: float | None = None) -> list[tuple[int, str, int, str | None, int]]:
    """Runs that nobody pumps (here are those that we do) become ours: at boot all, later, with `own_since_s`, those that
    this process began so long ago and holds no more. (pk, id, workspace, session, bytes to keep per stream)"""
    rows = Exec.objects.filter(state=ExecState.RUNNING).exclude(pk__in=pumped)
    if own_since_s is not None:
        rows = rows.filter(lease_holder=HOLDER, created_at__lte=timezone.now() - timedelta(seconds=own_since_s))
    found = list(rows.values_list("pk", "slug", "workspace_id", "session_id", "request"))
    Exec.objects.filter(pk__in=[pk for pk, *_ in found]).update(lease_holder=HOLDER)
    return [(pk, slug, ws, session, int(request["max_output_bytes"])) for pk, slug, ws, session, request in found]


@transaction.atomic
def restore(exec_pk: int, stream: Stream, keep_bytes: int) -> Keeper:
    """A keeper that goes on where the rows end. Rows behind the head, with a gap or next to it, come back into memory: they
    are the moving tail."""
    rows = ExecOutput.objects.filter(exec=exec_pk, stream=stream).order_by("offset")
    stored, head_limit = 0, Keeper(keep_bytes).head_limit
    for row in rows.iterator(chunk_size=16):
        if row.offset != stored or stored >= head_limit:
            break
        stored += len(row.data)
    keeper = Keeper(keep_bytes, stored=stored)
    tail = rows.filter(offset__gte=stored)
    for row in tail:
        keeper.take(row.offset, bytes(row.data))
    tail.delete()
    return keeper


def read(exec_pk: int, stream: Stream, offset: int, limit: int) -> tuple[int, bytes]:
    """Stored bytes at or behind `offset`: the offset of the first (behind a gap when it was met), and at most `limit`."""
    rows = ExecOutput.objects.filter(exec=exec_pk, stream=stream, offset__gt=offset - OUTPUT_ROW_BYTES)
    start, size = offset, 0
    parts: list[bytes] = []
    for row in rows.order_by("offset").iterator(chunk_size=16):
        data = bytes(row.data)
        if row.offset + len(data) <= offset:
            continue
        if not parts:
            start = max(offset, row.offset)
            data = data[start - row.offset :]
        elif row.offset != start + size:
            break  # the gap
        parts.append(data)
        size += len(data)
        if size >= limit:
            break
    return start, b"".join(parts)[:limit]


def load(exec_pk: int) -> Exec:
    return Exec.objects.get(pk=exec_pk)


def outcome_of(row: Exec) -> ExecOutcome:
    """The outcome as it was stored."""
    return ExecOutcome(
        ended_by=cast(EndedBy, row.ended_by),
        exit_code=row.exit_code,
        signal=row.signal,
        stdout_bytes=row.stdout_bytes,
        stderr_bytes=row.stderr_bytes,
        duration_ms=row.duration_ms or 0.0,
        cpu_ms=row.cpu_ms,
        max_rss_bytes=row.max_rss_bytes,
        evidence=Evidence(**row.evidence),
        survivors=tuple(Survivor(**one) for one in row.survivors),
    )


def kept(exec_pk: int, limit: int) -> tuple[Exec, Kept, Kept]:
    """An ended run with the first `limit` bytes of what is kept of each stream."""
    row = load(exec_pk)
    return row, _kept(row, "stdout", row.stdout_gap, limit), _kept(row, "stderr", row.stderr_gap, limit)


def _kept(row: Exec, stream: Stream, gap: list[int] | None, limit: int) -> Kept:
    rows = ExecOutput.objects.filter(exec=row.pk, stream=stream).order_by("offset")
    parts: list[bytes] = []
    room = limit
    for piece in rows.iterator(chunk_size=16):
        parts.append(bytes(piece.data[:room]))
        room -= len(parts[-1])
        if len(parts[-1]) < len(piece.data):
            return Kept(b"".join(parts), _pair(gap), piece.offset + len(parts[-1]))
    return Kept(b"".join(parts), _pair(gap))


def _pair(gap: list[int] | None) -> tuple[int, int] | None:
    return (gap[0], gap[1]) if gap else None
