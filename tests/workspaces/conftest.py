"""One process' worth of background services around a test: its reconciler, its runs, its engines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from accounts.models import User
from primer_site import loop
from tests.engine import INSTANCE, DockerView, docker_view, runtime_image
from tests.eventually import eventually
from tests.factories import Api, api, make_admin, make_provider, make_template, make_user
from workspaces import execs, reconcile, services
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

__all__ = ["docker_view", "runtime_image"]


class Process:
    """The services of a server process on the loop of this one; `stop` is a graceful end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        """Starts the services unless they run."""
        if self._stop is not None:
            return
        execs.reopen()
        self._ended.clear()
        ready: concurrent.futures.Future[asyncio.Event] = concurrent.futures.Future()

        async def serve() -> None:
            stop = asyncio.Event()
            ready.set_result(stop)
            try:
                await reconcile.serve(stop)
            finally:
                self._ended.set()

        loop.spawn(serve(), name="test process")
        self._stop = ready.result(5)

    def stop(self) -> None:
        if self._stop is not None:
            loop.current().call_soon_threadsafe(self._stop.set)
            assert self._ended.wait(20), "the reconciler did not end"
            self._stop = None


@pytest.fixture
def process(transactional_db: Any, root_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """Background services over a database that all threads see. Everything they made is gone afterwards.

    The fake engine's directory outlives them: without its records nobody would end the sandboxes.
    """
    monkeypatch.setattr(settings, "PRIMER_INSTANCE_ID", INSTANCE)
    running = Process()
    running.start()
    yield running
    try:
        for row in Workspace.objects.live():
            services.workspace_delete(by=None, row=row)
        for provider in WorkspaceProvider.objects.filter(config__fault__isnull=False):
            provider.write_spec({"config": {name: v for name, v in provider.config.items() if name != "fault"}})
        running.start()
        eventually(lambda: not Workspace.objects.live().exists(), within=30, message="all workspaces deleted")
    finally:
        running.stop()
        loop.close_database_threads()


@pytest.fixture
def alice(db: Any) -> Api:
    return api(make_user("alice"))


@pytest.fixture
def bob(db: Any) -> Api:
    return api(make_admin("bob"))


@pytest.fixture
def charlie(db: Any) -> Api:
    return api(make_user("charlie"))


@pytest.fixture
def owner(db: Any) -> User:
    return make_user("alice")


@pytest.fixture
def root_path() -> Iterator[str]:
    """A directory that the sandbox's own user may enter, which pytest's are not."""
    root = tempfile.mkdtemp(prefix="primer-fake-")
    Path(root).chmod(0o711)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def provider(db: Any, root_path: str) -> WorkspaceProvider:
    return make_provider(config={"root_path": root_path})


@pytest.fixture
def template(provider: WorkspaceProvider) -> WorkspaceTemplate:
    return make_template(provider=provider)


def create(person: Api, template: str = "plain", **body: Any) -> str:
    """The id of a new workspace."""
    answer = person.post("workspaces", {"template_id": template, **body})
    assert answer.status_code == 201, answer.content
    return str(answer.json()["id"])


def sandbox_pid(workspace: str) -> int:
    """The process that the fake engine runs for a workspace."""
    ref: Any = Workspace.objects.get(slug=workspace).ref
    return int(ref["extra"]["pid"])


def phase_of(person: Api, workspace: str) -> str:
    answer = person.get(f"workspaces/{workspace}")
    return str(answer.json()["phase"]) if answer.status_code == 200 else str(answer.status_code)


def until(person: Api, workspace: str, *phases: str, within: float = 30) -> dict[str, Any]:
    """Waits for one of the phases and returns the workspace; "404" waits for its end."""

    def reached() -> Any:
        answer = person.get(f"workspaces/{workspace}")
        now = answer.json()["phase"] if answer.status_code == 200 else str(answer.status_code)
        if now in ("failed", "lost") and now not in phases:
            raise RuntimeError(answer.json())
        assert now in phases, answer.json()
        return answer.json()

    return dict(eventually(reached, within=within, message=f"{workspace} reaches {phases}"))


@pytest.fixture
def running(process: Process, template: WorkspaceTemplate, alice: Api) -> str:
    """The id of a running workspace of alice's, in the fake engine."""
    workspace = create(alice)
    until(alice, workspace, "running")
    return workspace


@pytest.fixture
def docker(process: Process, docker_view: DockerView, runtime_image: str) -> DockerView:
    """The real engine, with the provider `docker` and the template `box` of the adversarial cases."""
    make_template("box", provider=make_provider("docker", "container"))
    return docker_view


@pytest.fixture
def box(docker: DockerView, alice: Api) -> str:
    """The id of a running container of alice's."""
    workspace = create(alice, "box")
    until(alice, workspace, "running", "failed")
    return workspace
