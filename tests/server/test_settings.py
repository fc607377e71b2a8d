"""The table of variables: everything that is read is in it, everything in it is read, and the page is made from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from primer_site import variables
from primer_site.checks import spelling
from primer_site.errors import Invalid

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("primer_site", "accounts", "workspaces", "agents", "sessions_app")
NOT_VARIABLES = {"PRIMER_PREPARED"}  # Django settings that nobody sets from outside
NAME = re.compile(r"""["'](PRIMER_[A-Z0-9_]+)["']""")


def sources():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "variables.py":
                yield path.read_text()


def test_the_page_is_what_the_code_says():
    """`make docs` writes it anew."""
    assert variables.TARGET.read_text() == variables.page()


def test_every_variable_in_the_code_is_in_the_table():
    read = {name for text in sources() for name in NAME.findall(text)}
    assert read - NOT_VARIABLES <= set(variables.BY_NAME)


def test_every_variable_of_the_table_is_used_somewhere():
    code = "\n".join(sources())
    spelled = {name for name in variables.BY_NAME if name in code or f'"{name.removeprefix("PRIMER_")}"' in code}
    assert set(variables.BY_NAME) - spelled == {"PRIMER_REQUIRE"}, "tests/conftest.py reads that one"


def test_every_default_of_the_table_can_be_read(monkeypatch):
    for name in variables.BY_NAME:
        monkeypatch.delenv(name, raising=False)
        variables.value(name)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("PRIMER_HTTPS", "Yes", True),
        ("PRIMER_HTTPS", "0", False),
        ("PRIMER_DRAIN_S", "2.5", 2.5),
        ("PRIMER_KEEP_DAYS", "7", 7),
        ("PRIMER_ALLOWED_HOSTS", " a.example , b.example,", ["a.example", "b.example"]),
        ("PRIMER_LOG_LEVEL", "debug", "DEBUG"),
        ("PRIMER_DRAIN_S", "", 10.0),
    ],
)
def test_a_value_has_the_type_of_its_variable(monkeypatch, name, given, expected):
    monkeypatch.setenv(name, given)
    assert variables.value(name) == expected


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("PRIMER_HTTPS", "maybe", "PRIMER_HTTPS must be one of 1, true, yes, on, 0, false, no, off; it is 'maybe'."),
        ("PRIMER_KEEP_DAYS", "a week", "PRIMER_KEEP_DAYS must be a whole number; it is 'a week'."),
        ("PRIMER_DRAIN_S", "soon", "PRIMER_DRAIN_S must be a number; it is 'soon'."),
        ("PRIMER_LOGIN_RATE", "often", "PRIMER_LOGIN_RATE must be a rate such as 10/min; it is 'often'."),
        ("PRIMER_LOG_FORMAT", "xml", "PRIMER_LOG_FORMAT must be one of text, json; it is 'xml'."),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_in_a_sentence(monkeypatch, name, given, sentence):
    monkeypatch.setenv(name, given)
    with pytest.raises(Invalid) as caught:
        variables.value(name)
    assert caught.value.detail == sentence


@pytest.mark.parametrize("command", [["up", "--prepare-only"], ["doctor"]])
def test_a_command_says_so_and_shows_no_traceback(tmp_path, command):
    env = {**os.environ, "PRIMER_HOME": str(tmp_path), "PRIMER_DRAIN_S": "soon"}
    (tmp_path / "instance-id").write_text("x\n")
    done = subprocess.run(
        [sys.executable, "-m", "primer_site.command", *command], cwd=ROOT, env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: PRIMER_DRAIN_S must be a number; it is 'soon'." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_secret_comes_from_the_file_that_a_variable_names(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("from-the-file\n")
    monkeypatch.setenv("PRIMER_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    assert variables.value("PRIMER_METRICS_TOKEN") == "from-the-file"


def test_a_file_that_is_not_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIMER_METRICS_TOKEN_FILE", str(tmp_path / "nothing"))
    with pytest.raises(Invalid, match="PRIMER_METRICS_TOKEN_FILE names cannot be read: No such file"):
        variables.value("PRIMER_METRICS_TOKEN")


def test_a_misspelled_variable_is_told_instead_of_ignored(monkeypatch):
    monkeypatch.setenv("PRIMER_KEEPDAYS", "7")
    monkeypatch.setenv("PRIMER_METRICS_TOKEN_FILE", "/somewhere")
    assert [problem.msg for problem in spelling()] == ["There is no setting PRIMER_KEEPDAYS."]
