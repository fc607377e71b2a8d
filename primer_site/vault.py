"""Secrets at rest, and the tokens of sandbox channels."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from primer_site.errors import PrimerError
from primer_site.logs import redact, remember_secret


class Sealed(PrimerError):
    """A stored secret cannot be read with the keys of this server."""

    code, status = "secret_unreadable", 500
    hint = "Put the key that wrote it back into PRIMER_ENCRYPTION_KEYS, behind the current one."


def _fernet() -> MultiFernet:
    if not settings.PRIMER_ENCRYPTION_KEYS:
        raise Sealed("This server has no encryption key.", hint="Run: primer up --prepare-only")
    return MultiFernet([Fernet(key) for key in settings.PRIMER_ENCRYPTION_KEYS])


def seal(values: dict[str, Any]) -> str:
    """Encrypts and authenticates a dict of secrets; {} is "". Their values never reach the log from now on."""
    _remember(values)
    return _fernet().encrypt(json.dumps(values).encode()).decode() if values else ""


def unseal(text: str) -> dict[str, Any]:
    """The dict behind `seal`; raises `Sealed` when no key fits."""
    if not text:
        return {}
    try:
        values = dict(json.loads(_fernet().decrypt(text.encode())))
    except InvalidToken as exc:
        raise Sealed() from exc
    _remember(values)
    return values


def hide(text: str) -> str:
    """The text without any secret that this process has remembered: what it sealed or unsealed, and its own."""
    return redact(text)


def remember(*values: str) -> None:
    """Keeps secrets that are stored elsewhere (in the environment) out of the log of this process, from now on."""
    remember_secret(*values)


def _remember(values: dict[str, Any]) -> None:
    remember_secret(*[value for value in values.values() if isinstance(value, str)])


def mask(value: str | None) -> dict[str, Any]:
    """What reads show of a secret: whether it is set, and its last four characters when it is long enough to spare them.

    Of a text of several lines that is the end of its last one, the frame of a PEM key left out, since all keys share it;
    spaces and characters that do not print are never among the four.
    """
    if not value:
        return {"set": False, "last4": None}
    lines = [line for line in value.splitlines() if not line.lstrip().startswith("-----")]
    told = "".join(char for char in "".join(lines) if char.isprintable() and not char.isspace())
    return {"set": True, "last4": told[-4:] if len(told) >= 12 else None}


def channel_secret(workspace_id: str, generation: int) -> bytes:
    """The secret between this server and one start of a sandbox: 32 bytes, derived and stored nowhere."""
    message = f"primer-channel:{settings.PRIMER_INSTANCE_ID}:{workspace_id}:{generation}".encode()
    return hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).digest()


def fingerprint(data: bytes) -> str:
    """A keyed hash of data that may hold secrets, for comparing: 64 hex digits, worthless without this server's key."""
    return hmac.new(settings.SECRET_KEY.encode(), b"primer-fingerprint:" + data, hashlib.sha256).hexdigest()
