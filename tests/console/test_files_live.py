"""Files and commands in a real browser: drop, paste, progress, keys, downloads, and a command line with a memory."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from tests.console.conftest import Visit
from tests.console.test_live import call, running_workspace
from tests.e2e.recipe import Api
from tests.eventually import eventually

pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.browser]
GIVE = """([how, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const facts = { bubbles: true, cancelable: true };
  if (how === "drop") document.querySelector("[data-drop]").dispatchEvent(new DragEvent("drop", { ...facts, dataTransfer: data }));
  else document.body.dispatchEvent(new ClipboardEvent("paste", { ...facts, clipboardData: data }));
}"""


@pytest.fixture(scope="module")
def workspace(runtime_image: str, api: Api) -> Iterator[str]:
    made = running_workspace(api)
    yield made
    api.call("DELETE", f"workspaces/{made}")
    eventually(lambda: api.call("GET", f"workspaces/{made}").status_code == 404, within=60)


def put(api: Api, workspace: str, path: str, text: str) -> None:
    body = {"content": text, "encoding": "text"}
    answer = api.call("PUT", f"workspaces/{workspace}/files?path={path}", json=body)
    assert answer.status_code == 204, answer.text


def content(api: Api, workspace: str, path: str) -> str:
    return str(call(api, "GET", f"workspaces/{workspace}/files/read?path={path}&encoding=text")["content"])


def downloaded(page: Page, name: str) -> bytes:
    with page.expect_download() as started:
        page.get_by_role("link", name=name, exact=True).click()
    return Path(started.value.path()).read_bytes()


def test_files_come_by_drop_and_by_paste_with_progress_and_a_taken_name_asks(
    visit: Visit, api: Api, workspace: str
) -> None:
    with visit("admin") as visitor:
        page, held = visitor.page, list[Route]()
        visitor.go(f"/files/{workspace}/")

        def hold(route: Route) -> None:
            if route.request.method == "POST" and not held:
                held.append(route)
            else:
                route.continue_()

        page.route(f"**/files/{workspace}/", hold)
        page.evaluate(GIVE, ["drop", "dropped.txt", "by drop"])
        expect(page.get_by_role("progressbar", name="Upload")).to_be_visible()
        held[0].continue_()
        tree = page.get_by_role("region", name="Directory")
        expect(tree.get_by_role("link", name="dropped.txt")).to_be_visible()
        page.evaluate(GIVE, ["paste", "pasted.txt", "by paste"])
        expect(tree.get_by_role("link", name="pasted.txt")).to_be_visible()
        assert (content(api, workspace, "dropped.txt"), content(api, workspace, "pasted.txt")) == (
            "by drop",
            "by paste",
        )

        asked: list[str] = []

        def no(dialog: Dialog) -> None:
            asked.append(dialog.message)
            dialog.dismiss()

        page.once("dialog", no)
        page.evaluate(GIVE, ["drop", "dropped.txt", "again"])
        expect(page.locator(".toast", has_text="There already: dropped.txt")).to_be_visible()
        assert "Replace what is there?" in asked[0]
        assert content(api, workspace, "dropped.txt") == "by drop"
        page.once("dialog", lambda dialog: dialog.accept())
        page.evaluate(GIVE, ["drop", "dropped.txt", "again"])
        eventually(lambda: page.evaluate("1") and content(api, workspace, "dropped.txt") == "again", within=10)


def test_a_tree_goes_by_keys_and_filter_and_hands_out_files_and_folders(visit: Visit, api: Api, workspace: str) -> None:
    for name in ("alpha.txt", "beta.txt", "bear.txt"):
        put(api, workspace, f"keys/{name}", f"text of {name}\n")
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/files/{workspace}/keys/")
        tree = page.get_by_role("region", name="Directory")
        tree.get_by_role("link", name="alpha.txt").focus()
        page.keyboard.press("ArrowDown")
        expect(tree.get_by_role("link", name="bear.txt")).to_be_focused()
        page.keyboard.type("bet")
        expect(tree.get_by_role("link", name="beta.txt")).to_be_focused()
        page.keyboard.press("Home")
        expect(tree.get_by_role("link", name="alpha.txt")).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("heading", name="alpha.txt")).to_be_visible()
        page.get_by_label("Filter names").fill("bea")
        expect(tree.get_by_role("link", name="alpha.txt")).to_be_hidden()
        expect(tree.get_by_role("link", name="bear.txt")).to_be_visible()
        visitor.shot("files-filtered")

        assert downloaded(page, "Download") == b"text of alpha.txt\n"
        with tarfile.open(fileobj=io.BytesIO(downloaded(page, "Download folder"))) as tar:
            assert sorted(Path(one).name for one in tar.getnames() if one.endswith(".txt")) == [
                "alpha.txt",
                "bear.txt",
                "beta.txt",
            ]
        put(api, workspace, "keys/alpha.txt", "changed behind the page\n")
        expect(page.get_by_text("Changed on disk")).to_be_visible(timeout=20_000)
        page.get_by_role("link", name="Reload").click()
        expect(page.get_by_text("changed behind the page")).to_be_visible()


def test_a_folder_is_renamed_and_its_deletion_counts_what_goes(visit: Visit, api: Api, workspace: str) -> None:
    for name in ("one", "two", ".three"):
        put(api, workspace, f"old/{name}", "x")
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/files/{workspace}/old/")
        page.get_by_text("Upload, new, rename").click()
        page.get_by_label("Move old to").fill("new")
        page.get_by_role("button", name="Rename").click()
        expect(page.get_by_role("link", name="new", exact=True)).to_be_visible()
        assert content(api, workspace, "new/two") == "x"
        visitor.go(f"/files/{workspace}/new/")
        page.get_by_text("Upload, new, rename").click()
        page.get_by_label("delete new with its 3 entries").check()
        page.get_by_role("button", name="Delete folder").click()
        expect(page.get_by_text("new deleted.")).to_be_visible()
        assert api.call("GET", f"workspaces/{workspace}/files?path=new").status_code == 404


def run(page: Page, command: str) -> Any:
    page.get_by_label("Command").fill(command)
    page.get_by_role("button", name="Run", exact=True).click()
    return page.locator("article.run").last


def test_the_command_line_shows_output_as_it_comes_stops_repeats_and_remembers(
    visit: Visit, api: Api, workspace: str
) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(f"/workspaces/{workspace}/exec/")
        block = run(
            page,
            "seq 100; for i in 1 2 3; do echo line $i; sleep 0.3; done; until test -e go; do sleep 0.1; done; echo more; sleep 600",
        )
        output, left = block.locator(".out"), "one => one.scrollHeight - one.scrollTop - one.clientHeight"
        expect(output.filter(has_text="line 3")).to_be_visible()
        expect(block.locator(".chip", has_text="running")).to_be_visible()
        eventually(lambda: output.evaluate(left) < 2, within=10, message="the end of the output is in view")
        output.evaluate("one => { one.scrollTop = 30; }")
        block.get_by_role("button", name="Stop").focus()
        put(api, workspace, "go", "")
        expect(output).to_contain_text("more")
        assert output.evaluate("one => one.scrollTop") == 30, "who reads further up stays there"
        expect(block.get_by_role("button", name="Stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(block.locator(".chip", has_text="cancelled")).to_be_visible()
        block = run(page, "echo once; exit 3")
        expect(block.locator(".chip", has_text="exit 3")).to_be_visible()
        block.get_by_role("button", name="Run again").click()
        expect(page.locator("article.run", has_text="echo once")).to_have_count(2)
        line = page.get_by_label("Command")
        line.press("ArrowUp")
        line.press("ArrowUp")
        expect(line).to_have_value("echo once; exit 3")
        line.press("ArrowUp")
        expect(line).to_have_value(re.compile("^seq 100; "))
        line.press("ArrowDown")
        expect(line).to_have_value("echo once; exit 3")
        visitor.shot("workspace-exec-history")

        started = api.call(
            "POST", f"workspaces/{workspace}/exec", json={"command": "sleep 600", "background": True}
        ).json()
        visitor.go(f"/workspaces/{workspace}/exec/")
        page.locator(f"article#{started['id']}").get_by_role("button", name="Stop").click()
        expect(page.locator(f"article#{started['id']} .chip", has_text="cancelled")).to_be_visible()
        ended = call(api, "GET", f"workspaces/{workspace}/exec/{started['id']}")
        assert (ended["state"], ended["ended_by"], ended["survivors"]) == ("ended", "cancelled", [])
