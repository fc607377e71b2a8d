"""`primectl cp`: both directions, trees, pipes; what stays on either side, and what is said of it."""

from __future__ import annotations

import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cli.errors import CliError
from cli.upload import body_of
from tests.cli.conftest import Cli, Result
from tests.cli.fake import WS, Answer, Primer, Request, problem
from tests.cli.test_files import DOWNLOAD, archive, directory, member, serve
from tests.eventually import eventually

FILES = f"/v1/workspaces/{WS}/files"


@pytest.fixture(autouse=True)
def ready(primer: Primer, folder: Path) -> Primer:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    primer.files = {"out.txt": b"42", "dir/deep.txt": b"deep"}
    primer.on("GET", FILES, lambda request: directories(primer, request))
    return primer


def directories(primer: Primer, request: Request) -> Answer:
    """A list, which only directories have: those of the files, and `there`."""
    path = request.query.get("path", [""])[0]
    known = {"", "there", *(name.rpartition("/")[0] for name in primer.files)}
    return Answer(200, {"items": [], "next_cursor": None}) if path in known else problem(404, "not_found")


def cp(cli: Cli, *argv: str, **settings: Any) -> Result:
    return cli("cp", *argv, **settings)


def modes(primer: Primer) -> dict[str, str]:
    return {r.query["path"][0]: r.query["mode"][0] for r in primer.sent("PUT", FILES)}


# what is refused before anything is asked


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["a", "b"], "neither is in a workspace"),
        ([f"{WS}:a", f"{WS}:b"], "both are in workspaces"),
        (["./ws-1a2b:a", "b"], "neither is in a workspace"),
        (["-", "-"], "neither is in a workspace"),
        (["nope", f"{WS}:b"], "nope: no such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, primer: Primer, argv: list[str], words: str) -> None:
    result = cp(cli, *argv)
    assert (result.code, words in result.err) == (2, True), result.err
    assert primer.sent("PUT", FILES) == primer.sent("GET", DOWNLOAD) == []


def test_a_workspace_that_is_not_there_is_exit_3(cli: Cli, primer: Primer) -> None:
    assert cp(cli, "ws-ffff:out.txt", "x").code == 3
    primer.store["workspaces"].clear()
    assert cp(cli, f"{WS}:out.txt", "x").code == 3
    assert not Path("x").exists()


# down


@pytest.mark.parametrize("name", [WS, "ws-1a2b", f"workspace/{WS}", f"ws/{WS}"])
def test_a_file_is_saved_under_the_name_that_is_given(cli: Cli, name: str) -> None:
    result = cp(cli, f"{name}:out.txt", "here.txt")
    assert (result.code, result.out, result.err) == (0, b"", "saved here.txt (2 bytes)\n")
    assert Path("here.txt").read_bytes() == b"42"


def test_a_file_goes_into_a_directory_that_is_there(cli: Cli) -> None:
    os.mkdir("d")
    assert cp(cli, f"{WS}:dir/deep.txt", "d").code == 0
    assert Path("d/deep.txt").read_bytes() == b"deep"
    assert cp(cli, f"{WS}:dir/deep.txt", "nowhere/").code == 2
    assert not Path("nowhere").exists()


def test_what_is_there_needs_force_and_a_link_is_never_written_through(cli: Cli, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path("file").write_text("mine")
    Path("link").symlink_to(victim)
    assert cp(cli, f"{WS}:out.txt", "file").code == 2
    assert Path("file").read_text() == "mine"
    assert cp(cli, f"{WS}:out.txt", "file", "--force").code == 0
    assert cp(cli, f"{WS}:out.txt", "link", "--force").code == 2
    assert (Path("file").read_text(), victim.read_text()) == ("42", "mine")


def test_what_to_do_about_a_place_that_is_taken_is_something_that_cp_can_do(cli: Cli, primer: Primer) -> None:
    Path("file").write_text("mine")
    os.makedirs("d/out.txt")
    primer.files["a\nb"] = b"x"
    hints = [
        cp(cli, f"{WS}:{path}", target).err.splitlines()[1]
        for path, target in (("out.txt", "file"), ("out.txt", "d"), ("a\nb", "d"))
    ]
    assert hints == [
        "hint: replace it with --force, or choose another DST",
        "hint: give a file name with another DST",
        "hint: say where to with another DST",
    ]


def test_a_hostile_name_is_not_taken_into_a_directory(cli: Cli, primer: Primer) -> None:
    os.mkdir("d")
    primer.files["a\x1b[2J"] = b"x"
    assert cp(cli, f"{WS}:a\x1b[2J", "d").code == 2
    assert os.listdir("d") == []


def test_a_tree_becomes_the_directory_that_is_named_or_goes_into_one(cli: Cli, primer: Primer) -> None:
    tool = member("sub/tool", b"#!", mode=0o755)
    serve(primer, (directory("sub"), b""), (tool, b"#!"), (member("a", b"A"), b"A"), (directory("./", "{}"), b""))
    assert cp(cli, f"{WS}:dir", "new").err == "saved new (3 entries)\n"
    os.mkdir("old")
    assert cp(cli, f"{WS}:dir/", "old").err == "saved old/dir (3 entries)\n"
    assert cp(cli, f"{WS}:dir/.", "old").err == "saved old (3 entries)\n"
    assert cp(cli, f"{WS}:", "all").err == "saved all (3 entries)\n"
    assert cp(cli, f"{WS}:.", "old", "--force").err == "saved old (3 entries)\n"
    for place in ("new", "old/dir", "old", "all"):
        assert (Path(place, "a").read_bytes(), Path(place, "sub/tool").stat().st_mode & 0o777) == (b"A", 0o755)
    assert [r.query["path"][0] for r in primer.sent("GET", DOWNLOAD)] == ["dir", "dir", "dir", ".", "."]


def test_what_is_left_out_of_a_tree_is_exit_1_unless_it_is_special_and_that_is_fine(cli: Cli, primer: Primer) -> None:
    serve(primer, (member("l", kind=tarfile.SYMTYPE, link="/etc"), b""), (member("../up", b"x"), b"x"))
    result = cp(cli, f"{WS}:dir", "here")
    assert (result.code, result.err.splitlines()[:2]) == (
        1,
        ["skipped l: a link", "skipped ../up: its path leads outside"],
    )
    assert cp(cli, f"{WS}:dir", "there", "--skip-special").code == 0
    assert list(Path().rglob("up")) == []


def test_limits_hold(cli: Cli, primer: Primer) -> None:
    serve(primer, *[(member(f"f{n}", b"x" * 1000), b"x" * 1000) for n in range(5)])
    for limit in (["--max-files", "3"], ["--max-bytes", "3500"]):
        result = cp(cli, f"{WS}:dir", f"here{limit[1]}", *limit)
        assert (result.code, len(os.listdir(f"here{limit[1]}"))) == (1, 3), result.err


def test_a_file_is_printed_and_a_directory_comes_as_its_archive(cli: Cli, primer: Primer) -> None:
    assert cp(cli, f"{WS}:out.txt", "-").out == b"42"
    whole = archive((member("a", b"A"), b"A"))
    primer.on("GET", DOWNLOAD, Answer(200, whole, {"Content-Type": "application/x-tar"}))
    assert cp(cli, f"{WS}:dir", "-").out == whole
    refused = cp(cli, f"{WS}:dir", "-", out_tty=True)
    assert (refused.code, refused.out) == (2, b"")


def test_hostile_bytes_are_inert_on_a_terminal(cli: Cli, primer: Primer) -> None:
    primer.files["x"] = b"\x1b]0;owned\x07"
    assert b"\x1b" not in cp(cli, f"{WS}:x", "-", out_tty=True).out
    assert b"\x1b" in cp(cli, f"{WS}:x", "-", "--raw", out_tty=True).out


# up


def test_a_file_goes_up_with_its_execute_bit(cli: Cli, primer: Primer) -> None:
    Path("tool").write_bytes(b"#!\x00")
    Path("tool").chmod(0o4711)
    Path("data").write_bytes(b"")
    assert cp(cli, "tool", f"{WS}:bin/t").text == f"{WS}:bin/t written (3 bytes)\n"
    assert cp(cli, "data", f"{WS}:").text == f"{WS}:data written (0 bytes)\n"
    assert cp(cli, "data", f"{WS}:there").text == f"{WS}:there/data written (0 bytes)\n"
    assert cp(cli, "data", f"{WS}:new/").text == f"{WS}:new/data written (0 bytes)\n"
    assert modes(primer) == {"bin/t": "0755", "data": "0644", "there/data": "0644", "new/data": "0644"}
    assert primer.files["bin/t"] == b"#!\x00"


def test_standard_input_goes_up_as_one_file(cli: Cli, primer: Primer) -> None:
    data = bytes(range(256)) * 5000
    assert cp(cli, "-", f"{WS}:in", stdin=data).text == f"{WS}:in written (1 280 000 bytes)\n"
    assert primer.files["in"] == data


def test_a_large_file_is_sent_from_the_disk_with_its_length(cli: Cli, primer: Primer) -> None:
    with open("big", "wb") as file:
        file.truncate(30_000_000)
    assert cp(cli, "big", f"{WS}:big").code == 0
    [sent] = primer.sent("PUT", FILES)
    assert (sent.headers["content-length"], "transfer-encoding" in sent.headers) == ("30000000", False)


def test_an_attempt_that_is_repeated_sends_the_file_from_its_start(cli: Cli, primer: Primer) -> None:
    answers = iter([problem(503, "engine_unavailable"), Answer(204, None, {"ETag": '"x"'})])
    primer.on("PUT", FILES, lambda request: next(answers))
    Path("data").write_bytes(b"x" * 100_000)
    assert cp(cli, "data", f"{WS}:data").code == 0
    assert [len(request.body) for request in primer.sent("PUT", FILES)] == [100_000, 100_000]


@pytest.fixture
def tree() -> Path:
    """A tree with everything in it that a tree may hold."""
    Path("t/sub/deep").mkdir(parents=True)
    Path("t/empty").mkdir()
    Path("t/a").write_text("A")
    Path("t/sub/tool").write_text("#!")
    Path("t/sub/tool").chmod(0o755)
    Path("t/sub/deep/c").write_text("C")
    Path("t/link").symlink_to("sub/tool")
    Path("t/dirlink").symlink_to("sub")
    Path("t/out").symlink_to("/etc/hostname")
    Path("t/up").symlink_to("..")
    Path("t/loop").symlink_to("loop")
    os.mkfifo("t/fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("t/sock")
    return Path("t")


PLAIN = {"a": b"A", "sub/tool": b"#!", "sub/deep/c": b"C"}


@pytest.mark.usefixtures("tree")
def test_a_tree_goes_up_without_its_links_and_devices(cli: Cli, primer: Primer) -> None:
    primer.files.clear()
    result = cp(cli, "t", f"{WS}:new")
    assert (result.code, result.text) == (1, f"{WS}:new written (4 entries, 4 bytes)\n")
    assert primer.files == {f"new/{name}": data for name, data in PLAIN.items()}
    assert modes(primer)["new/sub/tool"] == "0755"
    assert [r.json["path"] for r in primer.sent("POST", f"{FILES}/dir")] == ["new/empty"]
    assert sorted(result.err.splitlines()) == sorted(
        [*[f"skipped {name}: a link" for name in ("dirlink", "link", "loop", "out", "up")],
         "skipped fifo: not a regular file", "skipped sock: not a regular file"],
    )  # fmt: skip
    assert cp(cli, "t", f"{WS}:new", "--skip-special").code == 0


@pytest.mark.usefixtures("tree")
def test_only_links_to_files_of_the_same_tree_are_followed_and_only_when_asked(cli: Cli, primer: Primer) -> None:
    result = cp(cli, "t", f"{WS}:new", "--follow")
    assert result.code == 1
    assert primer.files["new/link"] == b"#!"
    assert {name for name in primer.files if name.startswith("new/")} == {f"new/{n}" for n in (*PLAIN, "link")}
    assert "skipped out: a link that leads out of the tree\n" in result.err
    assert "skipped up: a link that leads out of the tree\n" in result.err
    assert "skipped dirlink: a link to something that is not a file\n" in result.err
    assert "skipped loop: " in result.err
    assert (
        cp(cli, "t", f"{WS}:new", "--follow", "--skip-special").code == 1
    )  # the loop is neither link nor device to us


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    ("source", "target", "where"),
    [
        ("t", "", "t/"),
        ("t/", "there", "there/t/"),
        ("t/.", "there", "there/"),
        ("t/sub/..", ".", ""),
        ("t", "x/", "x/t/"),
    ],
)
def test_a_tree_goes_where_cp_would_put_it(cli: Cli, primer: Primer, source: str, target: str, where: str) -> None:
    primer.files.clear()
    cp(cli, source, f"{WS}:{target}")
    assert primer.files == {where + name: data for name, data in PLAIN.items()}


def test_a_file_that_may_not_be_read_is_named_and_the_rest_goes_up(
    cli: Cli, primer: Primer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t").mkdir()
    Path("t/a").write_text("A")
    Path("t/secret").write_text("s")
    real = os.open

    def refusing(path: object, *args: object, **kwargs: object) -> int:
        if path == "secret":  # tests may run as root, whom no mode keeps out
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    result = cp(cli, "t", f"{WS}:new", "--skip-special")
    assert (result.code, result.err) == (1, "skipped secret: permission denied\n")
    assert primer.files["new/a"] == b"A"


def test_a_tree_that_stops_in_the_middle_says_what_is_there(cli: Cli, primer: Primer) -> None:
    Path("t").mkdir()
    for name in "abc":
        Path("t", name).write_text(name)
    put = {"new/b": problem(507, "disk_full", "The disk of the workspace is full.")}
    primer.on("PUT", FILES, lambda request: put.get(request.query["path"][0], Answer(204, None, {"ETag": '"x"'})))
    result = cp(cli, "t", f"{WS}:new")
    assert (result.code, result.out) == (1, b"")
    assert result.err == (
        f"warning: {WS}:new is not complete: 1 entry arrived\nerror: The disk of the workspace is full.\n"
    )


def test_a_deep_tree_goes_up_without_holding_it_open(cli: Cli, primer: Primer) -> None:
    deep = Path("t", *["d"] * 200)
    deep.mkdir(parents=True)
    Path(deep, "f").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    assert cp(cli, "t", f"{WS}:n").code == 0
    assert primer.files["/".join(["n", *["d"] * 200, "f"])] == b"x"
    # The fake server of this process closes its end of the connections in its own time.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_directory_that_becomes_a_link_while_it_is_sent_leads_nowhere(
    cli: Cli, primer: Primer, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret")
    Path("t/b").mkdir(parents=True)
    Path("t/b/x").write_text("mine")
    Path("t/a").write_text("A")

    def swapped(request: Request) -> Answer:
        if not Path("t/b").is_symlink():
            os.rename("t/b", "gone")
            os.symlink(outside, "t/b")
        primer.files[request.query["path"][0]] = request.body
        return Answer(204, None, {"ETag": '"x"'})

    primer.on("PUT", FILES, swapped)
    result = cp(cli, "t", f"{WS}:n")
    assert result.code == 1
    assert b"secret" not in primer.files.values()


def test_a_file_that_shrinks_while_it_is_sent_is_not_sent_as_a_shorter_one() -> None:
    Path("data").write_bytes(b"x" * 1_000_000)
    body = body_of("data")
    assert len(body.read(1000)) == 1000
    os.truncate("data", 1000)
    with pytest.raises(CliError, match="became shorter while it was sent"):
        body.read(500_000)
    body.close()


def test_a_file_that_grows_while_it_is_sent_keeps_its_announced_length() -> None:
    Path("data").write_bytes(b"x" * 1000)
    body = body_of("data")
    with open("data", "ab") as file:
        file.write(b"y" * 1000)
    assert (len(body), body.read(), body.read()) == (1000, b"x" * 1000, b"")
    body.rewind()
    assert body.read(10) == b"x" * 10
    body.close()


def test_devices_and_pipes_are_no_files_and_block_nobody(cli: Cli, primer: Primer) -> None:
    os.mkfifo("pipe")
    for name in ("pipe", "/dev/zero"):
        result = cp(cli, name, f"{WS}:x")
        assert (result.code, result.err) == (2, f"error: {name}: not a regular file\n")
    assert primer.sent("PUT", FILES) == []
