"""Files from a workspace to here: a file, or a directory as an archive; downloads may break off at any point.

A file that breaks off is gone on with where it ended, as long as it is the same version of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cli.app import App
from cli.client import FILES_PAGE
from cli.errors import ApiError, CliError, Exit, Unreachable, UsageError
from cli.invoked import word
from cli.kinds import Ref
from cli.landing import Landing, extract, local_name, save
from cli.patience import Tries
from cli.text import count_bytes
from cli.wire import media_type

if TYPE_CHECKING:
    import requests

_PIECE = 256 * 1024
_SILENCE_S = 60.0
_DIGITS = 20  # of a length: no file has as many
_MARKED_NAME = "ls shows a byte that is not UTF-8 as \\xff; in bash write the name as $'…\\xff'"


def fetch(app: App, ref: Ref, path: str, target: str | None, landing: Landing) -> Exit:
    """Brings a file, or a directory to `target`, here; exit 1 when something in it had to be left out."""
    response = download(app, ref, path)
    with response:
        if is_directory(response):
            directory = _directory(path, target)
            return _tree(
                app, directory, landing, lambda: extract(archived(app, ref, path, response), directory, landing)
            )
        file = target or f"./{local_name(path)}"
        written = save(whole(app, ref, path, response, kept="nothing was kept"), file, landing)
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


def download(app: App, ref: Ref, path: str, headers: Mapping[str, str] | None = None) -> requests.Response:
    """The response with the bytes of a path; the caller closes it. A missing file is exit 3."""
    place, params = app.path(ref, "files", "download"), {"path": path}
    try:
        return app.client.open("GET", place, params=params, headers=headers, silence_s=_SILENCE_S)
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


class BrokeOff(CliError):
    """A body ended before its announced length, or without the end that its encoding has."""

    def __init__(self, done: int = 0, announced: str = "") -> None:
        how_far = f" after {done} of {announced} bytes" if announced else ""
        super().__init__(f"the download broke off{how_far}", exit=Exit.UNREACHABLE)


def pieces_of(response: requests.Response) -> Iterator[bytes]:
    """The pieces of a body; one that ends before its announced length is an error, not a shorter file."""
    import requests

    total, announced = 0, _announced(response)
    try:
        for piece in response.iter_content(_PIECE):
            total += len(piece)
            yield piece
    except requests.RequestException as exc:
        raise BrokeOff(total, announced) from exc
    if announced and total != int(announced):
        raise BrokeOff(total, announced)


def _announced(response: requests.Response) -> str:
    """How many bytes are to come, "" when nothing says so."""
    length = response.headers.get("Content-Length", "")
    plain = length.isascii() and length.isdigit() and len(length) < _DIGITS
    return length if plain and "Content-Encoding" not in response.headers else ""


def whole(app: App, ref: Ref, path: str, response: requests.Response, *, kept: str) -> Iterator[bytes]:
    """The bytes of one version of a file. What breaks off is asked for again from there on, until nothing more comes of it.

    Raises CliError: the file was changed (what happened to the bytes so far is `kept`), it is gone, its workspace is, or
    no server answers.
    """
    size, tries, done = _announced(response), Tries(app.client.patience, repeatable=True), 0
    etag = response.headers.get("ETag", "")
    while True:
        try:
            with response:
                for piece in pieces_of(response):
                    done += len(piece)
                    tries = Tries(app.client.patience, repeatable=True)
                    yield piece
            if size and done != int(size):
                raise BrokeOff(done, size)
            return
        except BrokeOff as exc:
            failure = BrokeOff(done, size)
            # Without a length and the ETag of one version only, nothing proves that the rest is the rest of this.
            resumable = size and done < int(size) and etag.startswith('"')
            if not resumable or not tries.again(failure.lines[0], away=False):
                raise failure from exc
        response = download(app, ref, path, {"Range": f"bytes={done}-", "If-Range": etag})
        _require_rest(response, etag, f"bytes {done}-{int(size) - 1}/{size}", f"{ref.id}:{path}", kept)


def _require_rest(response: requests.Response, etag: str, content_range: str, shown: str, kept: str) -> None:
    """Closes and refuses an answer that does not go on with the same version of the file."""
    if response.status_code == 206 and (response.headers.get("ETag"), response.headers.get("Content-Range")) == (
        etag,
        content_range,
    ):
        return
    response.close()
    if response.headers.get("ETag") == etag:
        raise Unreachable(f"the download broke off, and {shown} cannot be had from its middle", hint="run it again")
    raise CliError(
        f"{shown} changed while it was downloaded; {kept}", exit=Exit.CONFLICT, code="changed", hint="run it again"
    )


def archived(app: App, ref: Ref, path: str, response: requests.Response) -> Iterator[bytes]:
    """The bytes of a directory's archive, which is made as it goes out: when it breaks off, the server is asked why."""
    try:
        yield from pieces_of(response)
    except BrokeOff:
        place = path if path.strip("./") else None
        try:
            app.client.call("GET", app.path(ref, "files"), params={"path": place, "limit": 1}, retry=False)
        except ApiError as exc:
            raise no_file(app, exc, ref, path) from exc
        raise


def printed(app: App, ref: Ref, path: str, response: requests.Response) -> Iterator[bytes]:
    """The bytes of a file for standard output, where they stay: when the rest will not come, a note says how many."""
    done = 0
    try:
        for piece in whole(app, ref, path, response, kept="what was written is not all of it"):
            done += len(piece)
            yield piece
    except CliError:
        app.console.note(f"warning: {ref.id}:{path} is not complete: {count_bytes(done)} of it were written")
        raise
