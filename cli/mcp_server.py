"""The tools of `primectl mcp serve`, on the official SDK. Imported by that command alone: it needs the extra `mcp`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, ValidationError

from cli.errors import CliError
from cli.execution import Execution
from cli.sandbox import Ran, Sandbox
from cli.verdict import verdict

AT_ONCE = 8
LISTED = 500
READ_BYTES = 16 * 1024
ARGUMENT_BYTES = 64 * 1024  # the kernel takes 128 KiB in one argument
RUNNERS = {"python": ("python", "snippet.py"), "sh": ("sh", "snippet.sh")}
INSTRUCTIONS = (
    "Runs code in a sandbox that is not this machine: no access to the user's files, and usually no network. Files stay "
    "between calls. Of long output the beginning and the end are shown."
)
Timeout = Annotated[float, Field(ge=1, le=3600, description="Seconds until it is ended.")]
Path = Annotated[str, Field(min_length=1, max_length=4096, description="Relative to the workspace.")]
T = TypeVar("T")


def make_server(sandbox: Sandbox, version: str = "") -> MCPServer[Any]:
    """A server whose tools all work in the one sandbox."""
    server = _Server("primer", instructions=INSTRUCTIONS, version=version, log_level="WARNING")
    hands = _Hands(sandbox)
    for tool in (hands.run_code, hands.exec, hands.read_file, hands.write_file, hands.list_files):
        server.add_tool(tool, structured_output=False)
    return server


class _Server(MCPServer[Any]):
    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Arguments that a tool does not take are refused, by their names: the SDK drops unknown ones without a word, and of
        wrong ones it shows the words of the library that found them."""
        method = getattr(_Hands, name, None) if not name.startswith("_") else None
        takes = [*inspect.signature(method).parameters][1:] if method else []
        if method and (unknown := [one for one in arguments if one not in takes]):
            raise ToolError(f"The call was not run: {name} takes no {_line(unknown[0])[:100]}, but {', '.join(takes)}.")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as exc:
            if not isinstance(wrong := exc.__cause__, ValidationError):
                raise
            raise ToolError(f"The call was not run: {'; '.join(map(_wrong, wrong.errors()))}.") from None


def _wrong(error: Any) -> str:
    """One error of the schema's, in words: `timeout_s: input should be a valid number`."""
    where, what = ".".join(map(str, error["loc"])), str(error["msg"])
    return f"{where} is missing" if error["type"] == "missing" else f"{where}: {what[:1].lower()}{what[1:]}"


class _Hands:
    """Each public method is a tool; its docstring is what a model is told of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._places = anyio.CapacityLimiter(AT_ONCE)

    async def run_code(self, code: str, language: Literal["python", "sh"] = "python", timeout_s: Timeout = 60) -> str:
        """Runs a snippet in the sandbox and returns how it ended and what it printed."""
        runner, name = RUNNERS[language]
        data = code.encode("utf-8", "surrogatepass")
        if len(data) <= ARGUMENT_BYTES and b"\0" not in data:
            argv = [runner, "-c", code]
        else:
            await self._aside(lambda: self._sandbox.write(name, data))
            argv = [runner, name]
        return await self._run({"argv": argv, "timeout_s": timeout_s})

    async def exec(self, command: str, cwd: str = "", stdin: str = "", timeout_s: Timeout = 60) -> str:
        """Runs a shell command in the sandbox, in the workspace directory, and returns how it ended and what it printed."""
        body: dict[str, Any] = {"command": command, "timeout_s": timeout_s}
        body |= {"cwd": cwd} if cwd else {}
        return await self._run(body | ({"stdin": stdin} if stdin else {}))

    async def read_file(
        self, path: Path, offset: Annotated[int, Field(ge=0)] = 0, limit: Annotated[int, Field(ge=1, le=READ_BYTES)] = READ_BYTES
    ) -> str:  # fmt: skip
        """Reads a text file of the sandbox, at most 16 KiB at once; offset and limit count bytes."""
        found = await self._aside(lambda: self._sandbox.read(path, offset, limit))
        text, size = str(found.get("content", "")), int(found.get("size_bytes") or 0)
        end = offset + len(text.encode("utf-8", "surrogatepass"))
        return f"{text}\n[bytes {offset} to {end} of {size}; go on with offset {end}]" if end < size else text

    async def write_file(self, path: Path, content: str) -> str:
        """Writes a whole text file of the sandbox, replacing what was there."""
        data = content.encode("utf-8", "surrogatepass")
        await self._aside(lambda: self._sandbox.write(path, data))
        return f"Wrote {len(data)} bytes to {path}."

    async def list_files(self, path: str = "", recursive: bool = False) -> str:
        """Lists files of the sandbox: kind, size in bytes, path."""
        found = await self._aside(lambda: self._sandbox.listed(path, recursive, LISTED + 1))
        lines = [
            f"{item.get('kind'):7} {item.get('size_bytes'):>10} {_line(item.get('path'))}" for item in found[:LISTED]
        ]
        return (
            "\n".join([*lines, *(["[more entries are not shown]"] if len(found) > LISTED else [])])
            or "There is nothing."
        )

    async def _run(self, body: dict[str, Any]) -> str:
        execution = await self._aside(lambda: self._sandbox.start(body))
        try:
            ran = await self._aside(lambda: self._sandbox.finish(execution, body), abandon=True)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # the caller has gone: its program must not outlive it
                await anyio.to_thread.run_sync(_end, execution)
            raise
        return _told(ran)

    async def _aside(self, work: Callable[[], T], abandon: bool = False) -> T:
        """Runs blocking work in a thread; what went wrong is a sentence for the model."""
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._places, abandon_on_cancel=abandon)
        except CliError as exc:
            raise ToolError(". ".join(part for part in (*exc.lines, exc.hint) if part)) from exc


def _end(execution: Execution) -> None:
    try:
        execution.cancel()
    except CliError as exc:
        execution.app.console.note(f"warning: {exc.lines[0]}")


def _told(ran: Ran) -> str:
    code, notes = verdict(ran.result, ran.lost)
    lines = [f"exit code {code}" if ran.result.get("ended_by") == "exit" else notes[-1].removeprefix("primectl: ")]
    for stream in ("stdout", "stderr"):
        total, text = ran.result.get(f"{stream}_bytes", 0), ran.text(stream)
        missing = f", {ran.lost[stream]} of them in the middle not shown" if ran.lost[stream] else ""
        lines.append(f"{stream}: {total} bytes{missing}" + (f"\n{text.removesuffix(chr(10))}" if text else ""))
    return "\n".join(lines)


def _line(path: object) -> str:
    text = str(path)
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode()
