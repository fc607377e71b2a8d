"""What the tools of `primectl mcp serve` say of arguments they do not take; no server and no sandbox is needed for that."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mcp import Client

from cli.mcp_server import make_server
from cli.sandbox import Sandbox


class NoSandbox:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the sandbox was used")


async def told(tool: str, arguments: dict[str, Any]) -> str:
    async with Client(make_server(cast("Sandbox", NoSandbox()))) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    return "\n".join(block.text for block in result.content if block.type == "text")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("exec", {"command": "true", "timeout_s": "soon"}, "timeout_s: input should be a valid number"),
        ("exec", {"command": "true", "timeout_s": 0}, "timeout_s: input should be greater than or equal to 1"),
        ("run_code", {"code": "x", "language": "cobol"}, "language: input should be 'python' or 'sh'"),
        ("write_file", {"path": "a"}, "content is missing."),
        ("write_file", {"path": "a", "content": "x", "mode": "0755"}, "write_file takes no mode, but path, content."),
    ],
)
async def test_wrong_arguments_are_refused_by_their_names_in_one_sentence(
    tool: str, arguments: dict[str, Any], words: str
) -> None:
    said = await told(tool, arguments)
    assert said.startswith("The call was not run: ")
    assert words in said
    assert "\n" not in said
    assert "http" not in said


async def test_a_tool_that_does_not_exist_is_named() -> None:
    for name in ("absent", "_run", "__init__"):
        assert name in await told(name, {"x": 1})
