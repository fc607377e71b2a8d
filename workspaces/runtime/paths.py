"""From a hostile path to a descriptor beneath the workspace, without following any link."""

from __future__ import annotations

import errno
import os
import stat

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIECE = 2048  # bytes of one openat2 path: PATH_MAX is 4096, and a tree may be much deeper than that
MAX_PATH = 64 * 1024
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_dir",
    errno.EISDIR: "is_dir",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "not_empty",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "too_large",
    errno.ENAMETOOLONG: "name_too_long",
    errno.ELOOP: "symlink",
    errno.EXDEV: "symlink",
    errno.ENXIO: "not_regular",
    errno.EINVAL: "invalid",
    errno.EMFILE: "busy",
    errno.ENFILE: "busy",
}


class Failure(Exception):
    """A request that cannot be done: a stable code, a sentence part, and facts for the client."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.facts = code, message, facts

    def body(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, **self.facts}


def failure_of(error: OSError) -> Failure:
    number = error.errno or errno.EIO
    return Failure(_CODES.get(number, "io_error"), os.strerror(number), errno=number)


def split(path: object, root: bytes, *, allow_root: bool = False) -> list[bytes]:
    """The components of a path beneath the workspace; absolute paths are accepted below `root`. Failure `invalid`.

    `..` is refused and never computed: with links about, `a/../b` does not have to be `b`.
    """
    if not isinstance(path, str):
        raise Failure("invalid", "the path is not text")
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise Failure("invalid", "the path holds a character that no file name can hold") from None
    if b"\0" in raw:
        raise Failure("invalid", "the path holds a NUL")
    if len(raw) > MAX_PATH:
        raise Failure("name_too_long", "the path is too long")
    if raw.startswith(b"/"):
        if raw != root and not raw.startswith(root.rstrip(b"/") + b"/"):
            raise Failure("invalid", "the path is not beneath the workspace")
        raw = raw[len(root) :]
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Failure("invalid", "the path goes up with ..")
    if not parts and not allow_root:
        raise Failure("invalid", "the path names no file")
    if raw.endswith((b"/", b"/.")) and not allow_root:
        raise Failure("invalid", "the path ends in a slash, which names no file")
    if any(len(part) > 255 for part in parts):
        raise Failure("name_too_long", "a name is longer than 255 bytes")
    return parts


class Root:
    """The workspace directory, opened once; every path is resolved from this descriptor."""

    def __init__(self, path: str) -> None:
        self.fd = _open_root(path)
        self.path = os.fsencode(os.path.realpath(path))
        self._openat2 = True

    def open(self, parts: list[bytes], flags: int, mode: int = 0) -> int:
        """Opens beneath the root; ELOOP for any link on the way. The caller closes the descriptor."""
        try:
            return self._open(parts, flags, mode)
        except PermissionError:
            if not linux.regain(self.fd):
                raise
        return self._open(parts, flags, mode)

    def _open(self, parts: list[bytes], flags: int, mode: int) -> int:
        current, last = self.fd, len(parts)
        try:
            start = 0
            while True:
                end = _piece(parts, start)
                final = end >= last
                piece = b"/".join(parts[start:end]) or b"."
                opened = self._open_piece(current, piece, flags if final else _DIR, mode)
                if current != self.fd:
                    os.close(current)
                current = opened
                if final:
                    return current
                start = end
        except OSError:
            if current != self.fd:
                os.close(current)
            raise

    def directory(self, parts: list[bytes]) -> int:
        return self.open(parts, _DIR)

    def parent(self, parts: list[bytes]) -> tuple[int, bytes]:
        """The descriptor of the directory that holds the last component, and that name."""
        return self.directory(parts[:-1]), parts[-1]

    def regular(self, parts: list[bytes]) -> tuple[int, os.stat_result]:
        """A regular file for reading. A FIFO or device neither blocks nor acts: O_NONBLOCK, then a look at the type."""
        fd = self.open(parts, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            return fd, info
        os.close(fd)
        if stat.S_ISDIR(info.st_mode):
            raise Failure("is_dir", "it is a directory")
        raise Failure("not_regular", "it is not a regular file")

    def _open_piece(self, dir_fd: int, piece: bytes, flags: int, mode: int) -> int:
        if self._openat2:
            try:
                return linux.openat2(dir_fd, piece, flags, mode)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EPERM):  # EPERM: engines whose filter does not know the call
                    raise
                if error.errno == errno.ENOSYS or not _works(self.fd):
                    self._openat2 = False
                else:
                    raise
        return _open_step_by_step(dir_fd, piece, flags, mode)


def _open_root(path: str) -> int:
    """Opens the workspace, and gives it u+rwx where its own programs took that away: else they could lock it for good."""
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return os.open(path, _DIR)  # a link keeps its permissions; what is no directory says so
    try:
        linux.regain(handle)
    finally:
        os.close(handle)
    return os.open(path, _DIR)


def _works(dir_fd: int) -> bool:
    try:
        os.close(linux.openat2(dir_fd, b".", _DIR, 0))
    except OSError:
        return False
    return True


def _piece(parts: list[bytes], start: int) -> int:
    """Where the piece that begins at `start` ends."""
    size, end = 0, start
    while end < len(parts) and (size + len(parts[end]) < _PIECE or end == start):
        size += len(parts[end]) + 1
        end += 1
    return end


def _open_step_by_step(dir_fd: int, piece: bytes, flags: int, mode: int) -> int:
    """For kernels before 5.6: one component at a time, O_NOFOLLOW on each."""
    names = piece.split(b"/")
    current = dir_fd
    try:
        for index, name in enumerate(names):
            final = index == len(names) - 1
            opened = _step(current, name, flags if final else _DIR, mode)
            if current != dir_fd:
                os.close(current)
            current = opened
    except OSError:
        if current != dir_fd:
            os.close(current)
        raise
    return current


def _step(dir_fd: int, name: bytes, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    except NotADirectoryError:
        # with O_DIRECTORY a link is "not a directory": say link, as openat2 does
        if stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def describe(parts: list[bytes], info: os.stat_result, etag: str | None = None) -> dict[str, Any]:
    """What the client turns into a FileInfo; bytes that are not UTF-8 travel as lone surrogates."""
    path = os.fsdecode(b"/".join(parts))
    return {
        "path": path,
        "name": os.fsdecode(parts[-1]) if parts else "",
        "kind": kind_of(info.st_mode),
        "size_bytes": info.st_size,
        "modified_at": info.st_mtime,
        "mode": stat.S_IMODE(info.st_mode),
        "etag": etag,
    }
