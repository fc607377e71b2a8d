"""`Idempotency-Key`: the same key and body gets the same answer for a day, another body is refused, nothing runs twice."""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

from django.db import IntegrityError, transaction
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import IdempotencyKey, User
from primer_site.crashpoints import reach
from primer_site.errors import Conflict, FieldError, Invalid
from primer_site.vault import fingerprint

KEPT = timedelta(hours=24)
HOLDER = secrets.token_hex(8)  # this process: a key held by another one that died is free again after a restart
WAIT_S = 5.0  # how long a repeat waits for the answer of a first request that still works
LOOK_S, LOOK_MOST_S = 0.05, 0.4  # between two looks: the first pause, and the longest that it grows to
WAITERS = 8  # of one key at once in this process: each holds a thread that others need
Answer = TypeVar("Answer", bound=HttpResponseBase)
_waiting: Counter[tuple[int, str]] = Counter()
_waiting_lock = threading.Lock()
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


def begin(request: Request, user: User, *, storable: bool = True) -> IdempotencyKey | HttpResponseBase | None:
    """Claims the key for this request, or returns the stored answer of the first one; None without a key.

    Raises `Conflict` for another body, for a first request that still works after WAIT_S (at once where WAITERS wait
    already), and, with `storable` False (routes that show a secret once), for every repeat.
    """
    key = key_of(request)
    if not key:
        return None
    route = f"{request.method} {request.path}"[:300]
    # Keyed: the body may hold a password, and a plain hash at rest would let it be guessed.
    body_hash = fingerprint(json.dumps(request.data, sort_keys=True, default=str).encode())
    claim = _claimed(user, key, route, body_hash)
    until, pause = time.monotonic() + WAIT_S, LOOK_S
    with ExitStack() as place:
        while claim is None:
            stored = IdempotencyKey.objects.filter(user=user, key=key).first()
            if stored is None:  # the first one failed meanwhile and freed the key
                claim = _claimed(user, key, route, body_hash)
                continue
            found = _repeat(stored, route, body_hash, storable)
            if found is not None:
                return found
            if pause == LOOK_S:
                place.enter_context(_place(user, key))
            if time.monotonic() >= until:
                raise _still_working()
            time.sleep(pause)
            pause = min(2 * pause, LOOK_MOST_S)
    return claim


def _claimed(user: User, key: str, route: str, body_hash: str) -> IdempotencyKey | None:
    """The key as ours, None when it is taken. A write, which others wait for: whoever waits for the key only reads."""
    try:
        with transaction.atomic():
            IdempotencyKey.objects.filter(user=user, created_at__lt=timezone.now() - KEPT).delete()
            return IdempotencyKey.objects.create(user=user, key=key, route=route, body_hash=body_hash, holder=HOLDER)
    except IntegrityError:
        return None


@contextmanager
def _place(user: User, key: str) -> Iterator[None]:
    """One of the places to wait for a key; `Conflict` when all are taken."""
    name = (user.pk, key)
    with _waiting_lock:
        if _waiting[name] >= WAITERS:
            raise _still_working()
        _waiting[name] += 1
    try:
        yield
    finally:
        with _waiting_lock:
            _waiting[name] -= 1
            if not _waiting[name]:
                del _waiting[name]


def _still_working() -> Conflict:
    message = "The first request with this Idempotency-Key is still being worked on."
    return Conflict(message, hint="Repeat it in a moment.", retry_after_s=1)


def _repeat(
    stored: IdempotencyKey, route: str, body_hash: str, storable: bool
) -> IdempotencyKey | HttpResponseBase | None:
    """What a key that is taken means for a request; None while the first one with it still works."""
    if (stored.route, stored.body_hash) != (route, body_hash):
        raise Conflict("This Idempotency-Key was used for another request.", hint="Use a new key for a new request.")
    if stored.status is not None and storable:
        return _kept_answer(stored.status, stored.response or {})
    if stored.status is not None:
        raise Conflict("This was done before with the same Idempotency-Key; the answer held a secret and is not kept.")
    # The first request never answered. Of this process: it still works. Of an earlier one: it died, and this one may go on.
    if stored.holder == HOLDER:
        return None
    claimed = IdempotencyKey.objects.filter(pk=stored.pk, status=None).exclude(holder=HOLDER).update(holder=HOLDER)
    return stored if claimed else None


def _kept_answer(status: int, kept: dict[str, Any]) -> HttpResponseBase:
    headers = {"Idempotent-Replay": "true"} | ({"ETag": kept["etag"]} if kept.get("etag") else {})
    body = kept.get("body")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a file whose name is not UTF-8: only ASCII can carry it
        return JsonResponse(body, status=status, headers=headers)
    return Response(body, status=status, headers=headers)


def once(
    request: Request,
    user: User,
    work: Callable[[], Answer],
    *,
    storable: bool = True,
    prepare: Callable[[], None] | None = None,
    outside: bool = False,
) -> Answer:
    """Runs `work` under the request's key. A failure frees the key: what was refused once may be sent again.

    `work` is one transaction together with the answer that is kept: a server killed in between leaves both or neither,
    and the repeat does nothing twice. `prepare` runs before it and may take its time. `outside` is for work that asks an
    engine or waits for one: no transaction can hold that, so it has to be work that may be done again.
    """
    claim = begin(request, user, storable=storable)
    if isinstance(claim, HttpResponseBase):
        return cast(Answer, claim)
    try:
        if prepare is not None:
            prepare()
        with nullcontext() if outside else transaction.atomic():
            response = work()
            if claim is not None:
                reach("before-kept-answer")
            if response.status_code < 500:
                _finish(claim, response, storable)
    except BaseException:
        _release(claim)
        raise
    if claim is not None:
        reach("after-kept-answer")
    if response.status_code >= 500:
        _release(claim)
    return response


def _finish(claim: IdempotencyKey | None, response: HttpResponseBase, storable: bool) -> None:
    if claim is not None:
        kept: Any = {"body": _body_of(response), "etag": response.headers.get("ETag")} if storable else None
        data = json.loads(json.dumps(kept, default=str))
        IdempotencyKey.objects.filter(pk=claim.pk).update(status=response.status_code, response=data)


def _body_of(response: HttpResponseBase) -> Any:
    if isinstance(response, Response):
        return response.data
    return json.loads(response.content) if isinstance(response, HttpResponse) and response.content else None


def _release(claim: IdempotencyKey | None) -> None:
    if claim is not None:
        IdempotencyKey.objects.filter(pk=claim.pk).delete()
