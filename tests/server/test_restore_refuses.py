"""`primer restore` of files that are damaged, cut off, or made to do harm: a sentence, and nothing was changed."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import socket
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from primer_site import restore
from primer_site.archive import Manifest
from primer_site.lock import ServerLock, ServerRuns
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


# -- headers


EXTENSIONS = {
    "pax": tarfile.XHDTYPE, "pax of all": tarfile.XGLTYPE, "pax of Solaris": tarfile.SOLARIS_XHDTYPE,
    "long name": tarfile.GNUTYPE_LONGNAME, "long link": tarfile.GNUTYPE_LONGLINK, "sparse": tarfile.GNUTYPE_SPARSE,
}  # fmt: skip


@pytest.mark.parametrize("place", [0, 2, 5], ids=["first", "between", "behind"])
@pytest.mark.parametrize("kind", EXTENSIONS)
def test_a_header_as_large_as_it_likes_is_refused_before_it_is_read(
    saved: Path, refusal: Callable[[Path], str], tmp_path: Path, kind: str, place: int
) -> None:
    members = unpacked(saved)
    members.insert(place, entry("header", bytes(16 * 1024**2), type=EXTENSIONS[kind]))
    packed(tmp_path / "hostile", members)
    del members
    tracemalloc.start()
    try:
        assert "headers in it that a backup does not have" in refusal(tmp_path / "hostile")
        assert tracemalloc.get_traced_memory()[1] < 12 * 1024**2
    finally:
        tracemalloc.stop()


# -- somebody else meanwhile


@pytest.fixture(params=["beside", "inside", "a mount that does not look like one"])
def meanwhile(
    request: pytest.FixtureRequest, other: Home, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], None]], None]:
    """Runs something between the check that the data directory is empty and the moment it is filled, for each way to fill it."""
    monkeypatch.setenv("PRIMER_HOME", str(other.data))
    check, rename = restore._check_database, Path.rename

    def busy(path: Path, target: Path) -> Path:
        if path.name.startswith(".primer-restore-"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(path, target)

    if request.param == "inside":
        other.data.mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == other.data)
    elif request.param != "beside":
        other.data.mkdir()
        monkeypatch.setattr(Path, "rename", busy)

    def arrange(act: Callable[[], None]) -> None:
        def and_act(database: Path, manifest: Manifest) -> None:
            check(database, manifest)
            act()

        monkeypatch.setattr(restore, "_check_database", and_act)

    return arrange


@pytest.mark.parametrize("name", ["secret-key", "primer.sqlite3", "note"])
def test_what_somebody_puts_into_the_data_directory_meanwhile_stays_theirs(
    saved: Path, other: Home, meanwhile: Callable[[Callable[[], None]], None], name: str
) -> None:
    def act() -> None:
        other.data.mkdir(exist_ok=True)
        (other.data / name).write_text("theirs")

    meanwhile(act)
    with pytest.raises(restore.NotEmpty):
        restore.restore(str(saved))
    assert [path.name for path in other.data.iterdir()] == [name]
    assert (other.data / name).read_text() == "theirs"
    assert [path.name for path in other.directory.iterdir()] == ["data"]


def test_a_key_that_is_made_while_the_files_are_placed_stays_and_the_restore_is_undone(
    saved: Path, other: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`primer up` makes missing keys before it takes the lock."""
    monkeypatch.setenv("PRIMER_HOME", str(other.data))
    chmod = Path.chmod

    def and_key(path: Path, mode: int) -> None:
        chmod(path, mode)
        if path == other.data:
            (other.data / "secret-key").write_text("theirs")

    monkeypatch.setattr(Path, "chmod", and_key)
    other.data.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == other.data)
    with pytest.raises(restore.NotEmpty):
        restore.restore(str(saved))
    assert [path.name for path in other.data.iterdir()] == ["secret-key"]


def test_no_server_starts_in_a_directory_that_is_being_filled(
    saved: Path, other: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMER_HOME", str(other.data))
    other.data.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == other.data)
    check, refusals = restore._check_database, []

    def and_start(database: Path, manifest: Manifest) -> None:
        check(database, manifest)
        with pytest.raises(ServerRuns) as caught:
            ServerLock(other.data)
        refusals.append(caught.value.holder.pid)

    monkeypatch.setattr(restore, "_check_database", and_start)
    assert restore.restore(str(saved)) == 0
    assert refusals == [os.getpid()]
    ServerLock(other.data).release()


def test_a_server_that_has_just_taken_the_directory_keeps_it(
    saved: Path, other: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMER_HOME", str(other.data))
    other.data.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == other.data)
    monkeypatch.setattr(restore, "_require_empty", lambda directory: None)  # the server came right behind it
    server = ServerLock(other.data)
    try:
        with pytest.raises(ServerRuns):
            restore.restore(str(saved))
        assert [path.name for path in other.data.iterdir()] == ["server.lock"]
    finally:
        server.release()
