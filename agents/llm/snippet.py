"""Takes the code out of what a person typed: a fenced block, "Run this code: …", or bare code. Pure."""

from __future__ import annotations

import re
import textwrap

MAX_BYTES = 1024 * 1024
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_PREFIX = re.compile(r"\s*(?:please\s+)?(?:run|execute)\b[^:\n]{0,60}:", re.IGNORECASE)
# Signs of code in a text without either: a statement's first word, a call, an assignment.
_CODE = re.compile(
    r"^\s*(?:import|from|def|class|for|while|if|with|try|print|async|return|raise|assert|del|lambda)\b.*[:(\w]"
    r"|[\w\]]\s*\([^)]*\)\s*$"
    r"|^\s*[A-Za-z_][\w.\[\]]*\s*[-+*/]?=[^=]"
    r"|^[\d\s.+\-*/%()]+$",
    re.MULTILINE,
)


def snippet_of(text: str) -> str:
    """The code in `text`, ending with one newline; "" when there is none.

    Nothing is parsed: hostile source can exhaust a parser, and a snippet with a syntax error is a snippet all the same.
    """
    if fence := _FENCE.search(text):
        return _tidy(fence.group(2))
    if prefix := _PREFIX.match(text):
        return _tidy(text[prefix.end() :])
    return _tidy(text) if _CODE.search(text) else ""


def _tidy(code: str) -> str:
    first, newline, rest = code.partition("\n")
    if first.strip() and newline:  # "Run this code: import os\nprint(1)": the first line's indent is a typed space
        code = f"{first.strip()}\n{rest}"
    code = textwrap.dedent(code).strip("\n").rstrip()
    if "\n" not in code:
        code = code.strip()
    return f"{code}\n" if code else ""
