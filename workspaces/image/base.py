"""The base of the runtime image: a local image, a pulled one, or a Debian that mmdebstrap makes without any registry."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

from workspaces.providers.base import ProviderError

PULLED_BASE: Final = "python:3.12-slim"
PULL_TIMEOUT_S: Final = 20
BOOTSTRAP_TIMEOUT_S: Final = 900
SUITE: Final = "bookworm"
# Exactly what a small interpreter needs. `essential` and `minbase` are larger: there usrmerge pulls in the whole of perl.
PACKAGES: Final = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils", "dpkg", "findutils"),
    *("grep", "gzip", "hostname", "init-system-helpers", "libc-bin", "mawk", "ncurses-base", "perl-base", "procps"),
    *("python-is-python3", "python3", "sed", "tar", "usr-is-merged", "util-linux"),
)
# The custom variant lays no links from /bin to /usr/bin by itself; usr-is-merged refuses to install without them.
MERGED_USR_HOOK: Final = Path("/usr/share/mmdebstrap/hooks/merged-usr")
SLIM: Final = (
    'cd "$1" && rm -rf usr/share/doc/* usr/share/man/* usr/share/info/* usr/share/locale/* '
    "usr/share/bash-completion var/cache/debconf/* var/log/* && find . -xdev -perm /6000 -exec chmod a-s {} +"
)


class ImageBuildFailed(ProviderError):
    """The runtime image could not be built."""

    code, status = "image_build_failed", 502


def choose(client: Any, asked: str, packages: Iterable[str]) -> Generator[str, None, str]:
    """Yields progress lines, returns the reference of the base to build on; raises `ImageBuildFailed` with a sentence."""
    if asked:
        if not exists(client, asked):
            raise ImageBuildFailed(f"The base image {asked} is not on the engine.", hint=f"docker pull {asked}")
        yield f"base: {asked} (local image)"
        return asked
    made = f"primer/workspace-base:{SUITE}-{fingerprint(packages)}"
    if exists(client, made):
        yield f"base: {made} (made earlier)"
        return made
    if not list(packages) and (exists(client, PULLED_BASE) or pull(client, PULLED_BASE)):
        yield f"base: {PULLED_BASE}"
        return PULLED_BASE
    yield f"base: no registry answers, so mmdebstrap makes a Debian {SUITE} (about half a minute)"
    bootstrap(client, made, packages)
    yield f"base: {made}"
    return made


def fingerprint(packages: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([SUITE, SLIM, *PACKAGES, *sorted(packages)]).encode()).hexdigest()[:12]


def exists(client: Any, reference: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.inspect_image(reference)
    except ImageNotFound:
        return False
    return True


def pull(client: Any, reference: str) -> bool:
    """Whether the image could be pulled within the short deadline: a machine without a registry must not wait for one."""
    import requests
    from docker.errors import APIError

    usual, client.timeout = client.timeout, PULL_TIMEOUT_S
    try:
        client.pull(*reference.split(":", 1))
    except (APIError, requests.RequestException):
        return False
    finally:
        client.timeout = usual
    return exists(client, reference)


def bootstrap(client: Any, reference: str, packages: Iterable[str]) -> None:
    """Makes a Debian root with mmdebstrap (as root) and imports it as `reference`."""
    if shutil.which("mmdebstrap") is None:
        raise ImageBuildFailed(
            "No registry answers and mmdebstrap, which can make a base without one, is not installed.",
            hint="apt-get install -y mmdebstrap, or name a local image: primer image build --base IMAGE",
        )
    if os.geteuid() != 0:
        raise ImageBuildFailed(
            "No registry answers, and making a base without one needs root.",
            hint="Run primer image build as root, or name a local image: primer image build --base IMAGE",
        )
    with tempfile.TemporaryDirectory(prefix="primer-image-") as folder:
        archive = os.path.join(folder, "base.tar")
        run_mmdebstrap(archive, [*PACKAGES, *packages])
        imported = client.import_image_from_file(archive, *reference.split(":", 1))
    if not exists(client, reference):
        raise ImageBuildFailed("The engine did not import the base image.", log=str(imported)[-2000:])


def run_mmdebstrap(archive: str, packages: list[str]) -> None:
    hook = [f"--hook-dir={MERGED_USR_HOOK}"] if MERGED_USR_HOOK.is_dir() else []
    command = ["mmdebstrap", "--variant=custom", *hook, f"--include={','.join(packages)}"]
    try:
        done = subprocess.run(
            [*command, f"--customize-hook={SLIM}", SUITE, archive],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BOOTSTRAP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ImageBuildFailed("mmdebstrap did not finish in 15 minutes: is a Debian mirror reachable?") from exc
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise ImageBuildFailed(
            "mmdebstrap could not make the base image: " + (lines[0][3:203] if lines else "it gave no reason") + ".",
            hint="Check that a Debian mirror is reachable (apt-get update), and that the package names exist.",
            log=done.stderr[-4000:],
        )
