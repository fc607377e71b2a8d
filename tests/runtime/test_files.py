"""Files through the real runtime: hostile names, kinds and trees give typed answers and never anything outside."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primer_site.errors import Invalid, PreconditionFailed, PrimerError
from tests.runtime.conftest import Runtime
from workspaces.runtime import linux, paths, tree
from workspaces.runtime.paths import Root
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import (
    DirectoryNotEmpty,
    DiskFull,
    FileChanged,
    FileExists,
    FileMissing,
    IsADirectory,
    LinkRefused,
    NameTooLong,
    NotADirectory,
    NotAFile,
)

BAD_PATHS = ["", ".", "..", "/", "../x", "a/../../b", "a/..", "/abs", "/etc/passwd", "a\0b", "x/", "x/.", "\ud83d"]
HOSTILE_NAMES = [
    "new\nline", "esc\x1b[2J", "tab\t", "del\x7f", "cr\r\nlf", "q'\"", "$(id)", "`id`", "a;b", "a|b", "back\\slash", "-rf",
    "%2e%2e", "%252e", "q?x#y", "\u202ertl", "e\u0301", "\u00e9", "<img src=x>", " space ", "CON", "...", "..a", "~", "*",
    b"caf\xe9\xff".decode("utf-8", "surrogateescape"),
]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
async def test_a_path_that_names_no_file_beneath_the_workspace_is_invalid(sandbox: Sandbox, path: str) -> None:
    for call in (sandbox.read(path), sandbox.write(path, b"x"), sandbox.delete(path), sandbox.move("x", path)):
        with pytest.raises(Invalid):
            await call


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_hostile_names_are_names(sandbox: Sandbox, runtime: Runtime, name: str) -> None:
    await sandbox.write(name, b"content")
    assert os.listdir(os.fsencode(runtime.workdir)) == [os.fsencode(name)]
    (item,) = (await sandbox.list()).items
    assert (item.name, item.path) == (name, name)
    assert (await sandbox.read(item.path)).data == b"content"
    await sandbox.move(item.path, f"d{name}")
    await sandbox.delete(f"d{name}")
    assert (await sandbox.list()).items == ()


async def test_links_are_shown_and_never_followed(sandbox: Sandbox, runtime: Runtime) -> None:
    outside = runtime.home / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (runtime.workdir / "file").symlink_to(outside / "secret")
    (runtime.workdir / "dir").symlink_to(outside)
    (runtime.workdir / "dangling").symlink_to("/nope")
    (runtime.workdir / "a").symlink_to("b")
    (runtime.workdir / "b").symlink_to("a")
    for path in ("file", "dir", "dangling", "a", "dir/secret"):
        with pytest.raises(LinkRefused):
            await sandbox.read(path)
    for path in ("file", "dangling", "dir/new", "dir/deep/new"):
        with pytest.raises(LinkRefused):
            await sandbox.write(path, b"x")
    for call in (sandbox.mkdir("dir/new"), sandbox.mkdir("dir/a/b", parents=True), sandbox.list("dir")):
        with pytest.raises(LinkRefused):
            await call
    with pytest.raises(LinkRefused):
        await sandbox.delete("dir/secret")
    assert {item.kind for item in (await sandbox.list(recursive=True)).items} == {"symlink"}
    assert (await sandbox.stat("file")).kind == "symlink"
    await sandbox.delete("dir", recursive=True)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_a_fifo_a_socket_and_a_directory_are_no_files_and_block_nobody(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    os.mkfifo(runtime.workdir / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime.workdir / "sock"))
    (runtime.workdir / "dir").mkdir()
    for name, error in (("fifo", NotAFile), ("sock", NotAFile), ("dir", IsADirectory)):
        with pytest.raises(error):
            await sandbox.read(name)
        with pytest.raises(error):
            await sandbox.write(name, b"x")
    kinds = {item.name: item.kind for item in (await sandbox.list()).items}
    assert kinds == {"fifo": "other", "sock": "other", "dir": "dir"}
    assert stat.S_ISFIFO((runtime.workdir / "fifo").stat().st_mode)


async def test_what_is_missing_and_what_is_in_the_way_is_typed(sandbox: Sandbox) -> None:
    await sandbox.write("file", b"x")
    await sandbox.mkdir("dir")
    await sandbox.write("dir/inner", b"x")
    for call, error in (
        (sandbox.read("nope"), FileMissing),
        (sandbox.stat("nope/deeper"), FileMissing),
        (sandbox.read("file/below"), NotADirectory),
        (sandbox.mkdir("dir"), FileExists),
        (sandbox.mkdir("no/parent"), FileMissing),
        (sandbox.move("file", "dir"), FileExists),
        (sandbox.delete("dir"), DirectoryNotEmpty),
        (sandbox.list("file"), NotADirectory),
        (sandbox.move("dir", "dir/inner/x"), Invalid),
        (sandbox.write("n" * 256, b"x"), NameTooLong),
    ):
        with pytest.raises(error):
            await call
    assert (await sandbox.write("n" * 255, b"x")).name == "n" * 255


async def test_a_write_replaces_the_file_at_once_and_says_its_etag(sandbox: Sandbox, runtime: Runtime) -> None:
    first = await sandbox.write("deep/er/file", b"one", mode=0o755)
    assert (first.size_bytes, first.mode) == (3, 0o755)
    assert (
        first.etag == (await sandbox.read("deep/er/file")).info.etag == (await sandbox.stat(first.path, etag=True)).etag
    )
    second = await sandbox.write("deep/er/file", b"two", if_match=first.etag)
    assert second.etag != first.etag
    with pytest.raises(PreconditionFailed):
        await sandbox.write("deep/er/file", b"three", if_match=first.etag)
    with pytest.raises(PreconditionFailed):
        await sandbox.write("deep/er/file", b"three", if_none_match=True)
    with pytest.raises(PreconditionFailed):
        await sandbox.write("not-there", b"x", if_match=first.etag)
    assert (runtime.workdir / "deep/er/file").read_bytes() == b"two"
    assert [path.name for path in (runtime.workdir / "deep/er").iterdir()] == ["file"]


async def test_a_write_that_breaks_off_leaves_the_old_file_and_no_rest(sandbox: Sandbox, runtime: Runtime) -> None:
    await sandbox.write("file", b"old")

    async def source() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise RuntimeError("the sender broke")

    with pytest.raises(RuntimeError):
        await sandbox.write("file", source())
    await sandbox.stat("file")  # answered after the break was handled
    assert {path.name: path.read_bytes() for path in runtime.workdir.iterdir()} == {"file": b"old"}


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
async def test_files_of_any_size_survive_the_round_trip(sandbox: Sandbox, size: int) -> None:
    data = os.urandom(size)

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, size, 100_003):
            yield data[start : start + 100_003]

    written = await sandbox.write("bytes", data)
    streamed = await sandbox.write("stream", source())
    assert written.etag == streamed.etag
    found = await sandbox.read("stream")
    assert (found.data, found.truncated) == (data, False)
    stream = await sandbox.read_stream("bytes", offset=size // 2)
    assert b"".join([part async for part in stream.chunks]) == data[size // 2 :]
    assert stream.length == size - size // 2


async def test_a_range_says_whether_there_is_more(sandbox: Sandbox) -> None:
    await sandbox.write("file", b"0123456789")
    part = await sandbox.read("file", offset=2, limit=3)
    assert (part.data, part.offset, part.truncated, part.info.size_bytes) == (b"234", 2, True, 10)
    assert part.info.etag is not None
    assert (await sandbox.read("file", offset=8, limit=9)).truncated is False
    assert (await sandbox.read("file", offset=99)).data == b""


async def test_a_file_that_shrinks_during_a_download_is_an_error_and_not_a_short_file(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    (runtime.workdir / "big").write_bytes(b"x" * 5_000_000)
    stream = await sandbox.read_stream("big")
    chunks = stream.chunks
    await anext(chunks)
    os.truncate(runtime.workdir / "big", 100)
    with pytest.raises(FileChanged):
        async for _ in chunks:
            pass


async def test_a_file_that_grows_is_read_up_to_its_size_at_opening(sandbox: Sandbox, runtime: Runtime) -> None:
    path = runtime.workdir / "log"
    path.write_bytes(b"x" * 2_000_000)
    stream = await sandbox.read_stream("log")
    await anext(stream.chunks)
    with path.open("ab") as file:
        file.write(b"y" * 1_000_000)
    rest = sum([len(part) async for part in stream.chunks])
    assert stream.length == 2_000_000
    assert rest < 2_000_000


async def test_pages_of_a_directory_hold_every_name_once(sandbox: Sandbox, runtime: Runtime) -> None:
    names = {f"n{number:04}" for number in range(2500)}
    for name in names:
        (runtime.workdir / name).touch()
    found, cursor = [], None
    while True:
        page = await sandbox.list(cursor=cursor, limit=700)
        found += [item.name for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == sorted(names)


@pytest.mark.parametrize("recursive", [False, True])
def test_a_directory_is_read_about_once_a_page_however_many_entries_or_directories_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recursive: bool
) -> None:
    for number in range(700):
        (tmp_path / f"d{number:03}").mkdir()
    reads, page = [0], tree.page

    def counting(fd: int, after: bytes, count: int) -> Generator[None, None, list[bytes]]:
        reads[0] += 1
        return page(fd, after, count)

    monkeypatch.setattr(tree, "page", counting)
    root = Root(str(tmp_path))
    steps = tree.list_tree(root, [], None, 1000, recursive)
    answer = None
    while answer is None:
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
    os.close(root.fd)
    assert [item["path"] for item in answer["items"]] == [f"d{number:03}" for number in range(700)]
    assert reads[0] <= (700 if recursive else 0) + 3


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
async def test_recursive_pages_hold_every_path_once_in_order(sandbox: Sandbox, runtime: Runtime, limit: int) -> None:
    for name in ("a/b/c/d", "a/b/e", "a/f", "b", "c/g", "c.x"):
        (runtime.workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (runtime.workdir / name).touch()
    (runtime.workdir / "empty").mkdir()
    found: list[str] = []
    cursor: str | None = None
    while not found or cursor:
        page = await sandbox.list(recursive=True, cursor=cursor, limit=limit)
        found += [item.path for item in page.items]
        cursor = page.cursor
    assert found == ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/e", "a/f", "b", "c", "c/g", "c.x", "empty"]


@pytest.mark.parametrize("cursor", ["???", "Li4vLi4=", "AA==", "\u00e9"])
async def test_a_made_up_cursor_is_invalid(sandbox: Sandbox, cursor: str) -> None:
    with pytest.raises(Invalid):
        await sandbox.list(cursor=cursor)


@pytest.fixture
def deep_tree_swept(runtime: Runtime) -> Iterator[None]:
    """Removes what a failed test leaves: pytest's own cleaning recurses, and a tree that deep is beyond it."""
    yield
    subprocess.run(["rm", "-rf", str(runtime.workdir)], check=True)


@pytest.mark.usefixtures("deep_tree_swept")
async def test_a_tree_1500_deep_is_listed_read_and_deleted(sandbox: Sandbox, runtime: Runtime) -> None:
    fd = os.open(runtime.workdir, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 10, dir_fd=fd)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    try:
        await _walk_the_deep_tree(sandbox)
    finally:  # whoever cleans up after the tests would go down with a RecursionError
        subprocess.run(["rm", "-rf", str(runtime.workdir / ("d" * 10))], check=False)


async def _walk_the_deep_tree(sandbox: Sandbox) -> None:
    deepest = "/".join(["d" * 10] * 1500 + ["file"])
    paths_seen: list[str] = []
    cursor = None
    while True:
        page = await sandbox.list(recursive=True, cursor=cursor)
        paths_seen += [item.path for item in page.items]
        if (cursor := page.cursor) is None:
            break
    assert len(paths_seen) == 1501
    assert paths_seen[-1] == deepest
    assert (await sandbox.read(deepest)).data == b""
    assert (await sandbox.write(deepest, b"new")).size_bytes == 3
    await sandbox.delete("d" * 10, recursive=True)
    assert (await sandbox.list()).items == ()


async def test_a_wide_tree_with_unreadable_directories_is_deleted(sandbox: Sandbox, runtime: Runtime) -> None:
    for number in range(30):
        inner = runtime.workdir / "tree" / str(number)
        inner.mkdir(parents=True)
        for name in range(40):
            (inner / str(name)).touch()
        inner.chmod(0)
    await sandbox.delete("tree", recursive=True)
    assert list(runtime.workdir.iterdir()) == []


async def test_a_long_listing_delays_no_other_call(sandbox: Sandbox, runtime: Runtime) -> None:
    for number in range(3000):
        (runtime.workdir / f"{number}").touch()
    listings = [asyncio.create_task(sandbox.list(recursive=True)) for _ in range(20)]
    await sandbox.write("other", b"x")
    assert not all(task.done() for task in listings)
    await asyncio.gather(*listings)


async def test_a_write_beyond_the_disk_limit_is_refused_and_deleting_works(runtime: Runtime) -> None:
    sandbox = runtime.sandbox(disk_bytes=1_000_000)
    await sandbox.write("small", b"x")
    with pytest.raises(DiskFull):
        await sandbox.write("big", b"x" * 1_000_001)
    await sandbox.delete("small")
    assert list(runtime.workdir.iterdir()) == []
    await sandbox.close()


async def test_moving_over_something_needs_to_be_asked_for(sandbox: Sandbox, runtime: Runtime) -> None:
    await sandbox.write("one", b"1")
    await sandbox.write("two", b"2")
    with pytest.raises(FileExists):
        await sandbox.move("one", "two")
    assert (await sandbox.move("one", "two", overwrite=True)).path == "two"
    assert {path.name: path.read_text() for path in runtime.workdir.iterdir()} == {"two": "1"}


async def test_absolute_paths_below_the_workspace_are_taken(sandbox: Sandbox, runtime: Runtime) -> None:
    assert (await sandbox.write(f"{runtime.workdir}/file", b"x")).path == "file"
    assert [item.path for item in (await sandbox.list(str(runtime.workdir))).items] == ["file"]


@given(st.text(max_size=60))
def test_the_resolver_gives_components_that_stay_beneath_or_refuses(path: str) -> None:
    parts: list[bytes] = [b"refused"]
    with suppress(paths.Failure):
        parts = paths.split(path, b"/workspace")
    assert parts
    assert all(part not in (b"", b".", b"..") and b"/" not in part and b"\0" not in part for part in parts)
    assert paths.split(os.fsdecode(b"/workspace/" + b"/".join(parts)), b"/workspace") == parts


def test_a_kernel_without_openat2_gets_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    (tmp_path / "a/link").symlink_to("b")
    (tmp_path / "a/up").symlink_to("/etc/passwd")

    def missing(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    answers = []
    for lacking in (False, True):
        if lacking:
            monkeypatch.setattr(linux, "openat2", missing)
        root, found = paths.Root(str(tmp_path)), []
        for path in ("a/b/file", "a/link/file", "a/up", "a/b/file/x", "a/none", "a/b"):
            try:
                fd = root.open(path.encode().split(b"/"), os.O_RDONLY)
                found.append("open")
                os.close(fd)
            except OSError as error:
                found.append(paths.failure_of(error).code)
        answers.append(found)
        os.close(root.fd)
    assert answers[0] == answers[1] == ["open", "symlink", "symlink", "not_dir", "not_found", "open"]


async def test_errors_say_nothing_of_the_machine(sandbox: Sandbox) -> None:
    for path in ("nope", "../x", "n" * 300):
        with pytest.raises(PrimerError) as caught:
            await sandbox.read(path)
        assert "/" not in caught.value.detail
        assert caught.value.detail.endswith(".")
