"""What lands on the caller's disk: names and archives out of a sandbox are hostile."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer

DOWNLOAD = f"/v1/workspaces/{WS}/files/download"


@pytest.fixture(autouse=True)
def ready(primer: Primer, folder: Path) -> Primer:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.files = {"out.txt": b"42", "dir/deep.txt": b"deep"}
    return primer


def get(cli: Cli, *argv: str, **settings: Any) -> tuple[int, str]:
    result = cli("workspace", "files", "get", WS, *argv, **settings)
    return result.code, result.err


def test_get_saves_the_file_under_its_name_and_says_so(cli: Cli) -> None:
    assert get(cli, "out.txt") == (0, "saved ./out.txt (2 bytes)\n")
    assert Path("out.txt").read_bytes() == b"42"
    assert Path("out.txt").stat().st_mode & 0o777 == 0o644
    assert get(cli, "dir/deep.txt") == (0, "saved ./deep.txt (4 bytes)\n")


def test_a_file_that_is_there_needs_force(cli: Cli) -> None:
    Path("out.txt").write_text("mine")
    code, err = get(cli, "out.txt")
    assert code == 2
    assert err.startswith("error: ./out.txt exists\n")
    assert Path("out.txt").read_text() == "mine"
    assert get(cli, "out.txt", "--force")[0] == 0
    assert Path("out.txt").read_bytes() == b"42"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_link_that_is_there_is_never_written_through(cli: Cli, tmp_path: Path, force: list[str]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path("out.txt").symlink_to(victim)
    assert get(cli, "out.txt", *force)[0] == 2
    assert victim.read_text() == "mine"
    assert Path("out.txt").is_symlink()


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "x\u202egnp", "a\\b", "C:evil", "..", "."])
def test_a_hostile_name_needs_a_name_of_the_callers(cli: Cli, primer: Primer, name: str) -> None:
    primer.files[name] = b"x"
    before = sorted(os.listdir())
    code, err = get(cli, name)
    assert code == 2
    assert "-O FILE" in err
    assert sorted(os.listdir()) == before
    assert get(cli, name, "-O", "safe.txt")[0] == 0
    assert Path("safe.txt").read_bytes() == b"x"


def test_a_download_that_breaks_off_leaves_no_file(cli: Cli, primer: Primer) -> None:
    headers = {"Content-Type": "application/octet-stream", "Content-Length": "99"}
    primer.on("GET", DOWNLOAD, Answer(200, b"half", headers, cut=True))
    before = sorted(os.listdir())
    assert get(cli, "out.txt")[0] == 6
    assert sorted(os.listdir()) == before


def test_a_download_above_the_limit_is_stopped_and_leaves_no_file(cli: Cli, primer: Primer) -> None:
    primer.files["big"] = b"x" * 100_000
    before = sorted(os.listdir())
    assert get(cli, "big", "--max-bytes", "1000")[0] == 1
    assert sorted(os.listdir()) == before


def test_o_dash_and_content_print(cli: Cli) -> None:
    assert cli("workspace", "files", "get", WS, "out.txt", "-O", "-").out == b"42"
    assert cli("workspace", "files", "cat", WS, "out.txt", "dir/deep.txt").out == b"42deep"


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data)
    info.uid = info.gid = 0
    return info


def directory(name: str, note: str = "") -> tarfile.TarInfo:
    info = member(name, kind=tarfile.DIRTYPE, mode=0o755)
    info.pax_headers = {"comment": note} if note else {}
    return info


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def serve(primer: Primer, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    primer.on("GET", DOWNLOAD, Answer(200, archive(*members), {"Content-Type": "application/x-tar"}))


def serve_bytes(primer: Primer, raw: bytes) -> None:
    primer.on("GET", DOWNLOAD, Answer(200, raw, {"Content-Type": "application/x-tar"}))


def test_a_directory_needs_a_place(cli: Cli, primer: Primer) -> None:
    serve(primer, (member("a", b"x"), b"x"))
    code, err = get(cli, "dir")
    assert (code, err) == (2, "error: dir is a directory\nhint: say where to: -O ./dir\n")


def test_a_directory_is_unpacked_with_plain_modes(cli: Cli, primer: Primer) -> None:
    tool = member("sub/tool", b"#!", mode=0o6755)
    serve(
        primer, (member("sub", kind=tarfile.DIRTYPE), b""), (tool, b"#!"), (member("./a.txt", b"A", mode=0o666), b"A")
    )
    assert get(cli, "dir", "-O", "here")[0] == 0
    assert Path("here/sub/tool").stat().st_mode & 0o7777 == 0o755
    assert Path("here/a.txt").stat().st_mode & 0o7777 == 0o644
    assert Path("here/a.txt").read_bytes() == b"A"


HOSTILE = [
    member("/etc/evil", b"x"),
    member("../evil", b"x"),
    member("a/../../evil", b"x"),
    member("evil\\x", b"x"),
    member("C:evil", b"x"),
    member("evil\x1b[2J", b"x"),
    member("evil\u202e", b"x"),
    member("evil", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    member("evil", kind=tarfile.LNKTYPE, link="good"),
    member("evil", kind=tarfile.FIFOTYPE),
    member("evil", kind=tarfile.CHRTYPE),
    member("evil", kind=tarfile.BLKTYPE),
]


@pytest.mark.parametrize("info", HOSTILE, ids=lambda info: f"{info.name!r} {info.type!r}")
def test_a_hostile_member_is_skipped_by_name_and_the_rest_arrives(
    cli: Cli, primer: Primer, info: tarfile.TarInfo
) -> None:
    serve(primer, (info, b"x" * info.size), (member("good", b"good"), b"good"))
    code, err = get(cli, "dir", "-O", "here")
    assert code == 1
    assert err.startswith("skipped ")
    assert "\x1b" not in err
    assert [str(p) for p in Path().rglob("*") if "evil" in p.name] == []
    assert Path("here/good").read_bytes() == b"good"


def test_skip_special_makes_skipping_no_failure(cli: Cli, primer: Primer) -> None:
    serve(primer, (HOSTILE[7], b""))
    assert get(cli, "dir", "-O", "here", "--skip-special")[0] == 0


def test_a_local_link_on_the_way_is_not_followed(cli: Cli, primer: Primer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Path("here").mkdir()
    Path("here/sub").symlink_to(outside)
    serve(primer, (member("sub/x", b"x"), b"x"))
    assert get(cli, "dir", "-O", "here", "--force")[0] == 1
    assert list(outside.iterdir()) == []


def test_too_many_members_are_stopped(cli: Cli, primer: Primer) -> None:
    serve(primer, *[(member(f"f{n}"), b"") for n in range(5)])
    code, err = get(cli, "dir", "-O", "here", "--max-files", "3")
    assert code == 1
    assert "more than 3 files came" in err


def test_a_broken_archive_is_one_line(cli: Cli, primer: Primer) -> None:
    primer.on("GET", DOWNLOAD, Answer(200, b"\x01" * 3000, {"Content-Type": "application/x-tar"}))
    code, err = get(cli, "dir", "-O", "here")
    assert code == 1
    assert err.startswith("error: the archive is broken: ")


def test_ls_marks_names_so_that_none_forges_a_line(cli: Cli, primer: Primer) -> None:
    primer.files = {"a\nb  file  0 B": b"", "\x1b[2J": b"", "日本.txt": b"x" * 2048}
    out = cli("workspace", "files", "ls", WS).text
    assert primer.requests[-1].query["limit"] == ["1000"]  # each page reads the directory from its start
    assert len(out.splitlines()) == 4
    assert "a\\nb  file  0 B" in out
    assert "\\x1b[2J" in out
    assert "日本.txt" in out
    assert "2 KiB" in out


def test_put_rm_mkdir_and_mv_say_what_they_did(cli: Cli, primer: Primer) -> None:
    def files(*argv: str, stdin: bytes = b"") -> str:
        return cli("workspace", "files", *argv, stdin=stdin).text

    Path("local.bin").write_bytes(b"\x00\xff")
    assert files("put", WS, "a.bin", "-f", "local.bin") == f"{WS}:a.bin written (2 bytes)\n"
    assert files("put", WS, "b.txt", "--content", "hello") == f"{WS}:b.txt written (5 bytes)\n"
    assert files("put", WS, "c.txt", "-f", "-", "--mode", "0755", stdin=b"x") == f"{WS}:c.txt written (1 byte)\n"
    assert (primer.files["a.bin"], primer.files["b.txt"], primer.files["c.txt"]) == (b"\x00\xff", b"hello", b"x")
    assert files("rm", WS, "b.txt") == f"{WS}:b.txt deleted\n"
    assert files("mkdir", WS, "d") == f"{WS}:d created\n"
    assert files("mv", WS, "a.bin", "d/a.bin") == f"{WS}:d/a.bin written\n"


def test_put_does_not_replace_with_no_clobber(cli: Cli, primer: Primer) -> None:
    result = cli("workspace", "files", "put", WS, "out.txt", "--content", "x", "--no-clobber")
    assert (result.code, primer.files["out.txt"]) == (5, b"42")


def test_a_file_of_a_workspace_that_is_gone_names_the_workspace(cli: Cli, primer: Primer) -> None:
    primer.store["workspaces"].clear()
    assert get(cli, "out.txt") == (3, f"error: workspace {WS} not found\n(request id 7f3a9c12)\n")
