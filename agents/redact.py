"""Known secrets never leave in text: they are replaced by value, also base64 and URL-encoded. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from primer_site.secret_forms import forms

SHORTEST = 4  # characters; a shorter value stands in every text by chance
MASK = "[secret]"


class Redactor:
    """Replaces the values it knows in any text; without values it returns texts as they are."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        found = {form for value in values if len(value) >= SHORTEST for form in forms(value)}
        self._patterns = sorted(found, key=lambda form: (-len(form), form))
        self._regex = re.compile("|".join(map(re.escape, self._patterns))) if self._patterns else None

    def hide(self, text: str) -> str:
        return self._regex.sub(MASK, text) if self._regex else text

    def split(self, text: str) -> tuple[str, str]:
        """`text` cut in two: what can be written now, and an end that may be the start of a secret still to come."""
        if self._regex is None:
            return text, ""
        # What is whole is masked as it is; only behind it may another one begin.
        done = max((match.end() for match in self._regex.finditer(text)), default=0)
        keep = len(text)
        for pattern in self._patterns:
            start = text.find(pattern[0], max(done, len(text) - len(pattern) + 1))
            while start != -1 and start < keep:
                if pattern.startswith(text[start:]):
                    keep = start
                    break
                start = text.find(pattern[0], start + 1)
        return text[:keep], text[keep:]
