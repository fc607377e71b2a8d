"""Admin > System: the report is complete, and the deep check tells each line as it is found, one check at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from accounts.models import AuditEntry
from primer_site import deep, deep_page, engine, loop, services
from primer_site.report import Finding, Level
from tests.console.site import browser, no_manifest
from tests.eventually import eventually
from tests.factories import make_admin, make_user
from tests.sessions.cast import make_session

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db
PATH = "/admin/system/deep/"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_page, "_latest", None)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A check whose second line waits for the gate."""
    opened = threading.Event()

    async def lines(config: dict[str, Any]) -> AsyncIterator[Finding]:
        yield Finding(Level.OK, "sandbox", f"started {EVIL}")
        while not opened.is_set():
            await asyncio.sleep(0.01)
        yield Finding(Level.WARN, "probe", "not shown", "look")

    monkeypatch.setattr(deep, "lines", lines)
    yield opened
    opened.set()
    assert eventually(lambda: (check := deep_page.latest()) is None or check.done, within=10)


def read(answer: Any) -> str:
    async def whole() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return loop.run(whole(), 30).decode()


def test_each_line_leaves_before_the_next_one_is_known(gate: threading.Event) -> None:
    check, _ = deep_page.begin("root")

    async def first_parts() -> tuple[list[bytes], Any]:
        parts = deep_page._page(check, "above ", " below")
        return [await anext(parts), await anext(parts)], parts

    async def rest(parts: Any) -> list[bytes]:
        return [part async for part in parts]

    early, parts = loop.run(first_parts(), 10)
    assert early[0] == b"above "
    assert b"started" in early[1]
    assert not check.done
    gate.set()
    late = b"".join(loop.run(rest(parts), 10))
    assert b"not shown" in late
    assert late.endswith(b" below")


def test_the_page_of_a_check_is_whole_inert_and_leaves_a_line_in_the_audit_log(gate: threading.Event) -> None:
    gate.set()
    client = browser(make_admin("root"))
    page = read(client.post(PATH))
    assert (
        page.index("started")
        < page.index("not shown")
        < page.index("not everything could be shown")
        < page.index("</html>")
    )
    assert EVIL not in page
    assert AuditEntry.objects.filter(action="system.deep_check", actor_name="root").count() == 1
    after = client.get("/admin/system/").content.decode()
    assert "not shown" in after, "the last check stays on the page"


def test_a_second_check_reads_along_with_the_one_that_runs(gate: threading.Event) -> None:
    first, second = browser(make_admin("root")), browser(make_admin("other"))
    one = first.post(PATH)
    check = deep_page.latest()
    other = second.post(PATH)
    assert deep_page.latest() is check
    report = second.get("/admin/system/", headers={"HX-Request": "true"}).content.decode()
    assert "Under way since" in report
    assert 'hx-select="#deep"' in report
    gate.set()
    pages = read(one), read(other)
    assert all("not shown" in page for page in pages)
    assert "root began this check" in pages[1].replace("<bdi>", "").replace("</bdi>", "")
    assert AuditEntry.objects.filter(action="system.deep_check").count() == 1


def test_a_check_that_breaks_off_is_a_sentence_and_another_can_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lines(config: dict[str, Any]) -> AsyncIterator[Finding]:
        yield Finding(Level.OK, "sandbox", "started")
        raise RuntimeError("a bug with a secret in it")

    monkeypatch.setattr(deep, "lines", lines)
    client = browser(make_admin())
    page = read(client.post(PATH))
    assert "The check broke off" in page
    assert "secret in it" not in page
    before = deep_page.latest()
    read(client.post(PATH))
    assert deep_page.latest() is not before


def test_an_engine_that_is_not_there_is_a_sentence_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = {**engine.config(), "connection": {"kind": "socket", "socket_path": str(tmp_path / "none.sock")}}
    monkeypatch.setattr(engine, "config", lambda: config)
    page = read(browser(make_admin()).post(PATH))
    assert "At least one line fails" in page
    assert "engine" in page.lower()
    assert "Traceback" not in page


def test_only_an_admin_may_check_and_a_link_checks_nothing(gate: threading.Event) -> None:
    assert browser(make_user()).post(PATH).status_code == 403
    assert browser(make_admin()).get(PATH).status_code == 302
    assert deep_page.latest() is None


def test_the_report_names_heartbeat_queue_channel_layer_database_disk_and_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "_up", {"runner": True})
    services.beat("runner")
    make_session()
    page = browser(make_admin()).get("/admin/system/").content.decode()
    for words in (
        "last sign of life",
        "Queued sessions",
        "Oldest of them",
        "Channel layer",
        "Sandbox image",
        "Free there",
        "sqlite, ",
        "Deep check",
    ):
        assert words in page
    assert "none waits" not in page
