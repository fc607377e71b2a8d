"""Tools for what is kept of the output of a program that ran: read a part of it, search all of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from agents.tools.base import RESULT_BYTES, OutputPage, Tool, ToolEvent, ToolOutcome, Workbench, fields
from agents.tools.render import LINE_BYTES, cut_head
from workspaces.execution import Stream

PAGE_BYTES = 256 * 1024
MOST_MATCHES = 100
EXEC_ID = {"type": "string", "minLength": 1, "maxLength": 64, "description": "From the first line of a result."}
STREAM = {"type": "string", "enum": ["stdout", "stderr"], "description": "stdout without it."}


class ReadOutput(Tool):
    name: ClassVar[str] = "workspace__output_read"
    independent: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Reads kept output of a command that ran in this session, at most 16 KiB at once. Of very long output the middle is "
        "not kept; where that is, is said."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("exec_id",),
        exec_id=EXEC_ID,
        stream=STREAM,
        offset={"type": "integer", "minimum": 0, "maximum": 2**53, "description": "Byte of the stream; 0 without it."},
        limit={"type": "integer", "minimum": 1, "maximum": RESULT_BYTES, "description": "Bytes; 16384 without it."},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        exec_id, stream = arguments["exec_id"], _stream(arguments)
        offset, limit = arguments.get("offset", 0), arguments.get("limit", RESULT_BYTES)
        page = await bench.read_output(exec_id, stream, offset=offset, limit=limit + 4)
        data = cut_head(page.data, limit)
        end = page.offset + len(data)
        lines = [_gap(page)] if page.gap else []
        if data:
            lines.append(data.decode("utf-8", "replace"))
            lines.append(f"[bytes {page.offset} to {end} of {page.total} of {stream}{_more(end, page.total)}]")
        else:
            lines.append(f"[{stream} has {page.total} bytes; there is nothing at or behind {offset}]")
        yield ToolOutcome("\n".join(lines), bytes=len(data), truncated=end < page.total)


class GrepOutput(Tool):
    name: ClassVar[str] = "workspace__output_grep"
    independent: ClassVar[bool] = True
    # A plain text, no expression: it is searched for by the server, where a hostile expression could take for ever.
    description: ClassVar[str] = (
        "Finds the lines with a given text (not a regular expression) in the kept output of a command that ran in this "
        "session; each comes with its offset, to be used with workspace__output_read."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("exec_id", "text"),
        exec_id=EXEC_ID,
        text={"type": "string", "minLength": 1, "maxLength": 1000},
        stream=STREAM,
        ignore_case={"type": "boolean"},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        exec_id, stream = arguments["exec_id"], _stream(arguments)
        search = _Search(arguments["text"], arguments.get("ignore_case", False))
        offset, gaps, total = 0, [], 0
        while True:
            page = await bench.read_output(exec_id, stream, offset=offset, limit=PAGE_BYTES)
            total = page.total
            if page.gap:
                gaps.append(_gap(page))
                search.jump(page.offset)
            if not page.data:
                break
            search.feed(page.data)
            offset = page.next_offset
        search.finish()
        more = [f"[{search.count - len(search.found)} more]"] if search.count > len(search.found) else []
        found = search.found or [f"No line of {stream} ({total} bytes) has this text."]
        yield ToolOutcome("\n".join([*found, *more, *gaps]), bytes=total, truncated=bool(more or gaps))


class _Search:
    """Lines with a text, over pieces that may end anywhere; memory is bounded by what is shown."""

    def __init__(self, text: str, ignore_case: bool) -> None:
        self._fold = ignore_case
        self._wanted = (text.lower() if ignore_case else text).encode()
        self._rest = b""
        self._offset = 0  # of the rest
        self._room = RESULT_BYTES - 512
        self.found: list[str] = []
        self.count = 0

    def jump(self, offset: int) -> None:
        """Goes on at another offset: what came before it is no line of its own any more."""
        self.finish()
        self._offset = offset

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(rest) > PAGE_BYTES:  # a line without end is searched in parts
            self._line(rest, newline=0)
            rest = b""
        self._rest = rest

    def finish(self) -> None:
        if self._rest:
            self._line(self._rest, newline=0)
        self._rest = b""

    def _line(self, line: bytes, newline: int = 1) -> None:
        at = self._folded(line).find(self._wanted)
        if at >= 0:
            self.count += 1
            start = max(0, at - LINE_BYTES // 2)
            shown = cut_head(line[start:], 2 * LINE_BYTES).decode("utf-8", "replace").lstrip("\ufffd")
            text = f"{self._offset + start}: {shown}"
            if len(self.found) < MOST_MATCHES and (size := len(text.encode()) + 1) <= self._room:
                self.found.append(text)
                self._room -= size
        self._offset += len(line) + newline

    def _folded(self, line: bytes) -> bytes:
        return (
            line.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape") if self._fold else line
        )


def _stream(arguments: dict[str, Any]) -> Stream:
    return "stderr" if arguments.get("stream") == "stderr" else "stdout"


def _gap(page: OutputPage) -> str:
    start, end = page.gap or (0, 0)
    return f"[bytes {start} to {end} were not kept]"


def _more(end: int, total: int) -> str:
    return f"; go on with offset {end}" if end < total else ""
