"""Lists and rows of forms in a real browser: who asks by itself stops, or says that nobody answers; rows come and go by their buttons."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Visit
from tests.console.test_keyboard import agents
from tests.e2e.recipe import Api

__all__ = ["agents"]
pytestmark = [pytest.mark.e2e, pytest.mark.browser]
MOVES = """(row, url) => {
  for (const [name, value] of [["hx-get", url], ["hx-trigger", "every 3s"], ["hx-swap", "outerHTML"]]) row.setAttribute(name, value);
  htmx.process(row);
}"""


def test_a_row_at_rest_asks_no_more_and_a_list_says_when_nobody_answers(visit: Visit, agents: list[str]) -> None:
    with visit("admin") as visitor:
        page, away = visitor.page, visitor.page.locator("#stale")
        page.clock.install()
        visitor.go("/compute/agents/?q=keys-")
        url, asked = f"/compute/agents/{agents[0]}/row/", []
        page.on("request", lambda request: asked.append(request.url) if request.url.endswith(url) else None)
        row = page.locator(f"#row-{agents[0]}")
        row.evaluate(MOVES, url)
        with page.expect_response("**" + url) as answer:
            page.clock.run_for(3_100)
        assert answer.value.status == 286
        expect(row).not_to_have_attribute("hx-get", url)
        page.clock.run_for(20_000)
        assert len(asked) == 1

        visitor.context.route("**/*", lambda route: route.abort())
        page.clock.run_for(31_000)
        expect(away).to_be_visible()
        expect(row).to_be_visible()
        visitor.context.unroute_all()
        page.clock.run_for(31_000)
        expect(away).to_be_hidden()
        visitor.noise[:] = [one for one in visitor.noise if not one.startswith("error: htmx:")]  # what was provoked


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_rows_of_a_form_are_added_moved_and_removed(scripts: bool, visit: Visit, api: Api) -> None:
    name = f"rows-{'with' if scripts else 'without'}"
    with visit("admin", scripts=scripts) as visitor:
        page = visitor.page
        visitor.go("/compute/agents/new/")
        page.locator("summary", has_text="Advanced").click()
        prompt = page.get_by_role("group", name="System prompt")
        areas = prompt.locator("textarea")
        for number, text in enumerate(("second", "first", "never")):
            areas.nth(number).fill(text)
            prompt.get_by_role("button", name="Add a row").click()
            expect(areas.nth(number + 1)).to_be_visible()
        expect(areas.nth(2)).to_have_value("never")
        prompt.locator("[data-row=drop]").nth(2).click()
        expect(areas.nth(2)).not_to_have_value("never")
        prompt.locator("[data-row=up]").nth(1).click()
        expect(areas.nth(0)).to_have_value("first")
        page.get_by_label("ID", exact=False).first.fill(name)
        page.get_by_label("LLM provider").select_option("scripted")
        page.get_by_label("Description").press("Enter")  # creates, and presses no button of a row
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        assert api.ok("GET", f"agents/{name}")["system_prompt"] == ["first", "second"]
        api.ok("DELETE", f"agents/{name}")
