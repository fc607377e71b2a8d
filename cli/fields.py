"""What each field of the six kinds means, and an example of it: the words of `explain`. Pure, and imported by it alone.

Keys are paths as `explain` takes them; `[]` is an item of a list, `NAME` a key of the caller's. A field that means the
same in several kinds stands under `*`.
"""

from __future__ import annotations

from typing import Any, Final

Words = tuple[str, Any]  # a sentence, and an example (None: there is none to give)

_LIMITS: Final[dict[str, Words]] = {
    "limits": ("Where a session ends by itself, however far it is.", {"max_turns": 20, "timeout_s": 600}),
    "limits.max_turns": ("Turns of the model.", 50),
    "limits.max_tool_calls": ("Calls of tools, all together.", 200),
    "limits.timeout_s": ("Seconds from the first turn on.", 1800),
    "limits.max_tokens": ("Tokens in and out, all together; null is no limit.", 200000),
}
_ENV: Final[dict[str, Words]] = {
    "env": ("Variables of each command in the sandbox.", {"LANG": "C.UTF-8", "API_KEY": {"secret": "…"}}),
    "env.NAME": ("Text, or a mapping with `secret`: no read shows it, left out it stays, null removes it.", "C.UTF-8"),
    "env.NAME.secret": ("The value; write-only.", "s3cret"),
}

WORDS: Final[dict[str, dict[str, Words]]] = {
    "*": {
        "id": ("The name of the object, yours to choose, the same for ever.", "code-sandbox"),
        "description": ("A sentence for people.", "Isolated sandbox for untrusted code."),
        "labels": ("Names and values of your own, to find objects by: -l KEY=VALUE.", {"team": "red"}),
        "labels.NAME": ("The value of one label.", "red"),
    },
    "workspace_provider": {
        "": ("An engine that workspaces run on, and how it is reached.", None),
        "provider": ("The kind of engine; config.kind says the same.", "container"),
        "config": ("How the engine is reached.", None),
        "config.kind": ("The same as provider.", "container"),
        "config.runtime": ("The program behind the socket.", "docker"),
        "config.connection": ("Where the engine listens.", {"kind": "socket", "socket_path": "/var/run/docker.sock"}),
        "config.connection.kind": ("A socket of this host, an address, or how a cluster is found.", "socket"),
        "config.connection.socket_path": ("The unix socket of the engine, on the server's host.", "/var/run/docker.sock"),
        "config.connection.url": ("The engine's address; with tls it is encrypted.", "tcp://engine.example:2376"),
        "config.connection.tls": ("Certificates in PEM, for an engine that asks for them.", None),
        "config.connection.tls.ca": ("The CA that signed the engine's certificate, in PEM.", None),
        "config.connection.tls.cert": ("Our certificate, in PEM.", None),
        "config.connection.tls.key": ("Its key, in PEM; write-only.", None),
        "config.connection.path": ("A kubeconfig file on the server's host.", "/etc/primer/kubeconfig"),
        "config.connection.content": ("The text of a kubeconfig; write-only.", None),
        "config.connection.context": ("The context of the kubeconfig; its current one without it.", "staging"),
        "config.reachability": ("How the server talks to what runs in a sandbox.", {"kind": "engine"}),
        "config.reachability.kind": ("engine: through the engine itself, with no network at all.", "engine"),
        "config.reachability.bind_host": ("The address that ports would be published on.", "127.0.0.1"),
        "config.namespace": ("The namespace of the pods.", "primer"),
        "config.image_pull_secrets": ("Names of secrets that hold registry passwords.", ["registry"]),
        "config.image_pull_secrets[]": ("The name of one.", "registry"),
        "config.root_path": ("The directory of the workspaces. Nothing is isolated there.", "/var/lib/primer/local"),
    },
    "workspace_template": {
        "": ("How workspaces are made: image, limits, network, and what is in them from the start.", None),
        "provider_id": ("The workspace_provider that they run on.", "docker-local"),
        "backend": ("The sandbox itself; its kind is that of the provider.", None),
        "backend.kind": ("The kind of the provider.", "container"),
        "backend.image": ("What the sandbox is made from; python3 of 3.9 or later must be in it.", "primer/workspace-runtime:1.0"),
        "backend.cpu_cores": ("Cores, also parts of one.", 1),
        "backend.memory_bytes": ("Memory in bytes; a program that passes it is ended (oom).", 536870912),
        "backend.pids_limit": ("Processes and threads at once.", 256),
        "backend.disk_bytes": ("Space for files in bytes. On a volume it is soft: template check says so.", 1073741824),
        "backend.disk_medium": ("volume: on disk, files stay over a stop. memory: counted as memory, a hard limit.", "volume"),
        "backend.network": ("What can be reached from inside.", {"egress": "deny_all"}),
        "backend.network.egress": ("deny_all: nothing but loopback. allow_all: the world.", "deny_all"),
        "backend.network.mode": ("With deny_all: none is no network at all; internal is a network without a way out.", "none"),
        "backend.engine_runtime": ("The engine's runtime, like runsc; its default without it.", "runsc"),
        "backend.workdir": ("Where the files are, and where commands start.", "/workspace"),
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
        "files": ("Files that are there from the start.", [{"path": "hello.py", "content": "print(42)\n"}]),
        "files[]": ("One file; content or content_base64.", None),
        "files[].path": ("Where it goes, below workdir.", "hello.py"),
        "files[].content": ("Its text.", "print(42)\n"),
        "files[].content_base64": ("Its bytes in base64.", "cHJpbnQoNDIpCg=="),
        "files[].mode": ("Its permission bits, in octal.", "0644"),
        "init_commands": ("Commands of the first start, in order; the first that fails fails the workspace.", ["pip list"]),
        "init_commands[]": ("A shell line, or a list of words.", "pip list"),
        "idle_timeout_s": ("Stops a workspace after so many seconds without work; its files stay.", 3600),
        "max_age_s": ("Deletes a workspace so many seconds after it was made.", 86400),
        "require": ("enforced: refuse to start where a limit is only soft. best_effort: start, and say so.", "enforced"),
    },
    "workspace": {
        "": ("A sandbox: a container or pod of its own, with files, made from a template.", None),
        "template_id": ("The workspace_template that it is made from.", "code-sandbox"),
        "name": ("A name for people; the id is the server's.", "scratch"),
        **_ENV,
        "ttl_s": ("Deletes it so many seconds after it was made.", 3600),
    },
    "agent": {
        "": ("A model with a prompt, tools and limits. The tools of a workspace come with the session.", None),
        "model": ("Which model answers.", {"provider_id": "scripted", "model_name": "scripted"}),
        "model.provider_id": ("The llm_provider that is asked.", "scripted"),
        "model.model_name": ("The model; the provider's default without it.", "scripted"),
        "tools": ("Names of further tools; those of the workspace are there anyway and are not listed.", []),
        "tools[]": ("The name of one.", None),
        "system_prompt": ("Paragraphs that the model reads first.", ["You run code and report its output."]),
        "system_prompt[]": ("One paragraph.", "You run code and report its output."),
        "temperature": ("Sent only when it is set.", 0.2),
        "max_output_tokens": ("Tokens of one answer.", 8192),
        "thinking": ("off, auto, or a mapping with a budget in tokens.", "off"),
        "thinking.budget_tokens": ("Tokens for thinking, a turn.", 4096),
        **_LIMITS,
    },
    "llm_provider": {
        "": ("A service that models are asked at. scripted needs no key and no network.", None),
        "provider": ("The interface it speaks; config.kind says the same.", "anthropic"),
        "config": ("Its address, its key, and what is asked of it.", None),
        "config.kind": ("The same as provider.", "anthropic"),
        "config.api_key": ("Its key; write-only. Leave it out to keep the stored one, null removes it.", None),
        "config.api_key_env": ("Instead: a variable of the server that holds the key.", "ANTHROPIC_API_KEY"),
        "config.base_url": ("Another address than the usual one. A change of it drops the stored key.", "https://llm.example"),
        "config.default_model": ("The model for agents that name none.", "scripted"),
        "config.timeout_s": ("Seconds that one call may take.", 120),
        "config.max_retries": ("Tries after the first, where another may help.", 3),
        "config.max_concurrency": ("Calls at once.", 4),
        "config.prices": ("Prices per million tokens, by model; without them no cost is shown.", None),
        "config.prices.NAME": ("The prices of one model.", {"input": 3, "output": 15}),
        "config.prices.NAME.input": ("Tokens in.", 3),
        "config.prices.NAME.output": ("Tokens out.", 15),
        "config.prices.NAME.cache_read": ("Tokens read from the cache.", 0.3),
        "config.prices.NAME.cache_write": ("Tokens written to the cache.", 3.75),
        "config.turns": ("scripted: what it answers, turn by turn.", None),
    },
    "session": {
        "": ("An agent at work in a workspace, from the first instruction to an ending.", None),
        "agent_id": ("The agent that works.", "code-runner"),
        "workspace_id": ("The workspace it works in; this, or template_id.", "ws-1a2b3c4d5e6f7081"),
        "template_id": ("Instead: a template for a workspace that is removed at the end.", "code-sandbox"),
        "initial_instructions": ("What to do.", "Run this code: print(6 * 7)"),
        **_LIMITS,
    },
}  # fmt: skip


def words(kind: str, path: str) -> Words:
    """The sentence and the example of a field; both empty for one that nobody has described."""
    return WORDS.get(kind, {}).get(path) or WORDS["*"].get(path) or ("", None)
