"""A form as a browser without scripts fills and posts it: every control of the page, in the order of the page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.test import Client

Pairs = list[tuple[str, str]]


class Controls(HTMLParser):
    """The controls of the editing form that a browser would post, and the values of each radio group."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pairs: Pairs = []
        self.radios: dict[str, dict[str, int]] = {}  # name -> value -> where the group stands among the pairs
        self.ids: list[str] = []
        self._inside = False
        self._area: str | None = None
        self._select: tuple[str, list[tuple[str, bool, bool]]] | None = None
        self._text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts: dict[str, Any] = dict(attrs)
        if facts.get("id"):
            self.ids.append(facts["id"])
        if tag == "form":
            self._inside = facts.get("class") == "edit"
        if not self._inside or ("disabled" in facts and tag != "option"):
            return
        if tag == "input":
            self._input(facts)
        elif tag == "textarea":
            self._area, self._text = facts.get("name"), ""
        elif tag == "select":
            self._select = (facts["name"], [])
        elif tag == "option" and self._select is not None:
            self._select[1].append((facts.get("value", ""), "selected" in facts, "disabled" in facts))
            self._text = "" if "value" in facts else "?"

    def _input(self, facts: dict[str, Any]) -> None:
        kind, name, value = facts.get("type", "text"), facts.get("name"), facts.get("value") or ""
        if not name or kind in ("submit", "button", "file"):
            return
        if kind == "radio":
            known = self.radios.setdefault(name, {})
            known[value] = len(self.pairs)
        if kind not in ("radio", "checkbox") or "checked" in facts:
            self.pairs.append((name, value))

    def handle_data(self, data: str) -> None:
        if self._text == "?" and self._select is not None and self._select[1]:
            value, chosen, off = self._select[1][-1]
            self._select[1][-1] = (value or data.strip(), chosen, off)
        elif self._area is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif tag == "textarea" and self._area is not None:
            self.pairs.append((self._area, self._text.removeprefix("\n")))
            self._area = None
        elif tag == "select" and self._select is not None:
            name, options = self._select
            usable = [value for value, chosen, off in options if chosen and not off]
            usable += [value for value, _, off in options if not off]
            self.pairs += [(name, usable[0])] if usable else []
            self._select = None


def filled_in(html: str, values: dict[str, str]) -> dict[str, list[str]]:
    """What is posted when somebody types `values` into a page's form: each into the first control of that name."""
    controls = Controls(html)
    pairs, left = list(controls.pairs), dict(values)
    for number, (name, _) in enumerate(pairs):
        if name in left:
            pairs[number] = (name, left.pop(name))
    pairs += [(name, left.pop(name)) for name in list(left) if name in controls.radios]
    assert not left, f"the form has no {', '.join(left)}"
    posted: dict[str, list[str]] = {}
    for name, value in pairs:
        posted.setdefault(name, []).append(value)
    return posted


def fill(client: Client, path: str, values: dict[str, str], to: str = "") -> Any:
    """Opens a form, types into it and sends it, to another address where one of its buttons does."""
    page = client.get(path)
    assert page.status_code == 200, page.status_code
    return client.post(to or path.partition("?")[0], filled_in(page.content.decode(), values))
