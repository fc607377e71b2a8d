"""A workbench in memory: what the tools do is seen without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from agents.tools.base import ExecCommand, ExecStarted, OutputPage
from primer_site.errors import NotFound, PreconditionFailed
from workspaces.execution import ExecOutcome, FileInfo, FileRange, Listing, OutputChunk

Step = OutputChunk | ExecOutcome | asyncio.Event | Exception


def exited(code: int = 0, *, out: int = 0, err: int = 0) -> ExecOutcome:
    return ExecOutcome("exit", code, None, out, err, 10.0)


def printed(text: bytes, code: int = 0, errors: bytes = b"") -> list[Step]:
    """The steps of a program that prints at once and ends."""
    steps: list[Step] = []
    if text:
        steps.append(OutputChunk("stdout", 0, text))
    if errors:
        steps.append(OutputChunk("stderr", 0, errors))
    return [*steps, exited(code, out=len(text), err=len(errors))]


@dataclass
class MemoryBench:
    """`program` says what each command does; a step that is an Event is waited for, an Exception is raised."""

    program: Callable[[ExecCommand], Sequence[Step]] = lambda command: printed(b"")
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[ExecCommand] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    error: Exception | None = None  # of each file operation
    outputs: dict[str, tuple[bytes, tuple[int, int] | None, bytes]] = field(default_factory=dict)  # head, gap, tail

    async def exec(self, command: ExecCommand) -> AsyncGenerator[ExecStarted | OutputChunk | ExecOutcome, None]:
        self.commands.append(command)
        exec_id, ended = f"exec-{len(self.commands)}", False
        yield ExecStarted(exec_id)
        try:
            for step in self.program(command):
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    ended = True
                    raise step
                else:
                    ended = isinstance(step, ExecOutcome)
                    yield step
            ended = True
        finally:
            if not ended:
                self.killed.append(exec_id)

    async def read_output(self, exec_id: str, stream: str, *, offset: int, limit: int) -> OutputPage:
        """What `outputs` holds; with a gap, the bytes behind it stand behind the head."""
        if exec_id not in self.outputs:
            raise NotFound(f"No command {exec_id} ran in this session.")
        head, gap, tail = self.outputs[exec_id]
        total = gap[1] + len(tail) if gap else len(head)
        if offset < len(head):
            return OutputPage(offset, head[offset : offset + limit], None, total)
        if gap is None:
            return OutputPage(offset, b"", None, total)
        start = max(offset, gap[1])
        return OutputPage(start, tail[start - gap[1] :][:limit], gap if offset < gap[1] else None, total)

    async def read(self, path: str, *, offset: int, limit: int) -> FileRange:
        data = self._find(path)
        part = data[offset : offset + limit]
        return FileRange(self._info(path, data), offset, part, offset + len(part) < len(data))

    async def write(self, path: str, data: bytes, *, if_match: str | None = None) -> bool:
        if self.error:
            raise self.error
        if if_match is not None and if_match != self._info(path, self._find(path)).etag:
            raise PreconditionFailed
        new = path not in self.files
        self.files[path] = data
        return new

    async def list(self, path: str, *, cursor: str | None = None) -> Listing:
        if self.error:
            raise self.error
        return Listing(tuple(self._info(name, data) for name, data in sorted(self.files.items())), None)

    def _find(self, path: str) -> bytes:
        if self.error:
            raise self.error
        if path not in self.files:
            raise NotFound(f"There is no file {path}.")
        return self.files[path]

    @staticmethod
    def _info(path: str, data: bytes) -> FileInfo:
        return FileInfo(path, path, "file", len(data), 0.0, 0o644, etag=f"{hash(data):x}")
