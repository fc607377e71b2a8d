"""The YAML loader against arbitrary text: a value, or an error with a line; what it writes it reads back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from cli.present import to_yaml
from cli.yamldoc import MAX_ALIASES, MAX_DEPTH, YamlError, documents, scalar

# What YAML can carry at all: no control characters but the three, no halves of characters.
PLAIN = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff\u2028\u2029\u0085"),
    max_size=20,
)
TEXT = PLAIN | st.sampled_from(
    [
        "yes",
        "no",
        "on",
        "off",
        "null",
        "~",
        "true",
        "0755",
        "12:30",
        "2026-01-01",
        "1_000",
        ".inf",
        "0x1f",
        "",
        "- a",
        "a: b",
        "#",
    ]
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def one(text: str) -> Any:
    found = list(documents(text))
    return found[0].value if found else None


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, numbers apart: 1.0 may come back as 1.0 or as 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return type(a) is type(b) and bool(a == b)


@given(st.dictionaries(TEXT, VALUE, min_size=1, max_size=4))
@example({"a": "1e100", "b": ["-.5", "1E+5", "07", "null", "on"]})
@example({"a": "line\nline\n", "b": " x", "c": "x\n ", "d": "\t"})
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert same(one(to_yaml(value, None)), value)


def lines_of(text: str) -> list[int]:
    """The lines of the documents, or the line of the error."""
    try:
        return [tree.line for tree in documents(text)]
    except YamlError as exc:
        return [exc.line]


@given(st.text(st.sampled_from("ab:-?,[]{}#&*!|>'\"%@` \n\t0123456789.~"), max_size=60))
def test_any_text_is_a_value_or_an_error_with_a_line(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 2 for line in lines_of(text))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    assert all(line >= 1 for line in lines_of(data.decode("latin-1")))


@given(VALUE)
def test_every_value_knows_its_line(value: Any) -> None:
    text = yaml.safe_dump({"top": value}, allow_unicode=True, width=10**6)
    try:
        tree = next(iter(documents(text)))
    except YamlError:
        return  # yaml writes a tagged or an anchored value now and then
    lines = text.count("\n") + 1
    assert all(1 <= line <= lines for line in [*tree.lines.values(), *tree.key_lines.values()])
    assert tree.line_of(("top", "nowhere", 7)) >= 1


@given(TEXT)
def test_only_true_and_false_are_booleans(text: str) -> None:
    assert isinstance(scalar(text), bool) is (text in ("true", "false"))


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH + 1, 100_000])
def test_depth_is_bounded(depth: int) -> None:
    text = "[" * depth + "]" * depth
    if depth < MAX_DEPTH:
        assert one(text) is not None
    else:
        with pytest.raises(YamlError, match=r"nested deeper than 64|maximum nesting depth"):  # the parser's own bound
            one(text)


@pytest.mark.parametrize(("count", "fits"), [(MAX_ALIASES, True), (MAX_ALIASES + 1, False)])
def test_aliases_are_bounded(count: int, fits: bool) -> None:
    text = "a: &a x\nb: [" + ", ".join(["*a"] * count) + "]\n"
    if fits:
        assert len(one(text)["b"]) == count
    else:
        with pytest.raises(YamlError, match="more than 100 aliases are expanded"):
            one(text)


@pytest.mark.parametrize("text", ["a: 1\n? [b]\n: 2\n", "{a: 1, {b: 2}: 3}", "? {}\n: 1\n"])
def test_a_key_that_is_no_text_is_an_error(text: str) -> None:
    with pytest.raises(YamlError):
        one(text)
