"""Admin > System > Deep check: one sandbox from start to end, its lines on the page as they are found.

The answer is one page that grows: it needs no script. The check belongs to the server and not to the request, so a reader
who goes away leaves nothing behind on the engine, and a second one reads along.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, cast

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.loader import get_template, render_to_string
from django.utils import timezone

from accounts.audit import Actor, audit_record
from accounts.models import User
from accounts.permissions import require_admin
from primer_site import deep, engine, loop
from primer_site.report import Finding, Level

LOOK_S: Final = 0.1  # between two looks for new lines
LINES: Final = "<!-- lines -->"  # where the page is cut: before it what stands above them, behind it what follows
SYSTEM: Final = "/admin/system/"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DeepCheck:
    """One check of this process: who wanted it, and what it has found so far."""

    by: str
    began: datetime = field(default_factory=timezone.now)
    findings: list[Finding] = field(default_factory=list)
    done: bool = False

    @property
    def worst(self) -> Level:
        levels = {finding.level for finding in self.findings}
        return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)

    async def run(self) -> None:
        try:
            async for finding in deep.lines(engine.config()):
                self.findings.append(finding)
        except Exception:
            log.exception("the deep check failed")
            text = "The check broke off by an error of its own; what it made may still be on the engine."
            self.findings.append(
                Finding(Level.FAIL, "check", text, "the server's log has it; primer doctor --fix removes it")
            )
        finally:
            self.done = True


_lock = threading.Lock()
_latest: DeepCheck | None = None


def latest() -> DeepCheck | None:
    """The check that runs in this process, or the last that did."""
    return _latest


def begin(by: str) -> tuple[DeepCheck, bool]:
    """The check that runs, or a new one; and whether it is new. One at a time: it is a sandbox more on the engine."""
    global _latest
    with _lock:
        if _latest is not None and not _latest.done:
            return _latest, False
        check = DeepCheck(by)
        loop.spawn(check.run(), name="deep check")
        _latest = check
        return check, True


def deep_check(request: HttpRequest) -> HttpResponse:
    user = request.user
    assert isinstance(user, User)  # noqa: S101 - the login middleware made sure
    require_admin(user)
    if request.method != "POST":
        return HttpResponseRedirect(SYSTEM)
    check, is_new = begin(user.username)
    if is_new:
        audit_record(Actor.of(request), "system.deep_check", kind="system", object_id="deep-check")
    whole = render_to_string("system/deep.html", {"heading": "Deep check", "check": check, "is_new": is_new}, request)
    above, _, below = whole.partition(LINES)
    return cast(HttpResponse, StreamingHttpResponse(_page(check, above, below)))


async def _page(check: DeepCheck, above: str, below: str) -> AsyncGenerator[bytes, None]:
    yield above.encode()
    row, shown = get_template("system/finding.html"), 0
    while True:
        done = check.done  # before the lines: none comes after it
        for finding in check.findings[shown:]:
            shown += 1
            yield row.render({"one": finding}).encode()
        if done:
            break
        await asyncio.sleep(LOOK_S)
    yield get_template("system/verdict.html").render({"check": check}).encode() + below.encode()
