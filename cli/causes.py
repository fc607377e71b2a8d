"""Why a call failed, in words, and how long to wait before it is made again. Pure."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Final

_LONGEST_PAUSE_S: Final = 10.0
_NOT_TRUSTED = "its certificate is not trusted"
_OTHER_NAME = "its certificate is for another name"
_NO_TLS = "it does not speak TLS"
_NO_CONNECTION: Final = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "Connection refused")
BAD_CA: Final = ("CA certificate", "NO_CERTIFICATE_OR_CRL_FOUND", "PEM lib", "NO_START_LINE")
HINTS: Final = {
    _NOT_TRUSTED: "give the CA that signed it with --ca-file PATH",
    _OTHER_NAME: "use the name that the certificate is for",
    _NO_TLS: "write http:// if it is meant to",
}


def reason(exc: BaseException) -> str:
    """A few words for why a connection failed; the libraries' own texts hold object addresses."""
    text = repr(exc)
    for mark, words in (
        ("Connection refused", "connection refused"),
        ("Name or service not known", "no such host"),
        ("NameResolutionError", "no such host"),
        ("nodename nor servname", "no such host"),
        ("ertificate has expired", "its certificate has expired"),
        ("ertificate is not yet valid", "its certificate is not valid yet"),
        ("ostname mismatch", _OTHER_NAME),
        ("IP address mismatch", _OTHER_NAME),
        ("CERTIFICATE_VERIFY_FAILED", _NOT_TRUSTED),
        ("WRONG_VERSION_NUMBER", _NO_TLS),
        ("SSL", "TLS failed"),
        ("imed out", "no answer in time"),
        ("Timeout", "no answer in time"),
        ("No route to host", "no route to host"),
        ("Network is unreachable", "network is unreachable"),
        ("ProxyError", "the proxy does not answer"),
    ):
        if mark in text:
            return words
    return "the connection broke"


def unsent(exc: BaseException) -> bool:
    """Whether a failed call never got to a server: no connection was made. Any other may have been carried out."""
    text = repr(exc)
    return any(mark in text for mark in _NO_CONNECTION)


def pause_before(attempt: int, retry_after: str) -> float:
    """Seconds before the next try: what the server asks for, within reason, else 0.2, 0.4, 0.8 with jitter."""
    if retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after), _LONGEST_PAUSE_S)
    if retry_after:
        from email.utils import parsedate_to_datetime

        with contextlib.suppress(ValueError, OverflowError):
            left = parsedate_to_datetime(retry_after).timestamp() - datetime.now(UTC).timestamp()
            return min(max(0.0, left), _LONGEST_PAUSE_S)
    import random

    jitter = random.uniform(0.75, 1.25)  # noqa: S311 - not a secret
    return float(0.2 * 2**attempt * jitter)
