"""One file on its page, whatever is in it: cut to what a browser can show, with the way to the rest."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.console.sandboxed import browser, html_of, no_manifest, put
from tests.workspaces.conftest import Process, alice, owner, process, provider, root_path, running, template
from workspaces.pages import viewer

__all__ = ["alice", "browser", "no_manifest", "owner", "process", "provider", "root_path", "running", "template"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_more_of_a_long_text_is_loaded_up_to_what_a_page_holds(process: Process, running: str, browser: Client) -> None:
    put(running, "huge.txt", b"0123456789abcde\n" * 200_000)  # 3.2 MB
    path, shown = f"/files/{running}/huge.txt", 0
    for step in range(12):
        context = browser.get(f"{path}?more={step}").context
        now = sum(len(lines) for _, lines in context["parts"])
        assert now > shown
        shown = now
        if not context["more"]:
            break
    assert shown >= (2 * 1024**2 + 64 * 1024) // 16 - 2
    assert step <= 8
    assert browser.get(f"{path}?more=99999999").context["more"] == 0
    assert browser.get(f"{path}?more=x").context["more"] == 1


def test_no_page_is_built_from_more_lines_than_a_browser_can_lay_out(
    process: Process, running: str, browser: Client
) -> None:
    lines = viewer.LINES + viewer.TAIL_LINES
    put(running, "most.txt", b"\n" * lines)
    shown = browser.get(f"/files/{running}/most.txt")
    assert [len(part) for _, part in shown.context["parts"]] == [lines]
    assert shown.context["text"] == "\n" * lines
    put(running, "more.txt", b"".join(b"%d\n" % n for n in range(3 * viewer.LINES)))
    answer = browser.get(f"/files/{running}/more.txt")
    head, tail = (part for _, part in answer.context["parts"])
    assert (head[-1], tail[0], tail[-1]) == (str(viewer.LINES - 1), str(3 * viewer.LINES - viewer.TAIL_LINES), "59999")
    assert "left out here" in html_of(answer)
    assert f'<li id="L{viewer.LINES}">' in html_of(answer)
    assert "?edit=1" not in html_of(answer), "an editor would save what it was not given"
    further = browser.get(f"/files/{running}/more.txt?more={answer.context['more']}").context["parts"]
    assert len(further[0][1]) == 2 * viewer.LINES
    assert [len(part) for _, part in browser.get(f"/files/{running}/more.txt?more=2").context["parts"]] == [60_000]


def test_text_that_is_not_quite_utf_8_is_shown_with_a_note_and_cannot_be_edited(
    process: Process, running: str, browser: Client
) -> None:
    put(running, "latin.txt", "ein gro\u00dfer Text aus alter Zeit\n".encode("latin-1"))
    put(running, "latin.md", b"# caf\xe9\n")
    html = html_of(browser.get(f"/files/{running}/latin.txt"))
    assert "ein gro\ufffder Text" in html
    assert "no UTF-8 are shown as \ufffd, so it cannot be edited here." in html
    assert "?edit=1" not in html
    assert "<textarea" not in html_of(browser.get(f"/files/{running}/latin.txt?edit=1"))
    assert "<h3>caf\ufffd</h3>" in html_of(browser.get(f"/files/{running}/latin.md?view=rendered"))
    put(running, "fine.txt", "gro\u00df \ufffd\n".encode())
    fine = html_of(browser.get(f"/files/{running}/fine.txt"))
    assert "no UTF-8" not in fine
    assert "?edit=1" in fine


def test_more_of_a_line_that_is_cut_can_be_shown(process: Process, running: str, browser: Client) -> None:
    put(running, "line.txt", b"x" * 20_000 + b"END\n")
    html = html_of(browser.get(f"/files/{running}/line.txt"))
    assert "xEND" not in html
    assert '<a href="?wide=1">Show more</a>' in html
    wide = html_of(browser.get(f"/files/{running}/line.txt?wide=1"))
    assert "xEND" in wide
    assert "Show more" not in wide


def test_what_is_left_out_of_a_text_is_counted_in_the_bytes_of_the_file(
    process: Process, running: str, browser: Client
) -> None:
    lines = viewer.LINES + viewer.TAIL_LINES + 5000
    put(running, "odd.txt", b"aaaaaa\xe9\n" * lines)
    answer = browser.get(f"/files/{running}/odd.txt")
    assert answer.context["left_out"] == 5000 * 8
    assert "39.1 KiB left out here" in html_of(answer)
    put(running, "fine.txt", "gro\u00dfe\n".encode() * lines)
    assert browser.get(f"/files/{running}/fine.txt").context["left_out"] == 5000 * 7
    data = (
        "x" * 63 + "\u00df\n"
    ).encode() * 40_000  # 2.6 MB: head and tail are read by themselves, the tail amid a line
    put(running, "large.txt", data)
    found = browser.get(f"/files/{running}/large.txt").context
    head, tail = (part for _, part in found["parts"])
    assert len(data) - found["left_out"] == 2 * viewer.PART
    assert len(head[0]) == len(tail[-1]) == 64


@pytest.mark.parametrize(
    ("name", "view", "line", "label"),
    [("many.csv", "table", "a,b", "Table"), ("many.md", "rendered", "text", "Rendered")],
)
def test_a_text_of_many_lines_keeps_its_other_view_and_says_why_it_cannot_be_edited(
    process: Process, running: str, browser: Client, name: str, view: str, line: str, label: str
) -> None:
    put(running, name, (line + "\n").encode() * (viewer.LINES + viewer.TAIL_LINES + 1000))
    page = f"/files/{running}/{name}"
    source, other = browser.get(page), browser.get(f"{page}?view={view}")
    assert f'href="?view={view}">{label}</a>' in html_of(source)
    assert "too long to be edited here" in html_of(source)
    assert "too long to be edited here" in html_of(browser.get(f"{page}?edit=1"))
    assert "<textarea" not in html_of(browser.get(f"{page}?edit=1&view={view}")).split('aria-label="File"')[1]
    assert other.context["view"] == view
    assert ("The first 200 rows." if view == "table" else "<p>text") in html_of(other)
    assert "too long" not in html_of(other)


def test_a_number_of_any_length_or_script_in_an_address_is_no_failure(
    process: Process, running: str, browser: Client
) -> None:
    put(running, "a.txt", b"text\n")
    for number in ("9" * 4400, "\u00b2", "\u0663"):
        assert browser.get(f"/files/{running}/a.txt", {"more": number}).status_code == 200


def test_an_image_that_is_too_large_says_so(process: Process, running: str, browser: Client) -> None:
    put(running, "big.png", b"\x89PNG\r\n\x1a\n" + b"0" * (10 * 1024**2))
    assert "larger than 10 MiB" in browser.get(f"/files/{running}/big.png").content.decode()


def test_an_image_is_served_inline_only_when_it_is_one(process: Process, running: str, browser: Client) -> None:
    put(running, "a.png", b"\x89PNG\r\n\x1a\n" + b"0" * 100)
    put(running, "b.png", b"<svg onload=alert(1)>")
    shown = browser.get(f"/files/{running}/a.png?as=image")
    assert (shown.status_code, shown["Content-Type"]) == (200, "image/png")
    assert shown["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in shown["Content-Security-Policy"]
    assert browser.get(f"/files/{running}/b.png?as=image").status_code == 404
