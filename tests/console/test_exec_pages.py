"""Commands by the pages, with a sandbox whose engine is the test's own: their output, their verdict, their history."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from accounts.models import Role
from tests.console.filling import filled_in
from tests.console.sandboxed import browser, html_of, no_manifest, put
from tests.eventually import eventually
from tests.factories import make_user
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.models import Exec
from workspaces.pages import execs

__all__ = ["alice", "browser", "no_manifest", "owner", "process", "provider", "root_path", "running", "template"]
pytestmark = pytest.mark.django_db(transaction=True)


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


FLOOD = "yes flood | head -c 3000000; echo; echo END; echo SAD >&2"


def test_a_long_output_shows_its_end_and_says_what_is_left_out(process: Process, running: str, browser: Client) -> None:
    browser.post(f"/workspaces/{running}/exec/", {"command": FLOOD})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    run = Exec.objects.get()
    page = f"/workspaces/{running}/exec/{run.slug}/"
    shown = {path: html_of(browser.get(path)) for path in (f"/workspaces/{running}/exec/", page)}
    for path, html in shown.items():
        assert "\n\nEND\n</pre>" in html, path
        assert "of stdout are not shown here" in html
        assert f'<a href="{page}">Show what is kept</a>' in html
        assert f'<a href="{page}raw/" download>Download raw</a>' in html
        assert "SAD" in html
        assert "of stderr are not shown" not in html
    parts = {path: re.search(r"\(bytes (\d+) to (\d+)\)", html) for path, html in shown.items()}
    bounds = {path: (int(found[1]), int(found[2])) for path, found in parts.items() if found}
    assert bounds[f"/workspaces/{running}/exec/"] == (150_000, 3_000_005 - 50_000)
    assert bounds[page] == tuple(run.stdout_gap or ()), "a page of its own shows all that is kept"


def test_a_running_command_counts_what_it_has_printed(process: Process, running: str, browser: Client) -> None:
    browser.post(f"/workspaces/{running}/exec/", {"command": "yes | head -c 300000; echo; echo LAST; sleep 600"})
    page = f"/workspaces/{running}/exec/"
    html = eventually(lambda: found if "LAST" in (found := html_of(browser.get(page))) else None, within=30)
    assert "<span>293.0 KiB out</span>" in html
    assert "(bytes 150000 to 250006)" in html
    run = Exec.objects.get()
    part = html_of(browser.get(f"{page}{run.slug}/", headers={"HX-Request": "true"}))
    assert "LAST" in part
    assert "<span>0 B out</span>" not in part
    browser.post(f"{page}{run.slug}/stop/")
    eventually(lambda: Exec.objects.get().state == "ended", within=30)
