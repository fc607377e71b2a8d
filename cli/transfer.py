"""Files from a workspace to here: a file, or a directory as an archive; downloads may break off at any point."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cli.app import App
from cli.client import FILES_PAGE
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.invoked import word
from cli.kinds import Ref
from cli.landing import Landing, extract, local_name, save
from cli.text import count_bytes
from cli.wire import media_type

if TYPE_CHECKING:
    import requests

_PIECE = 256 * 1024
_SILENCE_S = 60.0
_MARKED_NAME = "ls shows a byte that is not UTF-8 as \\xff; in bash write the name as $'…\\xff'"


def fetch(app: App, ref: Ref, path: str, target: str | None, landing: Landing) -> Exit:
    """Brings a file, or a directory to `target`, here; exit 1 when something in it had to be left out."""
    response = download(app, ref, path)
    with response:
        if is_directory(response):
            directory = _directory(path, target)
            return _tree(app, directory, landing, lambda: extract(pieces_of(response), directory, landing))
        file = target or f"./{local_name(path)}"
        written = save(pieces_of(response), file, landing)
        app.console.info(f"saved {file} ({count_bytes(written)})")
        return Exit.OK


def _directory(path: str, target: str | None) -> str:
    if target is None:
        raise UsageError(f"{path} is a directory", hint=f"say where to: -O {word(_suggestion(path))}")
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


def listed(app: App, ref: Ref, path: str, *, recursive: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """The entries of a directory, each with whether it can be listed itself.

    A recursive list passes over a directory that it may not read, as if it were empty: one without entries is asked.
    """
    items = app.client.pages(
        app.path(ref, "files"), size=FILES_PAGE, path=path, recursive="true" if recursive else None
    )
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
    return CliError(
        f"{ref.id}:{path} not found",
        exit=Exit.NOT_FOUND,
        code="not_found",
        hint=f"primectl workspace files ls {ref.id}" if "\\x" not in path else _MARKED_NAME,
        request_id=exc.request_id,
    )


def is_directory(response: requests.Response) -> bool:
    return media_type(response) == "application/x-tar"


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
