"""Keys and dialogs in a real browser: the palette, the list of keys, rows of a list, and nothing of it where one types."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Visit, Visitor, axe_source
from tests.e2e.recipe import Api, sample

pytestmark = [pytest.mark.e2e, pytest.mark.browser]
FOUND = "dialog #found"


@pytest.fixture(scope="module")
def agents(api: Api) -> list[str]:
    """Two agents of the admin, the names of which a list shows in this order."""
    names = ["keys-b", "keys-a"]
    spec = sample("code-runner.yaml")["spec"]
    for name in reversed(names):
        if api.call("GET", f"agents/{name}").status_code == 404:
            api.ok(
                "POST",
                "agents",
                {**spec, "id": name, "model": {"provider_id": "scripted", "model_name": "scripted"}},
                status=201,
            )
    return names


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def violations(page: Page) -> list[str]:
    found = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(one => one.id + ' ' + one.nodes[0].target)"
    )
    return [str(one) for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_palette_opens_finds_walks_and_gives_the_focus_back(visit: Visit, agents: list[str], scheme: str) -> None:
    with visit("admin", color_scheme=scheme, bypass_csp=True) as visitor:
        page = visitor.page
        visitor.context.add_init_script(axe_source())
        visitor.go("/compute/agents/?q=keys-")
        row = page.get_by_role("link", name=agents[0])
        row.focus()
        press(page, "Control+k")
        field = page.get_by_role("dialog").get_by_role("searchbox")
        expect(field).to_be_focused()
        page.keyboard.type("keys-b")
        expect(page.locator(FOUND)).to_have_attribute("data-q", "keys-b")
        expect(page.locator(FOUND).get_by_role("heading", name="Agent keys-b")).to_be_visible()
        visitor.shot(f"{scheme}-palette")
        assert not violations(page)
        press(page, "ArrowDown", "ArrowDown", "ArrowUp")
        expect(page.locator(FOUND).get_by_role("link").first).to_be_focused()
        press(page, "ArrowUp")
        expect(field).to_be_focused()
        press(page, "Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(row).to_be_focused()
        press(page, "Control+k", "g", "w")
        expect(field).to_be_focused()
        field.fill("audit")
        expect(page.locator(FOUND)).to_have_attribute("data-q", "audit")
        press(page, "Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Audit log")


def test_letters_go_to_pages_rows_and_forms_but_not_out_of_a_field(visit: Visit, agents: list[str]) -> None:
    with visit("admin") as visitor:
        page = visitor.page
        visitor.go("/")
        press(page, "g", "a")
        expect(page.get_by_role("heading", level=1)).to_have_text("Agents")
        press(page, "/")
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("keys-gwc?")
        expect(page.locator("#q")).to_have_value("keys-gwc?")
        expect(page.get_by_text("Nothing matches")).to_be_visible()
        page.locator("#q").fill("keys-")
        expect(page.get_by_role("link", name=agents[0])).to_be_visible()
        press(page, "Escape", "j")
        expect(page.get_by_role("link", name=agents[0])).to_be_focused()
        press(page, "j")
        expect(page.get_by_role("link", name=agents[1])).to_be_focused()
        press(page, "j", "k")
        expect(page.get_by_role("link", name=agents[0])).to_be_focused()
        press(page, "Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(agents[0])
        press(page, "y")
        expect(page.get_by_role("link", name="YAML")).to_have_attribute("aria-current", "page")
        press(page, "g", "a")
        expect(page.get_by_role("heading", level=1)).to_have_text("Agents")
        press(page, "c")
        expect(page.get_by_role("heading", level=1)).to_have_text("New agent")
        press(page, "g", "o")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        press(page, "?")
        expect(page.get_by_role("dialog")).to_contain_text("Overview")
        press(page, "g", "w")
        expect(page.get_by_role("dialog")).to_be_visible()
        press(page, "Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_the_switch_in_the_account_turns_every_key_off(visit: Visit, agents: list[str]) -> None:
    with visit("charlie") as visitor:
        page = visitor.page
        switched(visitor, False)
        visitor.go("/compute/agents/")
        press(page, "?", "c", "g", "w", "Control+k", "/")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_have_text("Agents")
        page.get_by_role("link", name="Search", exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("searchbox")).to_be_focused()
        switched(visitor, True)
        press(page, "?")
        expect(page.get_by_role("dialog")).to_be_visible()


def switched(visitor: Visitor, on: bool) -> None:
    visitor.go("/account/")
    visitor.page.get_by_label("Shortcuts").set_checked(on)
    visitor.page.locator('form[action="/account/keys/"]').get_by_role("button", name="Save").click()
    visitor.page.get_by_text("Keyboard shortcuts are").wait_for()


def test_without_scripts_the_search_is_a_page(visit: Visit, agents: list[str]) -> None:
    with visit("admin", scripts=False) as visitor:
        page = visitor.page
        visitor.go("/compute/agents/keys-a/")
        page.get_by_role("link", name="Search", exact=True).click()
        expect(page.get_by_role("heading", name="Agent keys-a")).to_be_visible()
        page.get_by_role("searchbox").fill("keys-b")
        page.get_by_role("main").get_by_role("button", name="Search").click()
        page.get_by_role("main").locator('a[href="/compute/agents/keys-b/"]').first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("keys-b")
