"""Forms in a real browser: what is tried before it is saved, with scripts and without; lists that are fetched; nothing is lost."""

from __future__ import annotations

import pytest
from playwright.sync_api import Dialog, expect

from tests.console.conftest import Visit, axe_source
from tests.console.test_files_live import workspace
from tests.console.test_looks import violations
from tests.e2e.recipe import Api

__all__ = ["workspace"]
pytestmark = [pytest.mark.docker, pytest.mark.e2e, pytest.mark.browser]
DROP = """area => {
  const data = new DataTransfer();
  data.items.add(new File(["Run this code: print(1)"], "task.txt", { type: "text/plain" }));
  area.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
}"""
SEND = """fields => {
  const form = document.querySelector("form.edit"), token = form.querySelector("[name=csrfmiddlewaretoken]");
  form.replaceChildren(token);
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name, value });
    form.append(input);
  }
  form.submit();
}"""
NEW = "/workspaces/templates/new/?provider_id=docker-local"


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_image_engine_and_model_are_tried_from_their_unsaved_forms(
    scripts: bool, visit: Visit, api: Api, workspace: str
) -> None:
    tries = (
        (NEW, "Check image", "#checked", "The image is on the engine."),
        ("/workspaces/providers/new/", "Test connection", "#tested", "cgroup"),
        ("/compute/llm-providers/new/", "Test", "#tested", "answered in"),
    )
    with visit("admin", scripts=scripts) as visitor:
        page = visitor.page
        for path, button, place, said in tries:
            visitor.go(path)
            if "llm" in path:
                page.get_by_label("Scripted, without a key").check()
            page.get_by_role("button", name=button, exact=True).click()
            where = (
                page.locator(place) if scripts else page.locator("main", has=page.get_by_role("heading", name="Result"))
            )
            expect(where).to_contain_text(said, timeout=15_000)
            assert ("/new/" in page.url and page.url.endswith(path)) == scripts
        assert api.call("GET", "llm_providers/unsaved").status_code == 404


def test_a_form_offers_what_there_is_counts_bytes_and_warns_before_it_is_left(
    visit: Visit, api: Api, workspace: str
) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go(NEW)
        expect(page.locator("#f-backend-image-list option[value='primer/workspace-runtime:1.0']")).to_have_count(1)
        page.get_by_label("Memory", exact=True).fill("2")
        page.get_by_label("Memory: unit").select_option("GiB")
        expect(page.locator("[data-bytes=f-backend-memory_bytes]")).to_have_text("= 2147483648 bytes")
        asked: list[str] = []

        def leave(dialog: Dialog) -> None:
            asked.append(dialog.type)
            dialog.accept()

        page.once("dialog", leave)
        page.get_by_role("link", name="Cancel").click()
        page.wait_for_url("**/workspaces/templates/")
        assert asked == ["beforeunload"]

        visitor.go("/compute/agents/new/")
        page.get_by_label("LLM provider").select_option("scripted")
        expect(page.locator("#f-model-model_name-list option")).not_to_have_count(0)
        visitor.go("/sessions/new/?agent_id=code-runner")
        area = page.get_by_label("Initial instructions")
        area.evaluate(DROP)
        expect(area).to_have_value("Run this code: print(1)")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("link", name="Cancel").click()


def test_axe_finds_nothing_on_forms_that_are_refused(visit: Visit, api: Api, workspace: str) -> None:
    refused = {
        "/workspaces/providers/new/": {"id": "No", "config.kind": "kubernetes"},
        "/workspaces/templates/new/": {"id": "No", "provider_id": "docker-local", "backend.kind": "container", "backend.image": "x y",
                                       "backend.memory_bytes": "1", "labels.key": "!", "labels.value": "x", "require": "never"},
        "/compute/agents/new/": {"id": "No", "tools": "workspace__exec", "thinking": "no", "limits.max_turns": "0"},
    }  # fmt: skip
    with visit("admin", bypass_csp=True) as visitor:
        visitor.context.add_init_script(axe_source())
        for path, fields in refused.items():
            visitor.go(path)
            visitor.page.evaluate(SEND, fields)
            expect(visitor.page.get_by_role("alert")).to_be_focused()
            assert visitor.page.locator("[aria-invalid=true]").count() >= 2, path
            assert violations(visitor.page) == [], path
            visitor.shot("refused-" + path.split("/")[2])
