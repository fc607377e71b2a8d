"""`primectl workspace files`: bytes in and out of a workspace; what lands here is checked by `cli.landing`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, nullcontext
from typing import Any

import click

from cli import tables
from cli.app import App
from cli.command import Group, command
from cli.errors import ApiError, Done, Exit, UsageError
from cli.execution import Screen
from cli.invoked import line
from cli.kinds import WORKSPACE, Ref, ref_of
from cli.landing import MAX_BYTES, MAX_FILES, Landing, local_name
from cli.output import Console
from cli.text import age, count_bytes, size
from cli.transfer import download, fetch, is_directory, listed, no_file, printed
from cli.upload import Body, body_of, body_of_stdin, put
from cli.wire import wire

files = Group(
    "files",
    help="List, read, write and remove files of a workspace.",
    short_help="List, read, write and remove files of a workspace.",
    examples=(
        "primectl workspace files ls ws-1a2b3c4d5e6f7081",
        "primectl workspace files get ws-1a2b3c4d5e6f7081 out.txt --content",
    ),
)


@command(
    "get",
    "primectl workspace files get ws-1a2b3c4d5e6f7081 out.txt",
    "primectl workspace files get ws-1a2b out.txt --content",
    "primectl workspace files get ws-1a2b results -O ./results",
    short_help="Save a file here, or print it.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("path")
@click.option("--content", is_flag=True, help="The bytes on standard output; nothing is saved.")
@click.option("-O", "--output-file", "target", metavar="FILE|-", help="Where to; a directory needs one.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=MAX_BYTES, help="Stop after so many bytes (1 GiB).")
@click.option("--max-files", type=click.IntRange(min=1), default=MAX_FILES, help="Stop after so many files (100000).")
@click.option("--skip-special", is_flag=True, help="That links and devices were left out is no failure.")
@click.option("--raw", is_flag=True, help="With --content on a terminal: the bytes as they are.")
@click.pass_obj
def files_get(
    app: App,
    *,
    name: str,
    path: str,
    content: bool,
    target: str | None,
    force: bool,
    max_bytes: int,
    max_files: int,
    skip_special: bool,
    raw: bool,
) -> None:
    """Save a file of a workspace as ./NAME, or print its bytes with --content.

    What cannot be read in a directory is named and left out, and the exit code is 1. A name that is not UTF-8 is
    given as its bytes: in bash, $'name\\xff'.
    """
    if not path:
        raise UsageError("the path is empty", hint="the whole workspace is: . -O DIR")
    ref = app.full(ref_of(WORKSPACE, name))
    if content or target == "-":
        if content and target not in (None, "-"):
            raise UsageError("--content prints, -O saves: one of them")
        _cat(app, ref, path, raw=raw)
        return
    landing = Landing(force=force, max_bytes=max_bytes, max_files=max_files)
    code = fetch(app, ref, path, target, landing)
    raise Done(Exit.OK if skip_special and not landing.lost else code)


def _cat(app: App, ref: Ref, path: str, *, raw: bool) -> None:
    with download(app, ref, path) as response:
        if is_directory(response):
            raise UsageError(
                f"{path} is a directory" if path.strip("./") else "the workspace itself is a directory",
                hint="save it with: " + line("primectl workspace files get", ref.id, path, options="-O DIR"),
            )
        print_bytes(app.console, printed(app, ref, path, response), raw=raw)


def print_bytes(console: Console, pieces: Iterable[bytes], *, raw: bool) -> None:
    """Bytes on standard output, inert on a terminal unless `raw`."""
    screen = Screen(console, raw=raw)
    for piece in pieces:
        screen.write("stdout", piece)
    screen.close()
    if console.out_tty and not console.at_line_start:
        console.write(b"\n")


@command(
    "cat",
    "primectl workspace files cat ws-1a2b3c4d5e6f7081 out.txt",
    "primectl workspace files cat ws-1a2b a.txt b.txt > both.txt",
    short_help="Print files.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("--raw", is_flag=True, help="On a terminal: the bytes as they are.")
@click.pass_obj
def files_cat(app: App, *, name: str, paths: tuple[str, ...], raw: bool) -> None:
    """Print the bytes of files, one after the other."""
    ref = app.full(ref_of(WORKSPACE, name))
    for path in paths:
        _cat(app, ref, path, raw=raw)


@command(
    "ls",
    "primectl workspace files ls ws-1a2b3c4d5e6f7081",
    "primectl workspace files ls ws-1a2b results -R -l",
    short_help="List files.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("path", default="")
@click.option("-R", "--recursive", is_flag=True, help="Also what is in directories.")
@click.option("-l", "--long", is_flag=True, help="Also the mode, and exact sizes.")
@click.pass_obj
def files_ls(app: App, *, name: str, path: str, recursive: bool, long: bool) -> None:
    """List the files of a directory: path, kind, size and age. Exit 1 when a directory below it cannot be read.

    \b
    A byte of a name that is not UTF-8 is shown as \\xff. In bash, such a name is given back as $'name\\xff'.
    """
    style = app.format(("json", "name", "table"), "table")
    ref = app.full(ref_of(WORKSPACE, name))
    try:
        found = list(listed(app, ref, path, recursive=recursive))
    except ApiError as exc:
        raise no_file(app, exc, ref, path) from exc
    items = [item for item, _ in found]
    _show(app, items, style, long=long)
    closed = [str(item.get("path")) for item, readable in found if not readable]
    for place in closed:
        app.console.note(f"skipped {place}: not readable")
    raise Done(Exit.FAILED if closed else Exit.OK)


def _show(app: App, items: list[dict[str, Any]], style: str, *, long: bool) -> None:
    if style == "json":
        app.console.json({"kind": "list", "items": items})
    elif style == "name" or app.quiet:
        # One name a line, marked on a pipe too: a newline in a name must not become two names.
        for item in items:
            app.console.line(str(item.get("path")))
    elif items:
        tables.write(app.console, _rows(items, long), cut=False, spill=True)
    else:
        app.console.info("No files found.")


def _rows(items: list[dict[str, Any]], long: bool) -> list[list[str]]:
    rows = [["PATH", "KIND", "SIZE", "MODIFIED", *(["MODE"] if long else [])]]
    for item in items:
        count = item.get("size_bytes")
        shown = str(count) if long or not isinstance(count, int) else size(count)
        row = [str(item.get("path")), str(item.get("kind")), shown, age(item.get("modified_at"))]
        rows.append([*row, _mode(item.get("mode"))] if long else row)
    return rows


def _mode(value: Any) -> str:
    return f"{value & 0o7777:04o}" if isinstance(value, int) and not isinstance(value, bool) else str(value or "")


@command(
    "put",
    "primectl workspace files put ws-1a2b3c4d5e6f7081 data.csv -f ./data.csv",
    "primectl workspace files put ws-1a2b note.txt --content 'hello'",
    "echo hello | primectl workspace files put ws-1a2b note.txt -f -",
    short_help="Write a file.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("path")
@click.option("-f", "--file", "source", metavar="FILE|-", help="The local file to send; without it ./NAME of PATH.")
@click.option("--content", metavar="TEXT", help="The text to write.")
@click.option("--mode", metavar="0644", help="The permission bits, in octal.")
@click.option("--no-clobber", is_flag=True, help="Do not replace a file that is there.")
@click.option("--if-match", "etag", metavar="ETAG", help="Only if the file is still the one with this ETag.")
@click.pass_obj
def files_put(
    app: App,
    *,
    name: str,
    path: str,
    source: str | None,
    content: str | None,
    mode: str | None,
    no_clobber: bool,
    etag: str | None,
) -> None:
    """Write a file of a workspace, as a whole or not at all."""
    if source and content is not None:
        raise UsageError("-f and --content contradict each other")
    if etag and no_clobber:
        raise UsageError("--if-match and --no-clobber contradict each other")
    bits = _octal(mode) if mode else None
    ref = app.full(ref_of(WORKSPACE, name))
    data: bytes | Body
    if content is not None:
        data = wire(content)
    elif source == "-":
        data = body_of_stdin(app.console)
    else:
        data = body_of(source or f"./{local_name(path)}")
    headers = {"If-None-Match": "*"} if no_clobber else {"If-Match": etag} if etag else {}
    with closing(data) if isinstance(data, Body) else nullcontext():
        put(app, ref, path, data, mode=bits, headers=headers)
    if not app.quiet:
        app.console.line(f"{ref.id}:{path} written ({count_bytes(len(data))})")


def _octal(text: str) -> int:
    try:
        bits = int(text, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise UsageError(f"--mode {text}: write permission bits in octal, as 0644 or 0755")
    return bits


@command(
    "rm",
    "primectl workspace files rm ws-1a2b3c4d5e6f7081 out.txt",
    "primectl workspace files rm ws-1a2b results -R",
    short_help="Remove files.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option("-R", "--recursive", is_flag=True, help="A directory with what is in it.")
@click.pass_obj
def files_rm(app: App, *, name: str, paths: tuple[str, ...], recursive: bool) -> None:
    """Remove files, and directories with -R. A name that is not UTF-8 is given as its bytes: in bash, $'name\\xff'."""
    ref = app.full(ref_of(WORKSPACE, name))
    params = {"recursive": "true"} if recursive else {}
    for path in paths:
        try:
            if app.client.delete(app.path(ref, "files"), path=path, **params).assumed:
                app.client.get(app.path(ref))  # what was not found may be the workspace, with the file in it
        except ApiError as exc:
            if exc.code == "not_empty":
                exc.lines = [f"{ref.id}:{path} is a directory with something in it"]
                exc.hint = line("primectl workspace files rm -R", ref.id, path)
            raise no_file(app, exc, ref, path) from exc
        if not app.quiet:
            app.console.line(f"{ref.id}:{path} deleted")


@command(
    "mkdir",
    "primectl workspace files mkdir ws-1a2b3c4d5e6f7081 results",
    "primectl workspace files mkdir ws-1a2b results/today",
    short_help="Make a directory.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("path")
@click.pass_obj
def files_mkdir(app: App, *, name: str, path: str) -> None:
    """Make a directory."""
    ref = app.full(ref_of(WORKSPACE, name))
    try:
        app.client.post(app.path(ref, "files", "dir"), {"path": path})
    except ApiError as exc:
        raise no_file(app, exc, ref, path) from exc
    if not app.quiet:
        app.console.line(f"{ref.id}:{path} created")


@command(
    "mv",
    "primectl workspace files mv ws-1a2b3c4d5e6f7081 out.txt old.txt",
    "primectl workspace files mv ws-1a2b out.txt results/out.txt --force",
    short_help="Move or rename.",
)
@click.argument("name", metavar="WORKSPACE")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
def files_mv(app: App, *, name: str, source: str, target: str, force: bool) -> None:
    """Move or rename a file or directory. What is at DST stays, unless --force."""
    ref = app.full(ref_of(WORKSPACE, name))
    body = {"source": source, "target": target, **({"overwrite": True} if force else {})}
    try:
        app.client.post(app.path(ref, "files", "move"), body)
    except ApiError as exc:
        if exc.code == "exists":
            exc.lines, exc.hint = [f"{ref.id}:{target} exists"], "replace it with --force"
        raise no_file(app, exc, ref, source) from exc
    if not app.quiet:
        app.console.line(f"{ref.id}:{target} written")


for action in (files_get, files_cat, files_ls, files_put, files_rm, files_mkdir, files_mv):
    files.add_command(action)
