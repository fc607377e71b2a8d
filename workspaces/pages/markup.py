"""What people read of files: highlighted lines, Markdown without teeth, tables, hex."""

from __future__ import annotations

import csv
import io
from urllib.parse import urlsplit

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

from accounts.pages.text import CUT, cut_lines, marks

HIGHLIGHT_BYTES = 256 * 1024  # above, highlighting takes seconds
CSV_ROWS = 200
CSV_CELL = 2000
TAGS = {
    "a", "blockquote", "br", "code", "del", "s", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
CELLS = 20_000  # of tables in one text, roughly: a quarter of a megabyte of nothing else takes many seconds
_plain = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("strikethrough").disable("image")
_markdown = (
    MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"]).disable("image")
)


def lines_of(text: str, name: str = "", *, colours: bool = True, limit: int = CUT) -> list[SafeString]:
    """Each line as safe HTML, at most `limit` characters of it, coloured by the name's language where that is cheap enough."""
    text = cut_lines(text.replace("\r\n", "\n"), limit)
    if colours and len(text) <= HIGHLIGHT_BYTES and (lexer := _lexer(name)) is not None:
        html = highlight(text, lexer, HtmlFormatter(nowrap=True))
    else:
        html = str(escape(text))
    found = marks(html).split("\n")
    if found and found[-1] == "":
        found.pop()
    return [mark_safe(line) for line in found]  # noqa: S308 - escaped by Pygments or by us


def coloured(text: str, language: str) -> SafeString:
    """A block of code of a named language."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False, ensurenl=False)
    text = cut_lines(text)
    html = highlight(text, lexer, HtmlFormatter(nowrap=True)) if len(text) <= HIGHLIGHT_BYTES else str(escape(text))
    return mark_safe(marks(html))  # noqa: S308 - escaped by Pygments or by us


def _lexer(name: str) -> Lexer | None:
    try:
        found = get_lexer_for_filename(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
    return None if isinstance(found, TextLexer) else found


def markdown(text: str) -> SafeString:
    """Markdown of a model or a file: no HTML, no images, links that show where they lead; of too many cells no table."""
    parser = _markdown if text.count("|") <= CELLS else _plain
    tokens = parser.parse(cut_lines(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):  # the page has its own first and second level
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        _show_hosts(token)
    html = parser.renderer.render(tokens, parser.options, {})
    clean = nh3.clean(
        html, tags=TAGS, attributes={"a": {"href"}, "*": set()}, url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )  # fmt: skip
    return mark_safe(marks(clean))  # noqa: S308 - cleaned by an allow-list


def _show_hosts(token: Token) -> None:
    """Puts the host behind a link's words: a text may say one thing and lead to another."""
    children, found, href = token.children or [], [], ""
    for child in children:
        found.append(child)
        if child.type == "link_open":
            href = str(child.attrGet("href") or "")
        elif child.type == "link_close" and (host := urlsplit(href).hostname):
            found.append(Token("text", "", 0, content=f" ({host})"))
    if children:
        token.children = found


def table(text: str, delimiter: str) -> list[list[str]]:
    """The first rows of a CSV file; [] when it is none."""
    try:
        rows = csv.reader(io.StringIO(text), delimiter=delimiter)
        found = [[cell[:CSV_CELL] for cell in row[:100]] for row, _ in zip(rows, range(CSV_ROWS + 1), strict=False)]
    except csv.Error:
        return []
    return found


def image_type(head: bytes) -> str:
    """The type of an image by its first bytes, never by its name; "" for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in IMAGES.items() if head.startswith(magic)), "")


def hex_lines(data: bytes) -> list[tuple[str, str, str]]:
    """(offset, bytes, characters) of each sixteen."""
    found = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        found.append((f"{start:08x}", part.hex(" "), text))
    return found
