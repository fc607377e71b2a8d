"""Tools for files: write, read, edit, ls. Paths go through the same broker as everybody's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from agents.tools.base import (
    FILE_BYTES,
    RESULT_BYTES,
    BadArguments,
    BenchFailed,
    FileChange,
    Tool,
    ToolEvent,
    ToolOutcome,
    Workbench,
    fields,
)
from agents.tools.render import cut_head
from primer_site.errors import NotText, PrimerError
from workspaces.diff import DIFF_BYTES

PATH = {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Relative to the workspace."}
MAX_ENTRIES = 500


class Write(Tool):
    name: ClassVar[str] = "workspace__write"
    description: ClassVar[str] = "Writes a whole text file, replacing what was there. Directories on the way are made."
    schema: ClassVar[dict[str, Any]] = fields(
        ("path", "content"), path=PATH, content={"type": "string", "maxLength": FILE_BYTES}
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        path, content = arguments["path"], arguments["content"]
        data = content.encode()
        before = await _former(bench, path)
        change = "created" if await bench.write(path, data) else "modified"
        text = f"Wrote {len(data)} bytes to {path} ({change})."
        texts = (before, content) if before is not None and change == "modified" else None
        yield ToolOutcome(text, bytes=len(data), files=(FileChange(path, change, texts=texts),))


class Read(Tool):
    name: ClassVar[str] = "workspace__read"
    independent: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Reads a text file, at most 16 KiB at once; offset continues where the last part ended."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("path",),
        path=PATH,
        offset={"type": "integer", "minimum": 0, "maximum": 2**53, "description": "Bytes to skip; 0 without it."},
        limit={"type": "integer", "minimum": 1, "maximum": RESULT_BYTES, "description": "Bytes; 16384 without it."},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        path, offset, limit = arguments["path"], arguments.get("offset", 0), arguments.get("limit", RESULT_BYTES)
        found = await bench.read(path, offset=offset, limit=limit + 1)
        size = found.info.size_bytes
        data = cut_head(found.data, limit)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise NotText(f"{path} is not UTF-8 text ({size} bytes).", hint="Look at it with a program.") from None
        end = offset + len(data)
        if end < size:
            text += f"\n[bytes {offset} to {end} of {size}; go on with offset {end}]"
        yield ToolOutcome(text, bytes=len(data), truncated=end < size)


class Edit(Tool):
    name: ClassVar[str] = "workspace__edit"
    description: ClassVar[str] = (
        "Replaces text in a file. `old` must stand in it exactly once, or `replace_all` be true. Nothing is changed otherwise."
    )
    schema: ClassVar[dict[str, Any]] = fields(
        ("path", "old", "new"),
        path=PATH,
        old={"type": "string", "minLength": 1, "maxLength": FILE_BYTES},
        new={"type": "string", "maxLength": FILE_BYTES},
        replace_all={"type": "boolean"},
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        path, old, new = arguments["path"], arguments["old"], arguments["new"]
        found = await bench.read(path, offset=0, limit=FILE_BYTES + 1)
        if found.info.size_bytes > FILE_BYTES or len(found.data) > FILE_BYTES:
            raise BadArguments(f"{path} has {found.info.size_bytes} bytes; edit takes at most {FILE_BYTES}.")
        try:
            text = found.data.decode("utf-8")
        except UnicodeDecodeError:
            raise NotText(f"{path} is not UTF-8 text.") from None
        count = text.count(old)
        if count == 0:
            raise BadArguments(f"The text to replace does not stand in {path}. Read the file and copy it exactly.")
        if count > 1 and not arguments.get("replace_all", False):
            raise BadArguments(f"The text stands {count} times in {path}. Give more of it, or set replace_all.")
        data = text.replace(old, new).encode()
        # Somebody may have written meanwhile: their change must not be lost without a word.
        await bench.write(path, data, if_match=found.info.etag)
        yield ToolOutcome(f"Replaced {count} in {path}.", bytes=len(data), files=(FileChange(path, "modified"),))


class Ls(Tool):
    name: ClassVar[str] = "workspace__ls"
    independent: ClassVar[bool] = True
    description: ClassVar[str] = "Lists a directory: kind, size in bytes, name."
    schema: ClassVar[dict[str, Any]] = fields(
        (), path={**PATH, "minLength": 0, "description": "The workspace without it."}
    )

    async def run(self, arguments: dict[str, Any], bench: Workbench) -> AsyncGenerator[ToolEvent, None]:
        path = arguments.get("path", "")
        lines: list[str] = []
        cursor: str | None = None
        while True:
            page = await bench.list(path, cursor=cursor)
            # A name may hold a newline: one entry stays one line.
            lines += [f"{i.kind:7} {i.size_bytes:>10} {_one_line(i.name)}" for i in page.items]
            cursor = page.cursor
            if cursor is None or len(lines) >= MAX_ENTRIES:
                break
        truncated = cursor is not None or len(lines) > MAX_ENTRIES
        text = "\n".join(lines[:MAX_ENTRIES]) or "The directory is empty."
        yield ToolOutcome(text + ("\n[more entries are not shown]" if truncated else ""), truncated=truncated)


async def _former(bench: Workbench, path: str) -> str | None:
    """The text that a write is about to replace; None where there is none, or none that a diff of it could be kept."""
    try:
        found = await bench.read(path, offset=0, limit=DIFF_BYTES + 1)
        whole = found.info.size_bytes <= DIFF_BYTES and len(found.data) <= DIFF_BYTES
        return found.data.decode("utf-8") if whole else None
    except BenchFailed:
        raise
    except (PrimerError, UnicodeDecodeError):  # no such file, a directory, bytes: the write itself says what it thinks
        return None


def _one_line(name: str) -> str:
    return name if name.isprintable() else name.encode("unicode_escape", "backslashreplace").decode()
