"""What `primectl apply` costs: `python -m benchmarks.cli_apply [--documents 100] [--rounds 5]`. Needs no container engine.

Seconds are wall clock of the whole process, interpreter included, against a server of its own on this machine. Exit code
1 when the limit for unchanged documents does not hold.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.live import ROOT, LiveServer

LIMIT_S = 3.0  # a hundred documents that change nothing
START_S = 0.1  # `primectl --help`
MANIFEST = """\
kind: agent
spec:
  id: agent-{number}
  description: Number {number} of the benchmark.
  model:
    provider_id: scripted
    model_name: scripted
  system_prompt:
    - You run code and report its output.
  labels: {{of: benchmark}}
---
"""
MODEL = "kind: llm_provider\nspec: {id: scripted, provider: scripted, config: {kind: scripted}}\n"


def run(server: LiveServer, *argv: str) -> tuple[float, list[str]]:
    """Seconds and the lines of stdout of one call; raises when it fails."""
    env = server.env(PRIMECTL_SERVER=server.url, PRIMECTL_TOKEN=server.token)
    started = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "cli.main", *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - started
    if result.returncode:
        raise RuntimeError(f"primectl {' '.join(argv)}: {result.returncode}: {result.stderr}")
    return took, result.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        server = LiveServer(Path(place) / "server")
        server.start()
        try:
            return measure(server, Path(place), options.documents, options.rounds)
        finally:
            server.destroy()


def measure(server: LiveServer, place: Path, documents: int, rounds: int) -> int:
    file = place / "agents.yaml"
    file.write_text(MODEL + "---\n" + "".join(MANIFEST.format(number=n) for n in range(documents)))
    created, lines = run(server, "apply", "-f", str(file))
    assert all(line.endswith(" created") for line in lines), lines
    unchanged = []
    for _ in range(rounds):
        took, lines = run(server, "apply", "-f", str(file))
        assert len(lines) == documents + 1
        assert all(line.endswith(" unchanged") for line in lines), lines
        unchanged.append(took)
    helps = [run(server, "--help")[0] for _ in range(rounds)]
    middle = statistics.median(unchanged)
    print(f"{documents} documents created    {created:6.2f} s")
    print(
        f"{documents} documents unchanged  {middle:6.2f} s  (limit {LIMIT_S:g}, all {', '.join(f'{t:.2f}' for t in unchanged)})"
    )
    print(f"primectl --help           {min(helps) * 1000:6.0f} ms at best (limit {START_S * 1000:g})")
    return 1 if middle > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
