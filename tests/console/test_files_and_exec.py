"""Changes of files and commands by the pages, with a sandbox whose engine is the test's own."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.models import Role, User
from tests.eventually import eventually
from tests.factories import make_user
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.models import Exec, Workspace
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
