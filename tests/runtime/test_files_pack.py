"""A directory through the real runtime: nothing but files and directories, whatever happens to the tree meanwhile."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.open_files import open_targets
from tests.runtime.conftest import Runtime
from workspaces.archive import archive
from workspaces.execution import ExecRequest
from workspaces.runtime import pack, protocol
from workspaces.runtime.paths import Root
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import FileMissing, LinkRefused, NotADirectory
from workspaces.sandbox_tree import Entry, Item, Left, Unpacker


async def items_of(sandbox: Sandbox, path: str = "", meanwhile: Callable[[], None] | None = None) -> list[Item]:
    """All items; `meanwhile` happens when the first bytes have come."""
    stream, unpacker, found = await sandbox.pack(path), Unpacker(), []
    async for chunk in stream.chunks:
        found += list(unpacker.feed(chunk))
        if meanwhile is not None:
            meanwhile()
            meanwhile = None
    unpacker.finish()
    return found


async def names_in_archive(sandbox: Sandbox, path: str = "") -> list[str]:
    data = b"".join([part async for part in archive((await sandbox.pack(path)).chunks)])
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as found:
        return found.getnames()


def paths(found: list[Item]) -> list[str]:
    return [os.fsdecode(item.path) for item in found if isinstance(item, Entry)]


def left(found: list[Item]) -> dict[str, str]:
    return {os.fsdecode(item.path): item.why for item in found if isinstance(item, Left)}


async def test_only_a_directory_is_packed(sandbox: Sandbox, runtime: Runtime) -> None:
    await sandbox.write("file", b"x")
    (runtime.workdir / "link").symlink_to("/etc")
    for path, error in (
        ("file", NotADirectory),
        ("nope", FileMissing),
        ("link", LinkRefused),
        ("link/ssl", LinkRefused),
    ):
        with pytest.raises(error):
            await sandbox.pack(path)


async def test_an_empty_directory_has_no_entries(sandbox: Sandbox) -> None:
    await sandbox.mkdir("empty")
    assert await items_of(sandbox, "empty") == []
    assert await names_in_archive(sandbox, "empty") == ["."]


async def test_everything_that_is_no_file_and_no_directory_is_named(sandbox: Sandbox, runtime: Runtime) -> None:
    tree = runtime.workdir / "t"
    (tree / "d").mkdir(parents=True)
    (tree / "d/f").write_bytes(b"content")
    (tree / "link").symlink_to("d")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "sock"))
    found = await items_of(sandbox, "t")
    assert [item for item in found if isinstance(item, bytes)] == [b"content"]
    assert paths(found) == ["d", "d/f"]
    assert left(found) == {"link": "symlink", "fifo": "other", "sock": "other"}


@pytest.mark.parametrize("held", [0, 3, pack._HELD])
@pytest.mark.parametrize("look", [1, 2, 5, pack._NAMES])
def test_each_name_comes_once_whatever_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, look: int
) -> None:
    monkeypatch.setattr(pack, "_HELD", held)
    monkeypatch.setattr(pack, "_NAMES", look)
    for name in ("a/b/c/d", "a/b/e", "a/f", "b", "c/g", "c.x", "d/1", "d/2", "d/3/4", "d/5", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    walk = pack.Pack(Root(str(tmp_path)), [])
    raw = b"".join(item for item in walk.items() if item is not None)
    walk.close()
    everything = sorted(path.relative_to(tmp_path).as_posix().split("/") for path in tmp_path.rglob("*"))
    assert [path.split("/") for path in paths(list(Unpacker().feed(raw)))] == everything


BIG = 3 * 1024 * 1024  # more than is on its way at one time


async def test_a_file_that_shrinks_vanishes_or_grows_meanwhile_leaves_the_rest_whole(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    tree = runtime.workdir / "t"
    tree.mkdir()
    for name in ("a-shrinks", "b-vanishes", "c-grows", "d-stays"):
        (tree / name).write_bytes(b"x" * BIG)

    def change() -> None:
        (tree / "b-vanishes").unlink()
        with (tree / "c-grows").open("ab") as file:
            file.write(b"y" * BIG)
        os.truncate(tree / "a-shrinks", 10)  # last: from here on the walk goes on to the others

    found = await items_of(sandbox, "t", change)
    assert left(found) == {"a-shrinks": "shrunk", "b-vanishes": "vanished"}, paths(found)
    assert paths(found) == ["a-shrinks", "c-grows", "d-stays"]
    sizes = {item.path: item.size_bytes for item in found if isinstance(item, Entry)}
    assert (sizes[b"a-shrinks"], sizes[b"d-stays"]) == (BIG, BIG)
    last = len(found) - 1 - [isinstance(item, Entry) for item in reversed(found)].index(True)
    assert sum(len(item) for item in found[last:] if isinstance(item, bytes)) == BIG


async def test_an_archive_of_a_tree_under_change_is_well_formed(sandbox: Sandbox, runtime: Runtime) -> None:
    for number in range(60):
        (runtime.workdir / f"d{number}").mkdir()
        (runtime.workdir / f"d{number}/f").write_bytes(b"x" * 30_000)
    code = (
        "import os, random, time\n"
        "end = time.monotonic() + 20\n"
        "while time.monotonic() < end and not os.path.exists('stop'):\n"
        "    d = 'd%d' % random.randrange(60)\n"
        "    try:\n"
        "        random.choice((lambda: os.truncate(d + '/f', random.randrange(60000)), lambda: os.rename(d, d + 'x'),\n"
        "            lambda: os.rename(d + 'x', d), lambda: os.remove(d + '/f'), lambda: open(d + '/f', 'a').write('y' * 9999),\n"
        "            lambda: os.symlink('/etc', d + '/s')))()\n"
        "    except OSError: pass\n"
    )
    handle = await sandbox.start_exec(ExecRequest(id="e1", argv=("python3", "-c", code)))
    for _ in range(10):
        data = b"".join([part async for part in archive((await sandbox.pack()).chunks)])
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errorlevel=2) as found:
            members = found.getmembers()
        assert members[-1].name == "."
        assert all(member.isreg() or member.isdir() for member in members)
    await sandbox.write("stop", b"")
    assert (await handle.outcome()).ended_by == "exit"


async def test_a_directory_that_is_moved_away_during_the_walk_is_named_and_the_walk_goes_on(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    tree = runtime.workdir / "t"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/big").write_bytes(b"x" * BIG)
    (tree / "a/z").write_text("reached: the walk stands in its directory")
    (tree / "last").write_text("reached")
    found = await items_of(sandbox, "t", lambda: os.rename(tree / "a", runtime.workdir / "elsewhere"))
    assert paths(found) == ["a", "a/b", "a/b/big", "a/z", "last"]
    assert left(found) == {"a": "moved"}


async def test_a_walk_whose_start_is_gone_ends_in_an_error(sandbox: Sandbox, runtime: Runtime) -> None:
    tree = runtime.workdir / "t"
    (tree / "a").mkdir(parents=True)
    (tree / "a/big").write_bytes(b"x" * BIG)

    def gone() -> None:
        os.rename(tree / "a", runtime.workdir / "elsewhere")
        shutil.rmtree(tree)

    with pytest.raises(FileMissing):
        await items_of(sandbox, "t", gone)
    assert (await sandbox.stat("elsewhere")).kind == "dir"


@pytest.fixture
def deep(runtime: Runtime) -> Iterator[int]:
    """A tree 1500 deep, deeper than any path may be long for the kernel."""
    fd = os.open(runtime.workdir, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 60, dir_fd=fd)
        below = os.open("d" * 60, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    yield 1500
    subprocess.run(["rm", "-rf", str(runtime.workdir)], check=True)


async def test_a_tree_is_packed_as_deep_as_paths_may_be_and_what_is_below_is_named(sandbox: Sandbox, deep: int) -> None:
    found = await items_of(sandbox)
    depth = (64 * 1024 + 1) // 61
    assert len(paths(found)) == depth < deep
    assert list(left(found).values()) == ["too_long"]


async def test_a_wide_tree_costs_the_runtime_no_memory_and_delays_nobody(sandbox: Sandbox, runtime: Runtime) -> None:
    for number in range(20_000):
        (runtime.workdir / f"{number:0100d}").touch()
    await sandbox.mkdir("other")
    status = Path(f"/proc/{runtime.process.pid}/status")

    def peak() -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))

    before, answers, done = peak(), 0, asyncio.Event()

    async def bystander() -> None:
        nonlocal answers
        while not done.is_set():
            await sandbox.stat("other")
            answers += 1

    watching = asyncio.create_task(bystander())
    found = await items_of(sandbox)
    done.set()
    await watching
    assert len(paths(found)) == 20_001
    assert answers > 4  # a walk that held everybody up would let one or two through
    assert peak() - before < 6 * 1024


async def test_a_client_that_stops_reading_stops_the_walk_and_frees_what_it_held(
    sandbox: Sandbox, runtime: Runtime
) -> None:
    (runtime.workdir / "t").mkdir()
    for number in range(50):
        (runtime.workdir / f"t/{number}").write_bytes(b"x" * 200_000)
    held = Path(f"/proc/{runtime.process.pid}/fd")
    await sandbox.stat("t")
    before = len(list(held.iterdir()))
    started, begun = await sandbox.pack("t"), await sandbox.pack("t")
    await anext(begun.chunks)
    assert len(list(held.iterdir())) > before
    await started.chunks.aclose()
    await begun.chunks.aclose()
    eventually(lambda: len(list(held.iterdir())) == before)
    with pytest.raises(StopAsyncIteration):
        await anext(begun.chunks)


async def test_a_client_that_goes_away_while_the_file_is_looked_at_frees_it(sandbox: Sandbox, runtime: Runtime) -> None:
    """The ETag of a file of this size takes the runtime several steps; the client is gone before the last one."""
    (runtime.workdir / "big").write_bytes(b"x" * (16 * 1024 * 1024))

    def count() -> int:
        return sum(target.endswith("/big") for target in open_targets(runtime.process.pid))

    for _ in range(20):
        opening = asyncio.create_task(sandbox.read_stream("big"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    eventually(lambda: count() == 0)
    assert len((await sandbox.read("big")).data) == 16 * 1024 * 1024


def test_items_of_the_runtime_are_small(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(1_000_000))
    walk = pack.Pack(Root(str(tmp_path)), [])
    sizes = [len(item) for item in walk.items() if item is not None]
    walk.close()
    assert max(sizes) <= protocol.CHUNK + protocol.ITEM_HEAD.size
