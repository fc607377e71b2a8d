"""Changes of files and commands by the pages, with a sandbox whose engine is the test's own."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.models import Role, User
from tests.console.filling import filled_in
from tests.eventually import eventually
from tests.factories import make_user
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.models import Exec, Workspace
from workspaces.pages import execs
from workspaces.pages.files import ask

__all__ = ["alice", "owner", "process", "provider", "root_path", "running", "template"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_manifest(settings: Any) -> None:
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}


@pytest.fixture
def browser(owner: User) -> Client:
    client = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    client.force_login(owner)
    return client


def put(workspace: str, path: str, data: bytes) -> str:
    """Writes behind the page's back, and returns the ETag."""
    info = ask(Workspace.objects.get(slug=workspace), lambda box: box.write(path, data, mode=0o644))
    return str(info.etag)


def content(workspace: str, path: str) -> bytes:
    found: bytes = ask(Workspace.objects.get(slug=workspace), lambda box: box.read(path)).data
    return found


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


def test_more_of_a_long_text_is_loaded_up_to_what_a_page_holds(process: Process, running: str, browser: Client) -> None:
    put(running, "huge.txt", b"0123456789abcde\n" * 200_000)  # 3.2 MB
    path, shown = f"/files/{running}/huge.txt", 0
    for step in range(12):
        context = browser.get(f"{path}?more={step}").context
        now = sum(len(lines) for _, lines in context["parts"])
        assert now > shown
        shown = now
        if not context["more"]:
            break
    assert shown >= (2 * 1024**2 + 64 * 1024) // 16 - 2
    assert step <= 8
    assert browser.get(f"{path}?more=99999999").context["more"] == 0
    assert browser.get(f"{path}?more=x").context["more"] == 1


def test_an_image_that_is_too_large_says_so(process: Process, running: str, browser: Client) -> None:
    put(running, "big.png", b"\x89PNG\r\n\x1a\n" + b"0" * (10 * 1024**2))
    assert "larger than 10 MiB" in browser.get(f"/files/{running}/big.png").content.decode()


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


def test_an_image_is_served_inline_only_when_it_is_one(process: Process, running: str, browser: Client) -> None:
    put(running, "a.png", b"\x89PNG\r\n\x1a\n" + b"0" * 100)
    put(running, "b.png", b"<svg onload=alert(1)>")
    shown = browser.get(f"/files/{running}/a.png?as=image")
    assert (shown.status_code, shown["Content-Type"]) == (200, "image/png")
    assert shown["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in shown["Content-Security-Policy"]
    assert browser.get(f"/files/{running}/b.png?as=image").status_code == 404


def test_files_of_a_stopped_workspace_say_how_to_read_them(process: Process, running: str, browser: Client) -> None:
    browser.post(f"/workspaces/{running}/stop/")
    eventually(lambda: Workspace.objects.get().phase == "stopped", within=30)
    html = browser.get(f"/files/{running}/").content.decode()
    assert "Start it to read files" in html
    assert f"/workspaces/{running}/start/" in html


def test_a_command_runs_and_its_output_and_verdict_are_on_the_page(
    process: Process, running: str, browser: Client
) -> None:
    command = {"command": "echo to-out; echo to-err >&2; exit 3"}
    started = browser.post(f"/workspaces/{running}/exec/", command)
    assert started.status_code == 303
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    html = browser.get(f"/workspaces/{running}/exec/").content.decode()
    assert '<pre class="out ansi" tabindex="0">to-out' in html
    assert "stderr" in html
    assert "exit 3" in html
    run = Exec.objects.get()
    part = browser.get(f"/workspaces/{running}/exec/{run.slug}/", headers={"HX-Request": "true"})
    assert part.status_code == 286
    assert "to-err" in part.content.decode()


def test_a_command_can_be_stopped_and_everything_of_it_is_dead(process: Process, running: str, browser: Client) -> None:
    browser.post(f"/workspaces/{running}/exec/", {"command": "sleep 600"})
    run = eventually(lambda: Exec.objects.filter(state="running").first(), within=30)
    assert browser.post(f"/workspaces/{running}/exec/{run.slug}/stop/").status_code == 303
    eventually(lambda: Exec.objects.get().ended_by == "cancelled", within=30)


def test_an_empty_command_is_refused_beside_its_field(process: Process, running: str, browser: Client) -> None:
    answer = browser.post(f"/workspaces/{running}/exec/", {"command": "", "timeout_s": "soon"})
    assert answer.status_code == 422
    assert "timeout_s" in answer.content.decode()
    assert not Exec.objects.exists()


def test_who_may_only_look_changes_nothing(process: Process, running: str) -> None:
    client = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    client.force_login(make_user("victor", Role.VIEWER))
    for path, form in (
        (f"/files/{running}/", {"do": "folder", "name": "x"}),
        (f"/workspaces/{running}/exec/", {"command": "id"}),
        (f"/workspaces/{running}/stop/", {}),
    ):
        assert client.post(path, form).status_code in (403, 404)
    assert not Exec.objects.exists()


def test_a_command_takes_directory_and_environment_and_runs_again_with_both(
    process: Process, running: str, browser: Client
) -> None:
    put(running, "sub/x.txt", b"")
    form = {"command": "pwd; echo $WORD", "cwd": "sub", "env": "WORD=a=b\r\n", "timeout_s": "7"}
    assert browser.post(f"/workspaces/{running}/exec/", form).status_code == 303
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    html = browser.get(f"/workspaces/{running}/exec/").content.decode()
    assert "/sub\na=b" in html
    again = filled_in(html.replace('<form method="post"', '<form class="edit" method="post"'), {})
    assert (again["command"], again["cwd"], again["timeout_s"]) == (["pwd; echo $WORD"], ["sub"], ["7.0"])
    refused = browser.post(f"/workspaces/{running}/exec/", {"command": "id", "env": "1X=2", "cwd": "kept"})
    assert refused.status_code == 422
    assert "1X=2" in refused.content.decode()
    assert 'value="kept"' in refused.content.decode()


def test_what_a_command_printed_is_downloaded_byte_for_byte(
    process: Process, running: str, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs, "RAW_PIECE", 100_000)  # so that it takes several
    command = "printf '\\377\\000<b>'; head -c 300000 /dev/zero; echo oops >&2"
    browser.post(f"/workspaces/{running}/exec/", {"command": command})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    run = Exec.objects.get()
    assert f"/workspaces/{running}/exec/{run.slug}/raw/" in browser.get(f"/workspaces/{running}/exec/").content.decode()
    raw = browser.get(f"/workspaces/{running}/exec/{run.slug}/raw/")
    assert raw.content == b"\xff\x00<b>" + b"\0" * 300_000
    assert raw["Content-Type"] == "application/octet-stream"
    assert raw["Content-Disposition"].startswith("attachment")
    assert "sandbox" in raw["Content-Security-Policy"]
    assert browser.get(f"/workspaces/{running}/exec/{run.slug}/raw/?stream=stderr").content == b"oops\n"
    assert browser.get(f"/workspaces/{running}/exec/{run.slug}/raw/?stream=both").status_code == 422
    stranger = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    stranger.force_login(make_user("charlie"))
    assert stranger.get(f"/workspaces/{running}/exec/{run.slug}/raw/").status_code == 404
