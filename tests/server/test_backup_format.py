"""The file of a backup, without a server: what its headers can say."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO, Any

import pytest

from primer_site import archive
from primer_site.archive import DATABASE, NAMES, Manifest, Part, PlainHeader

GIB = 1024**3
SIZE = 9 * GIB + 5


def test_a_database_above_8_gib_has_its_size_in_a_header_that_restore_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: Any = vars(tarfile)["copyfileobj"]

    def without_the_large_one(source: IO[bytes], target: IO[bytes], length: int, **options: Any) -> None:
        if length < GIB:
            copied(source, target, length, **options)

    monkeypatch.setattr(tarfile, "copyfileobj", without_the_large_one)
    parts = tuple(Part(name, SIZE if name == DATABASE else 1, "") for name in NAMES)
    archive.write(tmp_path / "saved", Manifest("1", "", "", parts), dict.fromkeys(NAMES, b"x"))
    with tarfile.open(tmp_path / "saved", "r|gz", tarinfo=PlainHeader) as found:
        members = iter(found)
        assert next(members).name == archive.MANIFEST
        member = next(members)
    assert (member.name, member.size, member.isreg()) == (DATABASE, SIZE, True)
