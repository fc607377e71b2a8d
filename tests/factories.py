"""Plain factories: alice is a member and owns things, bob is the admin, charlie is another member, victor only looks on."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.test import Client

from accounts import services as accounts
from accounts.audit import Actor
from accounts.models import Role, Scope, User
from workspaces import services
from workspaces.models import Workspace, WorkspaceProvider, WorkspaceTemplate

CONTAINER_CONFIG = {
    "kind": "container",
    "runtime": "docker",
    "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"},
    "reachability": {"kind": "engine"},
}
CONTAINER_BACKEND = {
    "kind": "container",
    "image": "primer/workspace-runtime:1.0",
    "cpu_cores": 1.0,
    "memory_bytes": 256 * 1024 * 1024,
    "pids_limit": 128,
    "disk_bytes": 100 * 1024 * 1024,
    "disk_medium": "volume",
    "network": {"egress": "deny_all", "mode": "none"},
    "engine_runtime": "",
    "workdir": "/workspace",
}


def make_user(username: str = "alice", role: Role | str = Role.MEMBER) -> User:
    found = User.objects.filter(username=username).first()
    return found or accounts.user_create(username=username, role=role)[0]


def make_admin(username: str = "bob") -> User:
    return make_user(username, Role.ADMIN)


def make_provider(
    slug: str = "fake", kind: str = "fake", config: dict[str, Any] | None = None, by: User | None = None
) -> WorkspaceProvider:
    """An engine; `fake` runs real programs in directories of the server, and fails as `config` says."""
    default: dict[str, Any] = CONTAINER_CONFIG if kind == "container" else {"kind": kind}
    data = {"slug": slug, "provider": kind, "config": {**default, **(config or {})}}
    return services.provider_create(by=Actor(by or make_admin()), data=data)


def make_template(
    slug: str = "plain", provider: WorkspaceProvider | None = None, by: User | None = None, **over: Any
) -> WorkspaceTemplate:
    provider = provider or WorkspaceProvider.objects.live().first() or make_provider()
    backend = CONTAINER_BACKEND if provider.provider == "container" else {"kind": provider.provider}
    data = {"slug": slug, "provider": provider, "backend": backend, **over}
    return services.template_create(by=Actor(by or make_admin()), data=data)


def make_workspace(owner: User | None = None, template: WorkspaceTemplate | None = None, **over: Any) -> Workspace:
    """A stored wish; who brings it up is the test's reconciler."""
    template = template or WorkspaceTemplate.objects.live().first() or make_template()
    return services.workspace_create(by=Actor(owner or make_user()), template=template, **over)


class Api:
    """HTTP as one person: a real bearer token, JSON in and out; `call` answers Django's response."""

    def __init__(self, user: User | None, scope: Scope | None = None) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers: dict[str, str] = {}
        if user is not None:
            scope = scope or (Scope.ADMIN if user.is_admin else Scope.WRITE)
            made = accounts.token_create(user=user, name="test", scope=scope, expires_in_s=3600, signed_in=True)
            value = made[1]
            self.headers["Authorization"] = f"Bearer {value}"

    def call(
        self, method: str, path: str, /, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> Any:
        """`body`: an object is sent as JSON, bytes as they are (application/octet-stream). `query` is added to the path's."""
        raw = isinstance(body, bytes)
        data = body if raw else b"" if body is None else json.dumps(body).encode()
        extra: Any = {"CONTENT_TYPE": "application/octet-stream"} if raw else {}  # also of an empty body
        return self.client.generic(
            method,
            f"/v1/{path}",
            data,
            content_type="application/octet-stream" if raw else "application/json",
            headers={**self.headers, **(headers or {})},
            query_params=dict(parse_qsl(urlsplit(path).query)) | query if query else None,
            **extra,
        )

    def get(self, path: str, /, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return self.call("GET", path, headers=headers, **query)

    def post(self, path: str, /, body: Any = None, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return self.call("POST", path, body, headers, **query)

    def put(self, path: str, /, body: Any = None, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return self.call("PUT", path, body, headers, **query)

    def patch(self, path: str, /, body: Any = None, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return self.call("PATCH", path, body, headers, **query)

    def delete(self, path: str, /, headers: dict[str, str] | None = None, **query: Any) -> Any:
        return self.call("DELETE", path, headers=headers, **query)


def api(user: User | None = None, scope: Scope | None = None) -> Api:
    """A client of that user, with a token of the role's usual scope; without a user, of nobody."""
    return Api(user, scope)
