"""What the pages are made of is in the wheel: a directory that is forgotten there is missed by those who install."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

from tests.live import ROOT

OWN = ROOT / "static" / "console"
STYLES, SCRIPTS = 25_000, 30_000  # bytes, of all own sheets and of all own scripts together, as they are written


def test_every_template_and_every_own_static_file_is_named_in_the_distribution() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    patterns = [pattern for group in named.values() for pattern in group]
    files = [
        path.relative_to(ROOT).as_posix()
        for top in ("templates", "static")
        for path in (ROOT / top).rglob("*")
        if path.is_file()
    ]
    missing = [
        name for name in files if not any(fnmatch(name, one) and name.count("/") == one.count("/") for one in patterns)
    ]
    assert len(files) > 60
    assert not missing


def test_a_data_directory_of_the_distribution_is_where_its_files_are_looked_for() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    for target, patterns in named.items():
        for pattern in patterns:
            assert target == "share/primer/" + pattern.rpartition("/")[0]


def test_own_scripts_and_styles_stay_small() -> None:
    for ending, most in (("css", STYLES), ("js", SCRIPTS)):
        sizes = {path.name: path.stat().st_size for path in OWN.glob(f"*.{ending}")}
        assert len(sizes) > 1
        assert sum(sizes.values()) <= most, sizes


def test_every_custom_property_that_a_sheet_reads_is_set_in_one() -> None:
    sheets = "".join(path.read_text() for path in OWN.glob("*.css"))
    read, made = set(re.findall(r"var\((--[\w-]+)\)", sheets)), set(re.findall(r"(--[\w-]+):", sheets))
    assert len(read) > 20
    assert read <= made, read - made
