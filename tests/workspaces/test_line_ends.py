"""Saving in the editor changes the lines that were edited and no other byte of the file."""

from __future__ import annotations

import pytest

from workspaces.pages.line_ends import restored


def in_browser(text: str) -> str:
    """What a textarea makes of a text and a form sends of it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


@pytest.mark.parametrize("text", [
    "a\r\nb\r\n", "a\r\nb", "a\nb\n", "a\nb", "a\rb\r", "a", "", "\n", "\r\n\r\n", "a\r\nb\nc\rd\n\n", "\ufeffa\r\nb", "\ufeff", "\n\r\n\r",
    "same\nsame\r\nsame\nsame\r\n", "a\x0bb\x85c\u2028d\r\ne\r\n",
])  # fmt: skip
def test_a_file_that_was_not_edited_is_saved_byte_for_byte(text: str) -> None:
    assert restored(text, in_browser(text)) == text


@pytest.mark.parametrize(("before", "edited", "after"), [
    ("a\r\nb\r\n", "a\nX\nb\n", "a\r\nX\r\nb\r\n"),
    ("a\r\nb", "a\nb\n", "a\r\nb\r\n"),
    ("a\r\nb\nc\r\nd\r\n", "a\nb\nX\nc\nd\n", "a\r\nb\nX\r\nc\r\nd\r\n"),
    ("a\r\nb\nc\nd\n", "b\nc\nd\n", "b\nc\nd\n"),
    ("a\r\nb\nc\r\n", "new\na\nb\nc", "new\r\na\r\nb\nc"),
    ("", "a\r\nb\r\n", "a\nb\n"),
    ("\ufeffa\r\n", "b\r\n", "\ufeffb\r\n"),
    ("no end", "no end at all", "no end at all"),
])  # fmt: skip
def test_lines_that_stay_keep_their_ends_and_new_ones_take_the_usual(before: str, edited: str, after: str) -> None:
    assert restored(before, edited) == after


def test_a_long_mixed_file_is_restored_around_an_edit_in_its_middle() -> None:
    lines = [f"line {n}" + ("\r\n" if n % 3 else "\n") for n in range(30_000)]
    edited = [*lines[:15_000], "X\r\n", *lines[15_000:]]
    assert restored("".join(lines), in_browser("".join(edited))) == "".join(edited)


def test_texts_that_share_nothing_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Searched(AssertionError):
        pass

    def never(*_: object) -> None:
        raise Searched

    monkeypatch.setattr("workspaces.diff.SequenceMatcher", never)
    before = "".join(f"{n}\r\n" if n % 2 else f"{n}\n" for n in range(4000))
    edited = "".join(f"{n}\n" for n in reversed(range(4000)))
    assert restored(before, edited).count("\n") == 4000
    with pytest.raises(Searched):
        restored("a\r\nb\nc\r\n", "c\na\nb\n")
