"""What a log line may hold."""

from __future__ import annotations

import base64
import logging
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primer_site import logs

SECRET = "s3cret/value+with=signs"


@pytest.fixture(autouse=True)
def known():
    logs.remember_secret(SECRET)
    yield
    logs.forget_secrets()


def written(message: str, **extra) -> str:
    record = logging.LogRecord("test", logging.INFO, __file__, 1, message, (), None)
    record.__dict__.update(extra)
    return logs.formatter().format(record)


def test_a_known_secret_is_masked():
    assert "key [secret] used" in written(f"key {SECRET} used")


def test_its_url_encoded_form_is_masked():
    assert urllib.parse.quote(SECRET, safe="") not in written(f"GET /?key={urllib.parse.quote(SECRET, safe='')}")


@given(before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_its_base64_form_is_masked_wherever_it_stands(before, after):
    encoded = base64.b64encode(before + SECRET.encode() + after).decode()
    middle = base64.b64encode(SECRET.encode()).decode()[4:-6]
    assert logs.MASK in logs.redact(encoded)
    assert middle not in logs.redact(encoded)


def test_a_short_value_is_not_taken_for_a_secret():
    logs.remember_secret("on")
    assert "online" in written("online")


def test_a_secret_inside_a_longer_one_does_not_leave_the_rest():
    logs.remember_secret(SECRET + "-and-more")
    assert "and-more" not in written(SECRET + "-and-more")


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "\x9b31m", "a\rb", "\u202eabc", "\x00", "a\x7fb", "\ud800"])
def test_what_a_terminal_would_obey_is_shown_instead(hostile):
    line = written(f"name {hostile}")
    assert all(char.isprintable() for char in line)


def test_a_line_break_in_a_value_forges_no_second_line():
    assert "\n" not in written("first\nlevel=error event=forged")


@given(st.text())
def test_escaping_twice_is_escaping_once(text):
    once = logs.escape(text)
    assert logs.escape(once) == once


def test_a_traceback_is_kept_and_masked():
    try:
        raise ValueError(SECRET)
    except ValueError as exc:
        record = logging.LogRecord(
            "test", logging.ERROR, __file__, 1, "failed", (), (type(exc), exc, exc.__traceback__)
        )
    line = logs.formatter().format(record)
    assert "ValueError" in line
    assert SECRET not in line
