"""Hostile text as safe HTML: escaped, control and bidi characters drawn as marks, endless lines cut for display."""

from __future__ import annotations

import re

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

CUT = 8 * 1024  # characters of one line that are drawn
MARKS = 5000  # drawn with their title: behind them the shape stands alone, or 2 MB of them would be a page of 90 MB
_ODD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def _shape(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\u25cc"


_SHAPES = {code: _shape(code) for code in range(0x10000) if _ODD.match(chr(code))}


def marks(html: str) -> str:
    """Draws what has no shape of its own, in text that is HTML already."""
    drawn, count = _ODD.subn(_mark, html, MARKS)
    return drawn if count < MARKS else drawn.translate(_SHAPES)


def _mark(found: re.Match[str]) -> str:
    code = ord(found[0])
    shape = _SHAPES[code]
    return shape if shape == "\ufffd" else f'<span class="ctl" title="U+{code:04X}">{shape}</span>'


def visible(text: object) -> str:
    """The text without what has no shape of its own, for an attribute, where no mark can be drawn."""
    return _ODD.sub("", str(text))


def plain(text: object) -> SafeString:
    """Any text as one safe piece; wrap it in <bdi> where it stands among other text."""
    return mark_safe(marks(escape(str(text).replace("\r\n", "\n").replace("\r", "\u240d"))))  # noqa: S308 - escaped above


def cut_lines(text: str, limit: int = CUT) -> str:
    """The text with each endless line cut; the note says how much is not drawn."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    return "\n".join(line if len(line) <= limit else line[:limit] + more_on_line(len(line) - limit) for line in lines)


def more_on_line(count: int) -> str:
    """What stands in place of the characters of a line that are not drawn."""
    return f" … [{count} more characters on this line]"
