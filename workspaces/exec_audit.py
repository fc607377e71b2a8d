"""What the audit log keeps of runs that people start and end; an agent's are in its transcript. Sync."""

from __future__ import annotations

from accounts.audit import Actor, audit_record
from primer_site import vault
from workspaces.access import Facts
from workspaces.execution import ExecRequest
from workspaces.models import Exec, ExecState

SHOWN = 2000  # characters of all arguments together
CWD_SHOWN = 500


def started(by: Actor, facts: Facts, asked: ExecRequest, background: bool) -> None:
    """A line for a run that was stored: its arguments with known secrets masked, of its environment the names alone."""
    vault.unseal(facts.secrets)  # from now on known: a secret of the workspace may stand in an argument
    after = {
        "workspace_id": facts.slug, "argv": bounded(asked.argv), "cwd": vault.hide(asked.cwd)[:CWD_SHOWN],
        "env_names": sorted(asked.env), "stdin_bytes": len(asked.stdin), "timeout_s": asked.timeout_s,
        "background": background,
    }  # fmt: skip
    audit_record(by, "exec.start", kind=Exec.KIND, object_id=asked.id, after=after)


def ended(by: Actor, row: Exec, *, over: bool) -> None:
    """A line for a run that somebody has ended, as it was looked up before; none for one of which nothing was left."""
    if row.state != ExecState.RUNNING and not row.survivors:
        return
    before = {"workspace_id": row.workspace.slug, "state": str(row.state), "survivors": len(row.survivors)}
    after = {"state": str(ExecState.ENDED if over else ExecState.RUNNING), "survivors": 0}
    audit_record(by, "exec.kill", kind=Exec.KIND, object_id=row.slug, before=before, after=after)


def bounded(argv: tuple[str, ...]) -> list[str]:
    """Arguments without known secrets, cut where all together become long; the last item then says how many are missing."""
    shown: list[str] = []
    room = SHOWN
    for part in argv:
        if room <= 0:
            return [*shown, f"… {len(argv) - len(shown)} more"]
        text = vault.hide(part)
        shown.append(text if len(text) <= room else f"{text[:room]}…")
        room -= len(text) + 1
    return shown
