"""The one sanitiser: nothing of a sandbox reaches a terminal as anything but text."""

from __future__ import annotations

import itertools
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.output import InertStream, inert, inert_json

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included
HOSTILE = b"\033[2J\033[1;1H\033]0;pwned\007\033]52;c;cm0gLXJmIH4=\007\033]8;;http://evil\007click\033P+q544e\033\\\033[6n\x9b31m"


def dangerous(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]


@given(ANY_TEXT)
def test_no_control_character_but_newline_and_tab_survives(text: str) -> None:
    assert dangerous(inert(text)) == []


@given(ANY_TEXT)
def test_no_line_break_survives_where_lines_are_forged(text: str) -> None:
    shown = inert(text, lines=False)
    assert dangerous(shown) == []
    assert len(shown.splitlines()) <= 1


@given(ANY_TEXT, st.booleans(), st.booleans())
def test_applying_it_twice_changes_nothing_more(text: str, lines: bool, colour: bool) -> None:
    once = inert(text, lines=lines, colour=colour)
    assert inert(once, lines=lines, colour=colour) == once


@given(st.text(st.sampled_from("\x1b[0;31mKHJ]\x07\x9bab")))
def test_with_colour_only_sgr_sequences_keep_their_escape(text: str) -> None:
    import re

    shown = inert(text, colour=True)
    assert dangerous(re.sub(r"\x1b\[[0-9;:]*m", "", shown)) == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_pieces_are_shown_as_the_whole_would_be(data: bytes, cuts: list[int], colour: bool) -> None:
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    stream = InertStream(colour=colour)
    shown = "".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + stream.feed(b"", final=True)
    assert shown == inert(data.decode("utf-8", "surrogateescape"), colour=colour)


@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3))
def test_json_for_a_terminal_is_still_the_same_json(value: dict[str, str]) -> None:
    text = inert_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert dangerous(text) == []
    assert json.loads(text) == value


def test_terminal_tricks_are_shown_as_marks() -> None:
    shown = inert(HOSTILE.decode("utf-8", "surrogateescape"))
    assert shown.startswith("\\x1b[2J\\x1b[1;1H\\x1b]0;pwned\\x07")
    assert shown.endswith("\\x1b[6n\\x9b31m")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("safe\rgone", "safe\\rgone"),
        ("line\r\nnext", "line\nnext"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("Zürich 日本 🙂", "Zürich 日本 🙂"),
        ("\x7f", "\\x7f"),
    ],
)
def test_marks_are_readable(text: str, shown: str) -> None:
    assert inert(text) == shown
