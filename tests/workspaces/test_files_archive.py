"""The archive of a directory: well-formed for every name and number, and nothing a lying sandbox says becomes a path."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspaces.archive import MAX_NAMED, PIECE, TarWriter, archive
from workspaces.runtime import protocol
from workspaces.sandbox_errors import ProtocolError
from workspaces.sandbox_tree import Entry, Item, Left, Unpacker

names = st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
paths = st.lists(names, min_size=1, max_size=6).map(b"/".join)
times = st.floats(min_value=-1e12, max_value=1e13, allow_nan=False)


def tar_of(items: Iterable[Item]) -> bytes:
    writer = TarWriter()
    pieces = [piece for item in items for piece in writer.add(item)]
    return b"".join([*pieces, *writer.finish()])


def read(data: bytes) -> tuple[list[tarfile.TarInfo], list[bytes], dict[str, Any]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errorlevel=2) as found:
        members = found.getmembers()
        contents = [found.extractfile(m).read() for m in members if m.isreg()]  # type: ignore[union-attr]
    return members[:-1], contents, json.loads(members[-1].pax_headers["comment"])


def entry(path: bytes, size: int = 0, mode: int = 0o644, modified_at: float = 0.0) -> Entry:
    return Entry(path, "file", size, mode, modified_at)


def item(kind: int, /, **body: Any) -> bytes:
    return protocol.pack_item(kind, protocol.dumps(body))


@settings(deadline=None)
@given(st.dictionaries(paths, st.tuples(st.binary(max_size=1500), st.integers(0, 0o7777), times), max_size=8))
def test_every_name_and_number_survives(files: dict[bytes, tuple[bytes, int, float]]) -> None:
    items: list[Item] = []
    for path, (data, mode, modified_at) in files.items():
        items += [entry(path, len(data), mode, modified_at), *([data] if data else [])]
    members, contents, note = read(tar_of(items))
    assert [os.fsencode(member.name) for member in members] == list(files)
    assert contents == [data for data, _, _ in files.values()]
    assert [member.mode for member in members] == [mode & 0o777 for _, mode, _ in files.values()]
    assert note == {"left_out": [], "left_out_count": 0, "entries": len(files)}


def test_a_file_that_shrank_is_filled_up_and_named_once() -> None:
    items: list[Item] = [
        entry(b"a", 2000),
        b"x" * 700,
        entry(b"b", 3),
        b"abc",
        entry(b"c", 10),
        b"1",
        Left(b"c", "failed"),
    ]
    members, contents, note = read(tar_of(items))
    assert contents == [b"x" * 700 + bytes(1300), b"abc", b"1" + bytes(9)]
    assert note["left_out"] == [{"path": "a", "why": "shrunk"}, {"path": "c", "why": "failed"}]
    assert len(members) == 3


def test_a_shrunk_file_of_any_size_is_filled_up_in_pieces() -> None:
    writer = TarWriter()
    list(writer.add(entry(b"a", 1 << 60)))
    filling = writer.finish()
    assert all(len(next(filling)) == PIECE for _ in range(100))


def test_a_size_above_eight_gib_is_told_in_a_pax_record() -> None:
    head = b"".join(TarWriter().add(entry(b"big", 1 << 34)))
    assert b" size=17179869184\n" in head
    assert len(head) % 512 == 0


def test_endless_things_that_are_left_out_are_counted_and_the_first_are_named() -> None:
    _, _, note = read(tar_of(Left(b"%d" % n, "symlink") for n in range(MAX_NAMED + 500)))
    assert (len(note["left_out"]), note["left_out_count"]) == (MAX_NAMED, MAX_NAMED + 500)
    _, _, note = read(tar_of(Left(b"%d" % n + b"x" * 60_000, "symlink") for n in range(100)))
    assert (len(note["left_out"]) < 10, note["left_out_count"]) == (True, 100)


def test_gnu_tar_unpacks_hostile_names(tmp_path: Path) -> None:
    odd = [b"new\nline", b"caf\xff", "\u202ertl".encode(), b"n" * 255, b"-rf", b"d" * 200 + b"/" + b"\xfe" * 200]
    items: list[Item] = [Entry(b"d" * 200, "dir", 0, 0o755, 0.0)]
    for name in odd:
        items += [entry(name, 1, 0o640, 1e9), b"x"]
    command = ["tar", "--extract", "--file=-", f"--directory={tmp_path}", "--no-same-owner"]
    done = subprocess.run(command, input=tar_of(items), capture_output=True, check=False)
    # POSIX has that record for names that are not UTF-8; GNU tar takes their bytes as they are and says so.
    assert (
        done.returncode,
        done.stderr.replace(b"tar: Ignoring unknown extended header keyword 'hdrcharset'\n", b""),
    ) == (
        0,
        b"",
    )
    for name in odd:
        assert (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).read_bytes() == b"x"


@settings(deadline=None)
@given(paths, st.binary(max_size=300), st.integers(1, 40))
def test_items_are_found_however_the_bytes_are_cut(path: bytes, data: bytes, size: int) -> None:
    about = {"path": os.fsdecode(path), "kind": "file", "size_bytes": len(data), "mode": 0o644, "modified_at": 1.5}
    raw = item(protocol.ITEM_ENTRY, **about) + protocol.pack_item(protocol.ITEM_CONTENT, data)
    unpacker = Unpacker()
    found = [one for at in range(0, len(raw), size) for one in unpacker.feed(raw[at : at + size])]
    unpacker.finish()
    assert found == [Entry(path, "file", len(data), 0o644, 1.5), data]


GOOD: dict[str, Any] = {"path": "a", "kind": "file", "size_bytes": 1, "mode": 0o644, "modified_at": 0}


@pytest.mark.parametrize(
    "lie",
    [
        {"path": "/etc/passwd"}, {"path": "../x"}, {"path": "a/../../b"}, {"path": ""}, {"path": "."}, {"path": "a//b"},
        {"path": "a/"}, {"path": "a\0b"}, {"path": "x" * 70_000}, {"path": "\ud83d\ude00\ud83d"}, {"path": 1}, {"path": None},
        {"kind": "symlink"}, {"kind": "dir"}, {"size_bytes": -1}, {"size_bytes": 1 << 63}, {"size_bytes": True},
        {"size_bytes": "1"}, {"mode": 1 << 20}, {"modified_at": "now"}, {"modified_at": None},
    ],
)  # fmt: skip
def test_a_sandbox_that_lies_about_an_entry_gets_no_archive(lie: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        list(Unpacker().feed(item(protocol.ITEM_ENTRY, **{**GOOD, **lie})))


@pytest.mark.parametrize(
    "raw",
    [
        protocol.pack_item(9, b"{}"), protocol.pack_item(protocol.ITEM_ENTRY, b"[]"), protocol.pack_item(protocol.ITEM_LEFT, b""),
        protocol.ITEM_HEAD.pack(protocol.ITEM_CONTENT, 1 << 31), item(protocol.ITEM_LEFT, path="../x", why="symlink"),
    ],
)  # fmt: skip
def test_what_is_no_item_ends_the_archive(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Unpacker().feed(raw))


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def whole(pieces: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in pieces]


async def test_more_content_than_announced_and_half_an_item_cut_the_archive_off() -> None:
    head = item(protocol.ITEM_ENTRY, **GOOD)
    for raw in (head + protocol.pack_item(protocol.ITEM_CONTENT, b"xy"), head[:-1]):
        with pytest.raises(ProtocolError):
            await whole(archive(chunks(raw)))


async def test_an_archive_of_many_small_files_comes_in_small_pieces() -> None:
    raw = b"".join(item(protocol.ITEM_ENTRY, **{**GOOD, "path": str(n), "size_bytes": 0}) for n in range(2000))
    pieces = await whole(archive(chunks(raw)))
    assert max(map(len, pieces)) < PIECE + 2048
    assert len(read(b"".join(pieces))[0]) == 2000


def test_reasons_that_we_do_not_know_are_one_word() -> None:
    assert list(Unpacker().feed(item(protocol.ITEM_LEFT, path="a", why="\x1b[2J"))) == [Left(b"a", "failed")]
