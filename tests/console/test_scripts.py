"""The frame's script on its own, in a real browser without a server: rows of forms, and places of output that is drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import Browser, Page, expect

from accounts.pages import rows
from tests.live import ROOT

pytestmark = pytest.mark.browser
SCRIPT = (ROOT / "static" / "console" / "app.js").read_text()
STORED = "set, ends in 1234; left empty it stays"


@pytest.fixture
def page_of(chromium: Browser) -> Iterator[Callable[[str], Page]]:
    """A page with a body and the frame's script; what the script throws fails the test."""
    context, thrown = chromium.new_context(), []

    def opened(body: str) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: thrown.append(str(error)))
        html = f'<!doctype html><div id="stale" hidden></div>{body}<script>{SCRIPT}</script>'
        page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
        page.goto("http://console.test/")
        return page

    yield opened
    context.close()
    assert not thrown


def field(control: str, value: Any) -> str:
    made = {"name": "f", "label": "Things", "control": control, "rows": 2}
    return render_to_string("partials/field.html", {"bound": {"field": made, "id": "f", "value": value}})


def env() -> list[dict[str, Any]]:
    """A text and a stored secret, without spare rows: somebody removed those."""
    found = rows.draw_env({"A": "text", "TOKEN": {"set": True, "last4": "1234"}})
    return [row for row in found if row["name"]]


def names(page: Page) -> list[str]:
    """What the buttons of the rows are called."""
    found: list[str] = page.locator("[data-row]").evaluate_all("all => all.map(one => one.ariaLabel)")
    return found


def test_a_new_row_takes_nothing_over_from_a_stored_secret(page_of: Callable[[str], Page]) -> None:
    page = page_of(f"<form>{field('env', env())}</form>")
    page.get_by_role("button", name="Add a row").click()
    values, kinds = page.locator("[name='f.value']"), page.locator("select")
    expect(values).to_have_count(3)
    assert values.evaluate_all("all => all.map(one => one.placeholder)") == ["value", STORED, "value"]
    assert kinds.evaluate_all("all => all.map(one => one.value)") == ["text", "secret", "text"]
    expect(page.locator("[name='f.key']").last).to_be_focused()
    assert names(page) == [f"Things: remove row {n}" for n in (1, 2, 3)]
    for row in (3, 1, 1):  # the last one is emptied: the stored secret's
        page.get_by_role("button", name=f"Things: remove row {row}").click()
    assert values.evaluate_all("all => all.map(one => one.placeholder)") == ["value"]
    expect(kinds).to_have_value("text")


def test_by_keyboard_the_focus_stays_with_the_row_or_goes_to_its_neighbour(page_of: Callable[[str], Page]) -> None:
    page = page_of(f"<form>{field('texts', ['one', 'two', 'three'])}</form>")
    page.get_by_role("button", name="Things: move row 3 up").press("Enter")
    expect(page.get_by_role("button", name="Things: move row 2 up")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Things: move row 1 up")).to_be_focused()
    areas = page.locator("textarea")
    assert areas.evaluate_all("all => all.map(one => [one.value, one.ariaLabel])") == [
        ["three", "Things, row 1"],
        ["one", "Things, row 2"],
        ["two", "Things, row 3"],
    ]
    assert page.locator("[data-row=drop]").evaluate_all("all => all.map(one => one.value)") == [
        f"drop f {n}" for n in range(3)
    ]
    page.get_by_role("button", name="Things: remove row 2").press("Enter")
    expect(page.get_by_role("button", name="Things: remove row 2")).to_be_focused()  # the row that came after
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Things: remove row 1")).to_be_focused()  # there is none: the one before
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Things: remove row 1")).to_be_focused()
    expect(areas).to_have_value("")


def test_two_runs_that_are_drawn_anew_at_once_keep_each_their_own_place(page_of: Callable[[str], Page]) -> None:
    out = '<pre class="out" style="height:100px;overflow:auto">' + "line\n" * 200 + "</pre>"
    page = page_of("".join(f'<article class="run" id="{one}">{out}</article>' for one in ("a", "b")))
    places = page.evaluate(
        """() => {
          const run = (id) => document.getElementById(id), tell = (name, one) => one.dispatchEvent(new CustomEvent(name, { bubbles: true }));
          const ids = ["a", "b"], swapped = (id) => { const fresh = run(id).cloneNode(true); run(id).replaceWith(fresh); tell("htmx:load", fresh); };
          run("a").firstChild.scrollTop = 30;
          run("b").firstChild.scrollTop = 70;
          ids.forEach((id) => tell("htmx:beforeSwap", run(id)));
          ids.forEach(swapped);
          return ids.map((id) => run(id).firstChild.scrollTop);
        }"""
    )
    assert places == [30, 70]
