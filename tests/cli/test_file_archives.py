"""Archives made to hurt: headers without end, numbers that lie, every stream cut anywhere; nothing lands outside."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.errors import CliError
from cli.landing import Landing, extract, place
from cli.tarstream import BLOCK, MAX_HEADER, MAX_PADDING, Broken, Reader, TarMember, members
from tests.cli.conftest import Cli
from tests.cli.fake import WS, Primer
from tests.cli.test_files import archive, directory, get, member, serve, serve_bytes

anything = st.text(max_size=40) | st.sampled_from(
    [
        "../x",
        "/abs",
        "a/../../b",
        "a//b",
        "./a",
        "a/",
        ".",
        "..",
        "a\0b",
        "C:x",
        "a\\b",
        "x" * 300,
        "d/" * 90,
        "\u202e",
        "a\nb",
    ]
)


@pytest.fixture(autouse=True)
def ready(primer: Primer, folder: Path) -> None:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}


def cut(raw: bytes, size: int) -> Iterator[bytes]:
    return (raw[at : at + size] for at in range(0, len(raw), size))


def read(raw: bytes, size: int = 1 << 20) -> list[tuple[str, str, bytes]]:
    found = []
    for one in members(Reader(cut(raw, size)), lambda count: None):
        found.append((one.name, one.kind, b"".join(one.pieces())))
    return found


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text("abc/é\n", min_size=1, max_size=260), st.binary(max_size=1300)), max_size=5),
    st.integers(1, 3000),
)
def test_what_python_packs_is_read_however_it_is_cut(files: list[tuple[str, bytes]], size: int) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for name, data in files:
                tar.addfile(member(name, data), io.BytesIO(data))
        with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
            expected = [(info.name.rstrip("/"), info.size) for info in tar]
        found = read(out.getvalue(), size)
        assert [(name.rstrip("/"), len(data)) for name, _, data in found] == expected
        assert [data for _, _, data in found] == [data for _, data in files]


@settings(deadline=None)
@given(st.binary(max_size=4000))
def test_noise_is_broken_or_nothing_and_never_another_error(raw: bytes) -> None:
    for noise in (raw, archive((member("a", b"A"), b"A")) + raw, raw + archive((member("a", b"A"), b"A"))):
        with contextlib.suppress(Broken):
            assert isinstance(read(noise), list)


@settings(deadline=None)
@given(st.integers(0, 2559), st.integers(0, 255))
def test_one_wrong_byte_is_broken_or_harmless(at: int, value: int) -> None:
    raw = bytearray(archive((member("x" * 120, b"content"), b"content")))
    raw[at] = value
    with tempfile.TemporaryDirectory() as place_, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place_)
        os.mkdir("in")
        with contextlib.suppress(CliError):
            extract(cut(bytes(raw), 700), "in/target", Landing())
        assert os.listdir(".") == ["in"]
        assert set(os.listdir("in")) <= {"target"}


@settings(deadline=None)
@given(st.lists(st.tuples(anything, st.sampled_from(["file", "dir", "link", "special"])), max_size=6), st.booleans())
def test_no_name_leads_out_of_the_target(entries: list[tuple[str, str]], force: bool) -> None:
    with tempfile.TemporaryDirectory() as room:
        target = Path(room, "a", "b", "target")
        target.mkdir(parents=True)
        Path(target, "inner").symlink_to("../..")
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", errors="surrogatepass") as tar:
            for name, kind in entries:
                what = {
                    "file": tarfile.REGTYPE,
                    "dir": tarfile.DIRTYPE,
                    "link": tarfile.SYMTYPE,
                    "special": tarfile.FIFOTYPE,
                }
                info = member(name.replace("\0", "0"), kind=what[kind], link="/etc")
                tar.addfile(info, io.BytesIO())
        extract(cut(raw.getvalue(), 999), str(target), Landing(force=force))
        outside = [path for path in Path(room).rglob("*") if target not in path.parents and path != target]
        assert sorted(path.name for path in outside) == ["a", "b"]
        assert [path for path in target.rglob("*") if path.is_symlink()] == [target / "inner"]


# headers


def header(kind: bytes, size: int, name: bytes = b"x") -> bytes:
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"0" * 11 + b"\0")
    block += b" " * 8 + kind + bytes(100) + b"ustar\x0000"
    block += bytes(BLOCK - len(block))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def endless(kind: bytes, size: int) -> Iterator[bytes]:
    while True:
        yield header(kind, size) + bytes(size + -size % BLOCK)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_of_a_gigabyte_is_refused_before_it_is_read(kind: bytes) -> None:
    def stream() -> Iterator[bytes]:
        yield header(kind, 1 << 30)
        raise AssertionError("read on")

    with pytest.raises(Broken, match="a header of 1073741824 bytes"):
        list(members(Reader(stream()), lambda count: None))


@pytest.mark.parametrize("kind", [b"x", b"g", b"L"])
def test_headers_without_end_meet_the_limit_of_bytes(kind: bytes) -> None:
    landing = Landing(max_bytes=10_000_000)
    tracemalloc.start()
    with pytest.raises(CliError, match="more than 10000000 bytes came"):
        extract(endless(kind, 100_000), "here", landing)
    assert tracemalloc.get_traced_memory()[1] < 8 * MAX_HEADER
    tracemalloc.stop()
    assert not Path("here").exists()


def test_members_without_end_meet_the_limit_of_members() -> None:
    landing = Landing(max_files=500)
    with pytest.raises(CliError, match="more than 500 files came"):
        extract(endless(b"2", 0), "here", landing)


def test_a_file_without_end_meets_the_limit_of_bytes_and_is_removed() -> None:
    def stream() -> Iterator[bytes]:
        yield header(b"0", 8**11 - 1)
        while True:
            yield bytes(100_000)

    with pytest.raises(CliError, match="more than 1000000 bytes came"):
        extract(stream(), "here", Landing(max_bytes=1_000_000))
    assert os.listdir("here") == []


@pytest.mark.parametrize(
    "records",
    [b"12 size=abc\n", b"11 size=-1\n", b"29 size=99999999999999999999\n", b"99 path=x\n", b"x path=x\n", b"9 path=xx", b" \n", b"0 a=b\n", b"8 nokey\n"],
)  # fmt: skip
def test_a_pax_record_that_lies_is_broken(cli: Cli, primer: Primer, records: bytes) -> None:
    raw = header(b"x", len(records)) + records.ljust(BLOCK, b"\0") + header(b"0", 0) + bytes(2 * BLOCK)
    serve_bytes(primer, raw)
    code, err = get(cli, "dir", "-O", "here")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: the archive is broken: ")
    assert not Path("here").exists()


def test_many_small_records_are_read_in_one_pass() -> None:
    records = b"6 a=b\n" * (MAX_HEADER // 6)
    raw = header(b"x", len(records)) + records + bytes(-len(records) % BLOCK) + header(b"0", 0) + bytes(BLOCK)
    assert [name for name, _, _ in read(raw)] == ["x"]


@pytest.mark.parametrize(
    ("field", "value"),
    [(slice(124, 136), b"\xff" * 12), (slice(124, 136), b"\x80" + b"\xff" * 11), (slice(124, 136), b"12x45678901\0"), (slice(148, 156), b"0000001\0")],
)  # fmt: skip
def test_a_number_that_is_none_is_broken(field: slice, value: bytes) -> None:
    block = bytearray(header(b"0", 0))
    block[field] = value
    if field.start != 148:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(Broken):
        read(bytes(block) + bytes(2 * BLOCK))


def test_a_gnu_number_is_read() -> None:
    block = bytearray(header(b"0", 0))
    block[124:136] = b"\x80" + (700).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert read(bytes(block) + b"x" * 700 + bytes(324 + 2 * BLOCK)) == [("x", "file", b"x" * 700)]


def test_a_sparse_file_and_a_device_with_a_size_are_passed_over_whole(cli: Cli, primer: Primer) -> None:
    good = archive((member("good", b"good"), b"good"))
    serve_bytes(primer, header(b"S", 600) + bytes(1024) + header(b"3", 600) + header(b"2", 600) + good)
    code, err = get(cli, "dir", "-O", "here")
    assert (code, Path("here/good").read_bytes()) == (1, b"good"), err
    assert err.count("skipped x") == 3


def test_an_archive_that_ends_early_is_broken_also_when_the_connection_says_it_is_whole(
    cli: Cli, primer: Primer
) -> None:
    whole = archive((member("a", b"A"), b"A"), (member("b", b"B"), b"B"))
    for kept in (700, 1024, 1024 + 512, 2048):
        serve_bytes(primer, whole[:kept])
        code, err = get(cli, "dir", "-O", f"here{kept}")
        assert (code, err.endswith("error: the archive is broken: it ends early\n")) == (1, True)
        assert [path for path in Path(f"here{kept}").iterdir() if path.name.startswith(".primectl")] == []


# what lies there already


def test_the_same_name_twice_is_written_once(cli: Cli, primer: Primer) -> None:
    serve(primer, (member("a", b"1"), b"1"), (member("./a", b"2"), b"2"), (member("a", kind=tarfile.DIRTYPE), b""))
    code, err = get(cli, "dir", "-O", "here")
    assert (code, Path("here/a").read_bytes()) == (1, b"1")
    assert err.count("skipped") == 2


def test_a_link_that_appears_meanwhile_is_not_followed(tmp_path: Path) -> None:
    """Between two members somebody on this machine puts a link where the first one made a directory."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def stream() -> Iterator[TarMember]:
        from cli.landing import Member

        yield Member("d", "dir", lambda: [])  # type: ignore[misc]
        os.rmdir("here/d")
        os.symlink(outside, "here/d")
        yield Member("d/x", "file", lambda: [b"x"])  # type: ignore[misc]

    landing = Landing(force=True)
    place(stream(), "here", landing)  # type: ignore[arg-type]
    assert list(outside.iterdir()) == []
    assert len(landing.skipped) == 1


def test_force_replaces_files_and_neither_links_nor_directories(cli: Cli, primer: Primer, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path("here/dir").mkdir(parents=True)
    Path("here/file").write_text("old")
    Path("here/link").symlink_to(victim)
    Path("here/hard").hardlink_to(victim)
    serve(primer, *[(member(name, b"new"), b"new") for name in ("file", "dir", "link", "hard")])
    assert get(cli, "dir", "-O", "here", "--force")[0] == 1
    assert (Path("here/file").read_text(), Path("here/hard").read_text(), victim.read_text()) == ("new", "new", "mine")
    assert Path("here/dir").is_dir()
    assert Path("here/link").is_symlink()


def test_the_note_of_a_directory_that_is_not_the_last_is_no_note(cli: Cli, primer: Primer) -> None:
    serve(primer, (directory("sub", '{"left_out_count": 9}'), b""), (member("sub/a", b"A"), b"A"))
    assert get(cli, "dir", "-O", "here") == (0, "saved here (2 entries)\n")


# what is made and read for what is left out


def test_directories_that_only_a_path_names_count_as_members() -> None:
    deep = "/".join(["d"] * 200)
    with pytest.raises(CliError, match="more than 10 files came"):
        extract(cut(archive((member(f"{deep}/file", b"x"), b"x")), 999), "here", Landing(max_files=10))
    assert len(list(Path("here").rglob("*"))) == 9, "the member itself is one of the ten"


def test_a_tree_as_large_as_the_limit_fits_with_its_directories_named_or_not() -> None:
    named = [(directory("a"), b""), (directory("a/b"), b""), (member("a/b/file", b"x"), b"x")]
    for number, entries in enumerate((named, named[2:])):
        landing = Landing(max_files=3)
        extract(cut(archive(*entries), 999), f"here{number}", landing)
        assert Path(f"here{number}/a/b/file").read_bytes() == b"x"
        assert landing.files == 3


@pytest.mark.parametrize("name", ["d/" * 20_000, "d/" * 257 + "x", "/".join(["n" * 200] * 25)])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_a_path_that_is_too_long_is_left_out_by_a_short_name(name: str, kind: bytes) -> None:
    landing = Landing()
    extract(cut(archive((member(name, kind=kind), b""), (member("good", b"g"), b"g")), 999), "here", landing)
    assert os.listdir("here") == ["good"]
    assert [line.endswith(": its path is too long") and len(line) < 5000 for line in landing.skipped] == [True]


@pytest.mark.parametrize(("kind", "name"), [(b"0", b"../evil"), (b"0", b"/abs"), (b"S", b"sparse"), (b"9", b"odd")])
def test_the_content_of_what_is_left_out_meets_the_limit_before_it_is_read(kind: bytes, name: bytes) -> None:
    def stream() -> Iterator[bytes]:
        yield header(kind, 8**11 - 1, name)
        raise AssertionError("read on")

    with pytest.raises(CliError, match="more than 1000000 bytes came"):
        extract(stream(), "here", Landing(max_bytes=1_000_000))


def test_the_contents_of_many_that_are_left_out_add_up() -> None:
    with pytest.raises(CliError, match="more than 1000000 bytes came"):
        extract(endless_evil(), "here", Landing(max_bytes=1_000_000))
    landing = Landing(max_bytes=30)
    entries = [(member("../evil", b"x" * 10), b"x" * 10), (member("good", b"y" * 20), b"y" * 20)]
    extract(cut(archive(*entries), 999), "there", landing)
    assert (landing.written, os.listdir("there")) == (30, ["good"])


def endless_evil() -> Iterator[bytes]:
    while True:
        yield header(b"0", 100_000, b"../evil") + bytes(100_000 + -100_000 % BLOCK)


def test_the_rest_of_a_file_that_could_not_be_written_counts() -> None:
    Path("here/file").mkdir(parents=True)
    with pytest.raises(CliError, match="more than 1000 bytes came"):
        extract(cut(archive((member("file", b"x" * 2000), b"x" * 2000)), 999), "here", Landing(max_bytes=1000))


def test_what_follows_the_end_is_read_for_a_few_blocks_only() -> None:
    taken = 0

    def stream() -> Iterator[bytes]:
        nonlocal taken
        yield archive((member("a", b"A"), b"A"))
        while True:
            taken += BLOCK
            assert taken <= 2 * MAX_PADDING, "it reads on"
            yield bytes(BLOCK)

    extract(stream(), "here", Landing())
    assert Path("here/a").read_bytes() == b"A"
    assert taken > 0
