"""Downloads over the API: ranges and preconditions of a file, a directory as tar, and nothing that stays open behind them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.factories import Api
from tests.open_files import open_targets
from tests.workspaces.conftest import sandbox_pid
from tests.workspaces.test_exec import python, run
from tests.workspaces.test_files import body_of, files
from workspaces.runtime.files import HASH_MAX
from workspaces.sandbox_errors import FileChanged

TREE = """
import os, socket
os.makedirs('t/sub/deeper'); os.mkdir('t/empty'); os.mkdir('t/closed')
for name, text in (('t/a.txt', 'A'), ('t/sub/b', 'B'), ('t/sub/deeper/c', 'C'), ('t/zero', '')):
    open(name, 'w').write(text)
os.chmod('t/a.txt', 0o755)
for name in (b'new\\nline', b'esc\\x1b[2J', 'rtl\\u202egnp'.encode(), b'caf\\xff', b'n' * 255, b'-rf', b'back\\\\slash'):
    open(b't/sub/' + name, 'w').write('x')
os.symlink('/etc/passwd', 't/link'); os.symlink('sub', 't/dirlink'); os.symlink('/nope', 't/sub/dangling')
os.mkfifo('t/fifo'); socket.socket(socket.AF_UNIX).bind('t/sock')
open('t/secret', 'w').write('s'); os.chmod('t/secret', 0); os.chmod('t/closed', 0)
"""
ODD = ["new\nline", "esc\x1b[2J", "rtl\u202egnp", os.fsdecode(b"caf\xff"), "n" * 255, "-rf", "back\\slash"]


def download(person: Api, workspace: str, path: str, **headers: str) -> Any:
    return person.get(files(workspace, "/download"), path=path, headers=headers)


def unpacked(data: bytes) -> tuple[dict[str, bytes | None], dict[str, Any]]:
    """Members by name (None: a directory), and the note in the last one."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        members = archive.getmembers()
        assert all(member.isreg() or member.isdir() for member in members)
        found = {m.name: archive.extractfile(m).read() if m.isreg() else None for m in members[:-1]}  # type: ignore[union-attr]
        assert len(found) == len(members) - 1
    assert members[-1].name in (".", "./")
    return found, json.loads(members[-1].pax_headers["comment"])


@pytest.fixture(params=["fake", pytest.param("container", marks=pytest.mark.docker)])
def place(request: pytest.FixtureRequest, transactional_db: Any) -> str:
    return str(request.getfixturevalue({"fake": "running", "container": "box"}[request.param]))


@pytest.fixture
def digits(running: str, alice: Api) -> str:
    """A workspace with the file `d`, ten digits; its ETag is what the write said."""
    assert alice.put(files(running), b"0123456789", path="d").status_code == 204
    return running


# -- one file


@pytest.mark.parametrize(
    ("header", "status", "expected"),
    [
        ("bytes=0-3", 206, b"0123"), ("bytes=4-", 206, b"456789"), ("bytes=-2", 206, b"89"), ("bytes=8-99", 206, b"89"),
        ("bytes=0-", 206, b"0123456789"), ("bytes=-99", 206, b"0123456789"),
        ("bytes=0-1,3-4", 200, b"0123456789"), ("lines=1-2", 200, b"0123456789"), ("bytes=-", 200, b"0123456789"),
        ("bytes=10-", 416, b""), ("bytes=5-4", 200, b"0123456789"), ("bytes=99-98", 200, b"0123456789"),
        ("bytes=-0", 416, b""), ("bytes=999999999999999-", 416, b""),
    ],
)  # fmt: skip
def test_ranges(header: str, status: int, expected: bytes, digits: str, alice: Api) -> None:
    answer = download(alice, digits, "d", Range=header)
    assert answer.status_code == status
    if status == 416:
        assert answer.headers["Content-Range"] == "bytes */10"
        assert (answer.json()["status"], answer.json()["code"]) == (416, "invalid")
        return
    assert body_of(answer) == expected
    assert int(answer.headers["Content-Length"]) == len(expected)
    assert ("Content-Range" in answer.headers) == (status == 206)
    if status == 206:
        start = b"0123456789".index(expected)
        assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(expected) - 1}/10"


def test_no_range_of_an_empty_file_can_be_had_and_all_of_it_can(running: str, alice: Api) -> None:
    alice.put(files(running), b"", path="e")
    assert download(alice, running, "e", Range="bytes=0-").status_code == 416
    assert body_of(download(alice, running, "e")) == b""


def test_a_resumed_download_gets_the_rest_of_the_same_version_and_all_of_another(digits: str, alice: Api) -> None:
    etag = download(alice, digits, "d", Range="bytes=0-3").headers["ETag"]
    rest = download(alice, digits, "d", Range="bytes=4-", **{"If-Range": etag})
    assert (rest.status_code, body_of(rest)) == (206, b"456789")
    alice.put(files(digits), b"abcdefghij", path="d")
    whole = download(alice, digits, "d", Range="bytes=4-", **{"If-Range": etag})
    assert (whole.status_code, body_of(whole)) == (200, b"abcdefghij")
    assert "Content-Range" not in whole.headers


@pytest.mark.parametrize("proof", ['W/"{}"', "Wed, 21 Oct 2015 07:28:00 GMT", "", '"other"'])
def test_what_proves_no_version_gets_everything(proof: str, digits: str, alice: Api) -> None:
    etag = download(alice, digits, "d").headers["ETag"].strip('"')
    answer = download(alice, digits, "d", Range="bytes=4-", **{"If-Range": proof.format(etag)})
    assert (answer.status_code, body_of(answer)) == (200, b"0123456789")


def test_a_known_version_is_not_sent_again_and_a_wanted_one_only_if_it_is_that(digits: str, alice: Api) -> None:
    etag = alice.put(files(digits), b"0123456789", path="d").headers["ETag"]
    for known in (etag, f'"x", W/{etag}', "*"):
        answer = download(alice, digits, "d", **{"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", etag)
    read = alice.get(files(digits, "/read"), path="d", headers={"If-None-Match": etag})
    assert (read.status_code, read.headers["ETag"]) == (304, etag)
    assert body_of(download(alice, digits, "d", **{"If-Match": etag, "If-None-Match": '"x"'})) == b"0123456789"
    refused = download(alice, digits, "d", **{"If-Match": '"x"'})
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")


def test_a_large_file_has_one_etag_for_all_routes_until_it_is_changed(running: str, alice: Api) -> None:
    data = bytes(HASH_MAX + 1)
    etag = alice.put(files(running), data, path="big").headers["ETag"]
    first = download(alice, running, "big", Range="bytes=0-0")
    assert body_of(first) == b"\0"
    assert first.headers["ETag"] == alice.get(files(running, "/read"), path="big", limit=1).headers["ETag"] == etag
    rest = download(alice, running, "big", Range=f"bytes={HASH_MAX}-", **{"If-Range": etag})
    assert (rest.status_code, body_of(rest)) == (206, b"\0")
    run(alice, running, "touch", "big")
    whole = download(alice, running, "big", Range=f"bytes={HASH_MAX}-", **{"If-Range": etag})
    assert (whole.status_code, body_of(whole) == data) == (200, True)
    stale = alice.put(files(running), b"x", path="big", headers={"If-Match": etag})
    assert stale.status_code == 412
    fresh = alice.put(files(running), b"x", path="big", headers={"If-Match": f'"y", {whole.headers["ETag"]}'})
    assert fresh.status_code == 204


def test_a_delete_with_an_old_etag_is_412_and_deletes_nothing(digits: str, alice: Api) -> None:
    etag = download(alice, digits, "d").headers["ETag"]
    for wrong in ('"x"', '"y", "z"'):
        assert alice.delete(files(digits), path="d", headers={"If-Match": wrong}).status_code == 412
    assert body_of(download(alice, digits, "d")) == b"0123456789"
    assert alice.delete(files(digits), path="d", headers={"If-Match": etag}).status_code == 204


def test_head_says_what_a_get_would_and_opens_nothing(digits: str, alice: Api) -> None:
    run(alice, digits, "sh", "-c", "mkdir dir; ln -s d link; mkfifo pipe")
    query = f"/v1/{files(digits, '/download')}?path="
    found = alice.client.head(f"{query}d", headers=alice.headers)
    got = download(alice, digits, "d")
    body_of(got)
    for name in ("Content-Length", "Content-Type", "ETag", "Accept-Ranges", "Content-Disposition"):
        assert found.headers[name] == got.headers[name]
    assert (found.status_code, found.content) == (200, b"")
    directory = alice.client.head(f"{query}dir", headers=alice.headers)
    assert (directory.status_code, directory.headers["Content-Type"]) == (200, "application/x-tar")
    statuses = [
        alice.client.head(f"{query}{name}", headers=alice.headers).status_code for name in ("link", "pipe", "no")
    ]
    assert statuses == [409, 409, 404]


def test_a_download_is_never_shown_or_run_by_a_browser(running: str, alice: Api) -> None:
    alice.put(files(running), b"<script>alert(1)</script>", path='x".html')
    alice.post(files(running, "/dir"), {"path": "d.html"})
    for path, kind, name in (
        ('x".html', "application/octet-stream", "x%22.html"),
        ("d.html", "application/x-tar", "d.html.tar"),
    ):
        answer = download(alice, running, path)
        body_of(answer)
        assert answer.headers["Content-Type"] == kind
        assert answer.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{name}"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox")


@pytest.mark.parametrize("header", ["", "bytes=1000-"])
def test_a_file_rewritten_in_place_while_it_is_downloaded_breaks_off_and_can_be_had_again(
    header: str, running: str, alice: Api
) -> None:
    python(alice, running, "import os; open('big', 'wb').write(b'x' * 20_000_000); os.utime('big', (0, 0))")
    answer = download(alice, running, "big", **({"Range": header} if header else {}))
    python(alice, running, "open('big', 'r+b').write(b'y' * 20_000_000)")
    with pytest.raises(FileChanged):
        body_of(answer)
    rest = download(alice, running, "big", Range="bytes=1000-", **{"If-Range": answer.headers["ETag"]})
    assert (rest.status_code, body_of(rest)) == (200, b"y" * 20_000_000)


# -- directories


def test_a_directory_comes_as_tar_with_files_and_directories_only_and_says_what_is_missing(
    place: str, alice: Api
) -> None:
    python(alice, place, TREE)
    found, note = unpacked(body_of(download(alice, place, "t")))
    assert found == {
        "a.txt": b"A", "zero": b"", "empty": None, "sub": None, "sub/b": b"B", "sub/deeper": None, "sub/deeper/c": b"C",
        **{f"sub/{name}": b"x" for name in ODD},
    }  # fmt: skip
    assert {item["path"]: item["why"] for item in note["left_out"]} == {
        "link": "symlink", "dirlink": "symlink", "sub/dangling": "symlink", "fifo": "other", "sock": "other",
        "secret": "unreadable", "closed": "unreadable",
    }  # fmt: skip
    assert (note["left_out_count"], note["entries"]) == (7, len(found))
    run(alice, place, "chmod", "700", "t/closed")


@pytest.mark.parametrize("path", [".", "/"])
def test_all_of_a_workspace_comes_as_tar(path: str, running: str, alice: Api) -> None:
    alice.put(files(running), b"x", path="d/f")
    answer = download(alice, running, path, Range="bytes=0-1")
    assert (answer.status_code, answer.headers["Content-Disposition"]) == (
        200,
        f"attachment; filename*=utf-8''{running}.tar",
    )
    assert unpacked(body_of(answer))[0] == {"d": None, "d/f": b"x"}


def test_a_directory_reached_through_a_link_is_not_packed(running: str, alice: Api) -> None:
    run(alice, running, "sh", "-c", "mkdir -p real/sub; ln -s real link; ln -s /etc etc")
    for path in ("link", "link/sub", "etc", "etc/ssl"):
        answer = download(alice, running, path)
        assert (answer.status_code, answer.json()["code"]) == (409, "symlink"), path


def test_modes_of_an_archive_are_plain(running: str, alice: Api) -> None:
    python(alice, running, "import os; os.mkdir('t'); open('t/s', 'w'); os.chmod('t/s', 0o6755); os.chmod('t', 0o3777)")
    with tarfile.open(fileobj=io.BytesIO(body_of(download(alice, running, "."))), mode="r:") as archive:
        modes = {member.name: (member.mode, member.uid, member.uname) for member in archive}
    assert modes == {"t": (0o777, 0, ""), "t/s": (0o755, 0, ""), ".": (0o755, 0, "")}


# -- nothing stays open


def open_files(workspace: str) -> list[str]:
    """Regular files and directories that the runtime of a fake workspace holds open, by name."""
    targets = open_targets(sandbox_pid(workspace))
    return sorted(Path(target).name for target in targets if "/big" in target or "/tree" in target)


def test_answers_without_a_body_and_bodies_that_nobody_reads_leave_nothing_open(running: str, alice: Api) -> None:
    python(alice, running, "import os; open('big', 'wb').truncate(50_000_000); os.makedirs('tree/sub')")
    python(alice, running, "for n in range(3000): open('tree/sub/%d' % n, 'w').write('x' * 5000)")
    etag = download(alice, running, "big", **{"If-Match": '"x"'}).status_code
    assert etag == 412
    assert download(alice, running, "big", Range="bytes=50000000-").status_code == 416
    assert download(alice, running, "big", **{"If-None-Match": "*"}).status_code == 304
    for path in ("big", "tree"):
        unread = download(alice, running, path)
        assert open_files(running)
        unread.close()
    eventually(lambda: open_files(running) == [], message="the runtime closed what it had opened")
    assert len(body_of(download(alice, running, "big"))) == 50_000_000
