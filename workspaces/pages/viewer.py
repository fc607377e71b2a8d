"""One file on a page: as text, Markdown, table, image or hex, by what is in it; whole, or head and tail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpResponse

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
IMAGE = 10 * 1024**2
HEX = 4096
INLINE = {"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff"}


def show(ask: Ask, info: FileInfo, view: str, more: int = 0) -> dict[str, Any]:
    """What the template needs: `viewer` names the partial; of a long text the head is longer by `more` steps."""
    if info.kind != "file":
        return {"viewer": "closed"}
    if info.size_bytes == 0:
        return {"viewer": "empty"}
    head = min(PART * (1 + 4 * min(more, MOST_STEPS)), WHOLE)
    limit = WHOLE if info.size_bytes <= WHOLE else head
    found = ask(lambda box: box.read(info.path, limit=limit))
    if kind := markup.image_type(found.data[:16]):
        return {"viewer": "image" if info.size_bytes <= IMAGE else "large", "image_type": kind}
    text = _text(found.data, found.truncated)
    if text is None:
        return {"viewer": "binary", "lines": markup.hex_lines(found.data[:HEX]), "shown": min(HEX, info.size_bytes)}
    if info.size_bytes > WHOLE:
        return _head_and_tail(ask, info, text, len(found.data), more)
    return {"etag": found.info.etag, **_whole(info, text, view)}


def _text(data: bytes, truncated: bool) -> str | None:
    if b"\0" in data[:HEX]:
        return None
    try:
        return text_of(data, truncated)
    except NotText:
        return None


def _whole(info: FileInfo, text: str, view: str) -> dict[str, Any]:
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
        "parts": [(1, markup.lines_of(text, info.name))],
        "views": views,
        "view": "",
        "text": text.removeprefix(BOM),
    }


def _head_and_tail(ask: Ask, info: FileInfo, head: str, read: int, more: int) -> dict[str, Any]:
    start = info.size_bytes - PART
    tail = ask(lambda box: box.read(info.path, offset=start, limit=PART))
    text = tail.data.decode("utf-8", "replace").lstrip("\ufffd")
    parts = [(1, markup.lines_of(head, colours=False)), (0, markup.lines_of(text, colours=False))]
    left_out = info.size_bytes - read - PART
    return {
        "viewer": "text",
        "parts": parts,
        "left_out": left_out,
        "views": [],
        "more": more + 1 if read < WHOLE else 0,
    }


def image(ask: Ask, path: str) -> HttpResponse:
    """An image's bytes, its type from its content; anything else is not served inline."""
    found = ask(lambda box: box.read(path, limit=IMAGE))
    kind = markup.image_type(found.data[:16])
    if not kind or found.truncated:
        raise NotFound("This is not an image that can be shown.", hint="Download it.")
    return HttpResponse(found.data, content_type=kind, headers={**INLINE, "Cache-Control": "no-store"})
