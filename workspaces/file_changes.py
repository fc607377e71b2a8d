"""Changes of files that a person asks for, by API or page: done in the sandbox, then a line in the audit log.

What programs and agents write is theirs: a workspace is for that, and an agent's every call is in its transcript.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from accounts.audit import Actor, audit_record
from primer_site import loop
from primer_site.errors import PreconditionFailed, PrimerError, Timeout
from workspaces import access
from workspaces.execution import FileInfo
from workspaces.file_trials import look
from workspaces.models import Workspace
from workspaces.providers.base import ChannelClosed
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import FileMissing, FilePermission

T = TypeVar("T")
KIND = "file"
CALL_S = 60.0
UPLOAD_S = 900.0
SHOWN_PATH = 1000  # characters of a path in the log
Data = bytes | AsyncIterator[bytes]


def inside(row: Workspace, work: Callable[[Sandbox], Awaitable[T]], timeout: float = CALL_S) -> T:
    """Runs `work` with the sandbox of a running workspace, from a view."""
    return loop.run(access.using(row.pk, work), timeout)


def write(
    by: Actor,
    row: Workspace,
    path: str,
    data: Data,
    *,
    mode: int,
    if_match: list[str] | None = None,
    only_new: bool = False,
) -> FileInfo:
    """Puts a whole file in place at once, or leaves the old one. `if_match` are ETags, `*` for whatever is there."""

    async def work(box: Sandbox) -> tuple[FileInfo | None, FileInfo]:
        wanted, before = await expected(box, path, if_match), await _seen(box, path)
        return before, await box.write(path, data, mode=mode, if_match=wanted, if_none_match=only_new)

    before, made = _done(by, row, "write", path, work, within_s=UPLOAD_S)
    _record(by, row, "write", shown(before), shown(made) | {"mode": f"{mode:04o}"})
    return made


def make_dir(by: Actor, row: Workspace, path: str, *, parents: bool = False) -> FileInfo:
    """Makes a directory; with `parents` one that is there is success, and no change."""

    async def work(box: Sandbox) -> tuple[FileInfo | None, FileInfo]:
        before = await _seen(box, path) if parents else None
        return before, await box.mkdir(path, parents=parents)

    before, made = _done(by, row, "mkdir", path, work)
    if before is None:
        _record(by, row, "mkdir", {}, shown(made))
    return made


def move(by: Actor, row: Workspace, source: str, target: str, *, overwrite: bool = False) -> FileInfo:
    """Renames within the workspace; FileExists unless `overwrite`."""

    async def work(box: Sandbox) -> tuple[FileInfo | None, FileInfo]:
        replaced = await _seen(box, target) if overwrite else None
        return replaced, await box.move(source, target, overwrite=overwrite)

    replaced, moved = _done(by, row, "move", source, work)
    after = shown(moved) | ({"replaced": shown(replaced)} if replaced else {})
    _record(by, row, "move", shown(moved) | {"path": printable_path(source)}, after)
    return moved


def delete(by: Actor, row: Workspace, path: str, *, recursive: bool = False, if_match: list[str] | None = None) -> None:
    """Removes a file, a link itself, or a directory (`recursive` when it is not empty)."""

    async def work(box: Sandbox) -> FileInfo | None:
        wanted, before = await expected(box, path, if_match), await _seen(box, path)
        await box.delete(path, recursive=recursive, if_match=wanted)
        return before

    before = _done(by, row, "delete", path, work, within_s=2 * CALL_S)
    _record(by, row, "delete", shown(before) or {"path": printable_path(path)}, {})


def _done(
    by: Actor,
    row: Workspace,
    verb: str,
    path: str,
    work: Callable[[Sandbox], Awaitable[T]],
    *,
    within_s: float = CALL_S,
) -> T:
    """As `inside`; where no answer came the change may have been made, and the log says that it is not known."""
    try:
        return inside(row, work, within_s)
    except (Timeout, ChannelClosed):
        _record(by, row, verb, {}, {"path": printable_path(path), "outcome": "unknown"})
        raise


async def expected(box: Sandbox, path: str, wanted: list[str] | None) -> list[str] | None:
    """What the runtime has to find there: `*` is that there is a file, with whatever in it."""
    if wanted is None or "*" not in wanted:
        return wanted
    try:
        info = await box.stat(path, etag=True)
    except FileMissing:
        raise PreconditionFailed("The file does not exist.") from None
    return [info.etag] if info.etag is not None else None


async def _seen(box: Sandbox, path: str) -> FileInfo | None:
    """What is there before the change, as far as it may be looked at: what is wrong with the path, the change says."""
    try:
        return await look(box, path, etag=True)
    except FilePermission:
        return await look(box, path)
    except PrimerError as exc:
        if exc.status >= 500:
            raise
        return None


def shown(info: FileInfo | None) -> dict[str, Any]:
    """An entry as the log keeps it: bounded, and nothing of its content but the ETag; {} for none."""
    if info is None:
        return {}
    facts = {"path": printable_path(info.path), "kind": info.kind, "size_bytes": info.size_bytes}
    return facts | ({"etag": info.etag} if info.etag else {})


def printable_path(path: str) -> str:
    """A path as text that any database takes: bytes that are not UTF-8 stand as `\\xff`."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if len(text) <= SHOWN_PATH else f"{text[: SHOWN_PATH - 1]}…"


def _record(by: Actor, row: Workspace, verb: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    audit_record(
        by, f"{KIND}.{verb}", kind=KIND, object_id=row.slug, before=before or None, after=after or None
    )  # fmt: skip
