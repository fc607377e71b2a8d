"""Files between a workspace and here: downloads that may break off, directories, uploads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.app import App
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.kinds import Ref
from cli.landing import UNREADABLE, Landing, Member, Reader, Unreadable, extract, local_name, place, save
from cli.text import count_bytes

if TYPE_CHECKING:
    import requests

_PIECE = 256 * 1024
_SILENCE_S = 60.0
_FILE_ALONE = ("symlink", "not_regular", "not_dir", "is_dir", "changed", "name_too_long", "invalid")


_MARKED_NAME = "ls shows a byte that is not UTF-8 as \\xff; in bash write the name as $'…\\xff'"


class FileNotThere(CliError):
    """The workspace is there, the file is not."""


def fetch(app: App, ref: Ref, path: str, target: str | None, landing: Landing) -> Exit:
    """Brings a file, or a directory to `target`, here; exit 1 when something in it had to be left out."""
    try:
        response = download(app, ref, path)
    except ApiError as exc:
        if exc.status != 422 or not lists(app, ref, path):
            raise
        # A server that hands out files only: the directory is brought one by one.
        directory = _directory(path, target)
        return _tree(app, directory, landing, lambda: place(_entries(app, ref, path), directory, landing))
    with response:
        if is_directory(response):
            directory, source = _directory(path, target), Reader(response.iter_content(_PIECE))
            return _tree(app, directory, landing, lambda: extract(source, directory, landing))
        file = target or f"./{local_name(path)}"
        written = save(pieces_of(response), file, landing)
        app.console.info(f"saved {file} ({count_bytes(written)})")
        return Exit.OK


def _directory(path: str, target: str | None) -> str:
    if target is None:
        raise UsageError(f"{path} is a directory", hint=f"say where to: -O {_suggestion(path)}")
    return target


def _tree(app: App, target: str, landing: Landing, bring: Callable[[], None]) -> Exit:
    """Brings a directory and says what arrived, also when the rest of it will not."""
    try:
        bring()
    except BaseException:
        _arrived(app, target, landing, whole=False)
        raise
    _arrived(app, target, landing, whole=True)
    return Exit.FAILED if landing.skipped else Exit.OK


def _arrived(app: App, target: str, landing: Landing, *, whole: bool) -> None:
    for line in landing.skipped:
        app.console.note(line)
    count = landing.arrived
    entries = f"{count} {'entry' if count == 1 else 'entries'}"
    if whole:
        app.console.info(f"saved {target} ({entries})")
    elif os.path.isdir(target):
        app.console.note(f"warning: {target} is not complete: {entries} of it arrived")


def lists(app: App, ref: Ref, path: str) -> bool:
    """Whether a path is a directory: it can be listed. Raises ApiError for one that may not be."""
    try:
        app.client.get(app.path(ref, "files"), path=path, limit=1)
    except ApiError as exc:
        if exc.code == "permission":
            exc.lines = [f"{ref.id}:{path or '.'}: not readable"]
            raise
        return False
    return True


def _entries(app: App, ref: Ref, path: str) -> Iterator[Member]:
    """What is in a directory, all levels, each file opened when its turn comes."""
    root = path.strip("/") + "/" if path.strip("/.") else ""
    for item, readable in listed(app, ref, path, recursive=True):
        whole = str(item.get("path"))
        mode = str(item.get("mode") or "")
        program = len(mode) >= 3 and mode[-3] in "1357"
        name = whole.removeprefix("/workspace/").removeprefix(root)
        kind = str(item.get("kind")) if readable else UNREADABLE
        yield Member(name, kind, partial(_bytes_of, app, ref, whole), program, whole)


def listed(app: App, ref: Ref, path: str, *, recursive: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """The entries of a directory, each with whether it can be listed itself.

    A recursive list passes over a directory that it may not read, as if it were empty: one without entries is asked.
    """
    items = app.client.pages(app.path(ref, "files"), path=path, recursive="true" if recursive else None)
    held: dict[str, Any] | None = None  # a directory whose first entry may follow
    for item in items:
        if held is not None:
            below = str(item.get("path")).startswith(f"{held.get('path')}/")
            yield held, below or _may_list(app, ref, held)
            held = None
        if recursive and item.get("kind") == "dir":
            held = item
        else:
            yield item, True
    if held is not None:
        yield held, _may_list(app, ref, held)


def _may_list(app: App, ref: Ref, directory: dict[str, Any]) -> bool:
    try:
        app.client.get(app.path(ref, "files"), path=str(directory.get("path")), limit=1)
    except ApiError as exc:
        if exc.code == "permission":
            return False
        if exc.status != 404 and exc.code not in ("not_dir", "symlink"):  # those three: no directory any more
            raise
    return True


def _bytes_of(app: App, ref: Ref, path: str) -> Iterator[bytes]:
    """The bytes of one file of many: what is wrong with it alone is Unreadable."""
    try:
        response = download(app, ref, path)
    except FileNotThere as exc:
        raise Unreadable("went away meanwhile") from exc
    except ApiError as exc:
        if exc.code == "permission":
            raise Unreadable("not readable") from exc
        if exc.code in _FILE_ALONE:
            raise Unreadable(exc.lines[0].removesuffix(".")) from exc
        raise
    with response:
        yield from pieces_of(response)


def _suggestion(path: str) -> str:
    try:
        return f"./{local_name(path)}"
    except UsageError:
        return "DIR"


def download(app: App, ref: Ref, path: str) -> requests.Response:
    """The response with the bytes of a path; the caller closes it. A missing file is exit 3."""
    try:
        return app.client.open("GET", app.path(ref, "files", "download"), params={"path": path}, silence_s=_SILENCE_S)
    except ApiError as exc:
        raise no_file(app, exc, ref, path) from exc


def no_file(app: App, exc: ApiError, ref: Ref, path: str) -> CliError:
    """A 404 is about the file if the workspace is there, else about the workspace."""
    if exc.code == "permission":
        exc.lines = [f"{ref.id}:{path}: the sandbox's own user is not allowed to do this"]
    if exc.status != 404:
        return app.explained(exc, ref)
    try:
        app.client.get(app.path(ref))
    except ApiError as gone:
        return app.explained(gone, ref)
    return FileNotThere(
        f"{ref.id}:{path} not found",
        exit=Exit.NOT_FOUND,
        code="not_found",
        hint=f"primectl workspace files ls {ref.id}" if "\\x" not in path else _MARKED_NAME,
        request_id=exc.request_id,
    )


def is_directory(response: requests.Response) -> bool:
    return response.headers.get("Content-Type", "").split(";")[0].strip().lower() == "application/x-tar"


def pieces_of(response: requests.Response) -> Iterator[bytes]:
    """The pieces of a body; one that ends before its announced length is an error, not a shorter file."""
    import requests

    announced, total = response.headers.get("Content-Length", ""), 0
    try:
        for piece in response.iter_content(_PIECE):
            total += len(piece)
            yield piece
    except requests.RequestException as exc:
        raise CliError("the download broke off", exit=Exit.UNREACHABLE) from exc
    if announced.isdigit() and "Content-Encoding" not in response.headers and total != int(announced):
        raise CliError(f"the download broke off after {total} of {announced} bytes", exit=Exit.UNREACHABLE)


def put(
    app: App, ref: Ref, path: str, data: bytes, *, mode: int | None = None, headers: dict[str, str] | None = None
) -> None:
    """Writes bytes as they are, with permission bits when given."""
    shown = f"{mode:04o}" if mode is not None else None
    try:
        app.client.put(app.path(ref, "files"), data, path=path, mode=shown, headers=headers)
    except ApiError as exc:
        if exc.status == 412:
            exc.lines, exc.hint = [f"{ref.id}:{path} exists, or was changed since"], ""
            raise
        raise no_file(app, exc, ref, path) from exc
