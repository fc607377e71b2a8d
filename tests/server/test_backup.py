"""`primer backup` and `primer restore`: whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import stat
import tarfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from primer_site import archive
from primer_site.archive import KEYS, NAMES
from primer_site.lock import LOCK_FILE
from tests.eventually import eventually
from tests.server.backups import digest, home, other, prepared, refused, saved, small_disk, users
from tests.server.primer import Home

__all__ = ["home", "other", "prepared", "saved"]
pytestmark = pytest.mark.e2e


# -- backup


def test_the_file_has_database_keys_and_instance_id_and_is_its_owners_alone(home: Home, saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    with tarfile.open(saved) as found:
        assert found.getnames() == [archive.MANIFEST, *NAMES]
        for name in KEYS:
            file = found.extractfile(name)
            assert file is not None
            assert file.read() == (home.data / name).read_bytes()
    assert [path.name for path in saved.parent.iterdir() if "saved" in path.name] == ["saved"]


def test_it_overwrites_nothing(home: Home, saved: Path) -> None:
    before = saved.read_bytes()
    refused(home.primer("backup", str(saved)), f"There is a file {saved} already.")
    assert saved.read_bytes() == before


def test_it_follows_no_link_that_lies_there(home: Home, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "link").symlink_to(victim)
    refused(home.primer("backup", str(tmp_path / "link")), "already")
    assert not victim.exists()


def test_a_place_that_is_not_there_is_a_sentence(home: Home, tmp_path: Path) -> None:
    refused(
        home.primer("backup", str(tmp_path / "no" / "such" / "file")),
        "could not be written: No such file or directory.",
    )


def test_without_an_install_there_is_nothing_to_back_up_and_none_is_made(other: Home, tmp_path: Path) -> None:
    refused(other.primer("backup", str(tmp_path / "new")), f"There is no install at {other.data}.")
    assert not other.data.exists()
    assert not (tmp_path / "new").exists()


def test_a_database_of_another_install_is_refused(home: Home, tmp_path: Path) -> None:
    (home.data / "instance-id").write_text("another\n")
    refused(home.primer("backup", str(tmp_path / "new")), "The database belongs to the install")
    assert not (tmp_path / "new").exists()


def test_a_damaged_database_is_not_backed_up_as_if_it_were_whole(home: Home, tmp_path: Path) -> None:
    database = home.data / "primer.sqlite3"
    data = bytearray(database.read_bytes())
    data[4096 * 8 : 4096 * 40] = os.urandom(4096 * 32)
    database.write_bytes(data)
    done = home.primer("backup", str(tmp_path / "new"))
    refused(done, "The database is damaged.")
    assert not list(tmp_path.glob("*new*"))


def test_keys_that_come_from_the_environment_are_in_it_too(home: Home, other: Home, tmp_path: Path) -> None:
    keys = {name: (home.data / name).read_text().strip() for name in KEYS}
    for name in KEYS:
        (home.data / name).unlink()
    env = {f"PRIMER_{name.upper().replace('-', '_')}": value for name, value in keys.items()}
    assert home.primer("backup", str(tmp_path / "new"), **env).returncode == 0
    assert other.primer("restore", str(tmp_path / "new")).returncode == 0
    assert {name: (other.data / name).read_text().strip() for name in KEYS} == keys


@pytest.mark.parametrize("room", [-100, 100], ids=["while the database is copied", "while it is packed"])
def test_a_full_disk_leaves_nothing_and_says_so(home: Home, tmp_path: Path, room: int) -> None:
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:
        database.execute("CREATE TABLE filler (data BLOB)")
        database.execute("INSERT INTO filler VALUES (?)", [os.urandom(300 * 1024)])
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (home.data / "primer.sqlite3").stat().st_size // 1024 + room
    with small_disk(tmp_path / "small", f"{size}k") as disk:
        done = home.primer("backup", str(disk / "file"))
        refused(done, "The backup could not be written:")
        assert "full" in done.stderr or "No space left" in done.stderr
        assert list(disk.iterdir()) == []


def test_it_is_one_moment_of_a_server_that_writes_and_the_restored_server_works(
    server, other: Home, tmp_path: Path
) -> None:
    """A token and its audit entry are written in one transaction: a copy has both or neither."""
    stop, failed = threading.Event(), []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = {"name": f"busy-{number}", "scope": "read", "expires_in_s": 3600}
            if (answer := server.request("POST", "/v1/tokens", json=body)).status_code != 201:
                failed.append(answer.text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        count = 'SELECT count(*) FROM accounts_token WHERE name LIKE "busy-%"'
        eventually(lambda: rows(server.home, count) > 5, within=20)
        target = tmp_path / "live"
        done = Home(server.directory).primer("backup", str(target), PRIMER_HOME=str(server.home))
        assert done.returncode == 0, done.stderr
    finally:
        stop.set()
        writer.join()
    assert failed == []
    assert other.primer("restore", str(target)).returncode == 0
    audited = "SELECT count(*) FROM accounts_auditentry WHERE action = 'token.create'"
    tokens = "SELECT count(*) FROM accounts_token"
    assert rows(other.data, count) > 5
    revoked = "SELECT count(*) FROM accounts_auditentry WHERE action = 'token.revoke'"
    unaudited = 1  # PRIMER_INIT_TOKEN
    assert rows(other.data, audited) == rows(other.data, tokens) + rows(other.data, revoked) - unaudited
    assert (other.data / "instance-id").read_text().strip() == server.instance_id


def rows(directory: Path, query: str) -> int:
    with closing(sqlite3.connect(directory / "primer.sqlite3")) as database:
        return int(database.execute(query).fetchone()[0])


# -- restore


def test_a_restored_install_has_its_people_its_keys_and_its_id(home: Home, other: Home, tmp_path: Path) -> None:
    password = home.primer("admin", "create-user", "carol").stdout.strip()
    assert home.primer("backup", str(tmp_path / "file")).returncode == 0
    done = other.primer("restore", str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    assert "ok    next      primer up" in done.stdout
    assert users(other) == ["admin", "carol"]
    assert {name: (other.data / name).read_bytes() for name in KEYS} == {n: (home.data / n).read_bytes() for n in KEYS}
    assert stat.S_IMODE(other.data.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in other.data.iterdir()} == {0o600}
    assert [path.name for path in other.directory.iterdir()] == ["data"]
    again = other.prepare()
    assert again.returncode == 0, again.stderr
    assert "ok    admin     admin" in again.stdout
    assert password


def test_an_empty_directory_will_do(saved: Path, other: Home) -> None:
    other.data.mkdir()
    assert other.primer("restore", str(saved)).returncode == 0
    assert users(other) == ["admin"]


def test_a_mounted_empty_directory_will_do(saved: Path, other: Home) -> None:
    with small_disk(other.data, "64m"):
        done = other.primer("restore", str(saved))
        assert done.returncode == 0, done.stderr
        assert users(other) == ["admin"]
        assert sorted(path.name for path in other.data.iterdir()) == sorted([*NAMES, LOCK_FILE])


def test_a_directory_with_anything_in_it_is_left_alone(saved: Path, other: Home) -> None:
    other.data.mkdir()
    (other.data / "note").write_text("mine")
    refused(other.primer("restore", str(saved)), f"The data directory {other.data} is not empty.")
    assert digest(other.data) == {"note": b"mine"}


def test_a_running_servers_home_is_left_alone(server, saved: Path) -> None:
    done = Home(server.directory).primer("restore", str(saved), PRIMER_HOME=str(server.home))
    refused(done, "is not empty")
    assert server.request("GET", "/v1/me").status_code == 200


def test_a_disk_that_is_too_small_is_left_empty(saved: Path, other: Home) -> None:
    with small_disk(other.data, "300k"):
        refused(other.primer("restore", str(saved)), "There is no room at")
        assert list(other.data.iterdir()) == []


def test_a_backup_of_a_later_version_is_refused_by_its_name(
    saved: Path, other: Home, tmp_path: Path, home: Home
) -> None:
    with closing(sqlite3.connect(home.data / "primer.sqlite3")) as database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('accounts', '9999_later', '2030-01-01')"
        )
        database.commit()
    assert home.primer("backup", str(tmp_path / "later")).returncode == 0
    refused(other.primer("restore", str(tmp_path / "later")), "was made by a later version")
    assert list(other.directory.iterdir()) == []


def test_a_home_that_cannot_be_used_is_a_sentence(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    broken = Home(tmp_path)
    for command in (
        ["backup", "b"],
        ["restore", str(saved)],
        ["prune"],
        ["admin", "reset-password"],
        ["up", "--prepare-only"],
    ):
        done = broken.primer(*command, PRIMER_HOME=str(tmp_path / "file" / "home"))
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), command
        assert done.stderr.startswith("error: "), command
