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
    cut = {"cut": not wide and any(len(line) > CUT for line in text.split("\n")), "odd": odd}
    if info.size_bytes > WHOLE or text.count("\n") > LINES * (1 + steps) + TAIL_LINES:
        return cut | _head_and_tail(ask, info, text, len(found.data), steps=steps, width=width)
    whole = _whole(info, text, view, width) | cut
    # What was replaced cannot be saved again.
    return whole | ({} if odd else {"etag": found.info.etag, "text": text.removeprefix(BOM)})


def _text(data: bytes, truncated: bool) -> tuple[str | None, bool]:
    """The text, None when it is none, and whether bytes of it are no UTF-8."""
    if b"\0" in data[:HEX]:
        return None, False
    try:
        return text_of(data, truncated), False
    except NotText:
        text = data.decode("utf-8", "replace")
        return (text if text[:HEX].count("\ufffd") <= STRANGE * len(text[:HEX]) else None), True


def _whole(info: FileInfo, text: str, view: str, width: int) -> dict[str, Any]:
    suffix = info.name.lower().rpartition(".")[2]
    other = {"md": "rendered", "markdown": "rendered", "csv": "table", "tsv": "table"}.get(suffix, "")
    small = len(text) <= markup.HIGHLIGHT_BYTES
    views = [("", "Source"), (other, other.capitalize())] if other and small else []
    if view == "rendered" and other == "rendered" and small:
        return {"viewer": "markdown", "html": markup.markdown(text), "views": views, "view": view}
    if view == "table" and other == "table" and small:
        rows = markup.table(text, "\t" if suffix == "tsv" else ",")
        return {"viewer": "table", "head": rows[:1], "rows": rows[1:], "views": views, "view": view}
    return {
        "viewer": "text",
        "parts": [(1, markup.lines_of(text, info.name, limit=width))],
        "views": views,
        "view": "",
    }


def _head_and_tail(ask: Ask, info: FileInfo, text: str, read: int, *, steps: int, width: int) -> dict[str, Any]:
    """The beginning and the end of a text that is too long, or has too many lines; `text` is its first `read` bytes."""
    tail = text
    if read < info.size_bytes:
        start = max(read, info.size_bytes - PART)
        found = ask(lambda box: box.read(info.path, offset=start, limit=PART))
        tail = found.data.decode("utf-8", "replace").lstrip("\ufffd")
    drawn = LINES * (1 + steps)
    head = "\n".join(text.split("\n", drawn)[:drawn])
    tail = "\n".join(tail.removesuffix("\n").rsplit("\n", TAIL_LINES)[-TAIL_LINES:])
    parts = [
        (1, markup.lines_of(head, colours=False, limit=width)),
        (0, markup.lines_of(tail, colours=False, limit=width)),
    ]
    return {
        "viewer": "text",
        "parts": parts,
        "left_out": max(0, info.size_bytes - len(head.encode()) - len(tail.encode())),
        "views": [],
        "more": steps + 1 if steps < MOST_STEPS and (read < WHOLE or head != text) else 0,
    }


def image(ask: Ask, path: str) -> HttpResponse:
    """An image's bytes, its type from its content; anything else is not served inline."""
    found = ask(lambda box: box.read(path, limit=IMAGE))
    kind = markup.image_type(found.data[:16])
    if not kind or found.truncated:
        raise NotFound("This is not an image that can be shown.", hint="Download it.")
    return HttpResponse(found.data, content_type=kind, headers={**INLINE, "Cache-Control": "no-store"})
