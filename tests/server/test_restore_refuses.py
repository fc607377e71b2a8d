"""`primer restore` of files that are damaged, cut off, or made to do harm: a sentence, and nothing was changed."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.backups import other, prepared, refusal, refused, saved
from tests.server.primer import Home

__all__ = ["other", "prepared", "refusal", "saved"]
pytestmark = pytest.mark.e2e
Members = list[tuple[tarfile.TarInfo, bytes]]


def unpacked(path: Path) -> Members:
    with tarfile.open(path) as found:
        return [(member, found.extractfile(member).read()) for member in found]  # type: ignore[union-attr]


def packed(path: Path, members: Members) -> None:
    with tarfile.open(path, "w:gz") as made:
        for member, data in members:
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))


def entry(name: str, data: bytes = b"x", **over: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    for key, value in over.items():
        setattr(member, key, value)
    return member, data


def with_manifest(members: Members, change: Callable[[dict], object]) -> Members:
    manifest = json.loads(members[0][1])
    change(manifest)
    return [(members[0][0], json.dumps(manifest).encode()), *members[1:]]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", type=kind, linkname=target)


HOSTILE: dict[str, Callable[[Members], Members]] = {
    "a path that goes up, at the end": lambda m: [*m, entry("../../evil")],
    "an absolute path, at the end": lambda m: [*m, entry("/tmp/evil")],
    "a path that goes up, instead of a part": lambda m: [m[0], entry("../primer.sqlite3", m[1][1]), *m[2:]],
    "a link instead of the database": lambda m: [m[0], link("primer.sqlite3", "/etc/passwd"), *m[2:]],
    "a hard link instead of a key": lambda m: [
        *m[:2],
        link("encryption-keys", "primer.sqlite3", tarfile.LNKTYPE),
        *m[3:],
    ],
    "a device instead of a key": lambda m: [*m[:3], entry("secret-key", b"", type=tarfile.CHRTYPE), *m[4:]],
    "a directory instead of a key": lambda m: [*m[:3], entry("secret-key", b"", type=tarfile.DIRTYPE), *m[4:]],
    "no manifest": lambda m: m[1:],
    "no database": lambda m: [m[0], *m[2:]],
    "nothing": lambda m: [],
    "a part twice": lambda m: [*m, m[-1]],
    "a manifest that is not JSON": lambda m: [(m[0][0], b"{"), *m[1:]],
    "a manifest that is a list": lambda m: [(m[0][0], b"[]"), *m[1:]],
    "a manifest that is deep": lambda m: [(m[0][0], b"[" * 30000), *m[1:]],
    "a manifest that is large": lambda m: [(m[0][0], b" " * 100_000), *m[1:]],
    "another format": lambda m: with_manifest(m, lambda f: f.update(format="other")),
    "a later version of the format": lambda m: with_manifest(m, lambda f: f.update(version=2)),
    "other names in the manifest": lambda m: with_manifest(m, lambda f: f["parts"][0].update(name="../x")),
    "a size that is text": lambda m: with_manifest(m, lambda f: f["parts"][0].update(size="1")),
    "a size below zero": lambda m: with_manifest(m, lambda f: f["parts"][1].update(size=-1)),
    "a size that is not the part's": lambda m: with_manifest(m, lambda f: f["parts"][0].update(size=10**7)),
    "a hash that is not the part's": lambda m: with_manifest(m, lambda f: f["parts"][0].update(sha256="0" * 64)),
    "the id of another install": lambda m: with_manifest(m, lambda f: f.update(instance_id="other")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_and_changes_nothing(
    saved: Path, refusal: Callable[[Path], str], tmp_path: Path, name: str
) -> None:
    packed(tmp_path / "hostile", HOSTILE[name](unpacked(saved)))
    assert "backup" in refusal(tmp_path / "hostile")
    assert not Path("/tmp/evil").exists()


def test_a_refusal_at_the_command_line_is_a_sentence_and_changes_nothing(
    saved: Path, other: Home, tmp_path: Path
) -> None:
    packed(tmp_path / "hostile", HOSTILE["a link instead of the database"](unpacked(saved)))
    refused(other.primer("restore", str(tmp_path / "hostile")), "The file is not a backup of Primer")
    assert list(other.directory.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 1, 20, 1000, -20, -1])
def test_a_file_that_was_cut_off_is_refused(
    saved: Path, refusal: Callable[[Path], str], tmp_path: Path, cut: int
) -> None:
    (tmp_path / "cut").write_bytes(saved.read_bytes()[:cut])
    assert "backup" in refusal(tmp_path / "cut")


@pytest.mark.parametrize("step", [3, 20, 100])
def test_a_file_with_turned_bits_is_refused(
    saved: Path, refusal: Callable[[Path], str], tmp_path: Path, step: int
) -> None:
    data = bytearray(saved.read_bytes())
    for at in range(len(data) // step, len(data), len(data) // step):
        data[at] ^= 0x55
    (tmp_path / "turned").write_bytes(data)
    assert "backup" in refusal(tmp_path / "turned")


def test_a_small_file_that_unpacks_to_a_large_one_stops_at_its_promise(
    saved: Path, refusal: Callable[[Path], str], tmp_path: Path
) -> None:
    members = unpacked(saved)
    packed(tmp_path / "bomb", [members[0], entry("primer.sqlite3", bytes(100 * 1024 * 1024))])
    assert "not a backup of Primer" in refusal(tmp_path / "bomb")


def listen(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.bind(str(path))


@pytest.mark.parametrize("make", [
    lambda path: path.write_text("not a backup"),
    lambda path: path.write_bytes(gzip.compress(b"not a tar")),
    lambda path: path.mkdir(),
    lambda path: path.touch(),
    lambda path: None,
    os.mkfifo,
    listen,
])  # fmt: skip
def test_what_is_no_backup_at_all_is_a_sentence(
    refusal: Callable[[Path], str], tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "thing")
    assert refusal(tmp_path / "thing").endswith(".")
