"""What a form of a browser cannot carry, put back into an edited text: the file's own line ends and its byte order mark. Pure."""

from __future__ import annotations

import re
from collections import Counter

from workspaces.diff import opcodes

BOM = "\ufeff"
_END = re.compile(r"\r\n|\r|\n")


def restored(before: str, edited: str) -> str:
    """`edited`, whose lines end in `\\n` or `\\r\\n`, with the line ends of `before`.

    A line that stays or was edited in its place keeps its end, a new one takes that of most lines. A last line without an end stays one.
    """
    old, ends = _lines(before.removeprefix(BOM))
    new, _ = _lines(edited.removeprefix(BOM).replace("\r\n", "\n"))
    found = Counter(ends)
    usual = found.most_common(1)[0][0] if found else "\n"
    own = [usual] * (len(new) - 1)
    if len(found) > 1:
        _keep(old, ends, new, own)
    text = "".join(line + end for line, end in zip(new, [*own, ""], strict=True))
    return BOM + text if before.startswith(BOM) else text


def _keep(old: list[str], ends: list[str], new: list[str], own: list[str]) -> None:
    """Gives each line that stood there before, or was edited in its place, its old end."""
    for _, a, c, b, d in opcodes(old, new):
        for n in range(min(c - a, d - b)):
            if a + n < len(ends) and b + n < len(own):
                own[b + n] = ends[a + n]


def _lines(text: str) -> tuple[list[str], list[str]]:
    """The lines without their ends, and the ends: one fewer, since behind the last end there is a line, maybe empty."""
    return _END.split(text), _END.findall(text)
