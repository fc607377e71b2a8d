"""Texts, bodies and media types as HTTP carries them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import requests


def wire(text: str) -> bytes:
    """Text as its bytes: a name that is not UTF-8 comes from the command line, and in JSON, with U+DC80 to U+DCFF."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def segment(text: str) -> str:
    """One path segment of a URL, whatever it holds."""
    return quote(wire(text), safe="")


def media_type(response: requests.Response) -> str:
    """Of a response, without its parameters: `application/json`."""
    return response.headers.get("Content-Type", "").split(";")[0].strip().lower()


def is_json(response: requests.Response) -> bool:
    kind = media_type(response)
    return kind == "application/json" or kind.endswith("+json")


def encoded(body: Any, headers: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """A body as `requests` sends it, with its content type: a file and bytes as they are, the rest as JSON."""
    if body is None:
        return None, headers
    if hasattr(body, "rewind"):  # a file: from its start for each attempt
        body.rewind()
        return body, {"Content-Type": "application/octet-stream", **headers}
    if isinstance(body, bytes):
        return body, {"Content-Type": "application/octet-stream", **headers}
    return json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
