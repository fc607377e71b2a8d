"""`primer` as a process with a home of its own, without a server that stays."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.live import share_static

ROOT = Path(__file__).resolve().parents[2]
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/engine.sock"}


@dataclass(frozen=True, slots=True)
class Home:
    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def config(self) -> Path:
        return self.directory / "primectl.yaml"

    def primer(self, *arguments: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Runs one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "primer_site.command", *arguments],
            cwd=ROOT, input=given, capture_output=True, text=True, timeout=90, check=False,
            env={**os.environ, "PRIMER_HOME": str(self.data), "PRIMECTL_CONFIG": str(self.config), **env},
        )  # fmt: skip

    def prepare(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`primer up --prepare-only`, without an engine unless `env` names one."""
        share_static(self.data)
        done = self.primer("up", "--prepare-only", *arguments, **{**NO_ENGINE, **env})
        share_static(self.data)
        return done
