"""The error lines of the contract, the same on a pipe and on a terminal, and nothing on stdout with any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Spawn
from tests.cli.fake import WS, Primer, problem
from tests.cli.test_recipe_lines import on_terminal

FIELD = [{"field": "backend.memory_bytes", "message": "must be at least 67108864"}]


def _image(primer: Primer, folder: Path) -> None:
    primer.store["workspaces"][WS] = {
        "id": WS,
        "phase": "failed",
        "phase_reason": "image_not_found",
        "phase_detail": "image primer/workspace-runtime:1.0 not found.",
        "spec": {"backend": {"image": "primer/workspace-runtime:1.0"}},
    }


def _low(primer: Primer, folder: Path) -> None:
    text = (folder / "code-sandbox.yaml").read_text().replace("536870912", "64")
    (folder / "code-sandbox.yaml").write_text(text)


def _agent(primer: Primer, folder: Path) -> None:
    primer.store["agents"]["code-runner"] = {"id": "code-runner"}
    text = (folder / "code-runner.yaml").read_text().replace("<llm>", "scripted")
    (folder / "code-runner.yaml").write_text(text)


def _refusal(status: int, code: str, detail: str, **more: object) -> object:
    def prepare(primer: Primer, folder: Path) -> None:
        answer = problem(status, code, detail, request_id="7f3a9c12", **more)
        if status == 503:
            answer.headers["Retry-After"] = "0"
        primer.on("GET", "/v1/workspaces", answer)

    return prepare


def _in_use(primer: Primer, folder: Path) -> None:
    errors = [{"field": "sessions", "message": "session/sess-4be0c1d2e3f40516"}]
    primer.store["agents"]["code-runner"] = {"id": "code-runner"}
    primer.on("DELETE", "/v1/agents/code-runner", problem(409, "in_use", "The agent is in use.", errors=errors))


def _nothing(primer: Primer, folder: Path) -> None:
    """The fresh server will do."""


REQUEST = "(request id 7f3a9c12)\n"
GOLDEN = {
    "the thing asked for failed": (
        _image,
        ["wait", f"workspace/{WS}", "--for=phase=running"],
        1,
        f"error: workspace {WS} failed: image primer/workspace-runtime:1.0 not found\n"
        "hint: build it on the server: primer image build\n",
    ),
    "a bad file": (
        _low,
        ["create", "-f", "code-sandbox.yaml"],
        2,
        "error: code-sandbox.yaml:10: spec.backend.memory_bytes: must be at least 67108864\nhint: 64 MiB is 67108864\n",
    ),
    "refused values": (
        _refusal(422, "invalid", "No.", errors=FIELD),
        ["get", "workspaces"],
        2,
        f"error: backend.memory_bytes: must be at least 67108864\n{REQUEST}",
    ),
    "not found": (
        _agent,
        ["get", "agent", "code-runer"],
        3,
        "error: agent code-runer not found\nhint: did you mean code-runner?\n",
    ),
    "forbidden": (
        _refusal(403, "forbidden", "That needs the role admin."),
        ["get", "workspaces"],
        4,
        f"error: That needs the role admin.\n{REQUEST}",
    ),
    "there already": (
        _agent,
        ["create", "-f", "code-runner.yaml"],
        5,
        "error: agent code-runner already exists\nhint: change it with: primectl apply -f code-runner.yaml\n",
    ),
    "in use": (
        _in_use,
        ["delete", "agent", "code-runner"],
        5,
        "error: The agent is in use.\nerror: used by session/sess-4be0c1d2e3f40516\n",
    ),
    "the engine is away": (
        _refusal(503, "engine_unavailable", "The engine does not answer."),
        ["get", "workspaces"],
        6,
        f"error: The engine does not answer.\nhint: (try again in 0 s)\n{REQUEST}",
    ),
    "unreachable": (
        _nothing,
        ["--server", "http://127.0.0.1:1", "get", "agents"],
        6,
        "error: cannot reach http://127.0.0.1:1: connection refused\nhint: start it with: primer up\n",
    ),
    "an unknown command": (
        _nothing,
        ["sesion"],
        2,
        'error: primectl has no command "sesion"\nhint: did you mean primectl session?\n',
    ),
}


@pytest.fixture(params=sorted(GOLDEN))
def case(request: pytest.FixtureRequest, primer: Primer, folder: Path) -> tuple[list[str], int, str]:
    prepare, argv, code, lines = GOLDEN[request.param]
    prepare(primer, folder)  # type: ignore[operator]
    return argv, code, lines


def test_an_error_is_these_lines_on_a_pipe(cli: Cli, case: tuple[list[str], int, str]) -> None:
    argv, code, lines = case
    result = cli(*argv)
    assert (result.code, result.out, result.err) == (code, b"", lines)


def test_an_error_is_these_lines_on_a_terminal(spawn: Spawn, case: tuple[list[str], int, str]) -> None:
    argv, code, lines = case
    assert on_terminal(spawn, *argv) == (code, lines)


def test_not_logged_in_on_a_terminal(spawn: Spawn, url: str, environment: dict[str, str]) -> None:
    environment["PRIMECTL_TOKEN"] = ""
    code, screen = on_terminal(spawn, "get", "agents")
    assert (code, screen) == (4, f"error: not logged in to {url}\nhint: primectl login {url}\n")
