"""One of everything: what the tables of routes are played against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache

from accounts import services as accounts
from accounts.models import Role, Scope, User
from agents.models import Agent
from sessions_app.models import EndedReason
from sessions_app.services import locked, session_end
from tests.api.live import LiveWorld
from tests.api.table import AGENT, LOCAL, TEMPLATE
from tests.factories import Api, api, make_provider, make_template, make_user, make_workspace
from tests.sessions.cast import make_llm_provider, make_session
from tests.workspaces.conftest import Process, process, root_path, until
from workspaces.models import Exec, Workspace, WorkspaceTemplate

__all__ = ["process", "root_path"]

PASSWORD = "correct horse battery"


class World:
    """Alice owns an agent, a workspace with an ended run, and an ended session; bob is the admin who made the rest."""

    def __init__(self) -> None:
        self.alice = self._person("alice", Role.MEMBER)
        self.bob = self._person("bob", Role.ADMIN)
        self.charlie = self._person("charlie", Role.MEMBER)
        self.vera = self._person("vera", Role.VIEWER)
        dave = make_user("dave")
        admin = self.client("bob")  # by the API, which fills in defaults
        for slug in ("here", "spare"):
            assert admin.post("workspace_providers", {"id": slug, **LOCAL}).status_code == 201
        for slug in ("plain", "unused"):
            assert admin.post("workspace_templates", {"id": slug, **TEMPLATE}).status_code == 201
        template = WorkspaceTemplate.objects.get(slug="plain")
        make_llm_provider()
        model = make_llm_provider("unused-model")
        for slug in ("code-runner", "free"):
            assert self.client("alice").post("agents", {"id": slug, **AGENT}).status_code == 201
        agent = Agent.objects.get(slug="code-runner")
        workspace = make_workspace(self.alice, template)
        session = make_session(self.alice, agent, workspace)
        session_end(session=locked(session), reason=EndedReason.COMPLETED, answer="42")
        token, _ = accounts.token_create(user=self.alice, name="spare", scope=Scope.READ, expires_in_s=None)
        self.template, self.agent, self.workspace, self.session = template, agent, workspace, session
        # What a DELETE can be tried on: nothing uses it.
        self.ids = {
            "agents": "free", "llm_providers": model.slug, "sessions": session.slug, "tokens": str(token.uuid),
            "users": dave.username, "workspace_providers": "spare", "workspace_templates": "unused",
            "workspaces": workspace.slug, "exec": _ended_run(workspace).slug,
        }  # fmt: skip

    @staticmethod
    def _person(name: str, role: Role) -> User:
        return accounts.user_create(username=name, role=role, password=PASSWORD)[0]

    def client(self, name: str, scope: Scope | None = None) -> Api:
        return api(None if name == "nobody" else getattr(self, name), scope)


def _ended_run(workspace: Workspace) -> Exec:
    made: Exec = Exec.objects.create(
        workspace=workspace, state="ended", ended_by="exit", exit_code=0, ended_at=workspace.created_at,
        request={"argv": ["true"], "cwd": "", "timeout_s": 60, "background": False},
    )  # fmt: skip
    return made


@pytest.fixture
def world(transactional_db: Any, settings: Any) -> World:
    settings.PRIMER_ALLOW_LOCAL = True
    cache.clear()  # the throttle of sign-ins counts there
    return World()


@pytest.fixture(scope="session")
def live_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWorld]:
    """A real server with one of everything, for tests that neither stop it nor delete what is there."""
    made = LiveWorld(tmp_path_factory.mktemp("live-world"))
    try:
        made.start()
        made.build()
        yield made
    finally:
        made.destroy()


@pytest.fixture
def bob(world: World) -> Api:
    return world.client("bob")


@pytest.fixture
def alice(world: World) -> Api:
    return world.client("alice")


@pytest.fixture
def inhabited(world: World, process: Process, root_path: str) -> World:
    """The world, its workspace now running on the fake engine: the file `a` is in it, and a program that does not end."""
    Workspace.objects.update(phase="stopped", desired="stopped")  # what nobody asks for here is not brought up
    template = make_template("inhabited", provider=make_provider("engine", config={"root_path": root_path}))
    workspace, client = make_workspace(world.alice, template), world.client("alice")
    world.workspace, world.ids["workspaces"] = workspace, workspace.slug
    until(client, workspace.slug, "running")
    path = f"workspaces/{workspace.slug}"
    assert client.put(f"{path}/files", {"content": "old"}, path="a").status_code == 204
    body = {"argv": ["sleep", "600"], "background": True}
    world.ids["exec"] = client.post(f"{path}/exec", body).json()["id"]
    return world
