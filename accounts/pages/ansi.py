"""Terminal output as safe HTML: colours and styles become classes, every other escape sequence is dropped.

The classes are those of `static/console/transcript.css`. Colours of the 6x6x6 cube and the greys are put together from a
few classes each, so that 256 colours need no 512 rules and no style attribute.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from django.utils.safestring import SafeString, mark_safe

from accounts.pages.text import CUT, more_on_line, plain

HELD = 256  # characters of an unfinished sequence that wait for the next chunk
CODES = 64  # of one sequence that are looked at
UNDRAWN = 256  # styles behind the cut of a line that are looked at, the latest since a reset: a line may have 400,000
CUBE = (0, 95, 135, 175, 215, 255)
_BODY = "[^\x07\x18\x1a\x1b]{0,4096}"  # of a string sequence; one that never ends hides nothing: its text is shown
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)([0-?]*)[ -/]*([@-~])"  # control sequences, SGR among them
    f"|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f]){_BODY}(?:\x07|\x1b\\\\|\x9c)"  # titles, links, clipboard, device strings
    "|\x1b[ -/]*[0-~]"
)
_UNFINISHED = re.compile(
    f"(?:\x1b\\[|\x9b)[0-?]*[ -/]*$|\x1b[ -/]*$|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b]{{0,{HELD}}}\x1b?$"
)
_FLAGS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}


@dataclass(frozen=True, slots=True)
class Style:
    """What the next character looks like; colours are numbers of the 256, None for the default."""

    fg: int | None = None
    bg: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False
    strike: bool = False

    def classes(self) -> str:
        fg, bg = (self.bg, self.fg) if self.reverse else (self.fg, self.bg)
        names = [f"a-{name}" for name in ("bold", "dim", "italic", "underline", "strike") if getattr(self, name)]
        if self.reverse and fg is None and bg is None:
            names.append("a-reverse")
        return " ".join([*names, *_colour("f", fg), *_colour("b", bg)])


def _colour(layer: str, number: int | None) -> list[str]:
    if number is None:
        return []
    if number < 16:
        return [f"a-{layer}{number}"]
    if number >= 232:
        sixth, rest = divmod(number - 232, 6)
        return [f"a-{layer}x", f"a-{layer}l", f"a-{layer}r{sixth}", f"a-{layer}g{rest}"]
    red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
    return [f"a-{layer}x", f"a-{layer}r{red}", f"a-{layer}g{green}", f"a-{layer}u{blue}"]


class Ansi:
    """One stream: keeps its style, and a sequence that a chunk has cut, from one `feed` to the next.

    Of a line in a chunk `limit` characters are drawn; `cut` says whether one was longer. Its styles count all the same.
    """

    def __init__(self, limit: int = CUT) -> None:
        self.cut = False
        self._limit = limit
        self._column = 0  # characters of the line so far, those that are not drawn included
        self._style = Style()
        self._undrawn: deque[str] = deque(maxlen=UNDRAWN)  # parameters met behind the cut, not applied yet
        self._held = ""

    def feed(self, text: str) -> SafeString:
        text, self._held = self._held + text, ""
        if (unfinished := _UNFINISHED.search(text, max(0, len(text) - HELD - 2))) is not None:
            text, self._held = text[: unfinished.start()], unfinished[0]
        parts, end, self._column = [], 0, 0
        for found in _SEQUENCE.finditer(text):
            parts.append(self._piece(text[end : found.start()]))
            end = found.end()
            if found[2] == "m":
                self._restyle(found[1])
        parts.append(self._piece(text[end:]))
        self._catch_up()
        parts.append(self._shown(self._left_out()))
        return mark_safe("".join(parts))  # noqa: S308 - every part is escaped

    def _piece(self, text: str) -> str:
        """The text between two sequences; of a line that is cut already it is only counted."""
        if self._column >= self._limit and "\n" not in text:
            self._column += len(text)
            return ""
        self._catch_up()
        return self._shown(self._drawn(text))

    def _restyle(self, parameters: str) -> None:
        """Applies a style, or keeps it until something is drawn again."""
        if self._column < self._limit:
            self._style = restyled(self._style, parameters)
            return
        if parameters in ("", "0"):
            self._undrawn.clear()
        self._undrawn.append(parameters)

    def _catch_up(self) -> None:
        while self._undrawn:
            self._style = restyled(self._style, self._undrawn.popleft())

    def _drawn(self, text: str) -> str:
        """The text without what its lines have beyond the limit."""
        first, *others = text.split("\n")
        found = [first[: max(0, self._limit - self._column)]]
        self._column += len(first)
        for line in others:
            found += [self._left_out(), "\n", line[: self._limit]]
            self._column = len(line)
        return "".join(found)

    def _left_out(self) -> str:
        """What ends a line that was too long."""
        over, self._column = self._column - self._limit, 0
        self.cut = self.cut or over > 0
        return more_on_line(over) if over > 0 else ""

    def _shown(self, text: str) -> str:
        if not text:
            return ""
        shown, classes = plain(text), self._style.classes()
        return f'<span class="{classes}">{shown}</span>' if classes else shown


def ansi(text: str) -> SafeString:
    """A whole output."""
    stream = Ansi()
    return stream.feed(text)


def restyled(style: Style, parameters: str) -> Style:
    """The style after one SGR sequence; what it does not know changes nothing."""
    codes = parameters.split(";")[:CODES]
    at = 0
    while at < len(codes):
        code, *sub = codes[at].split(":")
        number = int(code) if code.isdecimal() and len(code) < 4 else 0 if not code else -1
        at += 1
        if number in (38, 48):
            if not sub:
                length = 4 if codes[at : at + 1] == ["2"] else 2
                sub, at = codes[at : at + length], at + length
            style = _painted(style, number == 38, _extended(sub))
        else:
            style = _simple(style, number, sub)
    return style


def _simple(style: Style, number: int, sub: list[str]) -> Style:
    if number == 0:
        return Style()
    if number in _FLAGS:
        return _flagged(style, (_FLAGS[number],), sub != ["0"])
    if number in _OFF:
        return _flagged(style, _OFF[number], False)
    for first, last, base in ((30, 37, 0), (40, 47, 0), (90, 97, 8), (100, 107, 8)):
        if first <= number <= last:
            return _painted(style, first in (30, 90), number - first + base)
    return _painted(style, number == 39, None) if number in (39, 49) else style


def _flagged(style: Style, names: tuple[str, ...], on: bool) -> Style:
    flags: dict[str, Any] = dict.fromkeys(names, on)
    return replace(style, **flags)


def _painted(style: Style, front: bool, colour: int | None) -> Style:
    return replace(style, fg=colour) if front else replace(style, bg=colour)


def _extended(sub: list[str]) -> int | None:
    """`5;n` or `2;r;g;b` (with colons also `2::r:g:b`) as one of the 256; None for anything else."""
    numbers = [int(text) for text in sub if text.isdecimal() and len(text) < 4]
    if any(number > 255 for number in numbers):
        return None
    if numbers[:1] == [5] and len(numbers) > 1:
        return numbers[1]
    if numbers[:1] == [2] and len(numbers) > 3:
        return nearest(*numbers[-3:])
    return None


def nearest(red: int, green: int, blue: int) -> int:
    """The colour of the cube or of the greys that is closest to a true colour."""
    steps = [min(range(6), key=lambda step: abs(CUBE[step] - value)) for value in (red, green, blue)]
    cube = tuple(CUBE[step] for step in steps)
    grey = max(0, min(23, round(((red + green + blue) / 3 - 8) / 10)))
    level = 8 + 10 * grey

    def distance(colour: tuple[int, ...]) -> int:
        return sum((one - other) ** 2 for one, other in zip(colour, (red, green, blue), strict=True))

    if distance((level, level, level)) < distance(cube):
        return 232 + grey
    return 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
