"""What a tool is, and the bench it works on: the session binds the workspace, so no tool has an argument for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from agents.llm.base import ToolSpec
from primer_site.errors import PrimerError
from workspaces.execution import ExecOutcome, FileRange, Listing, OutputChunk, Stream

RESULT_BYTES = 16 * 1024  # what a model sees of one result
# Of a schema, not told to models: servers of open models make a grammar of it and refuse one that counts to thousands, and
# ours count bytes where JSON Schema counts characters. Whoever goes beyond is told so.
UNTOLD = ("minLength", "maxLength")
FILE_BYTES = 1024 * 1024  # the largest file that edit takes, and the largest content that write takes


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """A program for the bench: `argv`, where, for how many seconds at most."""

    argv: tuple[str, ...]
    cwd: str = ""
    stdin: bytes = b""
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ExecStarted:
    """The first value of an exec: its id, under which all kept output can be read later."""

    exec_id: str


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Kept bytes of a stream from `offset`. `gap` is [from, to) in stream offsets when the page began behind a part that
    was not kept; `total` is the stream's length in bytes so far."""

    offset: int
    data: bytes
    gap: tuple[int, int] | None
    total: int

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


class Workbench(Protocol):
    """One workspace, bound by the session. Paths are relative to it; failures are `PrimerError`s with a sentence."""

    def exec(self, command: ExecCommand) -> AsyncGenerator[ExecStarted | OutputChunk | ExecOutcome, None]:
        """Runs a program: its id, its output as it is produced, then how it ended.

        Cancelling or closing the stream ends the program and returns when it is dead.
        """
        ...

    async def read_output(self, exec_id: str, stream: Stream, *, offset: int, limit: int) -> OutputPage:
        """Kept output of a program of this session; `NotFound` when it ran no such program."""
        ...

    async def read(self, path: str, *, offset: int, limit: int) -> FileRange:
        """Bytes of a regular file; `NotFound` when there is none."""
        ...

    async def write(self, path: str, data: bytes, *, if_match: str | None = None) -> bool:
        """Writes a whole file atomically and returns whether it is new; `PreconditionFailed` when it is not `if_match`."""
        ...

    async def list(self, path: str, *, cursor: str | None = None) -> Listing:
        """One page of a directory."""
        ...


class BadArguments(PrimerError):
    """The arguments do not fit the tool."""

    code, status = "invalid", 422


class BenchFailed(PrimerError):
    """The sandbox cannot be used."""

    # Not the model's to mend: the run ends with `cause_code`.
    code, status = "sandbox_failed", 503

    def __init__(self, detail: str = "", *, hint: str = "", cause_code: str = "sandbox_failed") -> None:
        super().__init__(detail, hint=hint)
        self.cause_code = cause_code


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Text of a running program; `offset` counts bytes of its stream."""

    exec_id: str
    stream: Stream
    offset: int
    text: str
    gap: tuple[int, int] | None = None  # bytes of the stream that are not shown live


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    change: str  # created, modified
    diff: str | None = None  # unified, of what a write replaced; None where there was nothing to compare, or too much
    texts: tuple[str, str] | None = None  # what it is of, before and after, secrets included: the toolbox compares them

    def to_dict(self) -> dict[str, str]:
        shown = {"path": self.path, "change": self.change}
        return shown if self.diff is None else shown | {"diff": self.diff}


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How a call ended; `text` is what the model sees. Times in ms, sizes in bytes; exec facts only where one ran."""

    text: str
    ok: bool = True
    exec_id: str | None = None
    exit_code: int | None = None
    ended_by: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0
    truncated: bool = False
    duration_ms: float | None = 0.0  # None: not known
    files: tuple[FileChange, ...] = ()
    signal: int | None = None
    fatal: BenchFailed | None = None  # the bench itself failed: no further call can work

    def to_dict(self) -> dict[str, Any]:
        return {
            "exec_id": self.exec_id,
            "ok": self.ok,
            "text": self.text,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "ended_by": self.ended_by,
            "evidence": self.evidence,
            "bytes": self.bytes,
            "truncated": self.truncated,
            "duration_ms": None if self.duration_ms is None else round(self.duration_ms, 1),
            "files": [change.to_dict() for change in self.files],
        }


ToolEvent: TypeAlias = ExecStarted | ToolOutput | ToolOutcome


class Tool(ABC):
    """One tool. `run` gets arguments that fit `schema`, yields what happens and ends with one `ToolOutcome`."""

    name: ClassVar[str]
    description: ClassVar[str]
    schema: ClassVar[dict[str, Any]]
    independent: ClassVar[bool] = False  # changes nothing, starts no program: may run beside others like it

    @property
    def spec(self) -> ToolSpec:
        told = {
            name: {key: value for key, value in rule.items() if key not in UNTOLD}
            for name, rule in self.schema["properties"].items()
        }
        return ToolSpec(self.name, self.description, {**self.schema, "properties": told})

    @abstractmethod
    def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        """Raises `BenchFailed` when there is no sandbox, another `PrimerError` for what the model may be told as an error result; anything else is a bug."""


def fields(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments: an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
