"""File requests of the control plane: done as the sandbox's own user, from one descriptor, regular files only."""

# ruff: noqa: SIM105 - contextlib would cost the sandbox half a megabyte
from __future__ import annotations

import errno
import os
import stat
from _blake2 import blake2b

from . import linux, protocol
from .paths import Failure, Root, describe, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generator

HASH_MAX = 16 * 1024 * 1024  # bytes: a larger file is told by what the file system says of it, see `etag_of`
_HASH_STEP = 256 * 1024


def new_hash() -> Any:
    return blake2b(digest_size=16)


class Reading:
    """One file on its way out: `next_part` reads as the client's credit allows, within the size at opening."""

    def __init__(self, root: Root, parts: list[bytes]) -> None:
        self.parts = parts
        self.fd, self.info = root.regular(parts)
        self.offset = self.start = self.end = 0
        self.etag: str | None = None
        self.short = False

    def prepare(self, offset: int, limit: int | None, if_range: object = None) -> Generator[None, None, None]:
        """Learns the ETag and sets the range. A negative `offset` counts from the end; with `if_range` the range is
        that of one version of the file, and of another one everything is sent."""
        self.etag = yield from etag_of(self.fd, self.info)
        if if_range is not None and if_range != self.etag:
            offset, limit = 0, None
        size = self.info.st_size
        self.offset = self.start = offset if offset >= 0 else max(0, size + offset)
        self.end = size if limit is None else min(size, self.start + max(0, limit))

    def opened(self) -> dict[str, Any]:
        return {"info": describe(self.parts, self.info, self.etag), "start": self.start, "end": self.end}

    def next_part(self, most: int) -> bytes:
        """b"" at the end; `short` when the file has shrunk since it was opened."""
        want = min(most, self.end - self.offset)
        if want <= 0:
            return b""
        data = os.pread(self.fd, want, self.offset)
        self.short = not data
        self.offset += len(data)
        return data

    def result(self) -> dict[str, Any]:
        """The reply behind the last byte; it has no ETag when the file was changed meanwhile.

        `changed`: what was read may be of two versions. A file that only grew was appended to, as logs are: not changed.
        """
        now = os.fstat(self.fd)
        same = (now.st_size, now.st_mtime_ns) == (self.info.st_size, self.info.st_mtime_ns)
        changed = self.short or (not same and now.st_size <= self.info.st_size)
        truncated = self.short or now.st_size > self.offset
        info = describe(self.parts, self.info, self.etag if same else None)
        return {"info": info, "truncated": truncated, "changed": changed}

    def close(self) -> None:
        os.close(self.fd)


def etag_of(fd: int, info: os.stat_result) -> Generator[None, None, str]:
    """A hash of the content; above HASH_MAX of what changes with it: size, times and inode.

    A hash of a large file would have to be there before its first byte is sent, again for each range of it.
    """
    if info.st_size > HASH_MAX:
        return stat_tag(info)
    digest, offset = new_hash(), 0
    while offset < info.st_size:
        if offset:
            yield
        data = os.pread(fd, min(_HASH_STEP, info.st_size - offset), offset)
        if not data:
            break
        digest.update(data)
        offset += len(data)
    return str(digest.hexdigest())


def stat_tag(info: os.stat_result) -> str:
    facts = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    digest = new_hash()
    digest.update(repr(facts).encode())
    return "s" + str(digest.hexdigest())


def etag_at(root: Root, parts: list[bytes]) -> Generator[None, None, str | None]:
    """The ETag of what is there now, None when nothing is."""
    try:
        fd, info = root.regular(parts)
    except FileNotFoundError:
        return None
    try:
        return (yield from etag_of(fd, info))
    finally:
        os.close(fd)


def require_etag(root: Root, parts: list[bytes], wanted: object) -> Generator[None, None, None]:
    """Failure `precondition_failed` unless the file there has one of the ETags (or it does not matter: None)."""
    if wanted is None:
        return
    known = wanted if isinstance(wanted, list) else [wanted]
    if (yield from etag_at(root, parts)) not in known:
        raise Failure("precondition_failed", "the file was changed since it was read")


class Writing:
    """One file on its way in: a temporary file beside its target, renamed over it when whole. Nothing half is ever seen.

    No fsync: it would hold up every other run for as long as the disk likes, and what a crash of the *host* may cost is
    the last seconds of a workspace, which its programs lose as well.
    """

    def __init__(self, root: Root, body: dict[str, Any]) -> None:
        self.root = root
        self.parts = split(body.get("path"), root.path)
        self.mode = int(body.get("mode", 0o644)) & 0o777
        self.if_match = body.get("if_match")
        self.if_none_match = bool(body.get("if_none_match"))
        self.received = 0
        self.granted = protocol.WINDOW
        self._hash = new_hash()
        if body.get("parents", True):
            make_parents(root, self.parts[:-1])
        self.dir_fd, self.name = root.parent(self.parts)
        self.temporary = b".primer-" + os.urandom(8).hex().encode()
        self.fd = -1
        try:
            self._refuse_odd_target()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.temporary, flags, 0o600, dir_fd=self.dir_fd)
        except BaseException:
            os.close(self.dir_fd)
            raise

    def _refuse_odd_target(self) -> None:
        """A rename would replace a FIFO, a device or a link without a word; that is never what was meant."""
        try:
            info = os.stat(self.name, dir_fd=self.dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(info.st_mode):
            raise Failure("symlink", "it is a symbolic link")
        if stat.S_ISDIR(info.st_mode):
            raise Failure("is_dir", "it is a directory")
        if not stat.S_ISREG(info.st_mode):
            raise Failure("not_regular", "it is not a regular file")
        if self.if_none_match:
            raise Failure("precondition_failed", "the file exists already")

    def write(self, offset: int, data: bytes) -> None:
        if offset != self.received:
            raise protocol.ProtocolViolation("file data came out of order")
        view = memoryview(data)
        while view:
            count = os.write(self.fd, view)
            view = view[count:]
        self.received += len(data)
        if self.received <= HASH_MAX:
            self._hash.update(data)

    def commit(self) -> Generator[None, None, dict[str, Any]]:
        """Checks the preconditions at the last moment and puts the file in place."""
        os.fchmod(self.fd, self.mode)
        yield from require_etag(self.root, self.parts, self.if_match)
        self._refuse_odd_target()
        if self.if_none_match:
            try:
                linux.rename_noreplace(self.dir_fd, self.temporary, self.dir_fd, self.name)
            except FileExistsError:
                raise Failure("precondition_failed", "the file exists already") from None
        else:
            os.rename(self.temporary, self.name, src_dir_fd=self.dir_fd, dst_dir_fd=self.dir_fd)
        self.temporary = b""
        info = os.fstat(self.fd)
        etag = self._hash.hexdigest() if info.st_size <= HASH_MAX else stat_tag(info)
        return {"info": describe(self.parts, info, etag)}

    def close(self) -> None:
        if self.temporary:
            try:
                os.unlink(self.temporary, dir_fd=self.dir_fd)
            except OSError:
                pass  # the directory itself is gone
        os.close(self.fd)
        os.close(self.dir_fd)


def make_parents(root: Root, parts: list[bytes]) -> None:
    """Makes what is missing of a directory path; existing directories are fine, links and files are not."""
    for end in range(len(parts), -1, -1):
        try:
            fd = root.directory(parts[:end])
            break
        except FileNotFoundError:
            continue
    try:
        for name in parts[end:]:
            try:
                os.mkdir(name, 0o755, dir_fd=fd)
            except FileExistsError:
                pass  # made by a program in between
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


def op_stat(root: Root, body: dict[str, Any]) -> Generator[None, None, dict[str, Any]]:
    parts = split(body.get("path"), root.path, allow_root=True)
    if not parts:
        return {"info": describe(parts, os.fstat(root.fd))}
    dir_fd, name = root.parent(parts)
    try:
        info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    finally:
        os.close(dir_fd)
    etag = None
    if body.get("etag") and stat.S_ISREG(info.st_mode):
        etag = yield from etag_at(root, parts)
    return {"info": describe(parts, info, etag)}


def op_mkdir(root: Root, body: dict[str, Any]) -> dict[str, Any]:
    parts = split(str(body.get("path")).rstrip("/") or "/", root.path)
    if body.get("parents"):
        make_parents(root, parts)
    else:
        dir_fd, name = root.parent(parts)
        try:
            os.mkdir(name, 0o755, dir_fd=dir_fd)
        finally:
            os.close(dir_fd)
    fd = root.directory(parts)
    try:
        return {"info": describe(parts, os.fstat(fd))}
    finally:
        os.close(fd)


def op_move(root: Root, body: dict[str, Any]) -> dict[str, Any]:
    source = split(body.get("source"), root.path)
    target = split(body.get("target"), root.path)
    if target[: len(source)] == source and target != source:
        raise Failure("invalid", "a directory cannot be moved into itself")
    move: Callable[..., None] = _replace if body.get("overwrite") else linux.rename_noreplace
    source_fd, source_name = root.parent(source)
    try:
        target_fd, target_name = root.parent(target)
        try:
            move(source_fd, source_name, target_fd, target_name)
            return {"info": describe(target, os.stat(target_name, dir_fd=target_fd, follow_symlinks=False))}
        except OSError as error:
            if error.errno == errno.EXDEV:  # not a link here: another file system
                raise Failure("invalid", "source and target are on different file systems") from None
            raise
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def _replace(source_fd: int, source: bytes, target_fd: int, target: bytes) -> None:
    os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
