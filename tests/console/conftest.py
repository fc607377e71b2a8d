"""A real browser against a real server: Debian's Chromium, never one that Playwright downloads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.conftest import unusable
from tests.e2e.conftest import runtime_image
from tests.e2e.recipe import SCRIPTED, Api
from tests.engine import docker_view
from tests.live import ROOT, LiveServer

__all__ = ["docker_view", "runtime_image"]
SWITCHES = [
    "--no-sandbox",
    "--headless",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOTS = ROOT / "screenshots"  # ignored by git, for people to look at
# Firefox and Chromium print these for answers that a test provokes; everything else on the console is a failure.
EXPECTED = ("Failed to load resource", "WebSocket connection to")
PEOPLE = {"alice": "member", "charlie": "member", "victor": "viewer"}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The installed Chromium; without one the test is skipped, or fails where a browser is promised."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        unusable("browser", "there is no chromium: apt-get install -y chromium")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        except Exception as exc:
            unusable("browser", f"{path}: {exc}")
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def api(server: LiveServer) -> Iterator[Api]:
    client = Api(server.url, server.token)
    if client.call("GET", "llm_providers/scripted").status_code == 404:
        client.ok("POST", "llm_providers", SCRIPTED, status=201)
    yield client
    client.close()


@pytest.fixture(scope="session")
def passwords(server: LiveServer, api: Api) -> dict[str, str]:
    """Everybody's password; people other than the admin are made here."""
    found = {"admin": server.password}
    for name, role in PEOPLE.items():
        found[name] = f"a-word-of-{name}-000"
        if api.call("GET", f"users/{name}").status_code == 404:
            api.ok("POST", "users", {"username": name, "role": role, "password": found[name]}, status=201)
    return found


class Visitor:
    """One signed-in person's tab. `noise` holds what the browser complained about: policy violations above all."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.context, self.base = context, base
        self.noise: list[str] = []
        self.page: Page = self.tab()

    def tab(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.noise.append(f"script: {error}"))
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith(EXPECTED):
            self.noise.append(f"{kind}: {text}")

    def go(self, path: str) -> int:
        answer = self.page.goto(self.base + path)
        assert answer is not None
        return answer.status

    def sign_in(self, name: str, password: str) -> None:
        self.go("/login/")
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password", exact=True).fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/login/" not in url)  # the page that refuses has a heading, too

    def shot(self, name: str) -> None:
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


Visit = Callable[..., Any]


@pytest.fixture(scope="session")
def signed_in() -> dict[tuple[str, str], Any]:
    """Cookies of those who signed in before: the door lets nobody in more than a few times a minute."""
    return {}


@pytest.fixture
def visit(
    chromium: Browser, server: LiveServer, passwords: dict[str, str], signed_in: dict[tuple[str, str], Any]
) -> Visit:
    """`with visit("alice", scripts=False) as visitor:` — a browser of one person; complaints of the browser fail the test."""

    @contextmanager
    def open_for(
        name: str = "admin", *, scripts: bool = True, base: str = "", password: str = "", **options: Any
    ) -> Iterator[Visitor]:
        context = chromium.new_context(java_script_enabled=scripts, viewport={"width": 1280, "height": 800}, **options)
        try:
            visitor = Visitor(context, base or server.url)
            known = None if password else signed_in.get((name, visitor.base))
            if known:
                context.add_cookies(known)
                visitor.go("/")
            elif name:
                visitor.sign_in(name, password or passwords[name])
            if name and not password:
                signed_in[name, visitor.base] = context.cookies()
            yield visitor
            assert not visitor.noise
        finally:
            context.close()

    return open_for


def axe_source() -> str:
    """The axe-core that a Python package carries; nothing is fetched."""
    import axe_playwright_python  # type: ignore[import-untyped]

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
