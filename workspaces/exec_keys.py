"""`Idempotency-Key` of runs: one key stands for one run, as long as keys are kept. Sync."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.request import Request

from accounts.idempotency import HOLDER, KEPT, key_of
from accounts.models import IdempotencyKey, User
from primer_site.errors import Conflict
from primer_site.vault import fingerprint
from workspaces.exec_rows import NOT_STARTED
from workspaces.models import Exec
from workspaces.sandbox_errors import StartFailure

TRIES = 3  # another caller may claim or free the key between two steps


@dataclass(frozen=True, slots=True)
class Claim:
    """What a key stands for: the id of a run. `ours`: this call claimed it; else the run may be there already, and is not
    started again."""

    pk: int
    exec_id: str
    ours: bool


def claim(request: Request, user: User) -> Claim | None:
    """What the request's key stands for, None without a key. Raises `Conflict` for a key of another request.

    The claim has no stored answer: the run itself is the answer, and a repeat joins it also while it still works.
    """
    if not (key := key_of(request)):
        return None
    route = f"{request.method} {request.path}"[:300]
    body_hash = fingerprint(json.dumps(request.data, sort_keys=True, default=str).encode())
    IdempotencyKey.objects.filter(user=user, created_at__lt=timezone.now() - KEPT).delete()
    for _ in range(TRIES):
        row, ours = _held(user, key, route, body_hash)
        if row is None:
            continue
        if not _is_free_again(row, route):
            if (row.route, row.body_hash) != (route, body_hash):
                break
            return Claim(row.pk, exec_id(row), ours)
        IdempotencyKey.objects.filter(pk=row.pk).delete()
    raise Conflict("This Idempotency-Key was used for another request.", hint="Use a new key for a new request.")


def _held(user: User, key: str, route: str, body_hash: str) -> tuple[IdempotencyKey | None, bool]:
    facts = {"route": route, "body_hash": body_hash, "holder": HOLDER}
    try:
        with transaction.atomic():
            return IdempotencyKey.objects.create(user=user, key=key, **facts), True
    except IntegrityError:
        return IdempotencyKey.objects.filter(user=user, key=key).first(), False


def _is_free_again(row: IdempotencyKey, route: str) -> bool:
    """A run that never started, because of its workspace and not of its program, does not use the key up."""
    if row.route != route:
        return False
    ended = Exec.objects.filter(slug=exec_id(row), ended_by=NOT_STARTED)
    return any((error or {}).get("code") != StartFailure.code for error in ended.values_list("error", flat=True))


def exec_id(row: IdempotencyKey) -> str:
    """Of the claim and not of the key alone: a key that was freed, or has expired, means another run the next time."""
    text = f"{row.user_id}:{row.pk}:{row.key}"
    return "exec-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@transaction.atomic
def release(claim: Claim) -> None:
    """Frees the key of a run that was refused before it was stored. One that another call stored under it keeps it.

    The transaction has its turn at writing from its first statement on, and a run is stored only while its claim is there:
    whichever comes first, no run is left whose key is free.
    """
    if not Exec.objects.filter(slug=claim.exec_id).exists():
        IdempotencyKey.objects.filter(pk=claim.pk).delete()
