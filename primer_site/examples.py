"""Example bodies of the API, by method and path: the documents show them, and tests send each of them."""

from __future__ import annotations

from typing import Any, Final

CODE = "Run this code: print(sum(range(10)))"
PROVIDER: Final[dict[str, Any]] = {
    "id": "docker-local",
    "provider": "container",
    "config": {
        "kind": "container",
        "runtime": "docker",
        "connection": {"kind": "socket", "socket_path": "/var/run/docker.sock"},
    },
}
TEMPLATE: Final[dict[str, Any]] = {
    "id": "code-sandbox",
    "description": "Isolated sandbox for untrusted code.",
    "provider_id": "docker-local",
    "backend": {
        "kind": "container",
        "image": "primer/workspace-runtime:1.0",
        "cpu_cores": 1,
        "memory_bytes": 536870912,
        "network": {"egress": "deny_all"},
    },
}
MODEL: Final[dict[str, Any]] = {"id": "scripted", "provider": "scripted", "config": {"kind": "scripted"}}
AGENT: Final[dict[str, Any]] = {
    "id": "code-runner",
    "description": "Runs untrusted code in the sandbox.",
    "model": {"provider_id": "scripted", "model_name": "scripted"},
    "tools": [],
    "system_prompt": ["You run untrusted user code in the sandbox and report what it printed."],
    "limits": {"max_turns": 20, "timeout_s": 600},
}
EXECS: Final[dict[str, Any]] = {
    "a program": {"argv": ["python3", "-c", "print(6 * 7)"], "timeout_s": 30},
    "a shell line": {"command": "wc -l < data.csv", "cwd": "data", "env": {"LANG": "C"}, "stdin": ""},
    "in the background": {"command": "sleep 60", "background": True},
}

# "METHOD path" -> what it shows -> the body
BODIES: Final[dict[str, dict[str, Any]]] = {
    "POST /v1/auth/login": {"sign in": {"username": "alice", "password": "correct horse battery"}},
    "POST /v1/auth/password": {
        "a new one": {"old": "correct horse battery", "new": "a staple that nobody expects"},
    },
    "POST /v1/tokens": {"of a build server": {"name": "ci", "scope": "write", "expires_in_s": 2592000}},
    "POST /v1/users": {"with a generated password": {"username": "dora", "role": "member"}},
    "PATCH /v1/users/{id}": {"another role": {"role": "viewer"}, "a new password": {"reset_password": True}},
    "POST /v1/workspace_providers": {"the engine of this machine": PROVIDER},
    "PUT /v1/workspace_providers/{id}": {"with a description": {**PROVIDER, "description": "The engine beside us."}},
    "POST /v1/workspace_providers/check": {"before it is stored": PROVIDER},
    "POST /v1/workspace_templates": {"no network, half a gigabyte": TEMPLATE},
    "PUT /v1/workspace_templates/{id}": {"stopped when idle": {**TEMPLATE, "idle_timeout_s": 1800}},
    "POST /v1/workspaces": {
        "with a secret": {
            "template_id": "code-sandbox",
            "name": "experiment",
            "labels": {"team": "red"},
            "env": {"REGION": "eu", "API_TOKEN": {"secret": "not shown again"}},
            "ttl_s": 86400,
        }
    },
    "PUT /v1/workspaces/{id}": {"another name": {"name": "renamed", "labels": {"team": "blue"}}},
    "PATCH /v1/workspaces/{id}": {"labels alone": {"labels": {"team": "blue"}}},
    "POST /v1/workspaces/{id}/exec": EXECS,
    "PUT /v1/workspaces/{id}/files": {"a script": {"content": "print(6 * 7)\n", "encoding": "text", "mode": "0644"}},
    "POST /v1/workspaces/{id}/files/dir": {"with what is above it": {"path": "data/raw", "parents": True}},
    "POST /v1/workspaces/{id}/files/move": {"a rename": {"source": "a.py", "target": "b.py", "overwrite": False}},
    "POST /v1/llm_providers": {"no key needed": MODEL},
    "PUT /v1/llm_providers/{id}": {"with a description": {**MODEL, "description": "Plays a script."}},
    "POST /v1/agents": {"runs code": AGENT},
    "PUT /v1/agents/{id}": {"fewer turns": {**AGENT, "limits": {"max_turns": 5}}},
    "POST /v1/sessions": {
        "in a workspace": {
            "agent_id": "code-runner",
            "workspace_id": "ws-0123456789abcdef",
            "initial_instructions": CODE,
        },
        "in a throw-away workspace": {
            "agent_id": "code-runner",
            "template_id": "code-sandbox",
            "initial_instructions": CODE,
            "limits": {"max_turns": 10},
        },
    },
    "PATCH /v1/sessions/{id}": {"labels": {"labels": {"reviewed": "yes"}}},
    "POST /v1/sessions/{id}/messages": {"go on": {"text": "Now print it in hexadecimal."}},
}
