"""A directory on its way out: the tree is walked as its bytes are asked for, so neither its size nor its shape costs memory."""

from __future__ import annotations

import errno
import os
import stat

from . import protocol
from .paths import MAX_PATH, Failure, Root, kind_of
from .tree import Place, lstat, page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generator

_NAMES = 2048  # of one directory in one look
_HELD = 8192  # names of all levels that are remembered: above, a directory is looked through again
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WHY = {errno.ENOENT: "vanished", errno.ENOTDIR: "changed", errno.ELOOP: "symlink", errno.EACCES: "unreadable"}


class Pack:
    """`items` gives the items of the wire: regular files and directories in the order of names, a directory before what
    it holds; of everything else, and of what changed under our feet, the path and a word why."""

    def __init__(self, root: Root, parts: list[bytes]) -> None:
        self._root, self._parts = root, parts
        self._place = Place(root.directory(parts))
        self._above: list[tuple[list[bytes], bool]] = []  # for each level above: names still to do, and whether all
        self._held = 0
        self.entries = 0

    @property
    def fd(self) -> int:
        """Of the directory that the walk stands in."""
        return self._place.fd

    def items(self) -> Generator[bytes | None, None, None]:
        """None where nothing came of a step of work."""
        after = b""
        names: list[bytes] = []  # still to do here, the next one last
        whole = False  # there are no others
        while True:
            if names:
                after = names.pop()
                if (yield from self._one(after)):
                    self._hold(names, whole)
                    after, names, whole = b"", [], False
            elif not whole:
                names = yield from page(self._place.fd, after, _NAMES)
                whole = len(names) < _NAMES
                names.reverse()
            elif self._place.names:
                after = yield from self._up()
                names, whole = self._recall()
            else:
                return

    def close(self) -> None:
        self._place.close()

    def _one(self, name: bytes) -> Generator[bytes | None, None, bool]:
        """One name of this directory; True when it is a directory, which was entered."""
        path = b"/".join([*self._place.names, name])
        info = lstat(self._place.fd, name)
        kind = kind_of(info.st_mode) if info is not None else "vanished"
        if len(path) > MAX_PATH:
            yield left(path[:MAX_PATH], "too_long")
        elif kind == "dir":
            try:
                self._place.down(name)
            except OSError as error:
                yield left(path, _why(error))
            else:
                yield self._entry(path, "dir", os.fstat(self._place.fd))
                return True
        elif kind == "file":
            yield from self._file(path, name)
        else:
            yield left(path, kind)
        return False

    def _file(self, path: bytes, name: bytes) -> Generator[bytes | None, None, None]:
        try:
            fd = os.open(name, _READ, dir_fd=self._place.fd)
        except OSError as error:
            yield left(path, _why(error))
            return
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                yield left(path, kind_of(info.st_mode))
                return
            yield self._entry(path, "file", info)
            offset = 0
            while offset < info.st_size:
                data = os.pread(fd, min(protocol.CHUNK, info.st_size - offset), offset)
                if not data:
                    break
                offset += len(data)
                yield protocol.pack_item(protocol.ITEM_CONTENT, data)
            if offset < info.st_size:
                yield left(path, "shrunk")
            elif os.fstat(fd).st_mtime_ns != info.st_mtime_ns:
                yield left(path, "changed")
        except OSError as error:  # of the disk: what came is filled up, and said to be wrong
            yield left(path, _why(error))
        finally:
            os.close(fd)

    def _entry(self, path: bytes, kind: str, info: os.stat_result) -> bytes:
        self.entries += 1
        body: dict[str, Any] = {"path": os.fsdecode(path), "kind": kind, "mode": stat.S_IMODE(info.st_mode)}
        body |= {"size_bytes": info.st_size if kind == "file" else 0, "modified_at": info.st_mtime}
        return protocol.pack_item(protocol.ITEM_ENTRY, protocol.dumps(body))

    def _hold(self, names: list[bytes], whole: bool) -> None:
        if self._held + len(names) > _HELD:
            names, whole = [], False
        self._held += len(names)
        self._above.append((names, whole))

    def _recall(self) -> tuple[list[bytes], bool]:
        names, whole = self._above.pop()
        self._held -= len(names)
        return names, whole

    def _up(self) -> Generator[bytes | None, None, bytes]:
        """Back to the parent; returns the name that was left. When the tree was moved under our feet: from the top again,
        down as far as the names still lead."""
        names = list(self._place.names)
        try:
            return self._place.up()
        except (Failure, OSError):
            fresh = Place(self._root.directory(self._parts))
        self._place.close()
        self._place = fresh
        try:
            for name in names[:-1]:
                fresh.down(name)
        except OSError:
            pass  # from there on it is gone
        depth = len(fresh.names)
        yield left(b"/".join(names[: depth + 1]), "moved")
        while len(self._above) > depth + 1:
            self._recall()
        return names[depth]


def left(path: bytes, why: str) -> bytes:
    return protocol.pack_item(protocol.ITEM_LEFT, protocol.dumps({"path": os.fsdecode(path), "why": why}))


def _why(error: OSError) -> str:
    return _WHY.get(error.errno or 0, "failed")
