"""The head of a session's page, while it waits and while it runs."""

from __future__ import annotations

import pytest
from django.utils import timezone

from sessions_app.models import AgentSession
from tests.console.site import browser, no_manifest
from tests.factories import make_user
from tests.sessions.cast import make_session
from workspaces.models import Workspace

__all__ = ["no_manifest"]
pytestmark = pytest.mark.django_db


def test_a_session_that_waits_says_for_what() -> None:
    alice = make_user("alice")
    session = make_session(alice)
    lease = {"ended_reason": "", "ended_at": None, "lease_until": timezone.now(), "lease_holder": "r"}
    for status, phase, said in (
        ("queued", "stopped", "Waiting for a runner."), ("running", "starting", "Waiting for the workspace (starting)."), ("running", "running", ""),
    ):  # fmt: skip
        AgentSession.objects.update(status=status, **lease)
        Workspace.objects.update(phase=phase, ref={})
        for path in (f"/sessions/{session.slug}/", f"/sessions/{session.slug}/head/"):
            html = browser(alice).get(path).content.decode()
            assert said in html
            assert html.count("Waiting for") == (1 if said else 0)
