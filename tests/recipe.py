"""The recipe's manifests as they are published; the agent's model has the placeholders that a reader fills in."""

from __future__ import annotations

PUBLISHED = {
    "docker-provider.yaml": """\
kind: workspace_provider
spec:
  id: docker-local
  provider: container
  config:
    kind: container
    runtime: docker
    connection:
      kind: socket
      socket_path: /var/run/docker.sock
    reachability:
      kind: host_port
      bind_host: 127.0.0.1
""",
    "code-sandbox.yaml": """\
kind: workspace_template
spec:
  id: code-sandbox
  description: Isolated sandbox for untrusted code.
  provider_id: docker-local
  backend:
    kind: container
    image: primer/workspace-runtime:1.0
    cpu_cores: 1
    memory_bytes: 536870912
    network:
      egress: deny_all
""",
    "code-runner.yaml": """\
kind: agent
spec:
  id: code-runner
  description: Runs untrusted code in the sandbox.
  model:
    provider_id: <llm>
    model_name: <model>
  tools: []
  system_prompt:
    - >-
      You run untrusted user code in the sandbox. Write the snippet to
      snippet.py, run `python snippet.py`, and report its stdout. Never run
      anything outside the workspace.
""",
}
PLACEHOLDERS = {"<llm>": "scripted", "<model>": "scripted"}


def filled(text: str) -> str:
    """A manifest with the built-in model, which needs no key."""
    for placeholder, name in PLACEHOLDERS.items():
        text = text.replace(placeholder, name)
    return text
