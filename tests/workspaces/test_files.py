"""Files over the API: text and bytes, hostile names and things, preconditions, ranges, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any
from urllib.parse import quote

import pytest

from tests.eventually import eventually
from tests.factories import Api
from tests.workspaces.test_exec import python, run

NAMES = [
    "new\nline", "esc\x1b[31m", "tab\tbed", "del\x7f", "cr\r\nlf", 'quo"te', "it's", "$(touch pwn)", "`touch pwn`",
    "semi;colon", "pi|pe", "back\\slash", "-rf", "%2e%2e", "quest?ion#hash", "rtl\u202egnp", "n\u0303", "\u00f1",
    "<img src=x>", "a.py; touch pwn", "'; open('pwn','w'); #", " space ", "....",
]  # fmt: skip


def files(workspace: str, what: str = "") -> str:
    return f"workspaces/{workspace}/files{what}"


def read(person: Api, workspace: str, path: str, **query: Any) -> Any:
    return person.get(files(workspace, "/read"), path=path, **query)


def body_of(response: Any) -> bytes:
    async def collect() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    try:
        return asyncio.run(collect())
    finally:
        response.close()


@pytest.fixture(params=["fake", pytest.param("container", marks=pytest.mark.docker)])
def place(request: pytest.FixtureRequest, transactional_db: Any) -> str:
    """A running workspace on the fake engine, and one on a real one."""
    return str(request.getfixturevalue({"fake": "running", "container": "box"}[request.param]))


# -- what is refused


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../x", "a/../../b", "/etc/passwd", "/abs", "a/", "a\0b", "x" * 256, "d/" * 2100 + "f", "/"]
)
def test_a_path_that_names_no_file_of_the_workspace_is_422(path: str, running: str, alice: Api) -> None:
    for answer in (
        alice.put(files(running), {"content": "x"}, path=path),
        read(alice, running, path),
        *([] if path in (".", "/") else [alice.get(files(running, "/download"), path=path)]),  # those: all of it
        alice.delete(files(running), path=path),
        alice.post(files(running, "/dir"), {"path": path}),
    ):
        assert answer.status_code == 422, (path, answer.content)


@pytest.mark.parametrize("path", ["%2e%2e%2fx", "%252e", "..\\..\\x", "CON", "a\\b", "..a", "...", "~root"])
def test_what_only_looks_like_a_way_out_is_a_name(path: str, running: str, alice: Api) -> None:
    assert alice.put(files(running), {"content": path}, path=path).status_code == 204
    assert read(alice, running, path).json()["content"] == path


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "content"), ({"content": 1, "x": 1}, "x"), ({"content": "*", "encoding": "base64"}, "content"),
        ({"content": "x", "mode": "4755"}, "mode"), ({"content": "x", "mode": 0o4755}, "mode"),
        ({"content": "x", "mode": True}, "mode"), ({"content": "x", "encoding": "utf-16"}, "encoding"),
    ],
)  # fmt: skip
def test_a_bad_body_names_its_field(body: Any, field: str, running: str, alice: Api) -> None:
    answer = alice.put(files(running), body, path="a")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_what_the_sandbox_finds_wrong_with_a_path_names_the_field_that_it_stands_in(running: str, alice: Api) -> None:
    outside = "/outside/of/it"
    alice.put(files(running), {"content": "x"}, path="a")
    answers = {
        "path": alice.put(files(running), {"content": "x"}, path=outside),
        "cursor": alice.get(files(running), cursor="zzz"),
        "target": alice.post(files(running, "/move"), {"source": "a", "target": outside}),
        "source": alice.post(files(running, "/move"), {"source": outside, "target": "b"}),
    }
    for field, answer in answers.items():
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field]), (
            answer.content
        )
    alice.post(files(running, "/dir"), {"path": "d"})
    into_itself = alice.post(files(running, "/move"), {"source": "d", "target": "d/in"})
    assert (into_itself.status_code, into_itself.json()["errors"][0]["field"]) == (422, "target")


def test_what_is_not_there_is_404(running: str, alice: Api) -> None:
    for answer in (
        read(alice, running, "nope"),
        alice.get(files(running, "/download"), path="nope"),
        alice.delete(files(running), path="nope"),
        alice.get(files(running), path="nope"),
        alice.post(files(running, "/move"), {"source": "nope", "target": "b"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_bytes_that_are_not_text_are_refused_as_text_and_given_as_base64(running: str, alice: Api) -> None:
    alice.put(files(running), b"\xff\xfe", path="b")
    refused = read(alice, running, "b")
    assert (refused.status_code, refused.json()["code"]) == (422, "not_text")
    assert base64.b64decode(read(alice, running, "b", encoding="base64").json()["content"]) == b"\xff\xfe"


# -- writing and reading


def test_a_file_is_written_whole_and_read_back_with_its_etag(running: str, alice: Api) -> None:
    written = alice.put(files(running), {"content": "héllo\n", "mode": "0640"}, path="dir/a.txt")
    assert (written.status_code, written.content) == (204, b"")
    found = read(alice, running, "dir/a.txt")
    assert found.json()["content"] == "héllo\n"
    assert found.headers["ETag"] == written.headers["ETag"]
    item = alice.get(files(running), path="dir").json()["items"][0]
    assert (item["path"], item["name"], item["kind"], item["size_bytes"], item["mode"]) == (
        "dir/a.txt", "a.txt", "file", 7, "0640",
    )  # fmt: skip


def test_an_absolute_path_below_the_workspace_is_the_same_file(running: str, alice: Api) -> None:
    alice.put(files(running), {"content": "x"}, path="a")
    where = run(alice, running, "pwd")["stdout"].strip()
    assert read(alice, running, f"{where}/a").json()["content"] == "x"


@pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_000])
def test_raw_bodies_of_any_size_arrive_byte_for_byte(size: int, running: str, alice: Api) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert alice.put(files(running), data, path="raw", mode="0755").status_code == 204
    answer = alice.get(files(running, "/download"), path="raw")
    assert int(answer.headers["Content-Length"]) == size
    assert body_of(answer) == data


def test_an_edit_with_an_old_etag_is_412_and_changes_nothing(running: str, alice: Api) -> None:
    etag = alice.put(files(running), {"content": "1"}, path="a").headers["ETag"]
    assert alice.put(files(running), {"content": "2"}, path="a", headers={"If-Match": etag}).status_code == 204
    late = alice.put(files(running), {"content": "3"}, path="a", headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    taken = alice.put(files(running), {"content": "4"}, path="a", headers={"If-None-Match": "*"})
    missing = alice.put(files(running), {"content": "5"}, path="b", headers={"If-Match": "*"})
    assert (taken.status_code, missing.status_code) == (412, 412)
    assert read(alice, running, "a").json()["content"] == "2"


def test_two_writers_leave_one_whole_file(running: str, alice: Api) -> None:
    texts = [letter * 100_000 for letter in "ab"]
    threads = [
        threading.Thread(target=lambda text=text: alice.put(files(running), {"content": text}, path="f"))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(alice, running, "f").json()["content"] in texts
    assert [item["name"] for item in alice.get(files(running)).json()["items"]] == ["f"]


def test_a_read_in_the_middle_of_a_character_is_not_text_and_its_end_is_never_cut(running: str, alice: Api) -> None:
    alice.put(files(running), {"content": "€" * 10}, path="e")
    assert read(alice, running, "e", offset=1).status_code == 422
    part = read(alice, running, "e", limit=4).json()
    assert (part["content"], part["truncated"]) == ("€", True)


# -- names and trees


def test_hostile_names_make_the_round_trip_and_nothing_of_them_is_run(place: str, alice: Api) -> None:
    for name in NAMES:
        assert alice.put(files(place), {"content": name}, path=name).status_code == 204, name
    listed = {item["name"] for item in alice.get(files(place), limit=100).json()["items"]}
    assert listed == set(NAMES)
    assert alice.post(files(place, "/dir"), {"path": "moved"}).status_code == 201
    for name in listed:
        assert read(alice, place, name).json()["content"] == name
        answer = alice.get(files(place, "/download"), path=name)
        body_of(answer)
        assert "\n" not in answer.headers["Content-Disposition"]
        assert alice.post(files(place, "/move"), {"source": name, "target": f"moved/{name}"}).status_code == 200
        assert alice.delete(files(place), path=f"moved/{name}").status_code == 204
    assert [item["name"] for item in alice.get(files(place)).json()["items"]] == ["moved"]


def test_a_name_that_is_not_utf8_can_be_listed_read_and_deleted(place: str, alice: Api) -> None:
    python(alice, place, "import os; open(b'bad\\xff', 'w').write('x')")
    [item] = alice.get(files(place)).json()["items"]
    assert item["name"] == "bad\udcff"
    query = f"path={quote(item['path'], errors='surrogateescape')}"
    assert alice.client.get(f"/v1/{files(place, '/read')}?{query}", headers=alice.headers).json()["content"] == "x"
    gone = alice.client.delete(f"/v1/{files(place)}?{query}", headers=alice.headers)
    assert gone.status_code == 204


def test_long_lists_come_in_pages_and_trees_level_by_level(place: str, alice: Api) -> None:
    python(alice, place, "import os\nfor i in range(25): os.makedirs('t/d%02d' % i); open('t/d%02d/f' % i, 'w')")
    seen, cursor = [], ""
    while cursor is not None:
        page = alice.get(files(place), path="t", recursive="true", limit=7, cursor=cursor)
        seen += [item["path"] for item in page.json()["items"]]
        cursor = page.json()["next_cursor"]
    assert len(seen) == len(set(seen)) == 50
    assert len(alice.get(files(place), path="t").json()["items"]) == 25
    refused = alice.delete(files(place), path="t")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_empty")
    assert alice.delete(files(place), path="t", recursive="true").status_code == 204


def test_a_made_up_cursor_is_422(place: str, alice: Api) -> None:
    assert alice.get(files(place), cursor="x").status_code == 422


# -- things that are no files


def test_links_are_shown_and_never_followed(place: str, alice: Api) -> None:
    run(alice, place, "sh", "-c", "ln -s /etc/shadow out.txt; ln -s /etc etclink; ln -s b a; ln -s a b; ln -s /nope d")
    listed = {item["name"]: item["kind"] for item in alice.get(files(place)).json()["items"]}
    assert listed == dict.fromkeys(["out.txt", "etclink", "a", "b", "d"], "symlink")
    for name in listed:
        for answer in (read(alice, place, name), alice.get(files(place, "/download"), path=name)):
            assert (answer.status_code, answer.json()["code"]) == (409, "symlink"), name
    for answer in (
        alice.put(files(place), {"content": "x"}, path="etclink/motd"),
        read(alice, place, "etclink/hostname"),
        alice.put(files(place), {"content": "x"}, path="out.txt"),
        alice.get(files(place), path="etclink"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "symlink")


def test_a_pipe_is_refused_at_once_and_no_thread_waits(place: str, alice: Api) -> None:
    run(alice, place, "mkfifo", "out.txt")
    [item] = alice.get(files(place)).json()["items"]
    assert item["kind"] == "other"
    for answer in (read(alice, place, "out.txt"), alice.put(files(place), {"content": "x"}, path="out.txt")):
        assert (answer.status_code, answer.json()["code"]) == (409, "not_regular")


def test_a_file_that_grows_while_it_is_read_gives_a_prefix_of_the_announced_length(place: str, alice: Api) -> None:
    alice.post(
        f"workspaces/{place}/exec",
        {"argv": ["python3", "-c", "f = open('g', 'ab')\nwhile f.tell() < 80_000_000: f.write(b'x' * 4_000_000); f.flush()"],
         "background": True},
    )  # fmt: skip
    eventually(lambda: read(alice, place, "g", limit=1).status_code == 200)
    for _ in range(3):
        answer = alice.get(files(place, "/download"), path="g")
        assert len(body_of(answer)) == int(answer.headers["Content-Length"])


def test_a_name_of_255_bytes_works_and_a_deep_tree_is_listed_and_deleted(place: str, alice: Api) -> None:
    name = "n" * 255
    assert alice.put(files(place), {"content": "x"}, path=name).status_code == 204
    assert read(alice, place, name).json()["content"] == "x"
    python(alice, place, "import os\nfor i in range(600): os.mkdir('d' * 8); os.chdir('d' * 8)")
    seen, cursor = [], ""
    while cursor is not None:
        page = alice.get(files(place), recursive="true", limit=1000, cursor=cursor)
        assert page.status_code == 200, page.content
        seen += [item["path"] for item in page.json()["items"]]
        cursor = page.json()["next_cursor"]
    assert len(seen) == len(set(seen)) > 400  # as deep as a path may be long
    assert alice.delete(files(place), path="d" * 8, recursive="true").status_code == 204


def test_a_file_that_its_owner_may_not_read_is_a_typed_error(place: str, alice: Api) -> None:
    run(alice, place, "sh", "-c", "echo x > f; chmod 000 f")
    answer = read(alice, place, "f")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission")
    assert alice.put(files(place), {"content": "new"}, path="f").status_code == 204
    assert read(alice, place, "f").json()["content"] == "new"


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_body_of_any_size_to_a_place_that_cannot_be_is_a_typed_error(size: int, running: str, alice: Api) -> None:
    alice.put(files(running), b"x", path="f")
    run(alice, running, "ln", "-s", "/etc", "link")
    for path, code in (("f/below", "not_dir"), ("link/x", "symlink"), ("link", "symlink")):
        answer = alice.put(files(running), bytes(size), path=path)
        assert (answer.status_code, answer.json()["code"]) == (409, code), path
    assert {item["name"] for item in alice.get(files(running)).json()["items"]} == {"f", "link"}
