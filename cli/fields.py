"""An example of each field of the six kinds, and its sentence: the words of `explain`. Pure, and imported by it alone.

Keys are paths as `explain` takes them; `[]` is an item of a list, `NAME` a key of the caller's. A field that means the
same in several kinds stands under `*`. The sentence is the server's own, in sentences.py; it stands here only for what the
server does not describe.
"""

from __future__ import annotations

from typing import Any, Final

from cli.sentences import SENTENCES

Words = tuple[str, Any]  # a sentence ("": it is the server's), and an example (None: there is none to give)

_LIMITS: Final[dict[str, Words]] = {
    "limits": ("", {"max_turns": 20, "timeout_s": 600}),
    "limits.max_turns": ("", 50),
    "limits.max_tool_calls": ("", 200),
    "limits.timeout_s": ("", 1800),
    "limits.max_tokens": ("", 200000),
}
_ENV: Final[dict[str, Words]] = {
    "env": ("", {"LANG": "C.UTF-8", "API_KEY": {"secret": "…"}}),
    "env.NAME": ("Text, or a mapping with `secret`: no read shows it, left out it stays, null removes it.", "C.UTF-8"),
    "env.NAME.secret": ("The value; write-only.", "s3cret"),
}

WORDS: Final[dict[str, dict[str, Words]]] = {
    "*": {
        "id": ("", "code-sandbox"),
        "description": ("", "Isolated sandbox for untrusted code."),
        "labels": ("", {"team": "red"}),
        "labels.NAME": ("The value of one label.", "red"),
    },
    "workspace_provider": {
        "": ("An engine that workspaces run on, and how it is reached.", None),
        "provider": ("", "container"),
        "config.kind": ("", "container"),
        "config.runtime": ("", "docker"),
        "config.connection": ("", {"kind": "socket", "socket_path": "/var/run/docker.sock"}),
        "config.connection.kind": ("", "socket"),
        "config.connection.socket_path": ("", "/var/run/docker.sock"),
        "config.connection.url": ("", "tcp://engine.example:2376"),
        "config.connection.path": ("A kubeconfig file on the server's host.", "/etc/primer/kubeconfig"),
        "config.connection.content": ("The text of a kubeconfig; write-only.", None),
        "config.connection.context": ("The context of the kubeconfig; its current one without it.", "staging"),
        "config.reachability": ("", {"kind": "engine"}),
        "config.reachability.kind": ("", "engine"),
        "config.reachability.bind_host": ("", "127.0.0.1"),
        "config.namespace": ("The namespace of the pods.", "primer"),
        "config.image_pull_secrets": ("Names of secrets that hold registry passwords.", ["registry"]),
        "config.image_pull_secrets[]": ("The name of one.", "registry"),
        "config.root_path": ("", "/var/lib/primer/local"),
    },
    "workspace_template": {
        "": ("How workspaces are made: image, limits, network, and what is in them from the start.", None),
        "provider_id": ("", "docker-local"),
        "backend.kind": ("", "container"),
        "backend.image": ("", "primer/workspace-runtime:1.0"),
        "backend.cpu_cores": ("", 1),
        "backend.memory_bytes": ("", 536870912),
        "backend.pids_limit": ("", 256),
        "backend.disk_bytes": ("", 1073741824),
        "backend.disk_medium": ("", "volume"),
        "backend.network": ("", {"egress": "deny_all"}),
        "backend.network.egress": ("", "deny_all"),
        "backend.network.mode": ("", "none"),
        "backend.engine_runtime": ("", "runsc"),
        "backend.workdir": ("", "/workspace"),
        "backend.cpu_limit": ("Cores, as Kubernetes writes them.", "500m"),
        "backend.cpu_request": ("Cores that are set aside for it.", "100m"),
        "backend.memory_limit": ("Memory, as Kubernetes writes it.", "512Mi"),
        "backend.memory_request": ("Memory that is set aside for it.", "256Mi"),
        "backend.pvc_size": ("Size of the volume claim.", "1Gi"),
        "backend.storage_class": ("The storage class of the claim; the cluster's default without it.", "standard"),
        "backend.runtime_class_name": ("The RuntimeClass of the pod, like gvisor.", "gvisor"),
        "backend.node_selector": ("Labels that a node must have.", {"pool": "sandbox"}),
        "backend.node_selector.NAME": ("The value of one label.", "sandbox"),
        **_ENV,
        "files": ("", [{"path": "hello.py", "content": "print(42)\n"}]),
        "files[].path": ("Where it goes, below workdir.", "hello.py"),
        "files[].content": ("Its text.", "print(42)\n"),
        "files[].content_base64": ("Its bytes in base64.", "cHJpbnQoNDIpCg=="),
        "files[].mode": ("Its permission bits, in octal.", "0644"),
        "init_commands": ("", ["pip list"]),
        "init_commands[]": ("A shell line, or a list of words.", "pip list"),
        "idle_timeout_s": ("", 3600),
        "max_age_s": ("", 86400),
        "require": ("", "enforced"),
    },
    "workspace": {
        "": ("A sandbox: a container or pod of its own, with files, made from a template.", None),
        "template_id": ("", "code-sandbox"),
        "name": ("", "scratch"),
        **_ENV,
        "ttl_s": ("", 3600),
    },
    "agent": {
        "": ("A model with a prompt, tools and limits. The tools of a workspace come with the session.", None),
        "model": ("", {"provider_id": "scripted", "model_name": "scripted"}),
        "model.provider_id": ("", "scripted"),
        "model.model_name": ("", "scripted"),
        "tools": ("", []),
        "tools[]": ("The name of one.", None),
        "system_prompt": ("", ["You run code and report its output."]),
        "system_prompt[]": ("One paragraph.", "You run code and report its output."),
        "temperature": ("", 0.2),
        "max_output_tokens": ("", 8192),
        "thinking": ("", "off"),
        "thinking.budget_tokens": ("", 4096),
        **_LIMITS,
    },
    "llm_provider": {
        "": ("A service that models are asked at. scripted needs no key and no network.", None),
        "provider": ("", "anthropic"),
        "config.kind": ("", "anthropic"),
        "config.api_key_env": ("", "ANTHROPIC_API_KEY"),
        "config.base_url": ("", "https://llm.example"),
        "config.default_model": ("", "scripted"),
        "config.timeout_s": ("", 120),
        "config.max_retries": ("", 3),
        "config.max_concurrency": ("", 4),
        "config.prices.NAME": ("", {"input": 3, "output": 15}),
        "config.prices.NAME.input": ("Tokens in.", 3),
        "config.prices.NAME.output": ("Tokens out.", 15),
        "config.prices.NAME.cache_read": ("Tokens read from the cache.", 0.3),
        "config.prices.NAME.cache_write": ("Tokens written to the cache.", 3.75),
    },
    "session": {
        "": ("An agent at work in a workspace, from the first instruction to an ending.", None),
        "agent_id": ("", "code-runner"),
        "workspace_id": ("", "ws-1a2b3c4d5e6f7081"),
        "template_id": ("", "code-sandbox"),
        "initial_instructions": ("", "Run this code: print(6 * 7)"),
        **_LIMITS,
    },
}  # fmt: skip


def words(kind: str, path: str) -> Words:
    """The sentence and the example of a field; both empty for one that nobody has described."""
    text, example = WORDS.get(kind, {}).get(path) or WORDS["*"].get(path) or ("", None)
    return SENTENCES.get(kind, {}).get(path) or text, example
