"""Files from here into a workspace: each one streamed, and as a whole or not at all; trees without a way out of them."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from cli.app import App
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.kinds import Ref
from cli.output import Console
from cli.transfer import download, is_directory, no_file, pieces_of

_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _NO_FOLLOW
_PER_S = 1_000_000  # bytes that the slowest server worth waiting for stores in a second
_SILENCE_S = 60.0


class Body:
    """A file as the body of a request: exactly the bytes that it had when it was opened, from the start for each attempt.

    `sent` counts those that the connection of this attempt took.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self._size = os.fstat(file.fileno()).st_size
        self.sent = 0

    def __len__(self) -> int:
        return self._size

    @property
    def program(self) -> bool:
        """Whether its owner may execute it."""
        return bool(os.fstat(self._file.fileno()).st_mode & 0o100)

    def rewind(self) -> None:
        self._file.seek(0)
        self.sent = 0

    def read(self, count: int = -1) -> bytes:
        left = self._size - self.sent
        wanted = left if count < 0 else min(count, left)
        data = self._file.read(wanted)
        self.sent += len(data)
        if len(data) < wanted:
            raise CliError(f"{self._name}: became shorter while it was sent")
        return data

    def close(self) -> None:
        self._file.close()


def body_of(source: str) -> Body:
    """A local file by its name, links followed: the caller named it. UsageError when it cannot be read."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return _regular(handle, source)
    except OSError as exc:
        raise UsageError(f"{source}: {_why(exc)}") from exc


def _regular(handle: int, shown: str) -> Body:
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UsageError(f"{shown}: not a regular file")
    except BaseException:
        os.close(handle)
        raise
    return Body(os.fdopen(handle, "rb"), shown)


def body_of_stdin(console: Console) -> Body:
    """Standard input to its end, on disk: then its size is known, and what is cut off before is not sent at all."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its body closes it
    while piece := console.inp.read(1024 * 1024):
        file.write(piece)
    file.flush()
    return Body(file, "standard input")


def put(
    app: App,
    ref: Ref,
    path: str,
    data: bytes | Body,
    *,
    mode: int | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """Writes bytes as they are, with permission bits when given."""
    params = {"path": path, "mode": f"{mode:04o}" if mode is not None else None}
    silence = max(app.settings.timeout_s, _SILENCE_S) + len(data) / _PER_S
    try:
        target = app.path(ref, "files")
        with app.client.open("PUT", target, params=params, body=data, headers=headers, silence_s=silence):
            pass
    except ApiError as exc:
        if exc.contradicted and _is_there(app, ref, path, data):
            return
        if exc.status == 412:
            exc.lines, exc.hint = [f"{ref.id}:{path} exists, or was changed since"], ""
            raise
        raise no_file(app, exc, ref, path) from exc


def _is_there(app: App, ref: Ref, path: str, data: bytes | Body) -> bool:
    """Whether the file holds these bytes: an upload whose answer was lost has come through."""
    ours: IO[bytes] | Body = io.BytesIO(data) if isinstance(data, bytes) else data
    if isinstance(ours, Body):
        ours.rewind()
    try:
        response = download(app, ref, path)
    except CliError as exc:
        if exc.exit is Exit.NOT_FOUND:
            return False
        raise
    with response:
        if is_directory(response):
            return False
        return all(piece == ours.read(len(piece)) for piece in pieces_of(response)) and not ours.read(1)


# Trees


@dataclass
class Sending:
    """One tree on its way up: whether links in it are followed, what was sent, and what was left out."""

    follow: bool = False
    sent: int = 0
    size: int = 0
    skipped: list[str] = field(default_factory=list)
    lost: int = 0  # of those: no links or devices

    def skip(self, name: str, why: str, *, lost: bool = False) -> None:
        self.skipped.append(f"skipped {name}: {why}")
        self.lost += lost


def put_tree(app: App, ref: Ref, source: str, path: str, sending: Sending) -> None:
    """Sends what is in a local directory below `path`, file by file; a directory of its own only where it is empty."""
    try:
        base = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise UsageError(f"{source}: {_why(exc)}") from exc
    try:
        for parts, body in local_tree(base, source, sending):
            target = "/".join([path, *parts]) if path else "/".join(parts)
            if body is None:
                _make(app, ref, target)
            else:
                try:
                    put(app, ref, target, body, mode=0o755 if body.program else 0o644)
                    sending.size += len(body)
                finally:
                    body.close()
            sending.sent += 1
    finally:
        os.close(base)


def _make(app: App, ref: Ref, path: str) -> None:
    if not path:
        return  # the workspace itself
    try:
        app.client.post(app.path(ref, "files", "dir"), {"path": path})
    except ApiError as exc:
        raise no_file(app, exc, ref, path) from exc


def local_tree(base: int, source: str, sending: Sending) -> Iterator[tuple[list[str], Body | None]]:
    """Regular files below a directory, opened, and its empty directories (None); nothing outside of it is ever opened."""
    pending: list[list[str]] = [[]]
    while pending:
        parts = pending.pop()
        try:
            directory = open_below(base, parts)
            names = sorted(os.listdir(directory))
        except OSError as exc:
            sending.skip("/".join(parts) or source, _why(exc), lost=True)
            continue
        try:
            if not names:
                yield parts, None
            for name in reversed(names):  # the last one is taken first
                if _is_directory(directory, name):
                    pending.append([*parts, name])
            for name in names:
                if not _is_directory(directory, name):
                    body = _opened(base, directory, [*parts, name], source, sending)
                    if body is not None:
                        yield [*parts, name], body
        finally:
            os.close(directory)


def open_below(base: int, parts: list[str]) -> int:
    """A descriptor of a directory below `base`; a link on the way is an OSError."""
    current = os.dup(base)
    try:
        for part in parts:
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=current)
            os.close(current)
            current = following
    except OSError:
        os.close(current)
        raise
    return current


def _is_directory(directory: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode)
    return False


def _opened(base: int, directory: int, parts: list[str], source: str, sending: Sending) -> Body | None:
    """The file of that name; None for one that stays here, which is said."""
    shown = "/".join(parts)
    try:
        mode = os.lstat(parts[-1], dir_fd=directory).st_mode
        if stat.S_ISLNK(mode):
            return _linked(base, parts, source, sending)
        if not stat.S_ISREG(mode):
            sending.skip(shown, "not a regular file")
            return None
        return _regular(os.open(parts[-1], _READ, dir_fd=directory), shown)
    except OSError as exc:
        sending.skip(shown, _why(exc), lost=True)
        return None


def _linked(base: int, parts: list[str], source: str, sending: Sending) -> Body | None:
    """The file that a link names, if links are to be followed and it lies in the same tree."""
    shown = "/".join(parts)
    root = os.path.realpath(source)
    target = os.path.realpath(os.path.join(root, *parts))
    if not sending.follow:
        sending.skip(shown, "a link")
    elif os.path.commonpath([root, target]) != root or target == root:
        sending.skip(shown, "a link that leads out of the tree")
    else:
        *above, name = os.path.relpath(target, root).split(os.sep)
        directory = open_below(base, above)  # again, without links: the path was looked up by its name
        try:
            return _regular(os.open(name, _READ, dir_fd=directory), shown)
        except UsageError:
            sending.skip(shown, "a link to something that is not a file")
        finally:
            os.close(directory)
    return None


def _why(exc: OSError) -> str:
    return (exc.strerror or "cannot be read").lower()
