"""The limits of a sandbox met on purpose: one process too many, one byte too many. Its answer is as hostile as any.

The kernel's refusal counts only where the runtime's own counter of refusals rose too. What would disturb programs that
run in the workspace is not tried: an attempt that was not made is `ok: null` with the reason.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workspaces.confinement import PAGE, Finding, answer
from workspaces.execution import ExecOutcome, ExecRequest
from workspaces.probe_limits import KEYS, NO_ROOM, SOURCE, UNTRIED
from workspaces.providers.base import Enforced, SandboxSpec

if TYPE_CHECKING:
    from workspaces.sandbox import Sandbox

TIMEOUT_S: Final = 8.0
TASKS_TRIED: Final = 2048  # a higher limit is not met: it would take seconds, and be felt outside
TASK_BYTES: Final = 48 * 1024  # of memory that one waiting thread may take
SLACK_TASKS: Final = 4  # of others that may have ended between a refusal and the count
PIDS, FILE, DISK = "pids_exhausted", "file_size_exhausted", "disk_exhausted"
REFUSED_FILE: Final = (errno.EFBIG,)
REFUSED_DISK: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which limits are met, and for those that are not, why not; an empty reason is an attempt."""

    pids: str
    file: str
    disk: str | None  # None: the disk has no limit of its own to meet

    @property
    def tries(self) -> bool:
        return "" in (self.pids, self.file, self.disk)


def plan_of(spec: SandboxSpec, worth: Mapping[str, Enforced], others: int) -> Plan:
    """`worth` says what each limit is worth on this engine, `others` how many programs run in the workspace now."""
    busy = f"not tried: {_programs(others)} here and would be refused processes or space meanwhile" if others else ""
    no_pids = no_file = ""
    if worth.get("pids", "unavailable") == "unavailable":
        no_pids = "not tried: there is no limit of processes here"
    elif spec.pids_limit > TASKS_TRIED:
        no_pids = f"not tried: the limit is {spec.pids_limit}, and at most {TASKS_TRIED} processes are started for this"
    elif spec.pids_limit * TASK_BYTES > spec.memory_bytes // 2:
        no_pids = f"not tried: {spec.pids_limit} processes could meet the limit of memory first"
    if worth.get("disk", "unavailable") == "unavailable":
        no_file = "not tried: there is no limit of a file's size here"
    return Plan(no_pids or busy, no_file, (no_file or busy) if spec.disk_medium == "memory" else None)


def _programs(count: int) -> str:
    return "1 program runs" if count == 1 else f"{count} programs run"


async def exhaust(sandbox: Sandbox, spec: SandboxSpec, worth: Mapping[str, Enforced]) -> list[Finding]:
    """Meets the limits in a sandbox; while it does, this server starts no other program there (well below a second).

    A broken channel raises as `Sandbox.run` does.
    """
    async with sandbox.quiet() as others:
        plan = plan_of(spec, worth, others)
        if not plan.tries:
            return findings_of(plan, spec, None, 0)
        outcome, stdout, _ = await sandbox.run(request(spec, plan), through=True)
    return report(plan, spec, outcome, stdout)


def request(spec: SandboxSpec, plan: Plan) -> ExecRequest:
    """As for the other probes, the source comes on stdin; nothing in the workspace is read or imported."""
    pids = 0 if plan.pids else spec.pids_limit
    memory = spec.memory_bytes if plan.disk == "" else 0
    return ExecRequest(
        id=f"probe-{secrets.token_hex(8)}",
        argv=("python3", "-I", "-S", "-E", "-", str(pids), str(spec.disk_bytes), str(memory)),
        stdin=SOURCE.encode(),
        timeout_s=TIMEOUT_S,
    )


def report(plan: Plan, spec: SandboxSpec, outcome: ExecOutcome, stdout: bytes) -> list[Finding]:
    if outcome.ended_by != "exit" or outcome.exit_code != 0:
        why = f"the attempt did not end as it should: {outcome.ended_by}"
        return unmade(plan, spec, why)
    found = parse(stdout)
    if found is None:
        return unmade(plan, spec, "the attempt gave no answer that can be read")
    return findings_of(plan, spec, found, outcome.evidence.pids_max)


def unmade(plan: Plan, spec: SandboxSpec, why: str) -> list[Finding]:
    """Every attempt of the plan as not made."""
    failed = Plan(plan.pids or why, plan.file or why, plan.disk if plan.disk is None else plan.disk or why)
    return findings_of(failed, spec, None, 0)


def parse(stdout: bytes) -> dict[str, int] | None:
    """The answer, None unless it is exactly one: known keys, whole numbers that fit 63 bits. There is no text in it."""
    found = answer(stdout, KEYS)
    if found is None:
        return None
    return found if all(type(value) is int and NO_ROOM <= value < 1 << 63 for value in found.values()) else None


def findings_of(plan: Plan, spec: SandboxSpec, found: Mapping[str, int] | None, refusals: int) -> list[Finding]:
    """`found` is None when nothing was tried; `refusals` are those that the runtime counted meanwhile."""
    facts = found or dict.fromkeys(KEYS, UNTRIED)
    limit, size = spec.pids_limit, _bytes(spec.disk_bytes)
    pids = (plan.pids, None) if plan.pids else _pids(facts, limit, refusals)
    file = (plan.file, None) if plan.file else _file(facts, spec.disk_bytes)
    made = [
        Finding(PIDS, f"process {limit + 1} is refused", *pids),
        Finding(FILE, f"a file above {size} is refused", *file),
    ]
    if plan.disk is not None:
        disk = (plan.disk, None) if plan.disk else _disk(facts, spec)
        made.append(Finding(DISK, f"files above {size} in all are refused", *disk))
    return made


def _pids(facts: Mapping[str, int], limit: int, refusals: int) -> tuple[str, bool | None]:
    tasks, counted = facts["tasks"], facts["counted"]
    if tasks > limit:
        return f"{tasks} processes and threads of one program ran at once; the limit is {limit}", False
    if facts["forked"] != errno.EAGAIN:
        return f"after {tasks} processes and threads of its own the attempt ended without a refusal", None
    if not refusals:
        return f"one more than {tasks} was refused, but the kernel's counter of refusals did not rise", None
    if 0 <= counted < limit - SLACK_TASKS or counted > limit:
        return f"refused with {counted} processes and threads there: it was another limit than {limit}", None
    there = f"{counted} of {limit}" if counted >= 0 else str(tasks)
    return f"{there} processes and threads ran, {tasks} of them for this attempt; one more was refused", True


def _file(facts: Mapping[str, int], size: int) -> tuple[str, bool | None]:
    below, above = facts["below"], facts["above"]
    if above == 0:
        return f"byte {size + 1} of a file was written", False
    if below in REFUSED_FILE:
        return f"byte {size} of a file was refused: the cap is lower than asked", False
    if above not in REFUSED_FILE:
        return f"a file above the cap failed for another reason: {_reason(above)}", None
    first = f"byte {size} of a file was written" if below == 0 else f"byte {size} of a file: {_reason(below)}"
    return f"{first}; byte {size + 1} was refused", True


def _disk(facts: Mapping[str, int], spec: SandboxSpec) -> tuple[str, bool | None]:
    filled, used, full = facts["filled"], facts["used"], facts["full"]
    if filled + max(0, used) >= spec.disk_bytes + PAGE:  # a file system in memory counts whole pages
        return f"{filled} bytes were written beside {max(0, used)} that were there", False
    if full == NO_ROOM:
        return f"not tried: memory of {_bytes(spec.memory_bytes)} has no room for what is free on the disk", None
    if full not in REFUSED_DISK:
        return f"filling the disk failed for another reason: {_reason(full)}", None
    return f"{filled} bytes were written beside {max(0, used)} that were there; the next one was refused", True


def _reason(number: int) -> str:
    return errno.errorcode.get(number, "no file could be made" if number < 0 else f"error {number}")


def _bytes(size: int) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} bytes"
