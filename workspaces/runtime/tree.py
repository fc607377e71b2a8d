"""Walks of hostile trees: any depth, any width, moving under our feet. One descriptor at a time, no recursion."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import binascii
import errno
import os
import stat

from .paths import Failure, Root, describe, failure_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator

    Steps = Generator[None, None, dict[str, Any]]

MAX_PAGE = 1000
MAX_PAGE_TEXT = 512 * 1024  # characters of paths: one answer is one frame, and escapes make six of one
_BATCH = 512
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Place:
    """A position in a tree that goes down by name and up by `..`, and notices when `..` is not where it came from.

    Holding a descriptor per level would need more of them than a process may have; a path would be too long.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.names: list[bytes] = []
        self._above: list[tuple[int, int]] = []

    def down(self, name: bytes) -> None:
        here = os.fstat(self.fd)
        child = os.open(name, _DIR, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = child
        self.names.append(name)
        self._above.append((here.st_dev, here.st_ino))

    def up(self) -> bytes:
        """Back to the parent; returns the name of the directory that was left. Failure when it has been moved away."""
        parent = os.open(b"..", _DIR, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = parent
        info = os.fstat(parent)
        if (info.st_dev, info.st_ino) != self._above.pop():
            raise Failure("changed", "a directory was moved during the walk")
        return self.names.pop()

    def close(self) -> None:
        os.close(self.fd)


def page(fd: int, after: bytes, count: int) -> Generator[None, None, list[bytes]]:
    """The `count` smallest names above `after`, in order, in memory of that size: a directory may hold millions."""
    kept: list[bytes] = []
    os.lseek(fd, 0, os.SEEK_SET)  # scandir copies the descriptor, and starts where the shared position is
    with os.scandir(fd) as entries:
        for number, entry in enumerate(entries, 1):
            name = os.fsencode(entry.name)
            if name > after:
                kept.append(name)
                if len(kept) >= 4 * count + 64:
                    kept.sort()
                    del kept[count:]
            if number % 2048 == 0:
                yield
    kept.sort()
    return kept[:count]


def _cursor_of(parts: list[bytes]) -> str:
    return binascii.b2a_base64(b"/".join(parts), newline=False).decode().replace("+", "-").replace("/", "_")


def _from_cursor(cursor: object) -> list[bytes]:
    if cursor is None:
        return []
    try:
        raw = binascii.a2b_base64(str(cursor).replace("-", "+").replace("_", "/"))
    except (binascii.Error, ValueError):
        raise Failure("invalid", "the cursor is not one of ours") from None
    parts = raw.split(b"/")
    if not raw or b".." in parts or b"\0" in raw or len(raw) > 64 * 1024:
        raise Failure("invalid", "the cursor is not one of ours")
    return parts


def list_tree(root: Root, parts: list[bytes], cursor: object, limit: int, recursive: bool) -> Steps:
    """One page in the order of names, directories before what they hold; a generator that yields between steps."""
    resume = _from_cursor(cursor)
    place = Place(root.directory(parts))
    items: list[dict[str, Any]] = []
    names: list[bytes] = []
    behind: list[list[bytes]] = []  # in each directory above, names already read that follow the one below
    room = MAX_PAGE_TEXT
    try:
        after = _descend(place, resume) if recursive else (resume[-1] if resume else b"")
        while True:
            if not names:
                names = yield from page(place.fd, after, max(0, limit - len(items)) + 1)
            deeper, last = False, after
            for number, name in enumerate(names, 1):
                if len(items) >= limit:
                    return {"items": items, "cursor": _cursor_of([*place.names, last] if recursive else [last])}
                info = lstat(place.fd, name)
                last = name
                if info is None:
                    continue
                items.append(describe([*parts, *place.names, name], info))
                room -= len(items[-1]["path"])
                if room < 0:
                    limit = len(items)
                if recursive and stat.S_ISDIR(info.st_mode) and _enter(place, name):
                    deeper = True
                    behind.append(names[number:])
                    break
            if deeper:
                if len(items) >= limit:
                    return {"items": items, "cursor": _cursor_of([*place.names, b""])}
                after, names = b"", []
                _forget(behind)
            elif names:
                after, names = last, []
            elif place.names:
                after, names = place.up(), behind.pop() if behind else []
            else:
                return {"items": items, "cursor": None}
            yield
    finally:
        place.close()


def _forget(behind: list[list[bytes]]) -> None:
    """Keeps at most a few pages of names: a directory whose names are forgotten is read once more."""
    count = sum(map(len, behind))
    for names in behind:
        if count <= 4 * MAX_PAGE:
            return
        count -= len(names)
        names.clear()


def _descend(place: Place, resume: list[bytes]) -> bytes:
    """Back to where the page before ended; what has vanished since then is passed over. Returns the last name seen."""
    for name in resume[:-1]:
        if not _enter(place, name):
            return name
    return resume[-1] if resume else b""


def lstat(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None  # gone since it was listed


def _enter(place: Place, name: bytes) -> bool:
    try:
        place.down(name)
    except OSError:
        return False  # gone, replaced by a link, or not ours to read: it is listed but not entered
    return True


def delete_tree(root: Root, parts: list[bytes], recursive: bool) -> Steps:
    """Removes a file, a link itself, or a directory; yields between batches. Links are removed, never followed."""
    parent, name = root.parent(parts)
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
            return {"removed": 1}
        if not recursive:
            os.rmdir(name, dir_fd=parent)
            return {"removed": 1}
        place = Place(os.dup(parent))
        try:
            place.down(name)
            removed = yield from _empty(place)
        finally:
            place.close()
        return {"removed": removed}
    finally:
        os.close(parent)


def _empty(place: Place) -> Generator[None, None, int]:
    """Empties and removes everything below the starting point; `place` stands in the directory to remove."""
    removed = 0
    while place.names:
        inner: bytes | None = None
        os.lseek(place.fd, 0, os.SEEK_SET)
        with os.scandir(place.fd) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    inner = name
                    break
                _remove(place.fd, name, os.unlink)
                removed += 1
                if removed % _BATCH == 0:
                    break
            else:
                removed += 1
                left = place.up()
                _remove(place.fd, left, os.rmdir)
        if inner is not None:
            _make_writable(place.fd, inner)
            place.down(inner)
        yield
    return removed


def _make_writable(fd: int, name: bytes) -> None:
    """A program's directory without permission bits is still its owner's to delete."""
    info = lstat(fd, name)
    if info is not None and info.st_mode & 0o700 != 0o700:
        try:
            os.chmod(name, 0o700, dir_fd=fd)
        except OSError:
            pass  # somebody else's: opening it says so


def _remove(fd: int, name: bytes, how: Any) -> None:
    try:
        how(name, dir_fd=fd)
    except FileNotFoundError:
        pass  # somebody was faster, which is what was asked for
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise Failure("not_empty", "the directory is being filled while it is deleted") from None
        raise failure_of(error) from None


def count_blocks(root: Root, max_entries: int) -> Generator[None, None, int]:
    """Bytes of the blocks below the root, yielding every 256 entries; at most `max_entries` are looked at.

    Blocks and not sizes: preallocated blocks count, holes do not. A file with several names is divided among them.
    """
    total = seen = 0
    place = Place(root.directory([]))  # a copy of the descriptor would share its position
    pending: list[list[bytes]] = []
    try:
        while True:
            inner: list[bytes] = []
            os.lseek(place.fd, 0, os.SEEK_SET)
            with os.scandir(place.fd) as entries:
                for entry in entries:
                    info = lstat(place.fd, os.fsencode(entry.name))
                    if info is None:
                        continue
                    directory = stat.S_ISDIR(info.st_mode)
                    total += info.st_blocks * 512 // (1 if directory else max(1, info.st_nlink))
                    if directory:
                        inner.append(os.fsencode(entry.name))
                    seen += 1
                    if seen % 256 == 0:
                        yield
                    if seen >= max_entries:
                        return total
            pending.append(inner)
            while not pending[-1] or not _enter(place, pending[-1].pop()):
                if not pending[-1]:
                    pending.pop()
                    if not pending:
                        return total
                    place.up()
    finally:
        place.close()
