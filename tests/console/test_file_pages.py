"""Changes of files by the pages, with a sandbox whose engine is the test's own."""

from __future__ import annotations

import re
import shlex
import subprocess
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from tests.console.sandboxed import browser, content, html_of, no_manifest, put
from tests.eventually import eventually
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.models import Exec, Workspace
from workspaces.pages.files import ask

__all__ = ["alice", "browser", "no_manifest", "owner", "process", "provider", "root_path", "running", "template"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_files_are_uploaded_and_an_existing_name_asks_first(process: Process, running: str, browser: Client) -> None:
    put(running, "there.txt", b"old")
    files = [SimpleUploadedFile("new.bin", bytes(range(256)) * 5000), SimpleUploadedFile("there.txt", b"new")]
    answer = browser.post(f"/files/{running}/", {"do": "upload", "files": files})
    assert answer.status_code == 409
    assert "there.txt" in answer.content.decode()
    assert content(running, "new.bin") == bytes(range(256)) * 5000
    assert content(running, "there.txt") == b"old"
    again = {"do": "upload", "overwrite": "1", "files": [SimpleUploadedFile("there.txt", b"new")]}
    assert browser.post(f"/files/{running}/", again).status_code == 303
    assert content(running, "there.txt") == b"new"


@pytest.mark.parametrize("name", ["../out", "a/b", "", "x" * 300])
def test_a_name_that_leads_elsewhere_is_refused(process: Process, running: str, browser: Client, name: str) -> None:
    for verb in ("file", "folder"):
        assert browser.post(f"/files/{running}/", {"do": verb, "name": name}).status_code in (409, 422), verb


def test_new_renamed_and_deleted(process: Process, running: str, browser: Client) -> None:
    assert browser.post(f"/files/{running}/", {"do": "folder", "name": "data"}).status_code == 303
    assert (
        browser.post(f"/files/{running}/data", {"do": "file", "name": "a.txt"})["Location"]
        == f"/files/{running}/data/a.txt"
    )
    assert browser.post(f"/files/{running}/data/a.txt", {"do": "move", "target": "data/b.txt"}).status_code == 303
    listed = browser.get(f"/files/{running}/data").content.decode()
    assert "b.txt" in listed
    assert ">a.txt<" not in listed
    assert browser.post(f"/files/{running}/data", {"do": "delete"}).status_code == 303
    assert browser.get(f"/files/{running}/data").status_code == 404


def test_a_folder_says_what_its_deletion_takes_and_can_be_downloaded(
    process: Process, running: str, browser: Client
) -> None:
    for name in ("a.txt", "b.txt", ".hidden"):
        put(running, f"data/{name}", b"x")
    html = browser.get(f"/files/{running}/data/").content.decode()
    assert "with its 3 entries" in html
    assert "Delete folder" in html
    assert f"/v1/workspaces/{running}/files/download?path=data" in html
    assert "with its 1 entry" in (put(running, "one/a", b"") and browser.get(f"/files/{running}/one/").content.decode())
    assert "Delete file" in browser.get(f"/files/{running}/data/a.txt").content.decode()
    tar = browser.get(f"/v1/workspaces/{running}/files/download?path=.", headers={"Accept": "*/*"})
    assert (tar.status_code, tar["Content-Type"]) == (200, "application/x-tar")


def test_a_large_folder_comes_in_pages_and_a_filter_looks_through_all(
    process: Process, running: str, browser: Client
) -> None:
    async def many(box: Any) -> None:
        for number in range(1100):
            await box.write(f"many/f{number:04d}", b"", mode=0o644)

    ask(Workspace.objects.get(slug=running), many)
    seen: list[str] = []
    path = f"/files/{running}/many/"
    for _ in range(3):
        answer = browser.get(path)
        seen += [entry["name"] for entry in answer.context["entries"]]
        cursor = answer.context["next_cursor"]
        path = f"/files/{running}/many/?" + urlencode({"cursor": cursor or ""})
    assert seen == [f"f{number:04d}" for number in range(1100)]
    assert cursor is None
    assert "More entries" in browser.get(f"/files/{running}/many/").content.decode()
    assert "with its more than 500 entries" in browser.get(f"/files/{running}/many/").content.decode()
    found = browser.get(f"/files/{running}/many/?match=F109")
    assert [entry["name"] for entry in found.context["entries"]] == [f"f{number}" for number in range(1090, 1100)]
    assert "No name here holds" in browser.get(f"/files/{running}/many/?match=nothing").content.decode()


def test_what_is_neither_file_nor_directory_is_shown_and_leads_nowhere(
    process: Process, running: str, browser: Client
) -> None:
    command = {"command": "mkfifo pipe; ln -s /etc/passwd link"}
    browser.post(f"/workspaces/{running}/exec/", command)
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    html = browser.get(f"/files/{running}/").content.decode()
    assert "<small>symlink</small>" in html
    assert "<small>other</small>" in html
    assert f'href="/files/{running}/link"' not in html
    assert "root:" not in browser.get(f"/files/{running}/link").content.decode()


def test_a_page_hears_that_its_file_was_changed_or_removed(process: Process, running: str, browser: Client) -> None:
    put(running, "out.txt", b"first")
    html = browser.get(f"/files/{running}/out.txt").content.decode()
    asked = re.search(r'hx-get="(\?as=state[^"]*)"', html)
    assert asked is not None
    path = f"/files/{running}/out.txt" + asked.group(1).replace("&amp;", "&")
    Workspace.objects.update(last_activity_at="2020-01-01T00:00:00Z")
    assert browser.get(path).status_code == 204
    assert Workspace.objects.get().last_activity_at.year == 2020, "an open page keeps a workspace from being idle"
    put(running, "out.txt", b"second")
    note = browser.get(path)
    assert note.status_code == 286
    assert "Changed on disk" in note.content.decode()
    browser.post(f"/files/{running}/out.txt", {"do": "delete"})
    assert "removed on disk" in browser.get(path).content.decode()
    browser.post(f"/workspaces/{running}/stop/")
    eventually(lambda: Workspace.objects.get().phase == "stopped", within=30)
    assert browser.get(path).status_code == 204


@pytest.mark.parametrize("name", ["new\nline.txt", "tab\there", "\u202egnp.exe", "zero\u200bwidth", "bell\x07"])
def test_a_name_with_characters_nobody_sees_opens_and_can_be_changed(
    process: Process, running: str, browser: Client, name: str
) -> None:
    put(running, f"{name} dir/{name}", b"inside")
    inside = f"/files/{running}/{quote(name)}%20dir/"
    listed = browser.get(f"/files/{running}/").content.decode()
    assert f'href="{inside}"' in listed
    assert f"<bdi>{name} dir</bdi>" not in unescape(listed), "what nobody sees is a mark"
    assert f'href="{inside}{quote(name)}"' in browser.get(inside).content.decode()
    answer = browser.get(inside + quote(name))
    assert (answer.status_code, answer.context["parts"][0][1]) == (200, ["inside"])
    words = subprocess.run(
        ["bash", "-c", answer.context["cli"].replace("primectl", "printf '%s\\0'", 1)], capture_output=True, check=True
    )
    assert words.stdout.decode().split("\0")[4] == f"{name} dir/{name}"
    form = {"do": "save", "content": "changed", "etag": answer.context["etag"]}
    assert browser.post(inside + quote(name), form).status_code == 303
    assert content(running, f"{name} dir/{name}") == b"changed"
    assert browser.post(inside.rstrip("/"), {"do": "delete", "sure": "1"}).status_code == 303
    assert browser.get(inside).status_code == 404


def test_a_folder_whose_name_is_no_text_can_be_downloaded(process: Process, running: str, browser: Client) -> None:
    put(running, "bad\udcff/in.txt", b"inside")
    html = browser.get(f"/files/{running}/").content.decode()
    assert f'href="/v1/workspaces/{running}/files/download?path=bad%FF"' in html
    assert "bad\ufffd" in html


def test_a_file_that_may_not_be_read_says_so(process: Process, running: str, browser: Client) -> None:
    put(running, "closed.txt", b"secret")
    browser.post(f"/workspaces/{running}/exec/", {"command": "chmod 000 closed.txt"})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    html = browser.get(f"/files/{running}/closed.txt").content.decode()
    assert "secret" not in html
    assert "is not allowed to do this" in html
    assert "Filter names" in html, "the directory stays beside it"


def test_the_footer_names_the_line_of_the_client(process: Process, running: str, browser: Client) -> None:
    put(running, "out.txt", b"x")
    html = browser.get(f"/files/{running}/out.txt").content.decode()
    assert f"primectl workspace files get {running} out.txt --content" in html


def test_saving_over_somebody_elses_change_shows_both_and_overwrites_only_when_asked(
    process: Process, running: str, browser: Client
) -> None:
    etag = put(running, "notes.txt", b"first\n")
    put(running, "notes.txt", b"theirs\n")
    form = {"do": "save", "content": "mine\r\n", "etag": etag}
    refused = browser.post(f"/files/{running}/notes.txt", form)
    assert refused.status_code == 412
    html = refused.content.decode()
    assert "-theirs" in html
    assert "+mine" in html
    assert content(running, "notes.txt") == b"theirs\n"
    assert browser.post(f"/files/{running}/notes.txt", {**form, "mine": "1"}).status_code == 303
    assert content(running, "notes.txt") == b"mine\n"


@pytest.mark.parametrize(("name", "data", "expected"), [
    ("empty.txt", b"", "The file is empty"), ("bin", b"\x00\x01\xff" * 100, "Not text"), ("bad.txt", b"\xff\xfe text", "Not text"),
    ("page.html", b"<script>alert(1)</script>", "&lt;script&gt;"), ("t.csv", b"a,b\n1,2\n", "Table"),
    ("line.txt", b"x" * 200_000, "more characters on this line"), ("huge.txt", b"line\n" * 900_000, "left out here"),
    ("a.svg", b"<svg onload=alert(1)></svg>", "&lt;svg"),
])  # fmt: skip
def test_a_file_is_shown_by_what_is_in_it(
    process: Process, running: str, browser: Client, name: str, data: bytes, expected: str
) -> None:
    put(running, name, data)
    html = (
        browser.get(f"/files/{running}/{name}")
        .content.decode()
        .replace("</span>", "")
        .replace('<span class="p">', "")
        .replace('<span class="nt">', "")
    )
    assert expected in html
    assert "<script>alert" not in html
    assert len(html) < 4_000_000


def test_files_of_a_stopped_workspace_say_how_to_read_them(process: Process, running: str, browser: Client) -> None:
    browser.post(f"/workspaces/{running}/stop/")
    eventually(lambda: Workspace.objects.get().phase == "stopped", within=30)
    html = browser.get(f"/files/{running}/").content.decode()
    assert "Start it to read files" in html
    assert f"/workspaces/{running}/start/" in html


def test_files_of_a_lost_workspace_offer_to_start_it(process: Process, running: str, browser: Client) -> None:
    Workspace.objects.update(phase="lost", phase_reason="container_gone")
    html = browser.get(f"/files/{running}/").content.decode()
    assert "Start it to read files" in html
    assert f'action="/workspaces/{running}/start/"' in html
    assert "Retry" not in html
    Workspace.objects.update(phase_reason="data_lost")
    html = browser.get(f"/files/{running}/").content.decode()
    assert "Its files are gone" in html
    assert f'action="/workspaces/{running}/start/"' not in html


def test_the_head_of_a_workspace_is_the_same_on_its_files(process: Process, running: str, browser: Client) -> None:
    Workspace.objects.update(name="mine")
    heads = [
        re.search(r'<div class="head">.*?</p>', browser.get(path).content.decode().replace("\n", ""))
        for path in (f"/workspaces/{running}/sessions/", f"/files/{running}/")
    ]
    shown = [re.sub(r'value="\w{64}"|\d+ s ago', "", found[0]) for found in heads if found]
    assert shown[0] == shown[1]
    for part in ("mine", f'action="/workspaces/{running}/stop/"', f"/workspaces/{running}/edit/", "not isolated"):
        assert part in shown[0].lower(), part


@pytest.mark.parametrize(("form", "where"), [
    ({"do": "file", "name": "there.txt"}, ""), ({"do": "folder", "name": "there.txt"}, ""),
    ({"do": "move", "target": "there.txt"}, "other.txt"),
])  # fmt: skip
def test_a_name_that_is_taken_is_said_on_the_page_with_what_was_typed(
    process: Process, running: str, browser: Client, form: dict[str, str], where: str
) -> None:
    put(running, "there.txt", b"kept")
    put(running, "other.txt", b"x")
    answer = browser.post(f"/files/{running}/{where}", form)
    html = html_of(answer)
    assert answer.status_code == 409
    assert "there.txt exists already." in html
    assert "someone else" not in html
    assert 'value="there.txt"' in html
    assert "Filter names" in html, "the directory is still there"
    assert re.search(r'<details class="changes" open>', html)
    assert content(running, "there.txt") == b"kept"


def test_a_save_that_is_refused_keeps_what_was_typed(process: Process, running: str, browser: Client) -> None:
    etag = put(running, "dir/notes.txt", b"first\n")
    browser.post(f"/workspaces/{running}/exec/", {"command": "chmod 500 dir"})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    answer = browser.post(f"/files/{running}/dir/notes.txt", {"do": "save", "content": "typed", "etag": etag})
    assert answer.status_code == 403
    assert ">\ntyped</textarea>" in html_of(answer)


def test_a_page_left_open_hears_when_its_running_workspace_is_lost(
    process: Process, running: str, browser: Client
) -> None:
    html = html_of(browser.get(f"/workspaces/{running}/"))
    asked = re.search(r'id="live" hx-get="([^"]+)" hx-trigger="every 5s"', html)
    assert asked is not None
    assert "http-equiv" not in html, "without scripts a page at rest is not loaded again and again"
    assert browser.get(asked[1], headers={"HX-Request": "true"}).status_code == 204
    Workspace.objects.update(phase="lost", phase_reason="container_gone", phase_since="2030-01-01T00:00:00Z")
    part = browser.get(asked[1], headers={"HX-Request": "true"})
    assert part.status_code == 286
    assert "/stop/" not in html_of(part)
    assert "hx-get" not in html_of(part)


@pytest.mark.parametrize("name", ["$(touch pwned).txt", "`id`", "a;id;b.txt", "-x", "it's"])
def test_the_footer_quotes_a_name_that_the_sandbox_chose(
    process: Process, running: str, browser: Client, name: str
) -> None:
    put(running, name, b"x")
    shown = browser.get(f"/files/{running}/{quote(name)}").context["cli"]
    assert shlex.split(shown)[:4] == ["primectl", "workspace", "files", "get"]
    assert sorted(shlex.split(shown)[4:]) == sorted([running, name, "--content", *(["--"] if name[0] == "-" else [])])


def test_the_footer_of_a_folder_saves_the_folder(process: Process, running: str, browser: Client) -> None:
    put(running, "da ta/a.txt", b"x")
    html = html_of(browser.get(f"/files/{running}/da%20ta/"))
    assert f"primectl workspace files get {running} 'da ta' -O './da ta'" in html
    assert f"primectl workspace files ls {running}" in html_of(browser.get(f"/files/{running}/"))


@pytest.mark.parametrize("data", [b"a\r\nb\r\n", b"a\r\nb", b"\xef\xbb\xbfa\r\nb\nc", b"a\nb"])
def test_saving_changes_no_line_end_of_the_file(process: Process, running: str, browser: Client, data: bytes) -> None:
    etag = put(running, "notes.txt", data)
    shown = browser.get(f"/files/{running}/notes.txt?edit=1").context["text"]
    sent = shown.replace("\r\n", "\n").replace("\n", "\r\n").replace("b", "bee")  # as browsers send what they showed
    form = {"do": "save", "content": sent, "etag": etag}
    assert browser.post(f"/files/{running}/notes.txt", form).status_code == 303
    assert content(running, "notes.txt") == data.replace(b"b", b"bee")


@pytest.mark.parametrize("name", ["src#old", "src?v1", "s%72c", "src\\x", "src &quot;"])
def test_what_a_page_deletes_and_renames_is_what_it_shows(
    process: Process, running: str, browser: Client, name: str
) -> None:
    put(running, "src/kept.txt", b"kept")
    put(running, f"{name}/gone.txt", b"gone")
    page = html_of(browser.get(f"/files/{running}/{quote(name)}/"))
    targets = set(re.findall(r'<form method="post"[^>]* action="(/files/[^"]+)"', page))
    assert targets == {f"/files/{running}/{quote(name)}"}
    assert browser.post(targets.pop(), {"do": "delete", "sure": "1"}).status_code == 303
    assert content(running, "src/kept.txt") == b"kept"
    assert browser.get(f"/files/{running}/{quote(name)}/").status_code == 404
