"""What lands on the caller's disk. Names and archives come out of a sandbox: hostile until checked.

Every member is opened relative to a directory descriptor, without following links and only as a new file, so that
neither a name nor a link that already lies there leads outside the target.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, islice

from cli import tarstream
from cli.errors import CliError, UsageError
from cli.output import inert

MAX_BYTES = 1024**3
MAX_FILES = 100_000
ELSEWHERE = "-O FILE"
_NAME_BYTES = 255
_PATH_BYTES, _PATH_PARTS = 4096, 256  # of one path below the target
_SHOWN = 200  # characters of a path that is too long
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW
_FILE_MODE, _PROGRAM_MODE = 0o644, 0o755
# What the server says of its archive: links and the like were never meant to arrive, the others were.
_SPECIAL = {"symlink": "a link", "other": "not a regular file"}
_LOST = {
    "unreadable": "not readable",
    "vanished": "went away meanwhile",
    "moved": "was moved away meanwhile",
    "too_long": "its path is too long",
    "shrunk": "became shorter while it was read",
}
_WORTHLESS = ("shrunk", "failed")  # such a file is in the archive, filled up


@dataclass
class Landing:
    """Limits and outcome of one download: bytes that came, of what was left out too; members that came, and directories
    made for them; members on the disk; and what was left out, each as a sentence.

    `lost` of those left out are no links or devices: somebody meant them to arrive. `elsewhere` is how the command at hand
    names another place.
    """

    force: bool = False
    elsewhere: str = ELSEWHERE
    max_bytes: int = MAX_BYTES
    max_files: int = MAX_FILES
    written: int = 0
    files: int = 0
    arrived: int = 0
    skipped: list[str] = field(default_factory=list)
    lost: int = 0
    placed: set[str] = field(default_factory=set)
    note: str = ""

    def count(self, size: int) -> None:
        self.written += size
        if self.written > self.max_bytes:
            raise CliError(f"more than {self.max_bytes} bytes came; stopped", hint="allow more with --max-bytes")

    def member(self) -> None:
        self.files += 1
        if self.files > self.max_files:
            raise CliError(f"more than {self.max_files} files came; stopped", hint="allow more with --max-files")


def local_name(path: str, elsewhere: str = ELSEWHERE) -> str:
    """The last part of a workspace path as a local name; raises UsageError for one that is not safe to use."""
    name = path.rstrip("/").rpartition("/")[2]
    if name in ("", ".", ".."):
        raise UsageError(f'"{path}" has no file name', hint=f"say where to with {elsewhere}")
    if inert(name, lines=False) != name or "\\" in name or _is_drive(name):
        raise UsageError(f"{name}: is not a safe file name here", hint=f"say where to with {elsewhere}")
    return name


def save(pieces: Iterable[bytes], target: str, landing: Landing) -> int:
    """Writes a file as a whole or not at all and returns its size. `force` replaces a regular file, never a link."""
    folder, name = os.path.split(target)
    try:
        directory = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CliError(f"{folder}: {_why(exc)}") from exc
    try:
        _refuse_existing(directory, name, target, landing)
        return _write(directory, name, pieces, mode=_FILE_MODE, landing=landing, shown=target)
    finally:
        os.close(directory)


def _refuse_existing(directory: int, name: str, shown: str, landing: Landing) -> None:
    try:
        mode = os.lstat(name, dir_fd=directory).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{shown} is a directory", hint=f"give a file name with {landing.elsewhere}")
    if not landing.force:
        raise _exists(shown, landing)
    if not stat.S_ISREG(mode):
        raise UsageError(f"{shown} is not a regular file; --force replaces files only")


def _exists(shown: str, landing: Landing) -> UsageError:
    return UsageError(f"{shown} exists", hint=f"replace it with --force, or choose {landing.elsewhere}")


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
            raise _exists(shown, landing) from exc
        if isinstance(exc, OSError):
            raise CliError(f"{shown}: {_why(exc)}") from exc
        raise
    return total


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tree that comes from elsewhere; `kind` is file, dir, or a word for what is not written."""

    name: str
    kind: str
    pieces: Callable[[], Iterable[bytes]]
    program: bool = False


def members_of(pieces: Iterator[bytes], landing: Landing) -> Iterator[Member]:
    """The entries of a tar stream, in order; the note in its last one goes to `landing`."""
    for found in tarstream.members(tarstream.Reader(pieces), landing.count):
        if found.note and found.kind == "dir" and not found.name.strip("./"):
            landing.note = found.note
        else:
            yield Member(found.name, found.kind, found.pieces, bool(found.mode & 0o100))


def extract(pieces: Iterator[bytes], target: str, landing: Landing) -> None:
    """Unpacks a tar stream below `target`. A broken archive is a CliError; what is whole by then stays."""
    place(members_of(pieces, landing), target, landing)


def place(members: Iterable[Member], target: str, landing: Landing) -> None:
    """Writes entries below `target`, which is made when it is not there; what is not plain is skipped, by name.

    Raises CliError when a limit is passed; what was whole stays.
    """
    members = iter(members)
    begin = list(islice(members, 1))  # what is no archive makes no directory either
    try:
        os.makedirs(target, exist_ok=True)
        base = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CliError(f"{target}: {_why(exc)}") from exc
    try:
        for member in chain(begin, members):
            landing.member()
            _place_one(base, member, landing)
        _heed(base, landing)
    finally:
        os.close(base)


def _heed(base: int, landing: Landing) -> None:
    """What the server left out or could not read whole, as if it had been met here; a half-read file is removed."""
    named, count = tarstream.left_out(landing.note)
    for item in named:
        path, why = str(item.get("path")), str(item.get("why"))
        if why == "changed":
            landing.skipped.append(f"changed {path}: it was written to while it was read")
        else:
            landing.skipped.append(f"skipped {path}: {_SPECIAL.get(why) or _LOST.get(why) or 'cannot be read'}")
        landing.lost += why not in _SPECIAL
        if why in _WORTHLESS and path in landing.placed:  # never one that was here before
            landing.arrived -= 1
            with suppress(OSError), _below(base, path.split("/")[:-1], landing.member) as directory:
                os.unlink(path.rpartition("/")[2], dir_fd=directory)
    if count > len(named):
        landing.skipped.append(f"skipped {count - len(named)} more")
        landing.lost += count - len(named)


def _place_one(base: int, member: Member, landing: Landing) -> None:
    reason, parts = vetted(member)
    shown = member.name if len(member.name) <= _PATH_BYTES else member.name[:_SHOWN] + "…"
    if reason:
        landing.skipped.append(f"skipped {shown}: {reason}")
        return
    try:
        with _below(base, parts[:-1], landing.member) as directory:
            if member.kind == "dir":
                with _below(directory, parts[-1:], lambda: None):  # the member itself, which is counted
                    landing.arrived += 1
                return
            _refuse_existing(directory, parts[-1], member.name, landing)
            mode = _PROGRAM_MODE if member.program else _FILE_MODE
            _write(directory, parts[-1], member.pieces(), mode=mode, landing=landing, shown=shown)
            landing.arrived += 1
            landing.placed.add("/".join(parts))
    except (OSError, UsageError) as exc:
        why = exc.lines[0] if isinstance(exc, UsageError) else _why(exc)
        landing.skipped.append(f"skipped {shown}: {why}")
        landing.lost += 1


def vetted(member: Member) -> tuple[str, list[str]]:
    """Why an entry is not written (empty: it is), and the parts of its path below the target."""
    if member.kind in ("link", "symlink"):
        return "a link", []
    if member.kind not in ("file", "dir"):
        return "not a regular file", []
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts:
        return "its path leads outside", []
    if "\\" in member.name or any(_is_drive(part) for part in parts):
        return "its path is not portable", []
    if inert(member.name, lines=False) != member.name:
        return "its name holds control characters", []
    if len(parts) > _PATH_PARTS or len("/".join(parts).encode()) > _PATH_BYTES:
        return "its path is too long", []
    if any(len(part.encode()) > _NAME_BYTES for part in parts):
        return "its name is too long", []
    if not parts and member.kind == "file":
        return "it has no name", []
    return "", parts


@contextmanager
def _below(base: int, parts: list[str], making: Callable[[], None]) -> Iterator[int]:
    """A descriptor of a directory below `base`; a link on the way is an OSError. `making` is called before each that is made."""
    current = os.dup(base)
    try:
        for part in parts:
            try:
                following = os.open(part, _DIRECTORY, dir_fd=current)
            except FileNotFoundError:
                making()
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
                following = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _is_drive(name: str) -> bool:
    return len(name) >= 2 and name[0].isalpha() and name[1] == ":"


def _why(exc: OSError) -> str:
    return (exc.strerror or "cannot be written").lower()
