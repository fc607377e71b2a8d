"""Log lines: one event each, known secrets and control characters taken out before anything is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import MutableMapping
from typing import Any

import structlog

from primer_site.secret_forms import forms

MASK = "[secret]"
SHORTEST = 8  # characters: anything shorter would mask ordinary words
_secrets: dict[str, int] = {}
_lock = threading.Lock()


def remember_secret(*values: str) -> None:
    """From now on these values, also base64 and URL-encoded, never reach a log line of this process. Short ones are ignored."""
    with _lock:
        for value in values:
            if len(value) >= SHORTEST:
                _secrets.update({form: len(form) for form in forms(value)})


def forget_secrets() -> None:
    """For tests: the registry is of the whole process."""
    with _lock:
        _secrets.clear()


def redact(text: str) -> str:
    """The text without any remembered secret."""
    with _lock:
        known = sorted(_secrets, key=len, reverse=True)  # a secret may contain another one
    for secret in known:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def escape(text: str) -> str:
    """Control characters (newline and tab apart) and bidi overrides as visible escapes: a log is read in a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" or not _dangerous(char) else _visible(char) for char in text)


def _dangerous(char: str) -> bool:
    code = ord(char)
    return (
        code < 32
        or 127 <= code < 160
        or 0x202A <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
        or 0xD800 <= code < 0xE000
    )


def _visible(char: str) -> str:
    return char.encode("unicode_escape").decode()


class Formatter(structlog.stdlib.ProcessorFormatter):
    """structlog's formatter whose finished line passes `redact` and `escape`."""

    def format(self, record: logging.LogRecord) -> str:
        return escape(redact(super().format(record)))


def hide(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A step of structlog: every value without remembered secrets, also inside of lists and objects.

    Before the line is made: a renderer escapes quotes and line breaks, and a secret that has some would look different.
    """
    return {str(key): _hidden(value) for key, value in event.items()}


def _hidden(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {redact(str(key)): _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(item) for item in value]
    return redact(str(value))


def formatter(style: str = "text") -> Formatter:
    """For LOGGING: lines of `logging` and of structlog in one shape, `timestamp=… level=… event=… key=value`, or JSON."""
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return Formatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            hide,
            # A value with a line break stays on its line, so nothing from outside can forge a second one.
            structlog.processors.JSONRenderer(ensure_ascii=True)
            if style == "json"
            else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
    )
