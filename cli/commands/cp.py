"""`primectl cp`: files and directories to and from a workspace; `cli.landing` and `cli.upload` decide what may pass."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import click

from cli.app import App
from cli.command import command
from cli.commands.files import print_bytes
from cli.errors import ApiError, Done, Exit, UsageError
from cli.kinds import WORKSPACE, Ref, ref_of
from cli.landing import MAX_BYTES, MAX_FILES, Landing, local_name
from cli.text import count_bytes
from cli.transfer import archived, download, fetch, is_directory, printed
from cli.upload import Body, Sending, body_of, body_of_stdin, put, put_tree

# `ws-…:PATH`, also `workspace/ws-…:PATH`; a local file of such a name is `./ws-…:PATH`.
_REMOTE = re.compile(r"((?:[A-Za-z_]+/)?ws-[0-9a-f]{4,16}):(.*)", re.DOTALL)
_ELSEWHERE = "another DST"


@dataclass(frozen=True, slots=True)
class Remote:
    ref: Ref
    path: str


@command(
    "cp",
    "primectl cp ws-1a2b3c4d5e6f7081:results ./results",
    "primectl cp ./data ws-1a2b:data",
    "primectl cp ws-1a2b:results - | tar -tv",
    short_help="Copy files and directories to and from a workspace.",
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--force", is_flag=True, help="Replace local files that are there.")
@click.option("--follow", is_flag=True, help="Upload: send a link as the file of the same tree that it names.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=MAX_BYTES, help="Stop after so many bytes (1 GiB).")
@click.option("--max-files", type=click.IntRange(min=1), default=MAX_FILES, help="Stop after so many files (100000).")
@click.option("--skip-special", is_flag=True, help="That links and devices were left out is no failure.")
@click.option("--raw", is_flag=True, help="To a terminal: the bytes as they are.")
@click.pass_obj
def cp(
    app: App,
    *,
    source: str,
    target: str,
    force: bool,
    follow: bool,
    max_bytes: int,
    max_files: int,
    skip_special: bool,
    raw: bool,
) -> None:
    """Copy a file or a directory: one of SRC and DST is WORKSPACE:PATH, the other is local, or - for a pipe.

    A directory is copied with everything in it, into DST where that is a directory already. Links, devices and names
    that are not safe here are named and left out, and the exit code is 1. From a pipe comes one file; a directory goes
    into a pipe as a tar archive.
    """
    here, there = _remote(app, source), _remote(app, target)
    if here is not None and there is not None:
        raise UsageError("both are in workspaces", hint="copy through here: first down, then up")
    if here is not None:
        landing = Landing(force=force, elsewhere=_ELSEWHERE, max_bytes=max_bytes, max_files=max_files)
        code = _print(app, here, raw=raw) if target == "-" else _down(app, here, target, landing)
        raise Done(Exit.OK if skip_special and not landing.lost else code)
    if there is None:
        raise UsageError("neither is in a workspace", hint="name one as ws-1a2b3c4d5e6f7081:PATH")
    sending = Sending(follow=follow)
    code = _up(app, source, there, sending)
    raise Done(Exit.OK if skip_special and not sending.lost else code)


def _remote(app: App, text: str) -> Remote | None:
    found = _REMOTE.fullmatch(text)
    return Remote(app.full(ref_of(WORKSPACE, found[1])), found[2] or ".") if found else None


# Down


def _down(app: App, source: Remote, target: str, landing: Landing) -> Exit:
    """As `cp` has it: into a directory that is there, else under the name that is given. Of `DIR/.` the content."""
    path = source.path.removesuffix("/.").rstrip("/") or "."
    if os.path.isdir(target):
        whole = not source.path.strip("./") or source.path.endswith("/.")
        target = target if whole else os.path.join(target, local_name(path, _ELSEWHERE))
    elif target.endswith("/"):
        raise UsageError(f"{target}: no such directory")
    return fetch(app, source.ref, path, target, landing)


def _print(app: App, source: Remote, *, raw: bool) -> Exit:
    with download(app, source.ref, source.path) as response:
        if not is_directory(response):
            print_bytes(app.console, printed(app, source.ref, source.path, response), raw=raw)
        elif app.console.out_tty and not raw:
            where = f"{source.ref.id}:{source.path}"
            raise UsageError(f"{where} is a directory: its archive is no text for a terminal", hint="… - | tar -tv")
        else:
            for piece in archived(app, source.ref, source.path, response):
                app.console.write(piece)
    return Exit.OK


# Up


def _up(app: App, source: str, target: Remote, sending: Sending) -> Exit:
    if source != "-" and os.path.isdir(source):
        return _up_tree(app, source, _place(app, target, source, tree=True), sending)
    body = body_of_stdin(app.console) if source == "-" else body_of(source)
    try:
        where = target if source == "-" else _place(app, target, source, tree=False)
        _up_file(app, body, where, mode=None if source == "-" else 0o755 if body.program else 0o644)
    finally:
        body.close()
    return Exit.OK


def _up_file(app: App, body: Body, target: Remote, mode: int | None) -> None:
    put(app, target.ref, target.path, body, mode=mode)
    if not app.quiet:
        app.console.line(f"{target.ref.id}:{target.path} written ({count_bytes(len(body))})")


def _up_tree(app: App, source: str, target: Remote, sending: Sending) -> Exit:
    shown, whole = f"{target.ref.id}:{target.path or '.'}", False
    try:
        put_tree(app, target.ref, source, target.path, sending)
        whole = True
    finally:
        for line in sending.skipped:
            app.console.note(line)
        if not whole:
            app.console.note(f"warning: {shown} is not complete: {_entries(sending.sent)} arrived")
    if not app.quiet:
        app.console.line(f"{shown} written ({_entries(sending.sent)}, {count_bytes(sending.size)})")
    return Exit.FAILED if sending.skipped else Exit.OK


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _place(app: App, target: Remote, source: str, *, tree: bool) -> Remote:
    """Where it goes: into the directory that is there, else under the given name. Of `DIR/.` and `.` the content."""
    name = os.path.basename(os.path.abspath(source))
    path = target.path.rstrip("/")
    if not path.strip("./"):
        path = ""
    if tree and os.path.basename(source.rstrip("/")) in ("", ".", ".."):
        return Remote(target.ref, path)
    if not path or target.path.endswith("/") or _is_directory(app, target.ref, path):
        path = f"{path}/{name}" if path else name
    return Remote(target.ref, path)


def _is_directory(app: App, ref: Ref, path: str) -> bool:
    """Whether a directory of that name is there."""
    try:
        app.client.get(app.path(ref, "files"), path=path, limit=1)
    except ApiError as exc:
        if exc.code in ("not_found", "not_dir", "symlink", "permission"):
            return False  # what the write makes of it, the write says
        raise
    return True
