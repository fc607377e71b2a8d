"""`Idempotency-Key`: the same key and body gets the same answer for a day, another body is refused, nothing runs twice."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import IdempotencyKey, User
from primer_site.errors import Conflict, FieldError, Invalid
from primer_site.vault import fingerprint

KEPT = timedelta(hours=24)
HOLDER = secrets.token_hex(8)  # this process: a key held by another one that died is free again after a restart
_FORM = re.compile(r"[\x21-\x7e]{1,128}")


def key_of(request: Request) -> str:
    """The request's key, "" without one; `Invalid` when it has control characters, spaces or over 128 characters."""
    key = request.headers.get("Idempotency-Key", "")
    if key and not _FORM.fullmatch(key):
        raise Invalid(
            "The Idempotency-Key is not valid.",
            errors=[FieldError("Idempotency-Key", "must be 1 to 128 visible ASCII characters")],
        )
    return key


def begin(request: Request, user: User, *, storable: bool = True) -> IdempotencyKey | Response | None:
    """Claims the key for this request, or returns the stored answer of the first one; None without a key.

    Raises `Conflict` for another body, for a first request that still works, and, with `storable` False (routes that
    show a secret once), for every repeat.
    """
    key = key_of(request)
    if not key:
        return None
    route = f"{request.method} {request.path}"[:300]
    # Keyed: the body may hold a password, and a plain hash at rest would let it be guessed.
    body_hash = fingerprint(json.dumps(request.data, sort_keys=True, default=str).encode())
    try:
        with transaction.atomic():
            IdempotencyKey.objects.filter(user=user, created_at__lt=timezone.now() - KEPT).delete()
            return IdempotencyKey.objects.create(user=user, key=key, route=route, body_hash=body_hash, holder=HOLDER)
    except IntegrityError:
        stored = IdempotencyKey.objects.get(user=user, key=key)
    return _repeat(stored, route, body_hash, storable)


def _repeat(stored: IdempotencyKey, route: str, body_hash: str, storable: bool) -> IdempotencyKey | Response:
    if (stored.route, stored.body_hash) != (route, body_hash):
        raise Conflict("This Idempotency-Key was used for another request.", hint="Use a new key for a new request.")
    if not storable:
        raise Conflict("This was done before with the same Idempotency-Key; the answer held a secret and is not kept.")
    if stored.status is not None:
        kept = stored.response or {}
        headers = {"Idempotent-Replay": "true"} | ({"ETag": kept["etag"]} if kept.get("etag") else {})
        return Response(kept.get("body"), status=stored.status, headers=headers)
    # The first request never answered. Of this process: it still works. Of an earlier one: it died, and this one may go on.
    claimed = IdempotencyKey.objects.filter(pk=stored.pk, status=None).exclude(holder=HOLDER).update(holder=HOLDER)
    if claimed:
        return stored
    raise Conflict(
        "The first request with this Idempotency-Key is still being worked on.", hint="Repeat it in a moment."
    )


def once(
    request: Request,
    user: User,
    work: Callable[[], Response],
    *,
    storable: bool = True,
    prepare: Callable[[], None] | None = None,
) -> Response:
    """Runs `work` under the request's key. A failure frees the key: what was refused once may be sent again.

    With `prepare`, which may take its time, `work` is one transaction together with the answer that is kept: a server
    killed in between leaves both or neither, and the repeat makes no second object.
    """
    claim = begin(request, user, storable=storable)
    if isinstance(claim, Response):
        return claim
    try:
        if prepare is not None:
            prepare()
        with transaction.atomic() if prepare is not None else nullcontext():
            response = work()
            if response.status_code < 500:
                _finish(claim, response, storable)
    except BaseException:
        _release(claim)
        raise
    if response.status_code >= 500:
        _release(claim)
    return response


def _finish(claim: IdempotencyKey | None, response: Response, storable: bool) -> None:
    if claim is not None:
        kept: Any = {"body": response.data, "etag": response.headers.get("ETag")} if storable else None
        data = json.loads(json.dumps(kept, default=str))
        IdempotencyKey.objects.filter(pk=claim.pk).update(status=response.status_code, response=data)


def _release(claim: IdempotencyKey | None) -> None:
    if claim is not None:
        IdempotencyKey.objects.filter(pk=claim.pk).delete()
