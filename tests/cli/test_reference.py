"""docs/cli.md is what the commands say about themselves."""

from __future__ import annotations

from cli import reference
from tests.cli.test_help import commands


def test_the_page_in_the_repository_is_the_one_that_make_docs_writes() -> None:
    assert reference.TARGET.read_text(encoding="utf-8") == reference.text(), "run: make docs"


def test_every_command_has_its_place_on_the_page() -> None:
    page = reference.text()
    missing = [path for path, _ in commands() if f"### `{' '.join(('primectl', *path))}`\n" not in page]
    assert missing == []
