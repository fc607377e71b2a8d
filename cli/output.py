"""The last step before the caller's screen: the one sanitiser, and the two streams each judged alone."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from cli.errors import CliError, ClosedPipe, OutputFailed
from cli.invoked import as_invoked

# What can move a cursor, colour, reorder or forge a line: C0 but newline and tab, DEL, C1, bidi controls, the two
# Unicode line separators, and lone surrogates (bytes that were not UTF-8 arrive as U+DC80 to U+DCFF).
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_MARKED = re.compile(f"[{_UNSAFE}]")
_MARKED_LINES = re.compile(f"[{_UNSAFE}\n\t]")
_COLOUR_OR_MARKED = re.compile(f"(\x1b\\[[0-9;:]{{0,40}}m)|[{_UNSAFE}]")
_UNFINISHED = re.compile("\x1b(\\[[0-9;:]{0,40})?$|\r$")
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _mark(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def inert(text: str, *, lines: bool = True, colour: bool = False) -> str:
    """Text that can do nothing to a terminal: whatever could is shown as a visible mark (`\\x1b`, `\\u202e`).

    With `lines=False` newlines and tabs are marked too, so that a name cannot forge a line of a table or an error.
    With `colour=True` SGR sequences stay. Applying it twice changes nothing more.
    """
    if not lines:
        return _MARKED_LINES.sub(lambda m: _mark(m[0]), text)
    text = text.replace("\r\n", "\n")
    if colour:
        return _COLOUR_OR_MARKED.sub(lambda m: m[1] or _mark(m[0]), text)
    return _MARKED.sub(lambda m: _mark(m[0]), text)


def inert_json(text: str) -> str:
    """JSON text for a terminal: still JSON, the dangerous characters as `\\uXXXX`."""
    return _MARKED.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


class InertStream:
    """`inert` for bytes that come in pieces: a character, colour or line end cut by a border is held until whole."""

    def __init__(self, *, colour: bool) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._held = ""
        self._colour = colour
        self.coloured = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = self._held + self._decode(data, final)
        self._held = ""
        unfinished = None if final else _UNFINISHED.search(text)
        if unfinished is not None:
            self._held, text = text[unfinished.start() :], text[: unfinished.start()]
        shown = inert(text, colour=self._colour)
        self.coloured = self.coloured or "\x1b" in shown
        return shown


def _width() -> int:
    """Columns of the terminal: COLUMNS, else what the terminal on stdout says, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def encoded(text: str) -> bytes:
    """UTF-8 that never fails: what cannot be encoded becomes a visible escape."""
    return text.encode("utf-8", "backslashreplace")


@dataclass
class Console:
    """Standard streams and environment of one call, injected so that tests need no process.

    `out` carries the result and nothing else; people read `err`. `out_tty` and `err_tty` are judged separately.
    """

    out: BinaryIO
    err: BinaryIO
    inp: BinaryIO
    out_tty: bool = False
    err_tty: bool = False
    in_tty: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    width: int = 80
    quiet: bool = False
    colour_wish: str = "auto"
    at_line_start: bool = True  # of stdout on a terminal: the last line must not be glued to unfinished output

    @classmethod
    def of_process(cls) -> Console:
        out, err, inp = sys.stdout, sys.stderr, sys.stdin
        return cls(
            out=out.buffer if out else open(os.devnull, "wb"),
            err=err.buffer if err else open(os.devnull, "wb"),
            inp=inp.buffer if inp else open(os.devnull, "rb"),
            out_tty=bool(out and out.isatty()),
            err_tty=bool(err and err.isatty()),
            in_tty=bool(inp and inp.isatty()),
            env=os.environ,
            width=_width(),
        )

    @property
    def can_ask(self) -> bool:
        return self.in_tty and self.err_tty

    @property
    def unicode(self) -> bool:
        """Whether the locale promises UTF-8; else ornaments are ASCII."""
        locale = next((self.env[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if self.env.get(n)), "")
        return "utf8" in locale.lower().replace("-", "")

    @property
    def dot(self) -> str:
        return "·" if self.unicode else "-"

    @property
    def ellipsis(self) -> str:
        return "…" if self.unicode else "..."

    def colours(self, tty: bool) -> bool:
        """Whether colour may reach a stream: `--color`, NO_COLOR, CLICOLOR_FORCE, TERM=dumb, then the stream."""
        if self.colour_wish != "auto":
            return self.colour_wish == "always"
        forced = self.env.get("CLICOLOR_FORCE", "0") not in ("", "0")
        if self.env.get("NO_COLOR") or (self.env.get("TERM") == "dumb" and not forced):
            return False
        return tty or forced

    def write(self, data: bytes) -> None:
        """Bytes to stdout as they are, at once; raises ClosedPipe when nobody reads, OutputFailed on a full disk."""
        if not data:
            return
        try:
            self.out.write(data)
            self.out.flush()
        except (BrokenPipeError, ValueError) as exc:  # ValueError: the stream was closed under us
            raise ClosedPipe from exc
        except OSError as exc:
            raise OutputFailed((exc.strerror or "it cannot be written to").lower()) from exc
        self.at_line_start = data.endswith(b"\n")

    def fresh_line(self) -> None:
        """On a terminal both streams share the screen: what follows does not continue an unfinished line."""
        if self.out_tty and not self.at_line_start:
            self.write(b"\n")

    def line(self, text: str = "") -> None:
        """One line of the result, from text that may be hostile."""
        self.write(encoded(inert(text, lines=False)) + b"\n")

    def text(self, text: str) -> None:
        """A block of the result: made inert for a terminal, untouched for a pipe."""
        self.write(encoded(inert(text) if self.out_tty else text))

    def help(self, text: str) -> None:
        """Our own words; where the locale promises no UTF-8, their ornaments are ASCII."""
        self.text(text if self.unicode else text.replace("…", "...").replace("·", "-"))

    def json(self, value: Any, *, indent: int | None = 2) -> None:
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        self.write(encoded(inert_json(text) if self.out_tty else text) + b"\n")

    def note(self, text: str, *, end: str = "\n") -> None:
        """One line for people, on stderr; a closed stderr is nobody's error."""
        self._err(inert(as_invoked(text, ("primectl",)), lines=False) + end)

    def info(self, text: str) -> None:
        """A note that `-q` silences."""
        if not self.quiet:
            self.note(text)

    def block(self, text: str, *, colour: bool = False) -> None:
        """Several lines for people, on stderr."""
        self._err(inert(text, colour=colour and self.colours(self.err_tty)))

    def _err(self, text: str) -> None:
        self.write_err(encoded(text))

    def write_err(self, data: bytes) -> None:
        """Bytes to stderr as they are; where they cannot be written, there is nobody to tell."""
        with contextlib.suppress(OSError, ValueError):
            self.err.write(data)
            self.err.flush()

    def error(self, failure: CliError, *, as_json: bool = False) -> None:
        """The lines of a failure, in the order of the contract: errors, hint, request id."""
        if as_json:
            self._err(inert_json(json.dumps(failure.to_dict(), ensure_ascii=False)) + "\n")
            return
        for text in failure.lines:
            self._err(inert(f"error: {text}", lines=False) + "\n")
        if failure.hint:
            self.note(f"hint: {failure.hint}")
        if failure.request_id:
            self.note(f"(request id {failure.request_id})")
