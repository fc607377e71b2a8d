"""The wheel of this tree, and clean environments with exactly what it asks for: no index is asked, no editable install is near."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".*", "var", "build", "dist", "*.egg-info", "__pycache__", "docs", "tests")


def build_wheel(work: Path) -> Path:
    """Builds from a copy: the build writes into its source, and two builds at once would meet there."""
    source = work / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], cwd=work, check=True)
    (wheel,) = work.glob("primer_console-*.whl")
    return wheel


class Clean:
    """A virtual environment with the wheel and the closure of its requirements, of the base or of an extra too.

    The requirements are those that this run's own environment has installed, file by file.
    """

    def __init__(self, directory: Path, wheel: Path, *, extra: str = "") -> None:
        self.directory = directory
        self.bin = directory / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        options = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run([*pip, *options, str(wheel)], check=True)
        (self.site,) = directory.glob("lib/python3*/site-packages")
        (ours,) = self.site.glob("primer_console-*.dist-info")
        for found in closure(PathDistribution(ours), extra):
            self._take(found)

    def _take(self, found: Distribution) -> None:
        for name in found.files or ():
            source, target = Path(str(found.locate_file(name))), self.site / name
            if ".." in name.parts or target.exists() or not source.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                os.link(source, target)
                continue
            shutil.copy(source, target)

    def run(self, program: str, *arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment with nothing of the caller's but PATH and a home of its own."""
        return subprocess.run(
            [str(self.bin / program), *arguments], cwd=cwd, env=self.env(cwd, **env), capture_output=True, text=True,
            timeout=180, check=False,
        )  # fmt: skip

    def env(self, cwd: Path, **extra: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8", **extra}


def closure(of: Distribution, extra: str = "") -> list[Distribution]:
    """Everything that a distribution requires, directly or not."""
    found: dict[str, Distribution] = {}
    todo = [(name, extras) for name, extras in required(of.requires or (), {extra})]
    while todo:
        name, extras = todo.pop()
        key = f"{name.lower()}[{','.join(sorted(extras))}]"
        if key not in found:
            found[key] = distribution(name)
            todo += required(found[key].requires or (), {"", *extras})
    return list({dist.name: dist for dist in found.values()}.values())


def required(lines: Iterable[str], extras: set[str]) -> Iterator[tuple[str, set[str]]]:
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement.name, set(requirement.extras)
