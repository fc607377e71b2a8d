"""Asked, applied, proven: the rows that console people read, from a workspace as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounts.pages.resource import audited
from workspaces.confinement_limits import DISK, FILE, PIDS
from workspaces.models import Exec, Workspace

ENTRIES = 100
SIZES = {"memory", "disk"}
LIMITS = {"cpu": "CPU", "memory": "Memory", "pids": "Processes", "disk": "Disk", "egress": "Egress"}
ATTEMPTS = {PIDS, FILE, DISK}  # made on request; one that was not made says nothing about the limit
NEIGHBOURS = "Neighbours, host services"
APART = {  # network: why nobody answers there
    "none": "no network: loopback only",
    "internal": "a network of its own, without a way out",
    "egress bridge": "one bridge for all; neighbours are kept apart on it",
}
# Row: (title, the limit it belongs to, what was applied without one, the probe's checks).
ROWS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("Egress", "egress", "", ("network_route", "network_gateway", "network_dns")),
    (NEIGHBOURS, "", "", ("network_gateway",)),
    ("Host name", "", "its own UTS namespace", ("hostname",)),
    ("Engine socket, host paths", "", "only the workspace's volume and a temporary area are mounted", ("engine_socket", "workspace_mount")),
    ("User, capabilities, privileges", "", "user 1000, no capability, no new privileges", ("uid", "capabilities", "no_new_privs")),
    ("Syscall filter", "", "the engine's profile", ("seccomp", "syscall_filter")),
    ("Root filesystem", "", "read-only", ("root_readonly",)),
    ("Memory", "memory", "", ("limit_memory",)),
    ("CPU", "cpu", "", ("limit_cpu",)),
    ("Processes", "pids", "", ("limit_pids", PIDS)),
    ("Disk", "disk", "", ("limit_file_size", FILE, DISK)),
    ("Runtime process", "", "its memory is closed to programs", ("runtime_memory", "runtime_shield")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proof:
    """One row of the table; `word` is what it comes to: holds, soft, not applied, contradicted, not checked."""

    title: str
    asked: str
    applied: str
    word: str
    checks: list[Mapping[str, Any]]


def limits(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each limit with what was asked, what was applied and what that is worth."""
    known = (item.get("applied") or {}).get("limits") or {}
    return [
        {"title": LIMITS.get(name, name), "asked": shown(name, one["asked"]), "applied": shown(name, one["applied"]), "worth": one["enforced"]}
        for name, one in known.items()
    ]  # fmt: skip


def table(item: Mapping[str, Any]) -> list[Proof]:
    applied = (item.get("applied") or {}).get("limits") or {}
    checks = {check["name"]: check for check in (item.get("confinement") or {}).get("checks") or []}
    found, named = [], set()
    for title, limit, fixed, names in ROWS:
        mine = [checks[name] for name in names if name in checks]
        named |= set(names)
        one = applied.get(limit) or {}
        asked = shown(limit, one.get("asked")) if limit else ""
        words = shown(limit, one.get("applied")) if limit else fixed if checks else ""
        network = str((item.get("applied") or {}).get("network", ""))
        if limit == "egress" and one:
            words = f"network {network}"
        if limit == "disk" and one.get("enforced") == "soft":
            words += ": a cap on each file, and a watcher"
        if title == NEIGHBOURS:
            words = APART.get(network, "")
            mine = (
                mine if network != "egress bridge" else []
            )  # there the probe looks for the way out that was asked for
        found.append(Proof(title, asked, words, _word(mine, one.get("enforced", "")), mine))
    rest = [check for name, check in checks.items() if name not in named]
    return [*found, *(Proof(check["name"].replace("_", " "), "", "", _word([check], ""), [check]) for check in rest)]


def _word(checks: list[Mapping[str, Any]], worth: str) -> str:
    if any(check["ok"] is False for check in checks):
        return "contradicted"
    if worth == "unavailable":
        return "not applied"
    if not checks or all(check["ok"] is None for check in checks):
        return "not checked"
    unsure = any(check["ok"] is None and check["name"] not in ATTEMPTS for check in checks)
    return "soft" if worth == "soft" or unsure else "holds"


def shown(name: str, value: Any) -> str:
    if value is None:
        return "nothing" if name else ""
    if name in SIZES and isinstance(value, int | float):
        return f"{value / 1024**3:g} GiB" if value >= 1024**3 else f"{value / 1024**2:g} MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def activity(row: Workspace) -> list[dict[str, Any]]:
    """Phases, runs and audit lines in one timeline, newest first."""
    found: list[dict[str, Any]] = []
    for item in row.phases:
        found.append(
            {"at": item["at"], "kind": "phase", "text": item["phase"], "more": item.get("reason", "").replace("_", " ")}
        )
    for run in Exec.objects.filter(workspace=row).order_by("-created_at")[:ENTRIES]:
        command = run.request["argv"][-1] if run.request["argv"][:2] == ["sh", "-c"] else " ".join(run.request["argv"])
        found.append(
            {
                "at": run.created_at.isoformat(),
                "kind": "exec",
                "text": command[:300],
                "more": run.ended_by or run.state,
                "exec_id": run.slug,
            }
        )
    found += audited(row)
    return sorted(found, key=lambda one: str(one["at"]), reverse=True)[:ENTRIES]
