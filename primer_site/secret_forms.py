"""The ways a secret shows in text. Pure; imports no app."""

from __future__ import annotations

import base64
import json
from typing import Final
from urllib.parse import quote, quote_plus

SHORTEST_CORE: Final = 8  # characters of base64; a shorter piece stands in other text by chance


def forms(value: str) -> set[str]:
    """A value as it is, escaped for JSON, URL-encoded, and in base64 at each alignment."""
    raw = value.encode("utf-8", "replace")
    found = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(raw, safe=""),
        quote_plus(raw),
    }
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            # Characters that also carry bits of the neighbours differ from text to text.
            first = (shift * 8 + 5) // 6
            core = text[first : len(text) - (1 if (shift + len(raw)) % 3 else 0)]
            if len(core) >= SHORTEST_CORE:
                found.add(core)
    return found
