"""The data directory of one install: keys, instance id, database. Imports no Django: settings and `primer` both start here."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from primer_site.errors import Invalid

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


def home_dir() -> Path:
    """`PRIMER_HOME`, else `$XDG_DATA_HOME/primer`, else `~/.local/share/primer`; it may not exist yet."""
    if value := os.environ.get("PRIMER_HOME"):
        return Path(value).expanduser().resolve()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(base).expanduser() / "primer").resolve()


def setting(name: str, file_name: str = "") -> str:
    """The value of `PRIMER_<NAME>`, else the content of the file `PRIMER_<NAME>_FILE`, else of `file_name` in the home; "" if none."""
    if value := os.environ.get(f"PRIMER_{name}"):
        return value
    if path := os.environ.get(f"PRIMER_{name}_FILE"):
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise Invalid(f"The file that PRIMER_{name}_FILE names cannot be read: {why}.") from None
    if file_name and (stored := home_dir() / file_name).is_file():
        return stored.read_text().strip()
    return ""


def prepare() -> Path:
    """Makes the data directory (0700) and what is missing of its keys (0600); called again it changes nothing."""
    from cryptography.fernet import Fernet

    home = home_dir()
    home.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    home.chmod(DIRECTORY_MODE)
    makers = {
        "secret-key": lambda: secrets.token_urlsafe(48),
        "encryption-keys": lambda: Fernet.generate_key().decode(),
        "instance-id": lambda: secrets.token_hex(8),
    }
    for name, make in makers.items():
        write_private(home / name, make, keep=True)
    return home


def write_private(path: Path, content: object, *, keep: bool = False) -> None:
    """Writes a 0600 file in one step, so that a crash leaves the old content or the new one; `keep` leaves an existing file alone."""
    if keep and path.exists():
        return
    text = content() if callable(content) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    if keep:
        # Two processes may prepare one home at once: the link fails for the second, which then uses the first one's key.
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    else:
        temporary.replace(path)
