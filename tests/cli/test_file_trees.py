"""Directories with something unreadable in them, and names that are no text: nothing is lost in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, Request, problem
from tests.cli.test_files import archive, directory, member, serve

FILES = f"/v1/workspaces/{WS}/files"
DENIED = problem(403, "permission", "The sandbox's own user is not allowed to do this.")


def entry(path: str, kind: str = "file") -> dict[str, Any]:
    return {"path": path, "name": path.rpartition("/")[2], "kind": kind, "mode": "0644", "size_bytes": 1}


class Tree:
    """A workspace in which `closed` paths may not be read; a recursive list passes over closed directories."""

    def __init__(self, items: list[dict[str, Any]], closed: set[str]) -> None:
        self.items, self.closed = items, closed

    def listing(self, request: Request) -> Answer:
        path = request.query.get("path", [""])[0].rstrip("/").removeprefix(".")
        if path in self.closed:
            return DENIED
        if path and {i["path"]: i["kind"] for i in self.items}.get(path) != "dir":
            return problem(404, "not_found")
        below = [i for i in self.items if i["path"].startswith(f"{path}/") or not path]
        return Answer(200, {"items": below, "next_cursor": None})

    def download(self, request: Request) -> Answer:
        path = request.query["path"][0]
        if path not in {i["path"] for i in self.items}:
            return problem(404, "not_found")
        return DENIED if path in self.closed else Answer(200, b"x", {"Content-Type": "application/octet-stream"})


@pytest.fixture(autouse=True)
def tree(primer: Primer, folder: Path) -> Tree:
    primer.store["workspaces"][WS] = {"id": WS, "phase": "running"}
    items = [
        entry("res", "dir"),
        entry("res/empty", "dir"),
        entry("res/key"),
        entry("res/secret", "dir"),
        entry("res/sub", "dir"),
        entry("res/sub/a"),
    ]
    found = Tree(items, {"res/secret", "res/key"})
    primer.on("GET", FILES, found.listing)
    primer.on("GET", f"{FILES}/download", found.download)
    return found


def files(cli: Cli, *argv: str) -> tuple[int, str]:
    result = cli("workspace", "files", *argv)
    return result.code, result.err


# what a server says that it left out


def noted(
    primer: Primer, *left: tuple[str, str], count: int | None = None, names: tuple[str, ...] = ("a", "b")
) -> None:
    """An archive of some files whose last member names what is not in it."""
    note = {"left_out": [{"path": path, "why": why} for path, why in left], "left_out_count": count or len(left)}
    serve(primer, *[(member(name, b"new"), b"new") for name in names], (directory("./", json.dumps(note)), b""))


def test_what_could_not_be_read_is_named_and_the_rest_arrives(cli: Cli, primer: Primer) -> None:
    noted(primer, ("key", "unreadable"), ("sub/gone", "vanished"), ("x\x1b[2J", "odd"))
    assert files(cli, "get", WS, "res", "-O", "here") == (
        1,
        "skipped key: not readable\nskipped sub/gone: went away meanwhile\nskipped x\\x1b[2J: cannot be read\n"
        "saved here (2 entries)\n",
    )
    assert sorted(os.listdir("here")) == ["a", "b"]


@pytest.mark.parametrize(
    ("why", "code"), [("symlink", 0), ("other", 0), ("unreadable", 1), ("moved", 1), ("changed", 1)]
)
def test_skip_special_covers_links_and_devices_and_nothing_else(cli: Cli, primer: Primer, why: str, code: int) -> None:
    noted(primer, ("x", why))
    assert files(cli, "get", WS, "res", "-O", "here", "--skip-special")[0] == code
    assert files(cli, "get", WS, "res", "-O", "there")[0] == 1


def test_what_is_only_counted_is_said_too(cli: Cli, primer: Primer) -> None:
    noted(primer, ("x", "symlink"), count=5001)
    code, err = files(cli, "get", WS, "res", "-O", "here", "--skip-special")
    assert (code, "skipped 5000 more\n" in err) == (1, True)


def test_a_file_that_was_cut_short_is_removed_and_one_that_was_written_to_stays(cli: Cli, primer: Primer) -> None:
    noted(primer, ("a", "shrunk"), ("b", "changed"))
    assert files(cli, "get", WS, "res", "-O", "here") == (
        1,
        "skipped a: became shorter while it was read\nchanged b: it was written to while it was read\n"
        "saved here (1 entry)\n",
    )
    assert os.listdir("here") == ["b"]


@pytest.mark.parametrize("path", ["mine", "../mine", "sub/mine", "/etc/mine", "a/../mine"])
def test_a_server_cannot_have_a_file_removed_that_it_did_not_send(cli: Cli, primer: Primer, path: str) -> None:
    Path("here/sub").mkdir(parents=True)
    for place in ("mine", "here/mine", "here/sub/mine"):
        Path(place).write_text("mine")
    noted(primer, (path, "shrunk"))
    assert files(cli, "get", WS, "res", "-O", "here")[0] == 1
    assert [Path(place).read_text() for place in ("mine", "here/mine", "here/sub/mine")] == ["mine"] * 3


@pytest.mark.parametrize(
    "note", ["{", "[]", "[" * 100_000, '{"left_out": 1}', '{"left_out": [1, {}]}', '{"left_out_count": "x"}', "\x1b[2J"]
)
def test_a_note_that_is_none_breaks_nothing(cli: Cli, primer: Primer, note: str) -> None:
    serve(primer, (member("a", b"A"), b"A"), (directory(".", note), b""))
    code, err = files(cli, "get", WS, "res", "-O", "here")
    assert (code, Path("here/a").read_text()) == (int("{}" in note), "A"), err


def test_a_directory_that_may_not_be_read_itself_says_so(cli: Cli) -> None:
    for argv in (["get", WS, "res/secret", "-O", "here"], ["get", WS, "res/secret", "--content"]):
        code, err = files(cli, *argv)
        assert (code, err) == (4, f"error: {WS}:res/secret: the sandbox's own user is not allowed to do this\n")
    assert not Path("here").exists()


def test_a_single_file_that_may_not_be_read_is_named(cli: Cli) -> None:
    code, err = files(cli, "get", WS, "res/key", "--content")
    assert (code, err) == (4, f"error: {WS}:res/key: the sandbox's own user is not allowed to do this\n")


@pytest.mark.parametrize("kept", [100, 1024 + 512 + 2, 3 * 1024])
def test_a_download_that_stops_in_the_middle_says_what_is_there(cli: Cli, primer: Primer, kept: int) -> None:
    whole = archive((member("a", b"A"), b"A"), (member("b", b"B" * 900), b"B" * 900), (member("c", b"C"), b"C"))
    answer = Answer(200, None, {"Content-Type": "application/x-tar"}, pieces=[whole[:kept]], cut=True)
    primer.on("GET", f"{FILES}/download", answer)
    code, err = files(cli, "get", WS, "res", "-O", "here")
    there = {100: "", 1538: "1 entry", 3072: "2 entries"}[kept]
    warning = f"warning: here is not complete: {there} of it arrived\n" if there else ""
    assert (code, err) == (6, f"{warning}error: the download broke off\n")
    assert all(len(path.read_bytes()) in (1, 900) for path in Path().glob("here/*"))
    assert Path("here").exists() == bool(there)


def test_ls_of_all_levels_names_what_it_could_not_look_into(cli: Cli) -> None:
    result = cli("workspace", "files", "ls", WS, "-R", "-o", "name")
    assert (result.code, result.err) == (1, "skipped res/secret: not readable\n")
    assert "res/secret" in result.text.splitlines()
    assert cli("workspace", "files", "ls", WS).code == 0


def test_a_failure_of_the_server_is_no_unreadable_directory(cli: Cli, primer: Primer, tree: Tree) -> None:
    def stopped(request: Request) -> Answer:
        away = problem(409, "workspace_not_running", "It is stopped.")
        return away if request.query["path"][0] == "res/secret" else tree.listing(request)

    primer.on("GET", FILES, stopped)
    assert files(cli, "ls", WS, "-R") == (5, "error: It is stopped.\n")


@pytest.mark.parametrize("path", [".", "/", "./"])
def test_the_workspace_itself_is_a_directory(cli: Cli, primer: Primer, path: str) -> None:
    serve(primer)
    assert files(cli, "get", WS, path, "--content") == (
        2,
        "error: the workspace itself is a directory\n"
        f"hint: save it with: primectl workspace files get {WS} {path} -O DIR\n",
    )


def test_an_empty_path_is_refused_before_anything_is_asked(cli: Cli, primer: Primer) -> None:
    code, err = files(cli, "get", WS, "", "--content")
    assert (code, err) == (2, "error: the path is empty\nhint: the whole workspace is: . -O DIR\n")
    assert primer.requests == []


# names that are not UTF-8

ODD = os.fsdecode(b"bad\xff\xfe")


def test_a_name_that_is_not_text_travels_as_its_bytes(cli: Cli, primer: Primer) -> None:
    primer.on("DELETE", FILES, Answer(204))
    result = cli("workspace", "files", "rm", WS, ODD)
    assert (result.code, result.text) == (0, f"{WS}:bad\\xff\\xfe deleted\n")
    assert primer.sent("DELETE", FILES)[0].query["path"] == [ODD]


def test_such_a_file_is_printed_and_saved_under_a_name_of_the_callers(cli: Cli, tree: Tree) -> None:
    tree.items.append(entry(ODD))
    assert cli("workspace", "files", "get", WS, ODD, "--content").out == b"x"
    assert files(cli, "get", WS, ODD, "-O", "safe")[0] == 0
    assert files(cli, "get", WS, ODD)[0] == 2


def test_the_marked_form_of_a_name_gets_the_way_to_write_it(cli: Cli) -> None:
    code, err = files(cli, "get", WS, "bad\\xff", "-O", "safe")
    assert code == 3
    assert "hint: ls shows a byte that is not UTF-8 as \\xff; in bash write the name as $'…\\xff'\n" in err


@pytest.mark.parametrize("argv", [["get", "agent", ODD], ["delete", "agent", ODD], ["provider", "check", ODD]])
def test_an_id_that_is_not_text_is_not_found(cli: Cli, argv: list[str]) -> None:
    assert cli(*argv).code == 3


def test_content_that_is_not_text_is_written_as_its_bytes(cli: Cli, primer: Primer) -> None:
    assert cli("workspace", "files", "put", WS, "x", "--content", ODD).code == 0
    assert primer.sent("PUT", FILES)[0].body == b"bad\xff\xfe"
