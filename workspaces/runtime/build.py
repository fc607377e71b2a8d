"""Builds the zipapp that runs in the sandbox. Runs on the server; the same source gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path

from .protocol import VERSION

__all__ = ["ENTRY_NAME", "VERSION", "build", "digest", "zipapp_bytes"]

ENTRY_NAME = "runtime.pyz"
_PACKAGE = "primer_runtime"
# a bridge lives for one channel and imports three modules; only the resident part is worth a child that compiles it
_MAIN = """import sys
if sys.argv[1:2] != ["bridge"]:
    from {package}.boot import install
    install("{package}", __loader__, {modules})
from {package}.entry import main
sys.exit(main(sys.argv[1:]))
"""
_SERVER_SIDE = {"build.py", "__main__.py"}
_EPOCH = (1980, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def zipapp_bytes() -> bytes:
    """The archive: uncompressed, so that the sandbox needs no zlib and starts sooner; sorted, without times or owners."""
    source = Path(__file__).parent
    paths = [path for path in sorted(source.glob("*.py")) if path.name not in _SERVER_SIDE]
    members = {f"{_PACKAGE}/{path.name}": path.read_bytes() for path in paths}
    modules = [path.stem for path in paths if path.stem not in ("__init__", "boot", "bridge")]
    members["__main__.py"] = _MAIN.format(package=_PACKAGE, modules=modules).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            archive.writestr(entry, members[name])
    return buffer.getvalue()


def digest() -> str:
    """SHA-256 of the archive in hex: its first characters name the volume that carries it."""
    return hashlib.sha256(zipapp_bytes()).hexdigest()


def build(path: str | Path) -> None:
    """Writes the archive to `path` (OSError when that is not possible)."""
    Path(path).write_bytes(zipapp_bytes())
