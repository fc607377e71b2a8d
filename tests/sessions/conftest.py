"""A server process in miniature: reconciler and runner on the loop of this process, real programs in the fake engine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from accounts.audit import Actor
from accounts.models import User
from agents.models import Agent
from primer_site import loop
from sessions_app import dispatch
from tests.eventually import eventually
from tests.factories import Api, api, make_admin, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_agent, make_llm_provider
from tests.sessions.models import modelled, sdks, stubs
from workspaces import execs, reconcile, services
from workspaces.models import Workspace, WorkspaceTemplate

__all__ = ["modelled", "sdks", "stubs"]
INSTANCE = "session-tests"
Playing = Callable[..., Agent]


class Process:
    """The background services of one server process. `stop` drains; `crash` cuts everything without a word."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        execs.reopen()
        self._ended.clear()
        ready: concurrent.futures.Future[asyncio.Event] = concurrent.futures.Future()

        async def serve() -> None:
            stop = asyncio.Event()
            ready.set_result(stop)
            try:
                await asyncio.gather(reconcile.serve(stop), dispatch.serve(stop))
            finally:
                self._ended.set()

        loop.spawn(serve(), name="test process")
        self._stop = ready.result(5)

    def stop(self, drain_s: float = 0.0) -> None:
        if self._stop is not None:
            loop.run(dispatch.drain(drain_s), 60)
            loop.current().call_soon_threadsafe(self._stop.set)
            assert self._ended.wait(20), "the services did not end"
            self._stop = None


@pytest.fixture
def process(transactional_db: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """Background services over a database that all threads see. Everything they made is gone afterwards."""
    monkeypatch.setattr(settings, "PRIMER_INSTANCE_ID", INSTANCE)
    running = Process()
    running.start()
    yield running
    for row in Workspace.objects.live():
        services.workspace_delete(by=None, row=row)
    if running._stop is None:
        running.start()
    eventually(lambda: not Workspace.objects.live().exists(), within=30, message="all workspaces deleted")
    running.stop()
    loop.close_database_threads()


@pytest.fixture
def quiet_database(transactional_db: Any) -> Iterator[None]:
    """Real transactions without any service; the kept connections are closed afterwards."""
    yield
    loop.close_database_threads()


@pytest.fixture
def owner(transactional_db: Any) -> User:
    return make_user("alice")


@pytest.fixture
def alice(owner: User) -> Api:
    return api(owner)


@pytest.fixture
def bob(transactional_db: Any) -> Api:
    return api(make_admin("bob"))


@pytest.fixture
def charlie(transactional_db: Any) -> Api:
    return api(make_user("charlie"))


@pytest.fixture
def engine_root() -> Iterator[Path]:
    """A directory that the sandboxes' own user can reach: pytest's are closed to everybody else."""
    root = Path(tempfile.mkdtemp(prefix="primer-sessions-"))
    root.chmod(0o755)
    yield root / "engine"
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def template(engine_root: Path, transactional_db: Any) -> WorkspaceTemplate:
    # The image has a `python`; a machine that plays a sandbox may only have a python3.
    programs = engine_root.parent / "bin"
    programs.mkdir(mode=0o755)
    (programs / "python").symlink_to(shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable)
    env = {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
    return make_template(provider=make_provider(config={"root_path": str(engine_root)}), env=env)


@pytest.fixture
def workspace(owner: User, template: WorkspaceTemplate) -> Workspace:
    return make_workspace(owner, template)


@pytest.fixture
def agent(owner: User) -> Agent:
    """The code runner."""
    return make_agent(owner)


@pytest.fixture
def playing(owner: User) -> Playing:
    """Makes an agent that plays the given turns."""

    def make(*turns: dict[str, Any], **over: Any) -> Agent:
        number = Agent.objects.count()
        llm = make_llm_provider(f"script-{number}", turns=list(turns))
        return make_agent(owner, f"player-{number}", llm, **over)

    return make


@pytest.fixture
def by(owner: User) -> Actor:
    return Actor(owner)
