"""A demo that meets a failure ends there: one sentence, the server stopped, nothing left, exit code 1."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from primer_site import demo, demo_leftovers, destroy, engine
from primer_site.demo_server import Ran

MADE = {
    "docker-provider.yaml": "workspace_provider/docker-local created",
    "code-sandbox.yaml": "workspace_template/code-sandbox created",
    "scripted-model.yaml": "llm_provider/scripted created",
    "code-runner.yaml": "agent/code-runner created",
    "template_id=code-sandbox": "workspace/ws-1a2b3c4d5e6f7081",
}
COMPLETED = "The snippet printed:\n42\nended: completed\n"


class Server:
    """Answers of `primectl` by the last word of the line; what is not known fails."""

    def __init__(self, directory: Path, answers: dict[str, str]) -> None:
        self.directory, self.home, self.work = directory, directory / "home", directory / "work"
        self.work.mkdir()
        self.answers = answers
        self.lines: list[str] = []
        self.stopped = False

    def start(self) -> None:
        """Serves at once."""

    def instance_id(self) -> str:
        return "of-this-test"

    def stop(self) -> int:
        self.stopped = True
        return 0

    def primectl(self, *arguments: str) -> Ran:
        self.lines.append(" ".join(arguments[:2]))
        text = self.answers.get(arguments[-1], "")
        return Ran(shlex.join(["primectl", *arguments]), 0 if text else 1, text)


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Runs the demo on a server with these answers; returns its exit code and the server."""

    def run(answers: dict[str, str]) -> tuple[int, Server]:
        servers: list[Server] = []

        def make(directory: Path, token: str, *, local: bool) -> Server:
            servers.append(Server(directory, answers))
            return servers[0]

        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr(demo, "DemoServer", make)
        monkeypatch.setattr(demo, "_need_engine", lambda: None)
        monkeypatch.setattr(demo_leftovers, "clear", lambda: None)
        monkeypatch.setattr(destroy, "remove_objects", lambda *_: ["1 container, 1 volume removed"])
        monkeypatch.setattr(engine, "objects_named", lambda name: [])
        monkeypatch.setattr("signal.signal", lambda *_: None)
        return demo.demo(keep=False, local=False), servers[0]

    return run


@pytest.mark.parametrize(
    ("answers", "last_command", "sentence"),
    [
        ({}, "create -f", "`primectl create -f docker-provider.yaml` ended with exit code 1"),
        (MADE, "session run", "the session did not end"),
        (
            {**MADE, "Run this code: print(6 * 7)": "ended: failed\n"},
            "session run",
            "the session ended: failed",
        ),
        (
            {**MADE, "Run this code: print(6 * 7)": COMPLETED, "@snippet.txt": "ended: limit\n"},
            "session run",
            "the session ended: limit",
        ),
    ],
)
def test_the_first_failure_is_the_last_step_and_the_only_sentence(
    play, capsys, tmp_path, answers, last_command, sentence
):
    code, server = play(answers)
    out = capsys.readouterr().out
    failed = [line for line in out.splitlines() if line.startswith("fail")]
    assert code == 1
    assert len(failed) == 1
    assert sentence in failed[0]
    assert server.lines[-1] == last_command
    assert out.splitlines()[-1].startswith("demo: failed (")
    assert sentence in out.splitlines()[-1]
    assert server.stopped
    assert list(tmp_path.glob(f"{demo_leftovers.PREFIX}*")) == []
