"""`primer doctor --deep`: one sandbox from start to end on this host's engine, and what it proved, a line each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from primer_site.errors import PrimerError
from primer_site.report import Finding, Level
from workspaces import confinement, confinement_limits, image
from workspaces.execution import ExecRequest
from workspaces.providers.base import Provider, Ref, SandboxSpec
from workspaces.sandbox import Sandbox

PREFIX = "doctor-"  # of the instance label: no server's sweep takes these for its own
LIMIT_S = 120.0  # of the whole
MEMORY_BYTES = 128 * 1024**2
CODE = "print(6 * 7)\nopen('proof.txt', 'w').write(str(6 * 7))\n"
# What a confined sandbox must show; the rest of the probes is told when it is contradicted.
PROVEN = {
    "hostname": "its host name is not this host's",
    "engine_socket": "the engine's socket is not in it",
    "network_route": "it has no route to anywhere",
    "network_gateway": "no host answers it",
    "network_dns": "no name is resolved for it",
    "capabilities": "it has no capability",
    "root_readonly": "its system is read-only",
    confinement_limits.PIDS: "one process more than its limit is refused",
    confinement_limits.FILE: "a file above its cap is refused",
}
LIMITS = ("limit_memory", "limit_pids", "limit_cpu", "limit_file_size")


def examine(config: dict[str, Any], tag: str = image.TAG) -> list[Finding]:
    """Runs the sandbox on the engine of a container provider's config and returns what it found. Not for an event loop."""

    async def collect() -> list[Finding]:
        return [finding async for finding in lines(config, tag)]

    return asyncio.run(collect())


async def lines(config: dict[str, Any], tag: str = image.TAG) -> AsyncIterator[Finding]:
    """The same on an event loop: each finding as soon as it is known. Whoever begins to read reads to the end."""
    from workspaces.providers import provider_class

    instance = f"{PREFIX}{secrets.token_hex(8)}"
    provider = provider_class("container")(config, {}, instance_id=instance)
    spec = SandboxSpec(
        instance, f"ws-{secrets.token_hex(8)}", 1, image=tag, memory_bytes=MEMORY_BYTES, pids_limit=64,
        disk_bytes=16 * 1024**2,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            ref = await provider.start(spec)
            yield Finding(Level.OK, "sandbox", f"{spec.workspace_id} started from {tag}")
            for finding in await _inside(provider, ref, spec):
                yield finding
    except PrimerError as exc:
        yield Finding(Level.FAIL, "sandbox", exc.detail, exc.hint_text)
    except TimeoutError:
        yield Finding(
            Level.FAIL, "sandbox", f"the check did not end within {LIMIT_S:g} s", "look at the engine's own log"
        )
    finally:
        left = await _remove(provider, spec)
        await provider.close()
    yield left


async def _inside(provider: Provider, ref: Ref, spec: SandboxSpec) -> list[Finding]:
    sandbox = Sandbox(lambda: provider.connect(ref), secrets.token_bytes(32), disk_bytes=spec.disk_bytes)
    try:
        request = ExecRequest(id=f"exec-{secrets.token_hex(8)}", argv=("python3", "-c", CODE), timeout_s=30)
        outcome, stdout, stderr = await sandbox.run(request)
        told = stdout.decode("utf-8", "replace").strip()
        worked = outcome.exit_code == 0 and told == "42"
        found = [_finding(worked, "run", "print(6 * 7) says 42", f"print(6 * 7) says {told or stderr[-200:]!r}")]
        kept = (await sandbox.read("proof.txt", limit=100)).data.decode("utf-8", "replace")
        found.append(_finding(kept == "42", "files", "proof.txt reads back 42", f"proof.txt reads back {kept!r}"))
        met = await confinement_limits.exhaust(sandbox, spec, (await provider.check()).enforces)
        proof = confinement.extended(await confinement.verify(sandbox, spec), met)
        return [*found, *proofs(proof["checks"])]
    finally:
        await sandbox.close()


def proofs(checks: list[dict[str, Any]]) -> list[Finding]:
    """The probes' answers as lines: contradicted ones fail, those that could not run warn."""
    by_name = {check["name"]: check for check in checks}
    if not by_name:
        return [Finding(Level.FAIL, "probe", "the probes of the confinement did not answer")]
    found = [_proof(by_name[name], text) for name, text in PROVEN.items() if name in by_name]
    limits = [by_name[name] for name in LIMITS if name in by_name]
    wrong = [check for check in limits if check["ok"] is not True]
    words = ", ".join(f"{check['name'].removeprefix('limit_')} {check['observed']}" for check in limits)
    found.append(_finding(not wrong and bool(limits), "limits", f"set: {words}", f"not as asked: {words}"))
    rest = [check for name, check in by_name.items() if name not in PROVEN and name not in LIMITS]
    return found + [_proof(check, check["name"]) for check in rest if check["ok"] is False]


def _proof(check: dict[str, Any], text: str) -> Finding:
    if check["ok"] is None:
        return Finding(Level.WARN, "probe", f"not shown: {text} ({check['observed']})")
    wrong = f"contradicted: {text} (expected {check['expected']}, observed {check['observed']})"
    return _finding(check["ok"], "probe", text, wrong)


def _finding(holds: bool, name: str, text: str, otherwise: str) -> Finding:
    return Finding(Level.OK, name, text) if holds else Finding(Level.FAIL, name, otherwise)


async def _remove(provider: Provider, spec: SandboxSpec) -> Finding:
    """Deletes the sandbox, then asks the engine what is left of it."""
    hint = f"docker ps -a; docker volume ls: remove what is named {spec.workspace_id}"
    try:
        ref = Ref(provider.kind, spec.workspace_id, spec.generation)
        async with asyncio.timeout(LIMIT_S):
            await provider.destroy(ref)
            left = await provider.discover()
    except (PrimerError, TimeoutError) as exc:
        return Finding(Level.FAIL, "leftovers", f"the sandbox could not be removed: {exc}", hint)
    if left:
        return Finding(Level.FAIL, "leftovers", f"{spec.workspace_id} is still on the engine", hint)
    return Finding(Level.OK, "leftovers", "deleted: no container and no volume is left")
