"""Directories with something unreadable in them, and names that are no text: nothing is lost in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.fake import WS, Answer, Primer, Request, problem

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
        kind = {i["path"]: i["kind"] for i in self.items}.get(path)
        if kind == "dir" or path == ".":
            return problem(422, "invalid", errors=[{"field": "path", "message": "leads to a directory"}])
        if kind is None:
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


def test_what_cannot_be_read_is_named_and_the_rest_arrives(cli: Cli) -> None:
    assert files(cli, "get", WS, "res", "-O", "here") == (
        1,
        "skipped res/key: not readable\nskipped res/secret: not readable\nsaved here (3 entries)\n",
    )
    assert sorted(str(p) for p in Path("here").rglob("*")) == ["here/empty", "here/sub", "here/sub/a"]


def test_skip_special_does_not_cover_what_cannot_be_read(cli: Cli, tree: Tree) -> None:
    assert files(cli, "get", WS, "res", "-O", "here", "--skip-special")[0] == 1
    tree.closed.clear()
    tree.items.append(entry("res/link", "symlink"))
    assert files(cli, "get", WS, "res", "-O", "there", "--skip-special")[0] == 0


def test_a_file_that_goes_away_meanwhile_is_skipped(cli: Cli, primer: Primer, tree: Tree) -> None:
    download = tree.download

    def racing(request: Request) -> Answer:
        return problem(404, "not_found") if request.query["path"][0] == "res/sub/a" else download(request)

    tree.closed.clear()
    primer.on("GET", f"{FILES}/download", racing)
    code, err = files(cli, "get", WS, "res", "-O", "here")
    assert (code, err) == (1, "skipped res/sub/a: went away meanwhile\nsaved here (4 entries)\n")


def test_a_directory_that_may_not_be_read_itself_says_so(cli: Cli) -> None:
    for argv in (["get", WS, "res/secret", "-O", "here"], ["get", WS, "res/secret", "--content"]):
        code, err = files(cli, *argv)
        assert (code, err) == (4, f"error: {WS}:res/secret: not readable\n")
    assert not Path("here").exists()


def test_a_single_file_that_may_not_be_read_is_named(cli: Cli) -> None:
    code, err = files(cli, "get", WS, "res/key", "--content")
    assert (code, err) == (4, f"error: {WS}:res/key: the sandbox's own user is not allowed to do this\n")


def test_a_download_that_stops_in_the_middle_says_what_is_there(cli: Cli, primer: Primer, tree: Tree) -> None:
    download = tree.download

    def stopping(request: Request) -> Answer:
        lost = problem(409, "workspace_lost", "The workspace is lost.")
        return lost if request.query["path"][0] == "res/sub/a" else download(request)

    primer.on("GET", f"{FILES}/download", stopping)
    code, err = files(cli, "get", WS, "res", "-O", "here")
    assert code == 1
    assert "warning: here is not complete: 2 entries of it arrived\n" in err
    assert err.endswith("error: The workspace is lost.\n")


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
def test_the_workspace_itself_is_a_directory(cli: Cli, path: str) -> None:
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
