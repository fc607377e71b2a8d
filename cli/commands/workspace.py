"""`primectl workspace`: execute, start, stop, verify; files are in `files.py`."""

from __future__ import annotations

import base64
from typing import Any

import click

from cli import present
from cli.app import App
from cli.command import Group, command
from cli.commands.execs import workspace_execs, workspace_kill, workspace_output
from cli.commands.files import files
from cli.commands.get import pairs
from cli.commands.wait import until_phase
from cli.errors import ApiError, CliError, Done, Exit, OutputFailed, UsageError
from cli.execution import Execution, Kept, Nowhere, Screen, piped_input
from cli.kinds import WORKSPACE, Ref, ref_of
from cli.text import dig, duration, time_limit
from cli.verdict import verdict

workspace = Group(
    "workspace",
    help="Execute, move files, start, stop and verify workspaces.",
    short_help="Execute, move files, start, stop and verify workspaces.",
    examples=(
        "primectl workspace exec ws-1a2b3c4d5e6f7081 -- python3 -V",
        "primectl workspace files get ws-1a2b3c4d5e6f7081 out.txt --content",
    ),
)

env_option = click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable; repeatable.")
raw_option = click.option(
    "--raw", is_flag=True, help="On a terminal: the bytes as they are. They can do anything to it."
)


@command(
    "exec",
    "primectl workspace exec ws-1a2b3c4d5e6f7081 -- python3 -c 'print(6*7)'",
    "primectl workspace exec ws-1a2b -c 'ls | wc -l' --timeout 10s",
    "tar c src | primectl workspace exec ws-1a2b -- tar x",
    short_help="Run a command in a workspace.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("argv", nargs=-1, metavar="-- CMD ARG…")
@click.option("-c", "line", metavar="LINE", help="A shell line instead of a command.")
@click.option("--cwd", metavar="DIR", help="Where to run it.")
@env_option
@click.option("--timeout", metavar="DURATION", help="End it after this (60s without it).")
@click.option("--background", is_flag=True, help="Start it, print its id, return.")
@raw_option
@click.option("-i", "terminal_i", is_flag=True, hidden=True)
@click.option("-t", "terminal_t", is_flag=True, hidden=True)
@click.pass_obj
def workspace_exec(
    app: App,
    *,
    name: str,
    argv: tuple[str, ...],
    line: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    timeout: str | None,
    background: bool,
    raw: bool,
    terminal_i: bool,
    terminal_t: bool,
) -> None:
    """Run a command in a workspace and leave with its exit code.

    Piped standard input is sent to it, 8 MiB at most. Output is shown whole as it comes; a program that writes more
    than 256 MiB to one stream is ended there (output_cap). Of each stream the server keeps 1 MiB, its head and tail.
    """
    style = app.format(("json",), "text")
    if terminal_i or terminal_t:
        raise UsageError("a terminal in the sandbox is not offered", hint="pipe the input, or use -c 'shell line'")
    if bool(argv) == bool(line):
        raise UsageError("give either -- CMD ARG…, or -c 'shell line'")
    body: dict[str, Any] = {"command": line} if line else {"argv": list(argv)}
    body |= {"cwd": cwd} if cwd else {}
    body |= {"env": pairs("--env", env)} if env else {}
    body |= {"timeout_s": time_limit(timeout, "--timeout")} if timeout else {}
    ref = app.full(ref_of(WORKSPACE, name))
    data = None if background else piped_input(app.console)
    if data:
        body["stdin_base64"] = base64.b64encode(data).decode()
    if background:
        _background(app, ref, body, style)
        return
    raise Done(execute(app, ref, body, style, raw=raw))


def _background(app: App, ref: Ref, body: dict[str, Any], style: str) -> None:
    try:
        started = app.client.post(app.path(ref, "exec"), {**body, "background": True}).object
    except ApiError as exc:
        raise _not_run(app, exc, ref) from exc
    if style == "json":
        app.console.json(started)
    else:
        app.console.line(str(started.get("id")))


def execute(
    app: App,
    ref: Ref,
    body: dict[str, Any],
    style: str,
    *,
    raw: bool = False,
    extra: dict[str, Any] | None = None,
    temporary: bool = False,
) -> int:
    """Runs it, shows it, and returns the exit code of the contract. A `temporary` workspace is never hinted at."""
    execution = Execution(app, ref.id, Nowhere() if style == "json" else Screen(app.console, raw=raw))
    try:
        result = execution.run(body)
    except ApiError as exc:
        raise _not_run(app, exc, ref) from exc
    except OutputFailed as exc:
        exc.exit = Exit.EXEC_LOST
        if execution.id:
            gone = "the program had begun and its workspace is removed: make room, and know that a repeat runs it again"
            exc.hint = gone if temporary else f"the program goes on: {_where(ref, execution)}"
        raise
    if result.get("ended_by") == "lost" and not dig(result, "error.detail"):
        result["error"] = {"detail": execution.whereabouts()}
    if style == "json":
        app.console.json({**(extra or {}), **_with_output(result, execution.kept(result))})
    else:
        app.console.fresh_line()
    where, shown = "" if temporary else ref.id, style != "json"
    code, lines = verdict(result, execution.lost, where, shown=shown, unkept=execution.unkept)
    for line in lines:
        app.console.note(line)
    return code


def _where(ref: Ref, execution: Execution) -> str:
    return f"primectl workspace output {ref.id} {execution.id}"


def _with_output(result: dict[str, Any], sink: Kept) -> dict[str, Any]:
    """The result with the kept output: text where both streams are, else base64."""
    output: dict[str, Any] = {"encoding": "utf-8"}
    try:
        output |= {stream: bytes(kept).decode("utf-8") for stream, kept in sink.data.items()}
    except UnicodeDecodeError:
        output = {stream: base64.b64encode(kept).decode() for stream, kept in sink.data.items()}
        output["encoding"] = "base64"
    return {**result, **output}


_COULD_NOT_RUN = {"engine_unavailable", "workspace_lost", "workspace_not_running", "cannot_start", "sandbox_busy"}


# What the API calls the parts of a request that have another name on the command line.
_FLAGS = {"timeout_s": "--timeout", "cwd": "--cwd", "env": "--env", "argv": "the command", "command": "-c"}


def _not_run(app: App, exc: ApiError, ref: Ref) -> CliError:
    """Refusals keep their codes and name the flag; that it could not be run at all is 125."""
    exc.lines = [f"{_FLAGS[f.field]}: {f.message}" if f.field in _FLAGS else str(f) for f in exc.fields] or exc.lines
    if exc.code == "cannot_start":  # the sentence names the program, its field does not
        exc.lines = [exc.detail.removesuffix(".")]
        exc.hint = "check the name; a shell line goes into -c" if "items of argv" in exc.hint else exc.hint
    if exc.code in _COULD_NOT_RUN:
        exc.exit = Exit.EXEC_LOST
    return app.explained(exc, ref)


@command(
    "start",
    "primectl workspace start ws-1a2b3c4d5e6f7081",
    "primectl workspace start ws-1a2b --timeout 60s",
    short_help="Start a stopped workspace.",
)
@click.argument("name", metavar="WORKSPACE")
@click.option("--timeout", default="120s", show_default=True, metavar="DURATION", help="How long to wait for it.")
@click.option("--no-wait", is_flag=True, help="Return when the server has taken the order.")
@click.pass_obj
def workspace_start(app: App, *, name: str, timeout: str, no_wait: bool) -> None:
    """Start a stopped workspace, its files as they were, and wait until it is running."""
    _move(app, name, "start", "running", timeout=timeout, no_wait=no_wait)


@command(
    "stop",
    "primectl workspace stop ws-1a2b3c4d5e6f7081",
    "primectl workspace stop ws-1a2b --no-wait",
    short_help="Stop a workspace; its files stay.",
)
@click.argument("name", metavar="WORKSPACE")
@click.option("--timeout", default="120s", show_default=True, metavar="DURATION", help="How long to wait for it.")
@click.option("--no-wait", is_flag=True, help="Return when the server has taken the order.")
@click.pass_obj
def workspace_stop(app: App, *, name: str, timeout: str, no_wait: bool) -> None:
    """Stop a workspace: its processes end, its files stay."""
    _move(app, name, "stop", "stopped", timeout=timeout, no_wait=no_wait)


def _move(app: App, name: str, verb: str, phase: str, *, timeout: str, no_wait: bool) -> None:
    limit_s = duration(timeout, "--timeout")
    ref = app.full(ref_of(WORKSPACE, name))
    try:
        app.client.post(app.path(ref, verb))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    if not no_wait:
        until_phase(app, ref, phase, limit_s)
    if not app.quiet:
        app.console.line(f"{ref} {phase}" if not no_wait else f"{ref} {'starting' if verb == 'start' else 'stopping'}")


@command(
    "verify",
    "primectl workspace verify ws-1a2b3c4d5e6f7081",
    "primectl workspace verify ws-1a2b -o json",
    short_help="Prove the confinement again.",
)
@click.argument("name", metavar="WORKSPACE")
@click.pass_obj
def workspace_verify(app: App, *, name: str) -> None:
    """Run the probes in the sandbox again and show what was asked, applied and proven. Exit 1 unless proven.

    It also meets the limits: one process too many and one byte too many must be refused. While programs run in the
    workspace, what would disturb them is left out, and the table says so.
    """
    style = app.format(("json",), "text")
    ref = app.full(ref_of(WORKSPACE, name))
    try:
        answer = app.client.post(app.path(ref, "verify")).object
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    item = answer if "confinement" in answer else {**app.fetch(ref), "confinement": answer}
    if style == "json":
        app.console.json(item["confinement"])
    else:
        for line in present.confinement(app.console, item):
            app.console.line(line)
    raise Done(Exit.OK if dig(item, "confinement.verdict") == "proven" else Exit.FAILED)


_EXECS = (workspace_exec, workspace_execs, workspace_output, workspace_kill)
ACTIONS = (*_EXECS, workspace_start, workspace_stop, workspace_verify, files)
for action in ACTIONS:
    workspace.add_command(action)
