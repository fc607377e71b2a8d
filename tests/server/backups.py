"""An install that was prepared once, a backup of it, and small disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from primer_site import restore
from primer_site.errors import PrimerError
from tests.conftest import unusable
from tests.server.primer import Home


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data directory of an install that was prepared once, and a backup of it."""
    made = Home(tmp_path_factory.mktemp("prepared"))
    assert made.prepare().returncode == 0
    shutil.rmtree(made.data / "static")
    saved = made.directory / "saved"
    done = made.primer("backup", str(saved))
    assert done.returncode == 0, done.stderr
    return made.data, saved


@pytest.fixture
def home(tmp_path: Path, prepared: tuple[Path, Path]) -> Home:
    """A prepared install that does not run."""
    made = Home(tmp_path / "one")
    made.directory.mkdir()
    shutil.copytree(prepared[0], made.data)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Home:
    """A place without an install."""
    made = Home(tmp_path / "two")
    made.directory.mkdir()
    return made


@pytest.fixture
def saved(tmp_path: Path, prepared: tuple[Path, Path]) -> Path:
    """A backup of the install of `home`."""
    return Path(shutil.copy(prepared[1], tmp_path))


@pytest.fixture
def refusal(other: Home, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """What a restore in this process, into a place without an install, is refused with; nothing may be left of it."""
    monkeypatch.setenv("PRIMER_HOME", str(other.data))

    def told(file: Path) -> str:
        before = set(file.parent.rglob("*"))
        with pytest.raises(PrimerError) as caught:
            restore.restore(str(file))
        assert set(file.parent.rglob("*")) == before
        return caught.value.detail

    return told


def users(home: Home) -> list[str]:
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:
        return [name for (name,) in database.execute("SELECT username FROM accounts_user ORDER BY 1")]


def digest(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 1, done.stdout
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=False).returncode
    ):
        unusable("mount", "a small disk needs root and the right to mount")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
