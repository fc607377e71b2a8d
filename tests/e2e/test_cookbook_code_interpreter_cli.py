"""SMK-COOKBOOK-CLI-17: the recipe's published command lines, as real processes against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.recipe import SAMPLES, SNIPPET, WORKSPACE_ID, Api, assert_confined, left_on_the_engine
from tests.live import LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e]


class Shell:
    """Runs `primectl` as a user would: another process, its own configuration, both streams captured."""

    def __init__(self, server: LiveServer, home: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PRIMECTL_SERVER": server.url,
            "PRIMECTL_TOKEN": server.token,
            "LANG": "C.UTF-8",
        }

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-m", "cli.main", *words],
            cwd=SAMPLES,
            env={**self.environment, "PYTHONPATH": str(SAMPLES.parent)},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def out(self, *words: str) -> str:
        return self.run(*words).stdout


def test_the_recipe_over_the_command_line(runtime_image: str, api: Api, server: LiveServer, tmp_path: Path) -> None:
    shell = Shell(server, tmp_path)
    assert shell.out("create", "-f", "docker-provider.yaml") == "workspace_provider/docker-local created\n"
    assert shell.out("create", "-f", "code-sandbox.yaml") == "workspace_template/code-sandbox created\n"
    assert shell.out("create", "-f", "code-runner.yaml") == "agent/code-runner created\n"
    made = shell.out("create", "workspace", "--set", "template_id=code-sandbox")
    workspace = made.strip().removeprefix("workspace/")
    try:
        assert made == f"workspace/{workspace}\n"
        assert WORKSPACE_ID.fullmatch(workspace)
        _sessions(shell, workspace)
        _files(shell, workspace)
        _what_is_fixed(shell, workspace, tmp_path)
    finally:
        assert shell.out("delete", "workspace", workspace) == f"workspace/{workspace} deleted\n"
        left = left_on_the_engine(workspace)
        gone = shell.run("get", "workspace", workspace, code=3)
        for kind, name in (("agent", "code-runner"), ("workspace_template", "code-sandbox"), ("workspace_provider", "docker-local")):  # fmt: skip
            shell.run("delete", kind, name)
    assert left == []
    assert gone.stdout == ""
    assert gone.stderr.splitlines()[0] == f"error: workspace {workspace} not found"


def _sessions(shell: Shell, workspace: str) -> None:
    """No wait is needed between `create workspace` and `session run`."""
    first = shell.out("session", "run", workspace, "--agent", "code-runner", "-i", "Run this code: print(6 * 7)")
    assert first.splitlines()[-1] == "ended: completed"
    assert "42" in "".join(first.splitlines()[:-1])
    missing = shell.run("workspace", "files", "get", workspace, "out.txt", "--content", code=3)
    assert missing.stdout == ""
    second = shell.out(
        "session", "run", f"workspace/{workspace}", "--agent", "code-runner", "-i", f"Run this code:\n{SNIPPET}"
    )
    assert second.splitlines()[-1] == "ended: completed"
    assert "RESULT 42" in second


def _files(shell: Shell, workspace: str) -> None:
    names = ("out.txt", "sandbox_host.txt", "host_sock.txt")
    files = {n: shell.out("workspace", "files", "get", workspace, n, "--content") for n in names}
    assert_confined(files)


def _what_is_fixed(shell: Shell, workspace: str, home: Path) -> None:
    """A field that was fixed when the object was made stands in the way: 5, with its name, and nothing has changed."""
    editor = home / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/template_id: .*/template_id: other/; s/name: .*/name: new/" "$1"\n')
    editor.chmod(0o755)
    shell.environment["PRIMECTL_EDITOR"] = str(editor)
    before = shell.out("get", "workspace", workspace, "-r", "-o", "yaml")
    refused = shell.run("edit", "workspace", workspace, code=5)
    assert refused.stdout == ""
    assert "spec.template_id: cannot be changed: create a new workspace\n" in refused.stderr
    after = shell.out("get", "workspace", workspace, "-r", "-o", "yaml")
    assert [line for line in after.splitlines() if "activity" not in line] == [
        line for line in before.splitlines() if "activity" not in line
    ]
