"""Bodies are hostile: one strict JSON parser whose every refusal is a 4xx that names the place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework.parsers import BaseParser

from primer_site.errors import FieldError, Invalid, Malformed, TooLarge

MAX_DEPTH = 64
MAX_INT_DIGITS = 4000  # far above any number of ours, below what makes int() slow
MAX_DIGITS = 18  # of a number outside a body: fits into 64 bits
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")
_TOKENS = re.compile(f"{_STRINGS.pattern}|{_BRACKETS.pattern}", re.DOTALL)


class _TooLarge:
    """Stands where a number stood that is too large, until its field is known."""


class StrictJSONParser(BaseParser):
    """JSON in UTF-8 without duplicate keys, NaN, lone surrogates or NUL, at most `PRIMER_MAX_BODY_BYTES` and 64 levels deep."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = getattr((parser_context or {}).get("view"), "max_body_bytes", settings.PRIMER_MAX_BODY_BYTES)
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes.")
        return load(raw)


def load(raw: bytes) -> Any:
    """Parses and checks one JSON text; raises `Malformed` when it is not JSON, `Invalid` when it is not acceptable."""
    if not raw.strip():
        return {}
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("The body is not UTF-8. Send JSON in UTF-8 without a byte order mark.") from None
    if text.startswith("\ufeff"):
        raise Malformed("The body begins with a byte order mark. Send JSON without it.")
    if _too_deep(text):
        errors = [FieldError(_deep_field(text), f"is nested deeper than {MAX_DEPTH} levels")]
        raise Invalid(f"The body is nested deeper than {MAX_DEPTH} levels.", errors=errors)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer, parse_float=_finite
        )
    except (json.JSONDecodeError, RecursionError) as exc:
        where = f" (line {exc.lineno}, column {exc.colno})" if isinstance(exc, json.JSONDecodeError) else ""
        raise Malformed(f"The body is not JSON{where}.") from None
    check_text(value)
    return value


def _too_deep(text: str) -> bool:
    """Counts brackets outside strings before the parser recurses into them."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(_STRINGS.sub("", text)):
        depth += 1 if found[0] in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _deep_field(text: str) -> str:
    """The field of a text that is too deep which makes it so, "" when the text is no object."""
    depth, key = 0, ""
    for found in _TOKENS.finditer(text):
        piece = found[0]
        if piece[0] == '"':
            key = piece if depth == 1 else key  # the last one before a bracket on this level is its key
            continue
        depth += 1 if piece in "[{" else -1
        if depth > MAX_DEPTH:
            break
    return _plain(key[1:-1])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Invalid("A key stands twice in one object.", errors=[FieldError(_plain(key), "stands twice")])
        result[key] = value
    return result


def _constant(name: str) -> Any:
    raise Malformed(f"The body is not JSON: {name} is not a JSON number.")


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else _TooLarge()


def _finite(digits: str) -> Any:
    number = float(digits)
    return number if number not in (float("inf"), float("-inf")) else _TooLarge()


def whole(text: str) -> int | None:
    """The whole number that a text of a query, a header or a form is; None for any other, and for one that no place needs.

    `str.isdigit` alone takes "²", which `int` refuses, and `int` refuses 4300 digits.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def check_text(value: Any, field: str = "") -> None:
    """Raises `Invalid` naming the first field that holds NUL, half a surrogate pair or too large a number: none can be stored."""
    stack: list[tuple[str, Any]] = [(field, value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            if problem := bad_text(item):
                raise Invalid("The body holds text that cannot be stored.", errors=[FieldError(path, problem)])
        elif isinstance(item, dict):
            for key, inner in item.items():
                name = f"{path}.{_plain(key)}" if path else _plain(key)
                if problem := bad_text(key):
                    raise Invalid("The body holds a key that cannot be stored.", errors=[FieldError(name, problem)])
                stack.append((name, inner))
        elif isinstance(item, _TooLarge):
            raise Invalid(
                "The body holds a number that is too large.", errors=[FieldError(path, "is a number that is too large")]
            )
        elif isinstance(item, list):
            stack.extend((f"{path}[{index}]", inner) for index, inner in enumerate(item))


def bad_text(text: str) -> str:
    """Why a string cannot be stored, or ""."""
    if "\x00" in text:
        return "must not contain NUL"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "must not contain a lone surrogate"
    return ""


def _plain(key: str) -> str:
    """A key as it may stand in an error: no control characters, no surrogates, not endless."""
    return key[:80].encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")
