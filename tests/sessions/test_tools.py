"""The tools on a real sandbox of the fake engine: what the memory bench promises holds there too."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import User
from agents.models import Agent
from tests.factories import Api
from tests.sessions.cast import call, ended, events_of, start
from tests.sessions.conftest import Playing, Process
from workspaces.models import Workspace


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": f"workspace__{name}", "arguments": arguments}


def results(alice: Api, workspace: Workspace, agent: Agent) -> list[dict[str, Any]]:
    """Runs the agent's one turn of calls and returns their results."""
    session_id = start(alice, workspace, agent, "go")
    assert ended(alice, session_id)["ended_reason"] == "completed"
    return [event.data for event in events_of(session_id) if event.kind == "tool_result"]


def test_files_are_written_read_edited_listed_and_searched(
    process: Process, workspace: Workspace, playing: Playing, alice: Api
) -> None:
    calls = [
        tool("write", path="sub/a.py", content="needle = 1\n"), tool("write", path="sub/a.py", content="needle = 2\nx\n"),
        tool("edit", path="sub/a.py", old="2", new="3"), tool("read", path="sub/a.py"), tool("ls", path="sub"),
        tool("glob", pattern="**/*.py"), tool("grep", pattern="need.e"), tool("grep", pattern="("),
    ]  # fmt: skip
    found = results(alice, workspace, playing({"calls": calls}, {"text": "done"}))
    assert [item["files"][0]["change"] for item in found[:3]] == ["created", "modified", "modified"]
    assert found[3]["text"] == "needle = 3\nx\n"
    assert "a.py" in found[4]["text"]
    assert "sub/a.py" in found[5]["text"]
    assert "sub/a.py:1:needle = 3" in found[6]["text"]
    assert (found[7]["exit_code"], "not a regular expression" in found[7]["text"]) == (1, True)
    assert all(item["ok"] for item in found)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "link", "sub", "a" * 300])
def test_a_path_that_leads_elsewhere_is_an_error_result(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, path: str
) -> None:
    calls = [call("mkdir sub; ln -s /etc/passwd link"), tool("read", path=path), tool("write", path=path, content="x")]
    found = results(alice, workspace, playing({"calls": calls}, {"text": "done"}))
    assert [item["ok"] for item in found] == [True, False, False]
    assert all("root:" not in item["text"] for item in found)


def test_an_edit_loses_nobody_elses_change(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sessions_app.bench import SandboxBench

    read = SandboxBench.read

    async def read_then_somebody_writes(self: SandboxBench, path: str, *, offset: int, limit: int) -> Any:
        found = await read(self, path, offset=offset, limit=limit)
        await self.write(path, b"somebody else's\n")
        return found

    monkeypatch.setattr(SandboxBench, "read", read_then_somebody_writes)
    calls = [tool("write", path="f", content="mine\n"), tool("edit", path="f", old="mine", new="mine 2")]
    found = results(alice, workspace, playing({"calls": calls}, {"text": "done"}))
    assert [item["ok"] for item in found] == [True, False]
    assert "changed" in found[1]["text"]


def test_a_program_that_cannot_start_is_an_error_result(
    process: Process, workspace: Workspace, playing: Playing, alice: Api, owner: User
) -> None:
    found = results(alice, workspace, playing({"calls": [call("true", cwd="no/such/dir")]}, {"text": "done"}))
    assert (found[0]["ok"], found[0]["exit_code"]) == (False, None)
    assert found[0]["text"]
