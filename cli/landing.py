"""What lands on the caller's disk. Names and archives come out of a sandbox: hostile until checked.

Every member is opened relative to a directory descriptor, without following links and only as a new file, so that
neither a name nor a link that already lies there leads outside the target.
"""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cli.errors import CliError, UsageError
from cli.output import inert

MAX_BYTES = 1024**3
MAX_FILES = 100_000
UNREADABLE = "unreadable"  # the kind of a directory that cannot be listed
_PIECE = 256 * 1024
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE, _PROGRAM_MODE = 0o644, 0o755


@dataclass
class Landing:
    """Limits and outcome of one download: bytes and members that came, members on the disk, and
    what was left out, each as a sentence.

    `lost` of those left out are no links or devices: somebody meant them to arrive.
    """

    force: bool = False
    max_bytes: int = MAX_BYTES
    max_files: int = MAX_FILES
    written: int = 0
    files: int = 0
    arrived: int = 0
    skipped: list[str] = field(default_factory=list)
    lost: int = 0

    def count(self, size: int) -> None:
        self.written += size
        if self.written > self.max_bytes:
            raise CliError(f"more than {self.max_bytes} bytes came; stopped", hint="allow more with --max-bytes")

    def member(self) -> None:
        self.files += 1
        if self.files > self.max_files:
            raise CliError(f"more than {self.max_files} files came; stopped", hint="allow more with --max-files")


def local_name(path: str) -> str:
    """The last part of a workspace path as a local name; raises UsageError for one that is not safe to use."""
    name = path.rstrip("/").rpartition("/")[2]
    if name in ("", ".", ".."):
        raise UsageError(f'"{path}" has no file name', hint="say where to with -O FILE")
    if inert(name, lines=False) != name or "\\" in name or _is_drive(name):
        raise UsageError(f"{name}: is not a safe file name here", hint="say where to with -O FILE")
    return name


def save(pieces: Iterable[bytes], target: str, landing: Landing) -> int:
    """Writes a file as a whole or not at all and returns its size. `force` replaces a regular file, never a link."""
    folder, name = os.path.split(target)
    try:
        directory = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CliError(f"{folder}: {_why(exc)}") from exc
    try:
        _refuse_existing(directory, name, target, landing.force)
        return _write(directory, name, pieces, mode=_FILE_MODE, landing=landing, shown=target)
    finally:
        os.close(directory)


def _refuse_existing(directory: int, name: str, shown: str, force: bool) -> None:
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{shown} is a directory", hint="give a file name with -O FILE")
    if not force:
        raise UsageError(f"{shown} exists", hint="replace it with --force, or choose -O FILE")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{shown} is not a regular file; --force replaces files only")


def _write(directory: int, name: str, pieces: Iterable[bytes], *, mode: int, landing: Landing, shown: str) -> int:
    """Fills a new file beside the target, then moves it there; the new file is removed on every failure."""
    partial = f".primectl-{secrets.token_hex(8)}"
    total = 0
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600, dir_fd=directory)
    except OSError as exc:
        raise CliError(f"{shown}: {_why(exc)}") from exc
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                landing.count(len(piece))
                file.write(piece)
                total += len(piece)
            os.fchmod(file.fileno(), mode)
        if landing.force:
            os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            # link fails where rename would replace what somebody made meanwhile
            os.link(partial, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            os.unlink(partial, dir_fd=directory)
    except BaseException as exc:
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=directory)
        if isinstance(exc, FileExistsError):
            raise UsageError(f"{shown} exists", hint="replace it with --force, or choose -O FILE") from exc
        if isinstance(exc, OSError):
            raise CliError(f"{shown}: {_why(exc)}") from exc
        raise
    return total


class Unreadable(Exception):
    """One entry cannot be read where it lies; the text says why. The others can."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tree that comes from elsewhere; `kind` is file, dir, or a word for what is not written.

    `shown` is what people know it by, when that is more than its name below the target.
    """

    name: str
    kind: str
    pieces: Callable[[], Iterable[bytes]]
    program: bool = False
    shown: str = ""


def members_of(archive: tarfile.TarFile) -> Iterator[Member]:
    """The entries of a tar stream, in order."""
    for info in archive:
        kind = (
            "link" if info.islnk() or info.issym() else "file" if info.isreg() else "dir" if info.isdir() else "special"
        )
        yield Member(info.name, kind, partial(_content, archive, info), bool(info.mode & 0o100))


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    source = archive.extractfile(info)
    while source is not None and (piece := source.read(_PIECE)):
        yield piece


def extract(source: Any, target: str, landing: Landing) -> None:
    """Unpacks a tar stream below `target`; `source` has `read(n)`. A broken archive is a CliError."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            place(members_of(archive), target, landing)
    except tarfile.TarError as exc:
        raise CliError(f"the archive is broken: {exc}") from exc


def place(members: Iterable[Member], target: str, landing: Landing) -> None:
    """Writes entries below `target`, which is made when it is not there; what is not plain is skipped, by name.

    Raises CliError when a limit is passed; what was whole stays.
    """
    try:
        os.makedirs(target, exist_ok=True)
        base = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CliError(f"{target}: {_why(exc)}") from exc
    try:
        for member in members:
            landing.member()
            _place_one(base, member, landing)
    finally:
        os.close(base)


def _place_one(base: int, member: Member, landing: Landing) -> None:
    reason, parts = vetted(member)
    shown = member.shown or member.name
    if reason:
        landing.skipped.append(f"skipped {shown}: {reason}")
        landing.lost += member.kind == UNREADABLE
        return
    try:
        if member.kind == "dir":
            with _below(base, parts):
                landing.arrived += 1
                return
        with _below(base, parts[:-1]) as directory:
            _refuse_existing(directory, parts[-1], member.name, landing.force)
            mode = _PROGRAM_MODE if member.program else _FILE_MODE
            _write(directory, parts[-1], member.pieces(), mode=mode, landing=landing, shown=shown)
            landing.arrived += 1
    except (OSError, UsageError, Unreadable) as exc:
        why = exc.lines[0] if isinstance(exc, UsageError) else _why(exc) if isinstance(exc, OSError) else str(exc)
        landing.skipped.append(f"skipped {shown}: {why}")
        landing.lost += 1


def vetted(member: Member) -> tuple[str, list[str]]:
    """Why an entry is not written (empty: it is), and the parts of its path below the target."""
    if member.kind in ("link", "symlink"):
        return "a link", []
    if member.kind == UNREADABLE:
        return "not readable", []
    if member.kind not in ("file", "dir"):
        return "not a regular file", []
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts:
        return "its path leads outside", []
    if "\\" in member.name or any(_is_drive(part) for part in parts):
        return "its path is not portable", []
    if inert(member.name, lines=False) != member.name:
        return "its name holds control characters", []
    if not parts and member.kind == "file":
        return "it has no name", []
    return "", parts


@contextmanager
def _below(base: int, parts: list[str]) -> Iterator[int]:
    """A descriptor of a directory below `base`, made where missing; a link on the way is an OSError."""
    current = os.dup(base)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _is_drive(name: str) -> bool:
    return len(name) >= 2 and name[0].isalpha() and name[1] == ":"


def _why(exc: OSError) -> str:
    return (exc.strerror or "cannot be written").lower()


class Reader:
    """`read(n)` over the pieces of a response, as tarfile wants it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def read(self, count: int = -1) -> bytes:
        while count < 0 or len(self._held) < count:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._held += piece
        if count < 0:
            count = len(self._held)
        data, self._held = self._held[:count], self._held[count:]
        return data
