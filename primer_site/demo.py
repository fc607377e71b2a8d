"""`primer demo`: the code-interpreter recipe, end to end, on a server of its own; it leaves nothing behind."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

from primer_site import demo_leftovers, engine, report
from primer_site.demo_server import DemoServer, Ran
from primer_site.errors import PrimerError

SNIPPET = """\
import socket, os
print('RESULT', 6 * 7)
open('/workspace/out.txt', 'w').write(str(6 * 7))
open('/workspace/sandbox_host.txt', 'w').write(socket.gethostname())
open('/workspace/host_sock.txt', 'w').write(str(os.path.exists('/var/run/docker.sock')))
"""
LOCAL_PROVIDER = "kind: workspace_provider\nspec:\n  id: docker-local\n  provider: local\n  config:\n    kind: local\n    root_path: {root}\n"
LOCAL_TEMPLATE = (
    "kind: workspace_template\nspec:\n  id: code-sandbox\n  provider_id: docker-local\n  backend:\n    kind: local\n"
    "  env:\n    PATH: {path}\n"
)
STANDARD_PATH = "/usr/local/bin:/usr/bin:/bin"
NOT_ISOLATED = (
    "NOT ISOLATED: the code runs on this host, as a process like any other. Never do this with untrusted code."
)


@dataclass(slots=True)
class Checks:
    """What the demo proves; every line is printed as it is found."""

    failed: list[str] = field(default_factory=list)

    def need(self, holds: bool, text: str) -> None:
        """Raises `Stopped` when it does not hold: what comes after it would fail of the same."""
        self.expect(holds, text)
        if not holds:
            raise Stopped

    def expect(self, holds: bool, text: str) -> None:
        if holds:
            report.ok("check", text)
        elif not self.failed:
            report.fail("check", text)
            self.failed.append(text)


class Stopped(Exception):
    """A check failed and is printed."""


def samples() -> Path:
    """Where the sample manifests are: in the checkout, or beside the interpreter that Primer is installed for."""
    checkout = Path(__file__).resolve().parent.parent / "samples"
    return checkout if checkout.is_dir() else Path(sys.prefix) / "share" / "primer" / "samples"


def demo(keep: bool, local: bool) -> int:
    """Runs the recipe; 0 only if all of it held, else 1."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    if not local:
        _need_engine()
        demo_leftovers.clear()
    claim = demo_leftovers.Claim()
    server = DemoServer(claim.directory, secrets.token_hex(32), local=local)
    checks = Checks()
    try:
        server.start()
        _recipe(server, checks, local=local)
    except Stopped:
        pass
    except PrimerError as exc:
        checks.expect(False, exc.detail)
    finally:
        _clean(server, checks, claim, keep=keep, local=local)
        claim.release()
    took = f"({time.monotonic() - began:.1f} s)"
    if checks.failed:
        click.echo(f"demo: failed {took}: {checks.failed[0]}")
        return 1
    click.echo(f"demo: ok {took}" + (" NOT ISOLATED" if local else ""))
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _need_engine() -> None:
    from primer_site import images

    found = engine.check("demo")
    if found.health == "unreachable":
        reason = found.reasons[0] if found.reasons else f"No container engine answers at {engine.socket_path()}."
        raise PrimerError(
            f"{reason} The recipe needs one: its point is that the code does not run on this host.",
            hint=f"{engine.how_to_get_one()}; or primer demo --local, which is NOT ISOLATED",
        )
    report.ok("engine", engine.describe(found))
    images.ensure()


def _recipe(server: DemoServer, checks: Checks, *, local: bool) -> None:
    if local:
        click.echo(f"\n{NOT_ISOLATED}")
    _write_files(server.work, local=local)
    _step("1. Register the container provider")
    server.primectl("create", "-f", "docker-provider.yaml").must("workspace_provider/docker-local created")
    _step("2. Define the sandbox template")
    server.primectl("create", "-f", "code-sandbox.yaml").must("workspace_template/code-sandbox created")
    _step("3. Create the code-runner agent, on the built-in model that needs no key")
    server.primectl("create", "-f", "scripted-model.yaml").must("llm_provider/scripted created")
    server.primectl("create", "-f", "code-runner.yaml").must("agent/code-runner created")
    _step("4. Materialise the sandbox and run the code")
    made = server.primectl("create", "workspace", "--set", "template_id=code-sandbox")
    workspace = made.must("workspace/ws-").partition("/")[2].split()[0]
    ran = server.primectl("session", "run", workspace, "--agent", "code-runner", "-i", "Run this code: print(6 * 7)")
    _expect_completed(checks, ran)
    checks.need("42" in ran.stdout, "the answer has 42")
    if not local:
        _prove(server, checks, workspace)
    _step("5. Tear down")
    _tear_down(server, checks, workspace, local=local)


def _write_files(work: Path, *, local: bool) -> None:
    for sample in samples().glob("*.yaml"):
        shutil.copy(sample, work)
    (work / "snippet.txt").write_text(f"Run this code:\n{SNIPPET}")
    if local:
        _write_local(work)
    elif (path := engine.socket_path()) != engine.USUAL_SOCKET:
        provider = work / "docker-provider.yaml"
        provider.write_text(provider.read_text().replace(engine.USUAL_SOCKET, path))
        report.warn("engine", f"docker-provider.yaml says {path} instead of {engine.USUAL_SOCKET} here")


def _write_local(work: Path) -> None:
    """Provider and template on this host; the recipe types `python`, which not every host has beside `python3`."""
    folders = {name: work.parent / name for name in ("sandboxes", "bin")}
    for folder in (work.parent, *folders.values()):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)  # under a root server the code runs as another user, who has to get to its directory
    (folders["bin"] / "python").symlink_to(shutil.which("python3", path=STANDARD_PATH) or sys.executable)
    (work / "docker-provider.yaml").write_text(LOCAL_PROVIDER.format(root=folders["sandboxes"]))
    (work / "code-sandbox.yaml").write_text(LOCAL_TEMPLATE.format(path=f"{STANDARD_PATH}:{folders['bin']}"))


def _prove(server: DemoServer, checks: Checks, workspace: str) -> None:
    """The recipe's test snippet and what it left in the sandbox."""
    click.echo("\nsnippet.txt, the recipe's test snippet:")
    click.echo("".join(f"  {line}\n" for line in (server.work / "snippet.txt").read_text().splitlines()), nl=False)
    ran = server.primectl("session", "run", workspace, "--agent", "code-runner", "-i", "@snippet.txt")
    _expect_completed(checks, ran)
    found = {
        name: server.primectl("workspace", "files", "get", workspace, name, "--content").stdout
        for name in ("out.txt", "sandbox_host.txt", "host_sock.txt")
    }
    checks.need(found["out.txt"] == "42", "out.txt holds 42: the code ran and wrote into the sandbox")
    inside, here = found["sandbox_host.txt"], socket.gethostname()
    checks.need(bool(inside) and inside != here, f"the sandbox's host name is {inside or '?'}, this host's is {here}")
    checks.need(found["host_sock.txt"] == "False", "the engine's socket is not in the sandbox (False)")


def _expect_completed(checks: Checks, ran: Ran) -> None:
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    checks.need(ran.code == 0 and last == "ended: completed", f"the session {last or 'did not end'}")


def _tear_down(server: DemoServer, checks: Checks, workspace: str, *, local: bool) -> None:
    server.primectl("delete", "workspace", workspace).must(f"workspace/{workspace} deleted")
    gone = server.primectl("get", "workspace", workspace)
    checks.need(gone.code == 3, "the workspace is not found any more")
    if not local:
        left = engine.objects_named(workspace)
        checks.need(not left, f"left on the engine: {', '.join(left)}" if left else "nothing left: container, volume")


def _clean(server: DemoServer, checks: Checks, claim: demo_leftovers.Claim, *, keep: bool, local: bool) -> None:
    from primer_site import destroy

    instance = server.instance_id()
    checks.expect(server.stop() in (0, None), "the server stopped cleanly")
    if not local and instance:
        left = destroy.remove_objects(instance, [("container", engine.config(), {})])
        if left != [destroy.NOTHING]:
            checks.expect(False, f"the demo had to remove from the engine: {left[0]}")
    if keep:
        claim.keep()
        remove = f"PRIMER_HOME={server.home} primer destroy && rm -r {server.directory}"
        report.ok("data", f"kept: PRIMER_HOME={server.home}; remove it with: {remove}")
    else:
        shutil.rmtree(server.directory, ignore_errors=True)


def _step(text: str) -> None:
    click.echo(f"\n{click.style(text, bold=True)}")
