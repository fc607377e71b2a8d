"""What the six kinds accept, as far as it can be told without the server. JSON-schema words, and four of our own:

`x-ref` names the kind a value refers to, `x-secret` marks write-only values, `x-by` with `x-cases` picks the allowed
properties by the value of one of them, `nullable` allows null. References are plain text here: whether the object
exists is the server's to say.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

SLUG: Final = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
MIB: Final = 1024 * 1024
TIB: Final = 1024 * 1024 * MIB


def _text(**more: Any) -> Schema:
    return {"type": "string", **more}


def _whole(minimum: int = 1, **more: Any) -> Schema:
    return {"type": "integer", "minimum": minimum, **more}


def _object(properties: dict[str, Schema], required: tuple[str, ...] = (), **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def _by(key: str, cases: dict[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "x-by": key, "x-cases": cases, **more}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _kind(name: str) -> Schema:
    return _text(enum=[name])


ID: Final = _text(pattern=SLUG, description="lower-case letters, digits and dashes, at most 63")
LABELS: Final = _map(_text())
SECRET: Final = _text(**{"x-secret": True, "nullable": True})
_ENV_SECRET: Final = _object({"secret": _text(**{"x-secret": True})}, ("secret",), **{"x-secret": True})
ENV: Final = _map({"oneOf": [_text(), _ENV_SECRET], "nullable": True})
YEAR_S: Final = 365 * 86400
DESCRIPTION: Final = _text(default="")
EGRESS: Final = _text(enum=["deny_all", "allow_all"], default="deny_all")
QUANTITY: Final = _text()

_PROVIDER_CONFIG = _by(
    "kind",
    {
        "container": _object(
            {
                "kind": _kind("container"),
                "runtime": _text(enum=["docker", "podman", "containerd"], default="docker"),
                "connection": _by(
                    "kind",
                    {
                        "socket": _object({"kind": _kind("socket"), "socket_path": _text()}, ("kind", "socket_path")),
                        "tcp": _object(
                            {
                                "kind": _kind("tcp"),
                                "url": _text(),
                                "tls": _object({"ca": _text(), "cert": _text(), "key": SECRET}, nullable=True),
                            },
                            ("kind", "url"),
                        ),
                    },
                ),
                "reachability": _by(
                    "kind",
                    {
                        "engine": _object({"kind": _kind("engine")}, ("kind",)),
                        "host_port": _object(
                            {"kind": _kind("host_port"), "bind_host": _text(default="127.0.0.1")}, ("kind",)
                        ),
                    },
                    default={"kind": "engine"},
                ),
            },
            ("kind", "connection"),
        ),
        "kubernetes": _object(
            {
                "kind": _kind("kubernetes"),
                "connection": _by(
                    "kind",
                    {
                        "in_cluster": _object({"kind": _kind("in_cluster")}, ("kind",)),
                        "kubeconfig": _object(
                            {"kind": _kind("kubeconfig"), "path": _text(), "content": SECRET, "context": _text()},
                            ("kind",),
                        ),
                    },
                ),
                "namespace": _text(),
                "reachability": _by(
                    "kind",
                    {
                        "engine": _object({"kind": _kind("engine")}, ("kind",)),
                        "pod_ip": _object({"kind": _kind("pod_ip")}, ("kind",)),
                    },
                ),
                "image_pull_secrets": {"type": "array", "items": _text()},
            },
            ("kind", "connection"),
        ),
        "local": _object({"kind": _kind("local"), "root_path": _text()}, ("kind", "root_path")),
    },
)

_BACKEND = _by(
    "kind",
    {
        "container": _object(
            {
                "kind": _kind("container"),
                "image": _text(),
                "cpu_cores": {"type": "number", "minimum": 0.05, "maximum": 256, "default": 1.0},
                "memory_bytes": _whole(64 * MIB, **{"maximum": 4 * TIB, "default": 512 * MIB, "x-bytes": True}),
                "pids_limit": _whole(16, maximum=32768, default=256),
                "disk_bytes": _whole(MIB, **{"maximum": 64 * TIB, "default": 1024 * MIB, "x-bytes": True}),
                "disk_medium": _text(enum=["volume", "memory"], default="volume"),
                "network": _object(
                    {"egress": EGRESS, "mode": _text(enum=["none", "internal"], default="none")},
                    default={"egress": "deny_all", "mode": "none"},
                ),
                "engine_runtime": _text(nullable=True, default=""),
                "workdir": _text(default="/workspace"),
            },
            ("kind", "image"),
        ),
        "kubernetes": _object(
            {
                "kind": _kind("kubernetes"),
                "image": _text(),
                "cpu_limit": QUANTITY,
                "cpu_request": QUANTITY,
                "memory_limit": QUANTITY,
                "memory_request": QUANTITY,
                "pvc_size": QUANTITY,
                "storage_class": _text(nullable=True),
                "network": _object({"egress": EGRESS}),
                "runtime_class_name": _text(nullable=True),
                "node_selector": _map(_text()),
            },
            ("kind", "image"),
        ),
        "local": _object({"kind": _kind("local")}, ("kind",)),
    },
)

_PRICE = {"type": "number", "minimum": 0, "maximum": 1_000_000}
_PRICES = _map(
    _object({"input": _PRICE, "output": _PRICE, "cache_read": _PRICE, "cache_write": _PRICE}, ("input", "output"))
)
_LLM_EVERY: dict[str, Schema] = {
    "default_model": _text(),
    "max_retries": _whole(0, maximum=20),
    "prices": _PRICES,
}
_LLM_ENDPOINT: dict[str, Schema] = {
    "api_key": SECRET,
    "api_key_env": _text(nullable=True),
    "base_url": _text(nullable=True),
    **_LLM_EVERY,
    "timeout_s": {"type": "number", "minimum": 1, "maximum": 3600},
    "max_concurrency": _whole(maximum=1000),
}
_LLM_CONFIG = _by(
    "kind",
    {
        "anthropic": _object({"kind": _kind("anthropic"), **_LLM_ENDPOINT}, ("kind",)),
        "openai": _object({"kind": _kind("openai"), **_LLM_ENDPOINT}, ("kind",)),
        "scripted": _object(
            {"kind": _kind("scripted"), **_LLM_EVERY, "turns": {"type": "array", "items": {}}}, ("kind",)
        ),
    },
)

_SESSION_LIMITS: dict[str, Schema] = {
    "max_turns": _whole(maximum=10_000),
    "max_tool_calls": _whole(maximum=100_000),
    "timeout_s": {"type": "number", "minimum": 0.1, "maximum": 604_800},
    "max_tokens": _whole(maximum=10**12, nullable=True),
}

# Of an agent; those of a session that are left out are its agent's.
_DEFAULTS = {"max_turns": 50, "max_tool_calls": 200, "timeout_s": 1800}
_AGENT_LIMITS = {
    name: {**limit, "default": _DEFAULTS[name]} if name in _DEFAULTS else limit
    for name, limit in _SESSION_LIMITS.items()
}

KINDS: Final[dict[str, Schema]] = {
    "llm_provider": _object(
        {
            "id": ID,
            "provider": _text(enum=["anthropic", "openai", "scripted"]),
            "config": _LLM_CONFIG,
            "description": DESCRIPTION,
            "labels": LABELS,
        },
        ("id", "provider", "config"),
    ),
    "workspace_provider": _object(
        {
            "id": ID,
            "provider": _text(enum=["container", "kubernetes", "local"]),
            "config": _PROVIDER_CONFIG,
            "description": DESCRIPTION,
            "labels": LABELS,
        },
        ("id", "provider", "config"),
    ),
    "workspace_template": _object(
        {
            "id": ID,
            "description": DESCRIPTION,
            "provider_id": _text(**{"x-ref": "workspace_provider"}),
            "backend": _BACKEND,
            "env": ENV,
            "files": {
                "type": "array",
                "items": _object(
                    {
                        "path": _text(),
                        "content": _text(),
                        "content_base64": _text(),
                        "mode": {"oneOf": [_text(), {"type": "integer"}], "default": "0644"},
                    },
                    ("path",),
                ),
            },
            "init_commands": {"type": "array", "items": {"oneOf": [_text(), {"type": "array", "items": _text()}]}},
            "idle_timeout_s": _whole(10, maximum=YEAR_S, nullable=True),
            "max_age_s": _whole(60, maximum=YEAR_S, nullable=True),
            "require": _text(enum=["best_effort", "enforced"], default="best_effort"),
            "labels": LABELS,
        },
        ("id", "provider_id", "backend"),
    ),
    "agent": _object(
        {
            "id": ID,
            "description": DESCRIPTION,
            "model": _object(
                {"provider_id": _text(**{"x-ref": "llm_provider"}), "model_name": _text()}, ("provider_id",)
            ),
            "tools": {"type": "array", "items": _text()},
            "system_prompt": {"type": "array", "items": _text()},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "nullable": True},
            "max_output_tokens": _whole(maximum=1_000_000, default=8192),
            "thinking": {
                "oneOf": [
                    _text(enum=["off", "auto"]),
                    _object({"budget_tokens": _whole(maximum=1_000_000)}, ("budget_tokens",)),
                ],
                "default": "off",
            },
            "limits": _object(_AGENT_LIMITS),
            "labels": LABELS,
        },
        ("id", "model"),
    ),
    "workspace": _object(
        {
            "template_id": _text(**{"x-ref": "workspace_template"}),
            "name": _text(default=""),
            "labels": LABELS,
            "env": ENV,
            "ttl_s": _whole(60, maximum=YEAR_S, nullable=True),
        },
        ("template_id",),
    ),
    "session": _object(
        {
            "agent_id": _text(**{"x-ref": "agent"}),
            "workspace_id": _text(**{"x-ref": "workspace", "nullable": True}),
            "template_id": _text(**{"x-ref": "workspace_template", "nullable": True}),
            "initial_instructions": _text(),
            "limits": _object(_SESSION_LIMITS),
            "labels": LABELS,
        },
        ("agent_id", "initial_instructions"),
    ),
}


def properties(schema: Schema, value: Any = None) -> dict[str, Schema]:
    """The properties an object may have; of a choice, those of the chosen case, of all cases while none is chosen."""
    if "x-by" not in schema:
        return dict(schema.get("properties", {}))
    cases: dict[str, Schema] = schema["x-cases"]
    chosen = value.get(schema["x-by"]) if isinstance(value, dict) else None
    if isinstance(chosen, str) and chosen in cases:
        return properties(cases[chosen])
    merged: dict[str, Schema] = {}
    for case in cases.values():
        merged.update(properties(case))
    merged[schema["x-by"]] = _text(enum=list(cases))
    return merged


def child(schema: Schema, key: str | int, value: Any = None) -> Schema | None:
    """The schema below one step of a path; `{}` where anything goes, None where there is nothing of that name."""
    if not schema:
        return {}
    for option in schema.get("oneOf", ()):
        found = child(option, key, value)
        if found is not None:
            return found
    if isinstance(key, int):
        return schema.get("items") if schema.get("type") == "array" else None
    if schema.get("type") != "object":
        return None
    known = properties(schema, value)
    if key in known:
        return known[key]
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, dict) else None


def secret_paths(schema: Schema, value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where in `value` secrets stand, as paths of keys: of `{secret: text}` that of the mapping, which a read masks whole."""
    if schema.get("x-secret"):
        return [path]
    if "oneOf" in schema:
        shape = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else ""
        fitting = [option for option in schema["oneOf"] if option.get("type") == shape]
        return [found for option in fitting for found in secret_paths(option, value, path)]
    found: list[tuple[str | int, ...]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in pairs:
        step = child(schema, key, value)
        if step:
            found += secret_paths(step, below, (*path, key))
    return found
