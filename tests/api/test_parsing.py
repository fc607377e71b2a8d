"""The JSON parser of the API, alone: whatever the bytes, a value or a refusal that names its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primer_site.errors import Invalid, Malformed, PrimerError
from primer_site.parsing import MAX_DEPTH, load

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_nul(key) or has_nul(inner) for key, inner in value.items())
    return any(map(has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


@given(VALUES)
def test_what_is_acceptable_comes_out_as_it_went_in(value: Any) -> None:
    raw = json.dumps(value).encode()
    if has_nul(value):
        with pytest.raises(Invalid) as refused:
            load(raw)
        assert "NUL" in refused.value.errors[0].message
    else:
        assert load(raw) == value


@given(st.binary(max_size=60) | st.text('[]{}":,\\ue1930dN \0', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_a_refusal(raw: bytes) -> None:
    refusal: PrimerError | None = None
    try:
        load(raw)
    except PrimerError as exc:
        refusal = exc
    if refusal is not None:
        assert refusal.status in (400, 422)
        assert (refusal.status == 422) == bool(refusal.errors), "what is JSON and not acceptable names its place"


@given(VALUES, st.lists(st.sampled_from(["a", "b.c", "é"]), min_size=1, max_size=4))
def test_a_number_that_is_too_large_is_found_wherever_it_is(beside: Any, path: list[str]) -> None:
    text = "1e999"
    for key in reversed(path):
        text = json.dumps({"beside": beside if not has_nul(beside) else 1})[:-1] + f", {json.dumps(key)}: {text}}}"
    with pytest.raises(Invalid) as refused:
        load(text.encode())
    assert refused.value.errors[0].field == ".".join(key.encode("ascii", "backslashreplace").decode() for key in path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"a": 1, "b": {"c": [0, 1e999]}}', "b.c[1]"), ('{"a": ' + "9" * 5000 + "}", "a"), ('{"a": [-1e400]}', "a[0]"),
        ('{"name": "x", "labels": ' + '{"b":' * 1000 + "1" + "}" * 1001, "labels"), ("[" * 1000 + "]" * 1000, ""),
        ("9" * 5000, ""),
    ],
)  # fmt: skip
def test_a_number_that_is_too_large_and_what_is_too_deep_are_named(text: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(text.encode())
    assert [error.field for error in refused.value.errors] == [field]


@pytest.mark.parametrize(
    "text", ['"' + "[" * 100 + '"', '"\\"[[[[' + "[{" * 100 + '"', "[" * MAX_DEPTH + "]" * MAX_DEPTH]
)
def test_brackets_within_strings_are_not_depth(text: str) -> None:
    load(f'{{"name": {text}}}'.encode() if text.startswith('"') else text.encode())


@pytest.mark.parametrize(
    "text", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, '["\\\\",' + "[" * 64, '["' + "[" * 70]
)
def test_depth_outside_strings_is_counted(text: str) -> None:
    with pytest.raises((Invalid, Malformed)):
        load(text.encode())
