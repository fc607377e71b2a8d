"""`primectl run`: a snippet, a sandbox of its own, and nothing left behind."""

from __future__ import annotations

import base64
import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cli.app import App
from cli.command import GIVEN, command
from cli.commands.get import pairs
from cli.commands.wait import until_gone, until_phase
from cli.commands.workspace import env_option, execute, raw_option
from cli.errors import ApiError, CliError, Done, Exit, UsageError
from cli.execution import piped_input
from cli.invoked import word
from cli.kinds import TEMPLATE, WORKSPACE, Ref, ref_of
from cli.landing import Landing, local_name
from cli.refusals import refused
from cli.text import dig, time_limit, whole_seconds
from cli.transfer import fetch
from cli.upload import put

DEFAULT_TIMEOUT_S = 60.0
_SPARE_S = 300  # what a killed client may leave behind lives so much longer than its run
_START_S = 300.0
_REMOVAL_S = 30.0
_BY_SUFFIX = {".py": "python", ".sh": "sh"}
_LONGEST_ARGUMENT = 64 * 1024  # the kernel takes 128 KiB in one argument
_MAX_CODE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """What runs: its command, and the file that must be there for it (name and bytes)."""

    argv: list[str]
    name: str = ""
    data: bytes = b""


@command(
    "run",
    "primectl run -c 'print(6*7)'",
    "primectl run analysis.py --upload data.csv --fetch plot.png -- --fast",
    "primectl run -t code-sandbox --timeout 10s - < snippet.py",
    short_help="Run a file or a snippet in a sandbox that is removed afterwards.",
)
@click.argument("words", nargs=-1, metavar="[FILE|-] [-- ARGS…]")
@click.option("-c", "code", metavar="CODE", help="Python code instead of a file.")
@click.option("-t", "--template", "template_name", metavar="ID", help="The template; else the context's, else default.")
@click.option("--command", "program", metavar="CMD", help="What runs the file; .py and .sh are known.")
@click.option("--timeout", metavar="DURATION", help="End it after this (60s without it).")
@env_option
@click.option(
    "--upload", "uploads", multiple=True, metavar="PATH", help="A file or directory to take along; repeatable."
)
@click.option("--fetch", "fetches", multiple=True, metavar="PATH", help="What to bring here at the end; repeatable.")
@click.option("--keep", is_flag=True, help="Do not remove the workspace.")
@raw_option
@click.pass_obj
def run(
    app: App,
    *,
    words: tuple[str, ...],
    code: str | None,
    template_name: str | None,
    program: str | None,
    timeout: str | None,
    env: tuple[str, ...],
    uploads: tuple[str, ...],
    fetches: tuple[str, ...],
    keep: bool,
    raw: bool,
) -> None:
    """Run a file or a snippet in a temporary workspace: output here, its exit code, and the workspace is removed.

    Standard input is sent to the program when it is a pipe or a file. What --fetch names must not be here yet.
    """
    style = app.format(("json",), "text")
    timeout_s = time_limit(timeout, "--timeout") if timeout else DEFAULT_TIMEOUT_S
    variables = pairs("--env", env)
    if code is not None:
        _only_arguments(words)
    targets = _targets(fetches)
    what = _program(app, words, code, program)
    sent = _local_files(app, uploads)
    body: dict[str, Any] = {"argv": what.argv, "timeout_s": timeout_s}
    body |= {"env": variables} if variables else {}
    data = None if words[:1] == ("-",) and code is None else piped_input(app.console)
    if data:
        body["stdin_base64"] = base64.b64encode(data).decode()
    template = ref_of(TEMPLATE, template_name or app.settings.template.text).id
    ref = _workspace(app, template, None if keep else whole_seconds(timeout_s + _SPARE_S))
    with _Removed(app, ref, keep):
        item = _booted(app, ref, keep)
        _send(app, ref, what, sent)
        extra = {"workspace_id": ref.id, "confinement": dig(item, "confinement.verdict", "unknown")}
        result = execute(app, ref, body, style, raw=raw, extra=extra, temporary=not keep)
        missing = _fetch(app, ref, targets)
    raise Done(result or missing)


def _booted(app: App, ref: Ref, keep: bool) -> dict[str, Any]:
    """The workspace once it runs. Until then an end is ours, and no exit code that a program could have."""
    try:
        return until_phase(app, ref, "running", _START_S, temporary=not keep)
    except CliError as exc:
        if exc.exit in (Exit.FAILED, Exit.WAITED):
            exc.exit = Exit.EXEC_LOST
        raise


def _only_arguments(words: tuple[str, ...]) -> None:
    """With -c there is no file: a word that does not stand after `--` is one that was meant to run."""
    line = click.get_current_context().meta[GIVEN]
    after = len(line) - line.index("--") - 1 if "--" in line else 0
    if len(words) > after:
        raise UsageError(
            f"-c CODE and {words[0]}: one of them", hint="arguments of the program: primectl run -c CODE -- ARG…"
        )


def _targets(fetches: tuple[str, ...]) -> dict[str, str]:
    """Where each file will land here; refused now, since a run cannot be repeated for the sake of a name."""
    targets: dict[str, str] = {}
    for path in fetches:
        try:
            place = f"./{local_name(path)}"
        except UsageError as exc:
            raise UsageError(f"--fetch {path}: has no safe name here", hint="name one file or directory") from exc
        if os.path.lexists(place):
            raise UsageError(f"--fetch {path}: {place} exists", hint="move it away, or run this in another directory")
        if place in targets.values():
            raise UsageError(f"--fetch {path}: two of them would be {place}", hint="give them different names")
        targets[path] = place
    return targets


def _program(app: App, words: tuple[str, ...], code: str | None, program: str | None) -> Program:
    given = shlex.split(program) if program else []
    if code is not None:
        return _snippet(code.encode("utf-8", "surrogateescape"), given or ["python"], list(words))
    if not words:
        raise UsageError("nothing to run", hint="primectl run FILE, primectl run -c CODE, or primectl run - < FILE")
    name, *arguments = words
    if name == "-":
        data = app.console.inp.read(_MAX_CODE + 1)
        if len(data) > _MAX_CODE:
            raise UsageError("the code on standard input is larger than 8 MiB")
        return _snippet(data, given or ["python"], arguments)
    path = Path(name)
    runner = given or ([_BY_SUFFIX[path.suffix]] if path.suffix in _BY_SUFFIX else [])
    if not runner:
        raise UsageError(
            f"{name}: no program is known for {path.suffix or 'a file without a suffix'}", hint="--command CMD"
        )
    return Program([*runner, path.name, *arguments], path.name, _read(path))


def _snippet(code: bytes, runner: list[str], arguments: list[str]) -> Program:
    if len(code) <= _LONGEST_ARGUMENT and b"\0" not in code:
        try:
            return Program([*runner, "-c", code.decode("utf-8"), *arguments])
        except UnicodeDecodeError:
            pass
    return Program([*runner, "snippet.py", *arguments], "snippet.py", code)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path}: {(exc.strerror or 'cannot be read').lower()}") from exc


def _local_files(app: App, uploads: tuple[str, ...]) -> list[tuple[str, Path | None]]:
    """What to send: (name in the workspace, local file), directories with None before what is in them."""
    found: list[tuple[str, Path | None]] = []
    for given in uploads:
        path = Path(given)
        if not path.exists():
            raise UsageError(f"{given}: no such file or directory")
        name = path.resolve().name
        if not path.is_dir():
            found.append((name, path))
            continue
        found.append((name, None))
        for folder, names, plain in os.walk(path, followlinks=False):
            place = Path(folder)
            for inner in sorted(names):
                if not (place / inner).is_symlink():
                    found.append((f"{name}/{(place / inner).relative_to(path)}", None))
            found += [
                (f"{name}/{(place / f).relative_to(path)}", place / f) for f in sorted(plain) if _plain(app, place / f)
            ]
    return found


def _plain(app: App, path: Path) -> bool:
    """A link in an uploaded tree may name any file of the caller's: it stays here."""
    if stat.S_ISREG(path.lstat().st_mode):
        return True
    app.console.note(f"skipped {path}: not a regular file")
    return False


def _workspace(app: App, template: str, ttl_s: int | None) -> Ref:
    spec: dict[str, Any] = {"template_id": template, **({"ttl_s": ttl_s} if ttl_s else {})}
    try:
        return Ref(WORKSPACE, str(app.client.post("/v1/workspaces", spec).object.get("id")))
    except ApiError as exc:
        raise refused(app, exc, WORKSPACE, spec) from exc


def _send(app: App, ref: Ref, what: Program, sent: list[tuple[str, Path | None]]) -> None:
    for name, path in sent:
        if path is None:
            app.client.post(app.path(ref, "files", "dir"), {"path": name})
        else:
            put(app, ref, name, _read(path))
    if what.name:
        put(app, ref, what.name, what.data)


def _fetch(app: App, ref: Ref, targets: dict[str, str]) -> int:
    """Brings the wanted files and directories; 1 when something could not be had, so that a 0 means all is here."""
    code = 0
    for path, target in targets.items():
        try:
            code = int(fetch(app, ref, path, target, Landing())) or code
        except CliError as exc:
            exc.hint = ""  # of what could be done in a workspace that is about to go
            app.console.error(exc)
            code = int(Exit.FAILED)
    return code


class _Removed:
    """Removes the workspace on every way out; a failure to do so is said and changes no exit code."""

    def __init__(self, app: App, ref: Ref, keep: bool) -> None:
        self.app, self.ref, self.keep = app, ref, keep

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        if self.keep:
            self.app.console.info(f"kept {self.ref}")
            return
        try:
            self.app.client.delete(self.app.path(self.ref))
            until_gone(self.app, self.ref, self.app.clock() + _REMOVAL_S, f"{_REMOVAL_S:g} s")
        except (CliError, KeyboardInterrupt) as exc:
            why = f": {exc.lines[0].removesuffix('.')}" if isinstance(exc, CliError) else ""
            self.app.console.note(
                f"warning: {self.ref} may be left{why}; remove it: primectl delete {word(str(self.ref))}"
            )
