"""`workspace__exec`, and the searches that run as programs: a model's pattern must not run on the control plane."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any, ClassVar

from agents.tools.base import ExecCommand, ExecStarted, Tool, ToolEvent, ToolOutcome, ToolOutput, Workbench, fields
from agents.tools.render import LIVE_BYTES, Kept, LiveText, exec_text
from workspaces.execution import ExecOutcome, OutputChunk, Stream

MAX_TIMEOUT_S = 600
SEARCH_TIMEOUT_S = 20.0


class _Watch:
    """Follows one exec: live text for people, head and tail for the model."""

    def __init__(self) -> None:
        self.exec_id = ""
        self.kept: dict[Stream, Kept] = {"stdout": Kept(), "stderr": Kept()}
        self.live: dict[Stream, LiveText] = {"stdout": LiveText(), "stderr": LiveText()}

    def output(self, chunk: OutputChunk) -> list[ToolOutput]:
        self.kept[chunk.stream].add(chunk.data)
        offset, text = self.live[chunk.stream].feed(chunk)
        return [ToolOutput(self.exec_id, chunk.stream, offset, text)] if text else []

    def rest(self, outcome: ExecOutcome) -> list[ToolOutput]:
        """What a stream still owes when it ends: half a character, and where the part that was not shown lies."""
        found = []
        totals: dict[Stream, int] = {"stdout": outcome.stdout_bytes, "stderr": outcome.stderr_bytes}
        for stream, total in totals.items():
            offset, text = self.live[stream].finish()
            if text:
                found.append(ToolOutput(self.exec_id, stream, offset, text))
            if total > LIVE_BYTES:
                found.append(ToolOutput(self.exec_id, stream, LIVE_BYTES, "", gap=(LIVE_BYTES, total)))
        return found

    def outcome(self, ended: ExecOutcome) -> ToolOutcome:
        text, truncated = exec_text(ended, self.kept, self.exec_id)
        return ToolOutcome(
            text=text,
            ok=ended.ended_by not in ("lost", "cancelled"),
            exec_id=self.exec_id,
            exit_code=ended.exit_code,
            signal=ended.signal,
            ended_by=ended.ended_by,
            evidence=asdict(ended.evidence),
            bytes=ended.stdout_bytes + ended.stderr_bytes,
            truncated=truncated,
            duration_ms=ended.duration_ms,
        )


async def run_command(command: ExecCommand, bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
    """Runs a program on the bench and reports it; an end of the stream without a verdict is `lost`, never success."""
    watch, ended = _Watch(), None
    async with aclosing(bench.exec(command)) as stream:
        async for item in stream:
            if isinstance(item, ExecStarted):
                watch.exec_id = item.exec_id
                yield item
            elif isinstance(item, OutputChunk):
                for output in watch.output(item):
                    yield output
            else:
                ended = item
    if ended is None:
        seen = {name: kept.total for name, kept in watch.kept.items()}
        ended = ExecOutcome("lost", None, None, seen["stdout"], seen["stderr"], 0.0)
    for output in watch.rest(ended):
        yield output
    yield watch.outcome(ended)


class Exec(Tool):
    name: ClassVar[str] = "workspace__exec"
    description: ClassVar[str] = (
        "Runs a shell command in the sandbox, in the workspace directory. Returns how it ended and its stdout and stderr; "
        "of long output the first and the last part. A process that must outlive the command is not supported."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("command",),
        command={"type": "string", "minLength": 1, "maxLength": 65536, "description": "For sh -c."},
        cwd={"type": "string", "maxLength": 4096, "description": "Directory, relative to the workspace."},
        stdin={"type": "string", "maxLength": 1048576, "description": "Text for standard input; closed without it."},
        timeout_s={"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_S, "description": "Seconds; 60 without it."},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        command = ExecCommand(
            argv=("sh", "-c", arguments["command"]),
            cwd=arguments.get("cwd", ""),
            stdin=arguments.get("stdin", "").encode(),
            timeout_s=float(arguments.get("timeout_s", 60)),
        )
        async with aclosing(run_command(command, bench)) as events:
            async for event in events:
                yield event


# The runtime itself needs a python3 in every image, so these need no other program. Names and patterns are arguments,
# never pasted into source.
_GLOB = """
import glob, os, sys
pattern, root, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
if root:
    os.chdir(root)
found = sorted(glob.iglob(pattern, recursive=True))
for name in found[:most]:
    print(os.path.join(root, name) + ('/' if os.path.isdir(name) and not name.endswith('/') else ''))
if len(found) > most:
    print('[%d more]' % (len(found) - most))
"""
_GREP = """
import fnmatch, os, re, sys
pattern, root, names, most = sys.argv[1], sys.argv[2] or '.', sys.argv[3], int(sys.argv[4])
try:
    wanted = re.compile(pattern)
except re.error as exc:
    sys.exit('not a regular expression: %s' % exc)
def files():
    if os.path.isfile(root):
        yield root
    for folder, dirs, found in os.walk(root):
        dirs.sort()
        for name in sorted(found):
            if fnmatch.fnmatch(name, names):
                yield os.path.join(folder, name)
count = 0
for path in files():
    if not os.path.isfile(path) or os.path.getsize(path) > 1 << 24:
        continue
    with open(path, 'rb') as file:
        data = file.read()
    if b'\\0' in data[:8192]:
        continue
    for number, line in enumerate(data.decode('utf-8', 'replace').split('\\n'), 1):
        if wanted.search(line):
            count += 1
            if count <= most:
                print('%s:%d:%s' % (os.path.relpath(path), number, line[:400]))
if count > most:
    print('[%d more]' % (count - most))
"""
MOST_MATCHES = "200"


class Glob(Tool):
    name: ClassVar[str] = "workspace__glob"
    description: ClassVar[str] = "Lists paths that match a pattern such as **/*.py, sorted, directories with a slash."
    schema: ClassVar[dict[str, Any]] = fields(
        ("pattern",),
        pattern={"type": "string", "minLength": 1, "maxLength": 1024},
        path={"type": "string", "maxLength": 4096, "description": "Directory to search; the workspace without it."},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        command = _search(_GLOB, arguments["pattern"], arguments.get("path", ""), MOST_MATCHES)
        async with aclosing(run_command(command, bench)) as events:
            async for event in events:
                yield event


class Grep(Tool):
    name: ClassVar[str] = "workspace__grep"
    description: ClassVar[str] = (
        "Searches file contents with a Python regular expression. Returns path:line:text, at most 200 matches."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("pattern",),
        pattern={"type": "string", "minLength": 1, "maxLength": 1024},
        path={"type": "string", "maxLength": 4096, "description": "File or directory; the workspace without it."},
        glob={"type": "string", "maxLength": 256, "description": "Only file names that match, such as *.py."},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        where, names = arguments.get("path", ""), arguments.get("glob", "*")
        command = _search(_GREP, arguments["pattern"], where, names, MOST_MATCHES)
        async with aclosing(run_command(command, bench)) as events:
            async for event in events:
                # "Nothing found" reads better than an empty stdout.
                if isinstance(event, ToolOutcome) and event.exit_code == 0 and event.bytes == 0:
                    yield replace(event, text="No match.")
                else:
                    yield event


def _search(script: str, *arguments: str) -> ExecCommand:
    return ExecCommand(("python3", "-I", "-c", script, *arguments), timeout_s=SEARCH_TIMEOUT_S)
