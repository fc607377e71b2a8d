"""Commands by the pages, with a sandbox whose engine is the test's own: their output, their verdict, their history."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Role, User
from tests.console.filling import filled_in
from tests.console.sandboxed import browser, html_of, no_manifest, put
from tests.eventually import eventually
from tests.factories import make_user, make_workspace
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.models import Exec, Workspace
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


def test_the_history_says_how_a_command_ended_as_a_transcript_does(
    process: Process, running: str, browser: Client
) -> None:
    page = f"/workspaces/{running}/exec/"
    for command, timeout in (("sleep 60", "0.5"), ("kill -9 $$", ""), ("exit 4", "")):
        browser.post(page, {"command": command, "timeout_s": timeout, "wait": "1"})
    html = html_of(browser.get(page))
    shown = re.findall(r'</pre><span class="chip (\w+)".*?<span>([^<]*)</span></span></header>', html, re.DOTALL)
    assert shown == [("amber", "timeout after 0.5 s"), ("grey", "signal 9"), ("red", "exit 4")]
    assert html.count('<summary class="small">Evidence</summary>') == 1
    assert "<span>limit <bdi>0.5</bdi></span>" in html


def test_without_scripts_the_page_waits_for_the_result(process: Process, running: str, browser: Client) -> None:
    page = f"/workspaces/{running}/exec/"
    assert '<noscript><input type="hidden" name="wait" value="1"></noscript>' in html_of(browser.get(page))
    started = browser.post(page, {"command": "sleep 1; echo result; exit 3", "wait": "1"})
    assert started.status_code == 303
    run = Exec.objects.get()
    assert (run.state, run.exit_code) == ("ended", 3)
    assert started["Location"] == f"{page}#{run.slug}"
    assert "result" in html_of(browser.get(page))


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


def pieces_of(answer: Any) -> list[bytes]:
    """A streamed body as it came."""

    async def collect() -> list[bytes]:
        return [piece async for piece in answer.streaming_content]

    try:
        return asyncio.run(collect())
    finally:
        answer.close()


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
    pieces = pieces_of(raw)
    assert b"".join(pieces) == b"\xff\x00<b>" + b"\0" * 300_000
    assert max(map(len, pieces)) <= 100_000, "more than a piece was in memory"
    assert raw["Content-Type"] == "application/octet-stream"
    assert raw["Content-Disposition"].startswith("attachment")
    assert "sandbox" in raw["Content-Security-Policy"]
    assert pieces_of(browser.get(f"/workspaces/{running}/exec/{run.slug}/raw/?stream=stderr")) == [b"oops\n"]
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
    browser.post(f"/workspaces/{running}/exec/", {"command": "yes | head -c 300000; echo; echo LA''ST; sleep 600"})
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


def test_bytes_that_are_no_text_and_long_lines_are_said_to_be_drawn_otherwise(
    process: Process, running: str, browser: Client
) -> None:
    put(running, "long.py", b"print('\x1b[31m' + 'x' * 20000 + 'END\x1b[0m')")
    command = "printf 'caf\\351\\n'; python3 long.py; echo plain; echo fine >&2"
    browser.post(f"/workspaces/{running}/exec/", {"command": command})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    page = f"/workspaces/{running}/exec/{Exec.objects.get().slug}/"
    shown = html_of(browser.get(f"/workspaces/{running}/exec/"))
    assert "caf\ufffd" in shown
    assert f'no UTF-8 are shown as \ufffd: <a href="{page}raw/" download>Download raw</a>' in shown
    assert shown.count("no UTF-8") == 1, "stderr is text"
    assert f'<a href="{page}?wide=1">Show more</a>' in shown
    assert "xEND" not in shown
    assert re.search(r"</span> … \[\d+ more characters on this line\]\nplain\n", shown), (
        "the colour ends where the cut line ends"
    )
    wide = html_of(browser.get(page + "?wide=1"))
    assert "xEND" in wide
    assert "Show more" not in wide


def test_a_running_command_is_drawn_anew_only_when_it_printed(process: Process, running: str, browser: Client) -> None:
    browser.post(
        f"/workspaces/{running}/exec/",
        {"command": "echo one; until test -e go; do sleep 0.05; done; echo two; sleep 600"},
    )
    page = f"/workspaces/{running}/exec/"
    html = eventually(lambda: found if ">one" in (found := html_of(browser.get(page))) else None, within=30)
    asked = re.search(r'hx-get="([^"]+)" hx-trigger="every 1s"', html)
    assert asked is not None
    fragment = {"HX-Request": "true"}
    assert browser.get(asked[1], headers=fragment).status_code == 204
    assert browser.get(asked[1]).status_code == 200, "a page is never empty"
    put(running, "go", b"")
    part = eventually(
        lambda: found if (found := browser.get(asked[1], headers=fragment)).status_code == 200 else None, within=30
    )
    assert "two" in html_of(part)
    run = Exec.objects.get()
    assert f'id="stop-{run.slug}"' in html_of(part), "who stands on the button stays on it"
    browser.post(f"{page}{run.slug}/stop/")
    eventually(lambda: Exec.objects.get().state == "ended", within=30)
    assert browser.get(asked[1], headers=fragment).status_code == 286


@pytest.mark.parametrize(("count", "words"), [(1, "1 process still runs"), (64, "64 or more processes still run")])
def test_what_a_command_left_is_counted_as_far_as_it_is_listed(
    count: int, words: str, owner: User, template: Any, browser: Client
) -> None:
    left = [{"pid": pid, "command": "sleep 600"} for pid in range(1, count + 1)]
    ended = {"state": "ended", "ended_by": "exit", "exit_code": 0, "ended_at": timezone.now()}
    workspace = make_workspace(owner)
    request = {"argv": ["x"], "cwd": "", "timeout_s": 60.0, "background": False}
    Exec.objects.create(workspace=workspace, request=request, survivors=left, **ended)
    assert f'<span class="amber">{words}</span>' in html_of(browser.get(f"/workspaces/{workspace.slug}/exec/"))


def test_what_ran_is_read_when_its_workspace_is_gone_and_starts_nothing(
    process: Process, running: str, browser: Client
) -> None:
    browser.post(f"/workspaces/{running}/exec/", {"command": "echo kept"})
    eventually(lambda: Exec.objects.filter(state="ended").exists(), within=30)
    run = Exec.objects.get().slug
    assert "Run again" in html_of(browser.get(f"/workspaces/{running}/exec/{run}/"))
    assert browser.get(f"/workspaces/{running}/nothing/").context.get("entry") is None, "it is not deleted"
    assert browser.post(f"/workspaces/{running}/delete/").status_code == 303
    eventually(lambda: Workspace.objects.get().deleted_at, within=30)
    for path in (
        f"/workspaces/{running}/",
        f"/workspaces/{running}/exec/",
        f"/files/{running}/",
        f"/files/{running}/a",
    ):
        gone = browser.get(path)
        assert gone.status_code == 404
        assert "was deleted" in html_of(gone), path
        assert f'href="/workspaces/{running}/exec/{run}/"' in html_of(gone)
    shown = html_of(browser.get(f"/workspaces/{running}/exec/{run}/"))
    assert ">kept" in shown
    assert "Run again" not in shown
    stranger = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    stranger.force_login(make_user("charlie"))
    assert "was deleted" not in html_of(stranger.get(f"/workspaces/{running}/"))
