"""What confines a sandbox, proved from inside: one short program, its hostile answer checked, and a verdict. Pure but for `verify`."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from workspaces.execution import ExecOutcome, ExecRequest
from workspaces.probe import KEYS, SOURCE
from workspaces.providers.base import LIMITS, Check, Enforced, SandboxSpec

if TYPE_CHECKING:
    from workspaces.sandbox import Sandbox

Verdict = Literal["proven", "degraded", "failed", "unknown"]
TIMEOUT_S: Final = 10.0
ANSWER_LIMIT: Final = 16 * 1024  # bytes
VALUE_CHARS: Final = 200
PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `ok` is None when it could not run, or when the control does not exist here."""

    name: str
    expected: str
    observed: str
    ok: bool | None

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "expected": self.expected, "observed": self.observed, "ok": self.ok}


async def verify(sandbox: Sandbox, spec: SandboxSpec) -> dict[str, Any]:
    """Runs the probes in a sandbox and returns `{verdict, checked_at, checks}`, ready for JSON.

    An answer that is not ours makes the verdict `unknown`; a broken channel raises as `Sandbox.run` does.
    """
    outcome, stdout, _ = await sandbox.run(request())
    return report(outcome, stdout, spec, host_name=socket.gethostname())


def request() -> ExecRequest:
    """The probe as an exec: the source comes on stdin, so nothing in the workspace is read or imported."""
    return ExecRequest(
        id=f"probe-{secrets.token_hex(8)}",
        argv=("python3", "-I", "-S", "-E", "-"),
        stdin=SOURCE.encode(),
        timeout_s=TIMEOUT_S,
    )


def report(outcome: ExecOutcome, stdout: bytes, spec: SandboxSpec, *, host_name: str) -> dict[str, Any]:
    facts = parse(stdout) if outcome.ended_by == "exit" and outcome.exit_code == 0 else None
    findings = findings_of(facts, spec, host_name) if facts is not None else []
    return {
        "verdict": judge(findings),
        "checked_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "checks": [finding.to_dict() for finding in findings],
    }


def extended(proof: dict[str, Any], more: list[Finding]) -> dict[str, Any]:
    """A report with further checks. Where the probes showed nothing these alone prove nothing, but they can contradict."""
    verdict = judge([*(Finding(**check) for check in proof["checks"]), *more])
    if proof["verdict"] == "unknown" and verdict != "failed":
        verdict = "unknown"
    return {**proof, "verdict": verdict, "checks": [*proof["checks"], *(finding.to_dict() for finding in more)]}


def judge(findings: list[Finding]) -> Verdict:
    """failed: something is contradicted; degraded: something could not be shown; unknown: nothing was."""
    if not findings:
        return "unknown"
    if any(finding.ok is False for finding in findings):
        return "failed"
    return "proven" if all(finding.ok for finding in findings) else "degraded"


def answer(stdout: bytes, keys: Iterable[str]) -> dict[str, Any] | None:
    """What a program inside printed, None unless it is one JSON object of a bounded size with exactly these keys."""
    if len(stdout) > ANSWER_LIMIT:
        return None
    try:
        found = json.loads(stdout)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and set(found) == set(keys) else None


def parse(stdout: bytes) -> dict[str, str] | None:
    """The probe's answer, None unless it is exactly one: known keys, short text. What is printable in it is kept."""
    found = answer(stdout, KEYS)
    if found is None or not all(isinstance(value, str) and len(value) <= VALUE_CHARS for value in found.values()):
        return None
    return {key: "".join(c if c.isprintable() else "?" for c in value) for key, value in found.items()}


def findings_of(facts: dict[str, str], spec: SandboxSpec, host_name: str) -> list[Finding]:
    """Holds the probe's facts against the spec, in the order in which people read them."""
    return [
        _hostname(facts, spec, host_name),
        _same("engine_socket", "absent", facts["engine_socket"]),
        *_network(facts, spec),
        _same("capabilities", "none", facts["capabilities"]),
        _same("no_new_privs", "1", facts["no_new_privs"]),
        _same("seccomp", "2", facts["seccomp"]),
        _same("root_readonly", "read-only", facts["root"]),
        _same("uid", "1000:1000", facts["uid"]),
        _same("runtime_memory", "closed", facts["pid1"]),
        *_limits(facts, spec),
        # A named volume takes no mount options: no_new_privs and the device rules stand in for them.
        Finding("workspace_mount", "nosuid,nodev", facts["mount"], True if facts["mount"] == "nosuid,nodev" else None),
        Finding("runtime_shield", "execute-only interpreter", "not part of this version", None),
        Finding("syscall_filter", "own filter", "not part of this version", None),
    ]


def _same(name: str, expected: str, observed: str) -> Finding:
    return Finding(name, expected, observed, None if observed.startswith("unknown") else observed == expected)


def _hostname(facts: dict[str, str], spec: SandboxSpec, host_name: str) -> Finding:
    observed = facts["hostname"]
    return Finding("hostname", spec.workspace_id, observed, observed == spec.workspace_id and observed != host_name)


def _network(facts: dict[str, str], spec: SandboxSpec) -> list[Finding]:
    if spec.egress == "allow_all":
        names = {"network_route": "route", "network_gateway": "reached", "network_dns": "dns"}
        return [Finding(name, "unrestricted", facts[key], True) for name, key in names.items()]
    # An internal network keeps a route to a gateway that does not exist; what counts there is that nobody answers.
    route = _same("network_route", "none", facts["route"])
    if spec.network_mode == "internal":
        route = Finding("network_route", "any", facts["route"], True)
    return [
        route,
        _same("network_gateway", "nothing answers", facts["reached"]),
        _same("network_dns", "nothing answers", facts["dns"]),
    ]


def _limits(facts: dict[str, str], spec: SandboxSpec) -> list[Finding]:
    memory = spec.memory_bytes // PAGE * PAGE
    return [
        _number("limit_memory", memory, facts["memory"], slack=0),
        _number("limit_pids", spec.pids_limit, facts["pids"], slack=0),
        _number("limit_cpu", spec.cpu_cores, facts["cpu"], slack=0.01),
        _number("limit_file_size", spec.disk_bytes, facts["fsize"], slack=0),
    ]


def _number(name: str, expected: float, observed: str, *, slack: float) -> Finding:
    """`max` and `-1` are what a kernel says for no limit."""
    try:
        ok: bool | None = abs(float(observed) - expected) <= slack * expected
    except ValueError:
        ok = None if observed.startswith("unknown") else False
    return Finding(name, f"{expected:g}" if isinstance(expected, float) else str(expected), observed, ok)


def applied(spec: SandboxSpec, check: Check) -> dict[str, Any]:
    """What was applied, beside what was asked: `{egress, network, limits: {name: {asked, applied, enforced}}}`.

    Values are cores, bytes and counts. A limit that the engine cannot hold at all is applied as null.
    """
    asked: dict[str, Any] = {
        "cpu": spec.cpu_cores,
        "memory": spec.memory_bytes,
        "pids": spec.pids_limit,
        "disk": spec.disk_bytes,
        "egress": spec.egress,
    }
    worth: dict[str, Enforced] = {name: check.enforces.get(name, "unavailable") for name in LIMITS}
    if spec.disk_medium == "memory" and worth["disk"] == "soft":
        worth["disk"] = "enforced"
    if spec.egress == "deny_all" and spec.network_mode == "internal" and worth["egress"] == "enforced":
        worth["egress"] = "soft"  # the probe's verdict says whether it held
    held = {name: asked[name] if worth[name] != "unavailable" else None for name in LIMITS}
    return {
        "egress": held["egress"] or "allow_all",
        "network": _network_name(spec, worth["egress"]),
        "limits": {name: {"asked": asked[name], "applied": held[name], "enforced": worth[name]} for name in LIMITS},
    }


def _network_name(spec: SandboxSpec, egress: Enforced) -> str:
    if egress == "unavailable":
        return "host"
    return "egress bridge" if spec.egress == "allow_all" else spec.network_mode
