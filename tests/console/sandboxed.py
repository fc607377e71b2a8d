"""What tests of pages with a sandbox share: the sandbox's engine is the test's own."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from django.test import Client

from accounts.models import User
from workspaces.models import Workspace
from workspaces.pages.files import ask


@pytest.fixture(autouse=True)
def no_manifest(settings: Any) -> None:
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}


@pytest.fixture
def browser(owner: User) -> Client:
    client = Client(raise_request_exception=False, headers={"Accept": "text/html"})
    client.force_login(owner)
    return client


def put(workspace: str, path: str, data: bytes) -> str:
    """Writes behind the page's back, and returns the ETag."""
    info = ask(Workspace.objects.get(slug=workspace), lambda box: box.write(path, data, mode=0o644))
    return str(info.etag)


def content(workspace: str, path: str) -> bytes:
    found: bytes = ask(Workspace.objects.get(slug=workspace), lambda box: box.read(path)).data
    return found


def html_of(answer: Any) -> str:
    return unescape(answer.content.decode())
