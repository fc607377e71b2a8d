"""docs/api.md is what the OpenAPI document says."""

from __future__ import annotations

import re

import yaml

from primer_site import reference


def test_the_page_is_current() -> None:
    assert reference.TARGET.read_text() == reference.page(), "run `make docs`"


def test_every_link_of_the_page_leads_somewhere() -> None:
    text = reference.page()
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
    assert {target for target in re.findall(r"\]\(#([^)]+)\)", text) if target not in headings} == set()


def test_every_route_of_the_document_is_on_the_page() -> None:
    text = reference.page()
    document = yaml.safe_load((reference.DOCS / "openapi.yaml").read_text())
    wanted = {f"### {m.upper()} {p}\n" for p, routes in document["paths"].items() for m in routes if m in reference.METHODS}  # fmt: skip
    assert [heading for heading in sorted(wanted) if heading not in text] == []
