"""From a wish to a running sandbox: engine, channel, the template's files and commands, the probes of its confinement."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from django.utils import timezone

from primer_site import loop, metrics
from primer_site.crashpoints import reach
from primer_site.errors import PrimerError
from workspaces import access, bells, confinement, confinement_limits, engines, leases
from workspaces.execution import ExecRequest
from workspaces.models import Phase, Workspace, advance
from workspaces.providers.base import ChannelClosed, Enforced, Provider, SandboxSpec, StartFailed
from workspaces.sandbox import Sandbox
from workspaces.snapshot import sandbox_spec

INIT_TIMEOUT_S = 300.0  # of each command of a template
INIT_KEEP_BYTES = 16 * 1024
PROBE_TIMEOUT_S = 20.0
EXHAUST_TIMEOUT_S = 20.0
OPEN_TIMEOUT_S = 15.0


class InitFailed(StartFailed):
    """A command of the template did not succeed."""

    code = "init_failed"


class NotEnforced(StartFailed):
    """The engine cannot enforce a limit that the template requires."""

    code = "not_enforced"
    hint = "Use an engine that can, or say require: best_effort."


async def boot(row: Workspace) -> None:
    """Brings a workspace from `pending` (or `starting`, after a restart) to `running`.

    Raises what the provider raises, `InitFailed`, `NotEnforced`, and `Moved` when the row was moved meanwhile.
    """
    engine, spec = await engines.engine_of(row.provider_id), sandbox_spec(row)
    if row.spec.get("require") == "enforced":
        await require_enforced(engine, spec)
    if row.phase != Phase.STARTING:
        await _fetch_image(row, engine, spec)
        await _move(row, Phase.STARTING)
    async with engines.creates(row.provider_id):
        ref = await engine.start(spec)
    await loop.write(leases.store_ref, row.pk, ref)
    await loop.read(row.refresh_from_db)
    sandbox = await _opened(row)
    if not row.prepared:
        await prepare(row, sandbox)
    check = await engines.check_of(row.provider_id)
    proof = await probe(sandbox, spec)
    await loop.write(
        advance, row, to=Phase.RUNNING, holder=leases.HOLDER, prepared=True,
        applied=confinement.applied(spec, check), confinement=proof, boot_lines=[],
    )  # fmt: skip
    metrics.workspace_seen(row.phases)
    bells.ring(row.pk)


async def _fetch_image(row: Workspace, engine: Provider, spec: SandboxSpec) -> None:
    """A phase of its own: a pull may take minutes, which are not the sandbox's."""
    if await engine.lacks_image(spec):
        if row.phase == Phase.PENDING:
            await _move(row, Phase.PULLING)
        await engine.fetch_image(spec)


async def _move(row: Workspace, to: Phase) -> None:
    await loop.write(advance, row, to=to, holder=leases.HOLDER)
    bells.ring(row.pk)


async def _opened(row: Workspace) -> Sandbox:
    """The open client; the runtime greeted the provider a moment ago, so one that does not answer now never will."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return await access.open_sandbox(access.facts_of(row))
    except TimeoutError:
        raise StartFailed("The runtime in the sandbox does not answer as it should.") from None


async def require_enforced(engine: Provider, spec: SandboxSpec) -> None:
    """Raises `NotEnforced` naming the limits that this engine does not hold."""
    image = await engine.check_image(spec)
    if loose := [f"{name} ({worth})" for name, worth in image.limits.items() if worth != "enforced"]:
        raise NotEnforced(
            f"The template requires every limit to be enforced; this engine does not: {', '.join(loose)}."
        )


async def prepare(row: Workspace, sandbox: Sandbox) -> None:
    """Puts the template's files in and runs its commands, in order.

    A restart in the middle finds the command that runs, and the ends of those before it, by their ids: the runtime
    starts no id twice.
    """
    prefix = f"init-{row.slug}-{row.generation}-"
    begun = any(run.id.startswith(prefix) for run in await sandbox.list_execs())
    for item in [] if begun else row.spec["files"]:  # a command may have changed them since
        try:
            await sandbox.write(item["path"], base64.b64decode(item["content_base64"]), mode=item["mode"])
        except ChannelClosed:
            raise
        except PrimerError as exc:
            raise InitFailed(f"The template's file {item['path']} could not be written: {exc.detail}") from exc
    for number, argv in enumerate(row.spec["init_commands"]):
        request = ExecRequest(id=f"{prefix}{number}", argv=tuple(argv), timeout_s=INIT_TIMEOUT_S)
        handle = await sandbox.start_exec(request)
        reach("init-command")
        outcome, stdout, stderr = await sandbox.collect(handle, INIT_KEEP_BYTES)
        if outcome.ended_by != "exit" or outcome.exit_code != 0:
            lines = (stdout + stderr).decode("utf-8", "replace").splitlines()[-20:]
            how = f"exit code {outcome.exit_code}" if outcome.ended_by == "exit" else f"ended by {outcome.ended_by}"
            command = " ".join(argv)[:200]
            raise InitFailed(f"A command of the template failed ({how}): {command}", boot_lines=tuple(lines))


async def probe(sandbox: Sandbox, spec: SandboxSpec) -> dict[str, Any]:
    """The confinement as proved from inside; `unknown` with the reason when the probe itself could not run."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await confinement.verify(sandbox, spec)
    except TimeoutError:
        return unknown("the probe did not end in time")
    except PrimerError as exc:
        return unknown(exc.detail)


def unknown(why: str) -> dict[str, Any]:
    finding = {"name": "probe", "expected": "an answer", "observed": why, "ok": None}
    return {"verdict": "unknown", "checked_at": timezone.now().isoformat().replace("+00:00", "Z"), "checks": [finding]}


async def exhaust(sandbox: Sandbox, spec: SandboxSpec, applied: dict[str, Any]) -> list[confinement.Finding]:
    """The limits met from inside, or why they could not be. `applied` is the workspace's: what each limit is worth."""
    worth: dict[str, Enforced] = {name: one["enforced"] for name, one in applied.get("limits", {}).items()}
    try:
        async with asyncio.timeout(EXHAUST_TIMEOUT_S):
            return await confinement_limits.exhaust(sandbox, spec, worth)
    except TimeoutError:
        why = "the attempt did not end in time"
    except PrimerError as exc:
        why = exc.detail
    return confinement_limits.unmade(confinement_limits.plan_of(spec, worth, 0), spec, why)


async def verify(row: Workspace) -> dict[str, Any]:
    """Runs the probes again in a running workspace, meets its limits, and stores what both say."""
    sandbox, spec = await access.require_running(row.pk), sandbox_spec(row)
    proof = await probe(sandbox, spec)
    proof = confinement.extended(proof, await exhaust(sandbox, spec, row.applied or {}))
    await loop.write(leases.store_confinement, row.pk, row.generation, proof)
    return proof
