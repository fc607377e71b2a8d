"""Every route and method of the API, what the tests send to it, and who may. A test compares it with the schema."""

from __future__ import annotations

import copy
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from primer_site.examples import BODIES

SCHEMA: dict[str, Any] = yaml.safe_load((Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml").read_text())
METHODS = ("get", "post", "put", "patch", "delete")
# open: without a token · self: everybody, about themselves · shared: everybody reads · admins · admins change
# make: who writes makes it their own · owner: its owner and admins change what all see · private: owner and admins only
Rule = Literal["open", "self", "shared", "admin", "admin-write", "make", "owner", "private"]


@dataclass(frozen=True)
class Route:
    """`body` is the JSON that is sent; `query` is added to the path; `fills` replaces placeholders of the world in both."""

    rule: Rule
    body: dict[str, Any] | None = None
    query: str = ""
    audited: bool = True  # of a route that writes
    why: str = ""  # a route that writes is not audited
    # Answers beside success to who may: what is there decides (a workspace that is not running).
    also: tuple[int, ...] = field(default=())


MEASURES = "it measures and changes nothing that anybody wrote"
NOT_RUNNING = (409,)


def example(name: str) -> dict[str, Any]:
    """The first example body of an operation."""
    return copy.deepcopy(next(iter(BODIES[name].values())))


LOCAL = {"provider": "local", "config": {"kind": "local", "root_path": os.environ["PRIMER_HOME"] + "/local"}}
TEMPLATE = {"provider_id": "here", "backend": {"kind": "local"}}
AGENT = {"model": {"provider_id": "scripted", "model_name": "scripted"}}
MODEL = {"provider": "scripted", "config": {"kind": "scripted"}}

ROUTES: dict[str, Route] = {
    "GET /v1/agents": Route("shared"),
    "POST /v1/agents": Route("make", {"id": "new-agent", **AGENT}),
    "GET /v1/agents/{id}": Route("shared"),
    "PUT /v1/agents/{id}": Route("owner", {**AGENT, "description": "changed"}),
    "PATCH /v1/agents/{id}": Route("owner", {"description": "changed"}),
    "DELETE /v1/agents/{id}": Route("owner"),
    "GET /v1/agents/{id}/usage": Route("shared"),
    "GET /v1/audit": Route("admin"),
    "POST /v1/auth/login": Route("open", {"username": "alice", "password": "correct horse battery"}),
    "POST /v1/auth/logout": Route("self", {}),
    "POST /v1/auth/password": Route("self", {"old": "correct horse battery", "new": "a staple that nobody expects"}),
    "GET /v1/capabilities": Route("shared"),
    "GET /v1/llm_providers": Route("shared"),
    "POST /v1/llm_providers": Route("admin-write", {"id": "new-model", **MODEL}),
    "GET /v1/llm_providers/{id}": Route("shared"),
    "PUT /v1/llm_providers/{id}": Route("admin-write", {**MODEL, "description": "changed"}),
    "PATCH /v1/llm_providers/{id}": Route("admin-write", {"description": "changed"}),
    "DELETE /v1/llm_providers/{id}": Route("admin-write"),
    "GET /v1/llm_providers/{id}/models": Route("shared"),
    "POST /v1/llm_providers/{id}/test": Route("admin-write", {}, audited=False, why=MEASURES),
    "GET /v1/me": Route("self"),
    "GET /v1/sessions": Route("shared"),
    "POST /v1/sessions": Route(
        "make", {"agent_id": "code-runner", "template_id": "plain", "initial_instructions": "print(1)"}
    ),
    "GET /v1/sessions/{id}": Route("private"),
    "PATCH /v1/sessions/{id}": Route("private", {"labels": {"seen": "yes"}}),
    "DELETE /v1/sessions/{id}": Route("private"),
    "POST /v1/sessions/{id}/cancel": Route("private", {}),
    "GET /v1/sessions/{id}/events": Route("private"),
    "POST /v1/sessions/{id}/messages": Route("private", {"text": "print(2)"}),
    "POST /v1/sessions/{id}/rerun": Route("private", {}),
    "GET /v1/sessions/{id}/transcript": Route("private"),
    "GET /v1/tokens": Route("self"),
    "POST /v1/tokens": Route("self", {"name": "new", "scope": "read"}),
    "DELETE /v1/tokens/{id}": Route("private"),
    "GET /v1/users": Route("admin"),
    "POST /v1/users": Route("admin", {"username": "new-user", "role": "member"}),
    "GET /v1/users/{id}": Route("admin"),
    "PATCH /v1/users/{id}": Route("admin", {"role": "viewer"}),
    "DELETE /v1/users/{id}": Route("admin"),
    "GET /v1/workspace_providers": Route("shared"),
    "POST /v1/workspace_providers": Route("admin-write", {"id": "new-provider", **LOCAL}),
    "GET /v1/workspace_providers/{id}": Route("shared"),
    "PUT /v1/workspace_providers/{id}": Route("admin-write", {**LOCAL, "description": "changed"}),
    "PATCH /v1/workspace_providers/{id}": Route("admin-write", {"description": "changed"}),
    "DELETE /v1/workspace_providers/{id}": Route("admin-write"),
    "POST /v1/workspace_providers/{id}/check": Route("admin-write", {}, audited=False, why=MEASURES),
    "POST /v1/workspace_providers/check": Route("admin-write", {"id": "unsaved", **LOCAL}, audited=False, why=MEASURES),
    "GET /v1/workspace_templates": Route("shared"),
    "POST /v1/workspace_templates": Route("admin-write", {"id": "new-template", **TEMPLATE}),
    "GET /v1/workspace_templates/{id}": Route("shared"),
    "PUT /v1/workspace_templates/{id}": Route("admin-write", {**TEMPLATE, "description": "changed"}),
    "PATCH /v1/workspace_templates/{id}": Route("admin-write", {"description": "changed"}),
    "DELETE /v1/workspace_templates/{id}": Route("admin-write"),
    "POST /v1/workspace_templates/{id}/check": Route("admin-write", {}, audited=False, why=MEASURES),
    "GET /v1/workspace_templates/{id}/versions": Route("shared"),
    "GET /v1/workspaces": Route("shared"),
    "POST /v1/workspaces": Route("make", {"template_id": "plain", "env": {"NAME": "value"}, "labels": {"team": "red"}}),
    "GET /v1/workspaces/{id}": Route("private"),
    "PUT /v1/workspaces/{id}": Route("private", {"name": "changed"}),
    "PATCH /v1/workspaces/{id}": Route("private", {"name": "changed"}),
    "DELETE /v1/workspaces/{id}": Route("private"),
    "GET /v1/workspaces/{id}/exec": Route("private"),
    "POST /v1/workspaces/{id}/exec": Route("private", {"argv": ["true"]}, also=NOT_RUNNING),
    "GET /v1/workspaces/{id}/exec/{exec_id}": Route("private"),
    "DELETE /v1/workspaces/{id}/exec/{exec_id}": Route("private"),
    "GET /v1/workspaces/{id}/exec/{exec_id}/output": Route("private"),
    "GET /v1/workspaces/{id}/files": Route("private", also=NOT_RUNNING),
    "PUT /v1/workspaces/{id}/files": Route("private", {"content": "x"}, "path=a", also=NOT_RUNNING),
    "DELETE /v1/workspaces/{id}/files": Route("private", None, "path=a", also=NOT_RUNNING),
    "POST /v1/workspaces/{id}/files/dir": Route("private", {"path": "d"}, also=NOT_RUNNING),
    "GET /v1/workspaces/{id}/files/download": Route("private", query="path=a", also=NOT_RUNNING),
    "POST /v1/workspaces/{id}/files/move": Route("private", {"source": "a", "target": "b"}, also=NOT_RUNNING),
    "GET /v1/workspaces/{id}/files/read": Route("private", query="path=a", also=NOT_RUNNING),
    "POST /v1/workspaces/{id}/start": Route("private", {}),
    "POST /v1/workspaces/{id}/stop": Route("private", {}),
    "POST /v1/workspaces/{id}/verify": Route("private", {}, audited=False, why=MEASURES, also=NOT_RUNNING),
}


def operations() -> dict[str, dict[str, Any]]:
    """`METHOD path` of the committed schema -> its description."""
    return {
        f"{method.upper()} {path}": operation
        for path, item in SCHEMA["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    }


def takes(name: str, parameter: str) -> bool:
    """Whether an operation declares a parameter."""
    return parameter in {one["name"] for one in operations()[name].get("parameters", [])}


def writes(name: str) -> bool:
    return not name.startswith("GET ")


def path_of(name: str, ids: dict[str, str]) -> str:
    """The path of an operation below /v1/ with the world's objects in it, and its query."""
    path = name.split(" ", 1)[1].removeprefix("/v1/")
    path = path.replace("{exec_id}", ids["exec"]).replace("{id}", ids.get(path.split("/")[0], ""))
    assert not re.search(r"[{}]", path), path
    query = ROUTES[name].query
    return f"{path}?{query}" if query else path
