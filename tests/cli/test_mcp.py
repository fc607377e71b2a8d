"""`primectl mcp serve` with the SDK's own client over standard input and output, against a real server."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.cli.conftest import Cli
from tests.e2e.recipe import Api
from tests.eventually import eventually, eventually_async
from tests.live import LiveServer

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose sandboxes are directories of this machine: it is the tools that are tested here."""
    directory = tmp_path_factory.mktemp("mcp")
    for folder in (directory, *list(directory.parents)[:3]):  # the sandboxes' own user must reach them
        folder.chmod(folder.stat().st_mode | 0o055)
    server = LiveServer(directory / "server")
    server.start(PRIMER_ALLOW_LOCAL="1")
    api = Api(server.url, server.token)
    here = {"kind": "local", "root_path": str(directory / "sandboxes")}
    api.ok("POST", "workspace_providers", {"id": "here", "provider": "local", "config": here}, status=201)
    template = {"id": "plain", "provider_id": "here", "backend": {"kind": "local"}}
    api.ok("POST", "workspace_templates", template, status=201)
    api.close()
    yield server
    server.destroy()


@pytest.fixture
def http(live: LiveServer) -> Iterator[Api]:
    api = Api(live.url, live.token)
    yield api
    api.close()


@asynccontextmanager
async def connected(live: LiveServer, *flags: str) -> AsyncIterator[Client]:
    env = live.env(PRIMECTL_SERVER=live.url, PRIMECTL_TOKEN=live.token, PYTHONPATH=str(ROOT))
    command = ["-m", "cli.main", "mcp", "serve", *(flags or ("-t", "plain"))]
    async with Client(StdioServerParameters(command=sys.executable, args=command, env=env)) as client:
        yield client


async def said(client: Client, tool: str, *, ok: bool = True, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if block.type == "text")
    assert bool(result.is_error) is not ok, text
    return text


def workspaces_of(api: Api) -> list[str]:
    return [item["id"] for item in api.ok("GET", "workspaces")["items"]]


async def test_a_client_runs_code_and_works_with_files_and_the_sandbox_goes_with_it(
    live: LiveServer, http: Api
) -> None:
    async with connected(live) as client:
        tools = await client.list_tools()
        assert {tool.name for tool in tools.tools} == {"run_code", "exec", "read_file", "write_file", "list_files"}
        assert not workspaces_of(http), "nothing is made before the first call"
        assert (
            await said(client, "run_code", code="print(6 * 7)") == "exit code 0\nstdout: 3 bytes\n42\nstderr: 0 bytes"
        )
        assert len(workspaces_of(http)) == 1
        assert await said(client, "write_file", path="sub/a.txt", content="é🌍\n") == "Wrote 7 bytes to sub/a.txt."
        assert await said(client, "read_file", path="sub/a.txt") == "é🌍\n"
        assert "sub/a.txt" in await said(client, "list_files", recursive=True)
        told = await said(client, "exec", command="cat; echo no >&2; exit 3", stdin="in\n", cwd="sub")
        assert told == "exit code 3\nstdout: 3 bytes\nin\nstderr: 3 bytes\nno"
        assert (await said(client, "run_code", code="echo $((6*7))", language="sh")).startswith(
            "exit code 0\nstdout: 3 bytes\n42"
        )
        big = f"x = {'1' * 70_000!r}\nprint(len(x))"
        assert "70000" in await said(client, "run_code", code=big)
    eventually(lambda: not workspaces_of(http), within=30, message="the sandbox is removed")


async def test_long_output_shows_its_ends_and_true_counts(live: LiveServer) -> None:
    async with connected(live) as client:
        told = await said(client, "run_code", code="for i in range(100_000): print(i)")
    assert len(told) < 40_000
    assert "stdout: 588890 bytes, " in told
    assert told.rstrip().endswith("99999\nstderr: 0 bytes")
    gap = re.search(r"\n\[bytes (\d+) to (\d+) of stdout are not shown\]\n", told)
    assert gap, "two halves of a line must not read as one"
    whole = "".join(f"{i}\n" for i in range(100_000))
    assert told[: gap.start()].endswith(whole[: int(gap[1])][-200:])
    assert told[gap.end() :].startswith(whole[int(gap[2]) :][:200])


async def test_what_goes_wrong_is_a_sentence_for_the_model(live: LiveServer) -> None:
    async with connected(live) as client:
        assert "no such file" in (await said(client, "read_file", ok=False, path="absent")).lower()
        await said(client, "read_file", ok=False, path="../../etc/passwd")
        await said(client, "write_file", ok=False, path="/etc/x", content="x")
        await said(client, "run_code", ok=False, code="x", language="cobol")
        assert "timeout after 1 s" in await said(client, "exec", command="sleep 60", timeout_s=1)
        assert (await said(client, "exec", command="kill -9 $$")).startswith("ended by signal 9")


async def test_two_calls_at_once_share_one_sandbox(live: LiveServer, http: Api) -> None:
    async with connected(live) as client:
        told = await asyncio.gather(*(said(client, "run_code", code=f"print({n})") for n in range(4)))
        assert [text.splitlines()[2] for text in told] == ["0", "1", "2", "3"]
        assert len(workspaces_of(http)) == 1


async def test_a_call_that_its_client_gives_up_ends_its_program(live: LiveServer, http: Api) -> None:
    made = http.ok("POST", "workspaces", {"template_id": "plain"}, status=201)["id"]
    try:
        async with connected(live, "--workspace", made) as client:
            await said(client, "exec", command="true")
            task = asyncio.create_task(said(client, "exec", command="touch begun; sleep 600", timeout_s=900))
            await eventually_async(lambda: "begun" in str(http.ok("GET", f"workspaces/{made}/files")), within=30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually_async(
                lambda: [run["ended_by"] for run in http.ok("GET", f"workspaces/{made}/exec")["items"]].count(
                    "cancelled"
                ),
                within=30,
            )
        assert made in workspaces_of(http), "a workspace of the caller's stays"
    finally:
        http.call("DELETE", f"workspaces/{made}")


def test_both_a_workspace_and_a_template_are_refused(cli: Cli) -> None:
    result = cli("mcp", "serve", "--workspace", "ws-0123456789abcdef", "-t", "x")
    assert (result.code, result.out) == (2, b"")
    assert "one of them" in result.err


def test_without_the_extra_it_says_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "cli.mcp_server", raising=False)
    result = cli("mcp", "serve")
    assert (result.code, result.out) == (2, b"")
    assert "needs the extra: mcp" in result.err
