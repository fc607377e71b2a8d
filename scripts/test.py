#!/usr/bin/env python3
"""`make test`: every check this machine can run, one line a stage, and what was skipped and why.

    python scripts/test.py [STAGE…]      # all of them, or only those named

The whole output of each stage is in var/test/<stage>.log; that of a failing one is printed too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "var" / "test"
BIN = Path(sys.executable).parent
PACKAGES = ["primer_site", "accounts", "workspaces", "agents", "sessions_app", "cli", "tests", "benchmarks", "scripts"]
CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+, )*\d+ [a-z]+) in ([\d.]+)s.*?=*$")
SHOWN_LINES = 200  # of a failing stage
PYTEST = ["pytest", "-p", "no:cacheprovider", "-rfEs", "--tb=short", "--color=no"]
# A parameter in brackets may hold the dash that otherwise begins the reason.
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+\.py::[^\s\[]+(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
AGAIN_AT_MOST = 5  # failures that are looked at a second time, alone: more are no accident of a busy machine
# A browser keeps a loop running in its thread, which tests with a loop of their own do not bear.
NEEDS = "docker or e2e or browser"
BY_FILE = ["-n", "2", "--dist", "loadfile"]  # what shares a server or an engine of its own stays together
REAL = [*PYTEST, *BY_FILE, "-m", "(docker or e2e) and not browser", "--ignore=tests/contract", "tests"]
NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    commands: Sequence[Sequence[str]]
    limit_s: float = 600.0

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"


STAGES = [
    Stage("lint", [["ruff", "check", "."], ["ruff", "format", "--check", "."]]),
    Stage("types", [["mypy", *PACKAGES]]),
    Stage("unit", [[*PYTEST, "-n", "2", "-m", f"not ({NEEDS})", "--ignore=tests/contract", "tests"]], 1500.0),
    Stage("contract", [[*PYTEST, "tests/contract"]], 900.0),
    Stage("e2e", [REAL], 1500.0),
    Stage("browser", [[*PYTEST, "-m", "browser", "tests/console"]], 1500.0),
]


def main(names: Sequence[str]) -> int:
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        say(f"there is no stage {', '.join(sorted(unknown))}; there are: {', '.join(s.name for s in STAGES)}")
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    results = [run(stage) for stage in STAGES if not names or stage.name in names]
    say("all stages passed" if all(results) else "something failed: the output of each stage is in var/test/")
    return 0 if all(results) else 1


def run(stage: Stage) -> bool:
    """Runs one stage, prints its lines, and returns whether it passed."""
    began = time.monotonic()
    stage.log.write_text("")
    codes = [execute(command, stage) for command in stage.commands]
    passed = all(code in (0, NO_TESTS) for code in codes)
    text = stage.log.read_text(errors="replace")
    unsteady = [] if passed or set(codes) - {0, 1, NO_TESTS} else failed(text)
    if unsteady:
        passed = execute([*PYTEST, *unsteady], stage) == 0
    took = time.monotonic() - began
    say(f"{'ok' if passed else 'FAIL':<5}{stage.name:<9} {summary(text)} in {took:.0f} s")
    for line in skipped(text):
        say(f"     {'':<9} skipped {line}")
    for name in unsteady if passed else []:
        say(f"     {'':<9} unsteady, passed at the second try: {name}")
    if not passed:
        say("\n".join(["", *text.splitlines()[-SHOWN_LINES:], ""]))
    return passed


def execute(command: Sequence[str], stage: Stage) -> int:
    """Runs a command with its output in the stage's log; one that does not end in time is killed with its children."""
    with stage.log.open("a") as log:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(stage.limit_s)
        except subprocess.TimeoutExpired:
            log.write(f"\nthe stage did not end within {stage.limit_s:g} s and was killed\n")
            return 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def summary(text: str) -> str:
    """`123 passed, 4 skipped` of pytest, or the last line of another tool."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := CLOSING.match(line):
            return found[1]
    return lines[-1][:100] if lines else "nothing to say"


def failed(text: str) -> list[str]:
    """The tests that failed, when they are few enough to be tried once more, alone; else none."""
    names = list(dict.fromkeys(FAILED.findall(text)))
    return names if len(names) <= AGAIN_AT_MOST else []


def skipped(text: str) -> list[str]:
    """`3: docker is not usable: …`, each reason once with its count."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if found := re.match(r"SKIPPED \[(\d+)\] \S+ (.*)", line):
            counts[found[2]] = counts.get(found[2], 0) + int(found[1])
    return [f"{count}: {reason}" for reason, count in counts.items()]


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
