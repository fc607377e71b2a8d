"""The one file of a backup: a gzip'ed tar of a manifest and four plain files, written whole or not at all, read with distrust. No Django."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import secrets
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from primer_site.errors import Conflict, Invalid
from primer_site.home import FILE_MODE

FORMAT, VERSION = "primer-backup", 1
MANIFEST = "manifest.json"
DATABASE = "primer.sqlite3"
KEYS = ("encryption-keys", "secret-key", "instance-id")
NAMES = (DATABASE, *KEYS)  # in this order, after the manifest
MANIFEST_BYTES = 64 * 1024
KEY_BYTES = 64 * 1024
PIECE = 1024 * 1024
# Headers before headers, as long as they say, which tarfile reads whole. A backup has none of them.
_EXTENSIONS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE,
)  # fmt: skip


class Damaged(Invalid):
    """The file is not a whole backup of Primer."""

    hint = "Nothing was changed. Take another backup file."


class PlainHeader(tarfile.TarInfo):
    """A header that is one block; one that announces more raises `Damaged` before any of that is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS:
            raise Damaged("The file is not a backup of Primer: it has headers in it that a backup does not have.")
        return header


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a backup: its size in bytes and the SHA-256 of its content in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    server_version: str
    created_at: str
    instance_id: str
    parts: tuple[Part, ...]

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A temporary 0600 file beside `target`, which it becomes when the block ends well; `Conflict` when that exists."""
    if target.exists() or target.is_symlink():
        raise Conflict(f"There is a file {target} already.", hint="Name a new file: a backup overwrites nothing.")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        _publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Another 0600 file for the time of the block, on the same file system."""
    path = beside.with_name(f"{beside.name}.database")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    try:
        yield path
    finally:
        for name in (path, *(path.with_name(f"{path.name}{end}") for end in ("-journal", "-wal", "-shm"))):
            name.unlink(missing_ok=True)


def _publish(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)  # fails when somebody made the target meanwhile; a rename would replace it
    except FileExistsError:
        raise Conflict(f"There is a file {target} already.", hint="Name a new file.") from None
    except OSError:  # a file system without hard links
        temporary.rename(target)


def write(target: Path, manifest: Manifest, sources: dict[str, Path | bytes]) -> None:
    """Writes the manifest and its parts, in the order of NAMES."""
    # A header of this format stays one block above 8 GiB, where ustar has no room for the size and pax takes a second header.
    with tarfile.open(target, "w:gz", compresslevel=3, format=tarfile.GNU_FORMAT) as archive:
        _add(archive, MANIFEST, io.BytesIO(data := manifest.to_json()), len(data))
        for part in manifest.parts:
            source = sources[part.name]
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
                _add(archive, part.name, file, part.size)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, FILE_MODE
    archive.addfile(member, file)


def part_of(name: str, source: Path | bytes) -> Part:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        digest, size = hashlib.sha256(), 0
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return Part(name, size, digest.hexdigest())


@contextlib.contextmanager
def opened(source: Path) -> Iterator[tuple[Manifest, Iterator[tuple[Part, IO[bytes]]]]]:
    """The manifest and the parts of a backup, one after the other; every disagreement raises `Damaged`.

    Only names, kinds and sizes that the format knows are ever looked at: a path, a link or a device is refused by its
    name, before anything is written. Hashes are the reader's to compare (`copy`).
    """
    try:
        with _regular(source) as file, gzip.GzipFile(fileobj=file) as plain:
            with tarfile.open(fileobj=plain, mode="r|", tarinfo=PlainHeader) as archive:
                members = iter(archive)
                manifest = _manifest(_content(archive, next(members, None), MANIFEST, MANIFEST_BYTES).read())
                yield manifest, _parts(archive, members, manifest)
            _require_end(plain)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as exc:
        raise Damaged(f"{source} is damaged, cut off, or not a backup of Primer.", log=repr(exc)) from exc


def _require_end(plain: gzip.GzipFile) -> None:
    """Nothing but the padding of a tar follows, and the check sum behind it is right."""
    rest = 0
    while piece := plain.read(tarfile.RECORDSIZE):
        rest += len(piece)
        if piece.strip(b"\0") or rest > 2 * tarfile.RECORDSIZE:
            raise Damaged("The file has more in it than a backup has.")


def _regular(source: Path) -> IO[bytes]:
    descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(f"{source} is not a file.")
    return os.fdopen(descriptor, "rb")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str, most: int) -> IO[bytes]:
    if member is None or member.name != name or not member.isreg() or member.issparse() or member.size > most:
        raise Damaged(f"The file is not a backup of Primer: it does not have {name} where a backup has it.")
    content = archive.extractfile(member)
    assert content is not None  # noqa: S101 - a regular member
    return content


def _manifest(data: bytes) -> Manifest:
    try:
        found: dict[str, Any] = json.loads(data)
        if (found.pop("format"), found.pop("version")) != (FORMAT, VERSION):
            raise Damaged("The backup has a format that this version of Primer does not know.")
        parts = tuple(Part(**part) for part in found.pop("parts"))
        manifest = Manifest(**found, parts=parts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise Damaged("The manifest of the backup cannot be read.", log=repr(exc)) from exc
    sizes = all(isinstance(part.size, int) and part.size >= 0 for part in parts)
    if tuple(part.name for part in parts) != NAMES or not sizes or any(p.size > KEY_BYTES for p in parts[1:]):
        raise Damaged("The manifest of the backup does not name what a backup has.")
    return manifest


def _parts(
    archive: tarfile.TarFile, members: Iterator[tarfile.TarInfo], manifest: Manifest
) -> Iterator[tuple[Part, IO[bytes]]]:
    for part in manifest.parts:
        member = next(members, None)
        content = _content(archive, member, part.name, part.size)
        if member is None or member.size != part.size:
            raise Damaged(f"{part.name} of the backup has another size than its manifest says.")
        yield part, content
    if next(members, None) is not None:
        raise Damaged("The file has more in it than a backup has.")


def copy(part: Part, content: IO[bytes], target: Path) -> None:
    """Writes one part as a 0600 file and compares its hash on the way."""
    digest = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        while piece := content.read(PIECE):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != part.sha256:
        raise Damaged(f"{part.name} of the backup is damaged: its hash is not the one of its manifest.")
