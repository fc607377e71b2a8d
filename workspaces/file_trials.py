"""Changes of files that are only tried (`?dry_run=true`): what is there is looked at, and nothing is touched.

Paths, kinds and preconditions meet the refusals that the change itself would meet. Whether the sandbox's own user may
write there, and whether its disk has room for one more file, shows only in the doing.
"""

from __future__ import annotations

from primer_site.errors import Invalid, PreconditionFailed
from workspaces.execution import FileInfo
from workspaces.sandbox import Sandbox
from workspaces.sandbox_errors import (
    DirectoryNotEmpty,
    FileExists,
    FileMissing,
    IsADirectory,
    LinkRefused,
    NotADirectory,
    NotAFile,
)

INTO_ITSELF = "A directory cannot be moved into itself."


async def write(box: Sandbox, path: str, *, if_match: list[str] | None, only_new: bool) -> None:
    """Raises what keeps a file from being written there. What is missing above it would be made."""
    found = await look(box, path, etag=if_match is not None)
    if found is not None:
        _refuse_odd(found)
        if only_new:
            raise PreconditionFailed("The file exists already.")
    _refuse_other(found, if_match)


async def make_dir(box: Sandbox, path: str, *, parents: bool) -> None:
    """Raises what keeps a directory from being made; with `parents` one that is there is fine."""
    found = await look(box, path)
    if found is None:
        if not parents and await look(box, _above(path)) is None:
            raise FileMissing
        return
    if not parents:
        raise FileExists
    if found.kind == "symlink":
        raise LinkRefused
    if found.kind != "dir":
        raise NotADirectory


async def move(box: Sandbox, source: str, target: str, *, overwrite: bool) -> None:
    """Raises what keeps `source` from getting the name `target`."""
    if _is_within(_parts(source), _parts(target)):
        raise Invalid(INTO_ITSELF)
    moved, there, above = await look(box, source), await look(box, target), await look(box, _above(target))
    if moved is None or above is None:
        raise FileMissing
    place = [*_parts(above.path), target.rpartition("/")[2]]
    if _is_within(_parts(moved.path), place):  # one of the two was named from the root
        raise Invalid(INTO_ITSELF)
    if there is None:
        return
    if not overwrite:
        raise FileExists
    if moved.kind != "dir" and there.kind == "dir":
        raise IsADirectory
    if moved.kind == "dir" and there.kind != "dir":
        raise NotADirectory
    if there.kind == "dir" and place != _parts(moved.path):
        await _refuse_full(box, target)


async def delete(box: Sandbox, path: str, *, recursive: bool, if_match: list[str] | None) -> None:
    """Raises what keeps a file, a link or a directory from being removed."""
    found = await look(box, path, etag=if_match is not None)
    if found is not None and if_match is not None and "*" not in if_match:
        _refuse_odd(found)
    _refuse_other(found, if_match)
    if found is None:
        raise FileMissing
    if found.kind == "dir" and not recursive:
        await _refuse_full(box, path)


async def look(box: Sandbox, path: str, *, etag: bool = False) -> FileInfo | None:
    """What is there, None when nothing is; raises for a link or a file on the way."""
    try:
        return await box.stat(path, etag=etag)
    except FileMissing:
        return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _is_within(above: list[str], below: list[str]) -> bool:
    return len(below) > len(above) and below[: len(above)] == above


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _refuse_odd(found: FileInfo) -> None:
    """As the runtime refuses what is no regular file."""
    if found.kind == "symlink":
        raise LinkRefused
    if found.kind == "dir":
        raise IsADirectory
    if found.kind != "file":
        raise NotAFile


def _refuse_other(found: FileInfo | None, if_match: list[str] | None) -> None:
    if if_match is None:
        return
    if found is None:
        raise PreconditionFailed("The file does not exist.")
    if "*" not in if_match and found.etag not in if_match:
        raise PreconditionFailed("The file was changed since you read it.")


async def _refuse_full(box: Sandbox, path: str) -> None:
    if (await box.list(path, limit=1)).items:
        raise DirectoryNotEmpty
