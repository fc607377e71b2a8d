"""Static files: collected into the data directory when something changed."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command

MARK = ".collected"


def collected() -> bool:
    """Whether what was collected is of the sources that there are now."""
    mark: Path = settings.STATIC_ROOT / MARK
    return mark.is_file() and mark.read_text() == _fingerprint()


def collect() -> str:
    """Collects static files unless the sources are those of the last time; returns what was done."""
    root: Path = settings.STATIC_ROOT
    mark = root / MARK
    if collected():
        return "unchanged"
    root.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about files that two packages ship under one name
        call_command("collectstatic", interactive=False, verbosity=0, clear=True)
    mark.write_text(_fingerprint())
    return "collected"


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for finder in get_finders():
        for name, storage in finder.list([]):
            stat = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
