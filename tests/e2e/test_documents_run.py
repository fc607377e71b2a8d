"""Every command in README.md and docs/ is run, in the order in which a reader meets it, or says why it is not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import ROOT, LiveServer

pytestmark = [pytest.mark.docker, pytest.mark.e2e]

DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# What a reader is not meant to type is fenced as `text`, `yaml`, `json`, …; a fence without a name is an oversight.
FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
LIMIT_S = 300
PRINTED_URL = "http://127.0.0.1:8000"  # where a reader's server listens
# 8 is a doctor's "warnings only": what this machine's engine lacks is no fault of the document.
PRELUDE = """set -euo pipefail
primer() { command primer "$@" || { local code=$?; [ $code -eq 8 ] || return $code; }; }
primectl() { command primectl "$@" || { local code=$?; [ $code -eq 8 ] || return $code; }; }
"""


def blocks(document: str) -> list[tuple[str, str, str]]:
    """The (kind, commands, reason not to run them) of each fence of a document."""
    found = FENCE.finditer((ROOT / document).read_text())
    return [(match["kind"], match["body"], match["why"] or "") for match in found]


@pytest.fixture(scope="module")
def install(runtime_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server as `primer up` leaves it, samples included."""
    live = LiveServer(tmp_path_factory.mktemp("documents"), samples=True)
    live.start()
    yield live
    live.destroy()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_of_the_document_works(document: str, install: LiveServer, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    text = PRELUDE + "\n".join(
        f"echo '--- {document}, block {number}' >&2\n{body}"
        for number, (kind, body, why) in enumerate(blocks(document), 1)
        if kind == "sh" and not why
    )
    script = text.replace(PRINTED_URL, install.url)
    result = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, env=install.env(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin"),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stderr[-3000:]}\n{result.stdout[-1000:]}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_fence_says_what_it_is_and_why_it_is_not_run(document: str) -> None:
    for kind, body, why in blocks(document):
        assert kind, f"a fence without a kind: {body[:60]}"
        assert not why or (kind == "sh" and len(why) > 15), f"not a reason: {why}"
