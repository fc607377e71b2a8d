"""One file on a page: as text, Markdown, table, image or hex, by what is in it; whole, or head and tail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpResponse

from accounts.pages.text import CUT
from primer_site.errors import NotFound, NotText
from workspaces.execution import FileInfo
from workspaces.files_api import text_of
from workspaces.pages import markup
from workspaces.pages.line_ends import BOM
from workspaces.sandbox import Sandbox

Ask = Callable[[Callable[[Sandbox], Awaitable[Any]]], Any]
WHOLE = 2 * 1024**2  # bytes of text that are shown whole
PART = 64 * 1024  # head and tail of a longer one
MOST_STEPS = 8  # of `Load more`, four parts each: then the head is as long as a whole text may be
LINES = 20_000  # of a text that are drawn from its beginning, as many more with each `Load more`, and
TAIL_LINES = 5_000  # from its end: two million empty ones would be a page of 45 MB, and a browser lays out each
WIDE = 256 * 1024  # characters of a line, for who asks for more than the first 8 KB
STRANGE = 0.15  # of a beginning that is no UTF-8: with more it is shown as bytes
INNER = bytes(range(0x80, 0xC0))  # what a character of UTF-8 does not begin with: a part may begin amid one
IMAGE = 10 * 1024**2
HEX = 4096
INLINE = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}


def show(ask: Ask, info: FileInfo, view: str, more: int = 0, *, wide: bool = False) -> dict[str, Any]:
    """What the template needs: `viewer` names the partial; of a long text the head is longer by `more` steps.

    `wide` draws long lines up to WIDE. `odd` says that what is no UTF-8 was replaced, `cut` that a line is longer than drawn.
    """
    if info.kind != "file":
        return {"viewer": "closed"}
    if info.size_bytes == 0:
        return {"viewer": "empty"}
    steps = min(more, MOST_STEPS)
    limit = WHOLE if info.size_bytes <= WHOLE else min(PART * (1 + 4 * steps), WHOLE)
    found = ask(lambda box: box.read(info.path, limit=limit))
    if kind := markup.image_type(found.data[:16]):
        return {"viewer": "image" if info.size_bytes <= IMAGE else "large", "image_type": kind}
    text, odd = _text(found.data, found.truncated)
    if text is None:
        return {"viewer": "binary", "lines": markup.hex_lines(found.data[:HEX]), "shown": min(HEX, info.size_bytes)}
    width = WIDE if wide else CUT
    whole = info.size_bytes <= WHOLE and text.count("\n") <= LINES * (1 + steps) + TAIL_LINES
    other = _other(info, text) if info.size_bytes <= WHOLE else ""
    shown: dict[str, Any] = {"cut": not wide and any(len(line) > CUT for line in text.split("\n")), "odd": odd}
    shown |= {"views": [("", "Source"), (other, other.capitalize())] if other else [], "view": ""}
    if other and view == other:
        shown |= _as_other(info, text, other)
    elif whole:
        shown |= {"viewer": "text", "parts": [(1, markup.lines_of(text, info.name, limit=width))]}
    else:
        shown |= _head_and_tail(ask, info, text, found.data, steps=steps, width=width)
    # What was replaced cannot be saved again, nor what is not all here.
    return shown | ({"etag": found.info.etag, "text": text.removeprefix(BOM)} if whole and not odd else {})


def _text(data: bytes, truncated: bool) -> tuple[str | None, bool]:
    """The text, None when it is none, and whether bytes of it are no UTF-8."""
    if b"\0" in data[:HEX]:
        return None, False
    try:
        return text_of(data, truncated), False
    except NotText:
        text = data.decode("utf-8", "replace")
        return (text if text[:HEX].count("\ufffd") <= STRANGE * len(text[:HEX]) else None), True


def _other(info: FileInfo, text: str) -> str:
    """The view that a text has besides its source; "" for none. Both draw a bounded part, however many lines it has."""
    suffix = info.name.lower().rpartition(".")[2]
    found = {"md": "rendered", "markdown": "rendered", "csv": "table", "tsv": "table"}.get(suffix, "")
    return found if len(text) <= markup.HIGHLIGHT_BYTES else ""


def _as_other(info: FileInfo, text: str, view: str) -> dict[str, Any]:
    if view == "rendered":
        return {"viewer": "markdown", "html": markup.markdown(text), "view": view}
    rows = markup.table(text, "\t" if info.name.lower().endswith(".tsv") else ",")
    return {"viewer": "table", "head": rows[:1], "rows": rows[1:], "view": view}


def _head_and_tail(ask: Ask, info: FileInfo, text: str, data: bytes, *, steps: int, width: int) -> dict[str, Any]:
    """The beginning and the end of a text that is too long, or has too many lines; `text` is its first bytes, `data`.

    What is left out is counted in the file's own bytes: one that is no UTF-8 is three in the text.
    """
    end, drawn = data, LINES * (1 + steps)
    if len(data) < info.size_bytes:
        start = max(len(data), info.size_bytes - PART)
        end = ask(lambda box: box.read(info.path, offset=start, limit=PART)).data.lstrip(INNER)
    head = "\n".join(text.split("\n", drawn)[:drawn])
    last = b"\n".join(end.removesuffix(b"\n").rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]) + b"\n" * end.endswith(b"\n")
    parts = [
        (1, markup.lines_of(head, colours=False, limit=width)),
        (0, markup.lines_of(last.decode("utf-8", "replace"), colours=False, limit=width)),
    ]
    rest = b"".join(data.split(b"\n", drawn)[drawn:])
    return {
        "viewer": "text",
        "parts": parts,
        "left_out": max(0, info.size_bytes - (len(data) - len(rest)) - len(last)),
        "more": steps + 1 if steps < MOST_STEPS and (len(data) < WHOLE or head != text) else 0,
    }


def image(ask: Ask, path: str) -> HttpResponse:
    """An image's bytes, its type from its content; anything else is not served inline."""
    found = ask(lambda box: box.read(path, limit=IMAGE))
    kind = markup.image_type(found.data[:16])
    if not kind or found.truncated:
        raise NotFound("This is not an image that can be shown.", hint="Download it.")
    return HttpResponse(found.data, content_type=kind, headers={**INLINE, "Cache-Control": "no-store"})
