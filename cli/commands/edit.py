"""`primectl edit`: one object in the caller's editor, and back; a refused save opens again with the reasons."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cli import manifest, present
from cli.app import App
from cli.client import Reply
from cli.command import command
from cli.commands.apply import replaced, same_spec
from cli.errors import ApiError, CliError, Exit, UsageError
from cli.kinds import SESSION, Ref, refs_of
from cli.manifest import Document
from cli.output import inert
from cli.refusals import refused

_CANCELLED = "Edit cancelled: nothing changed."
_LINE = re.compile(r"(?<=^error: line )(\d+)")
_TOP = re.compile(r"\A(?:#.*\n)+")  # our own comment, whatever became of it
_VARIABLES = ("PRIMECTL_EDITOR", "VISUAL", "EDITOR")
_MORE = "# Lines that begin with # are left out; saved as it was, or empty, nothing is changed.\n"


@command(
    "edit",
    "primectl edit agent code-runner",
    "PRIMECTL_EDITOR='code --wait' primectl edit workspace_template code-sandbox",
    short_help="Change an object in an editor.",
)
@click.argument("words", nargs=-1, required=True, metavar="KIND ID")
@click.pass_obj
def edit(app: App, *, words: tuple[str, ...]) -> None:
    """Open an object in $PRIMECTL_EDITOR, $VISUAL or $EDITOR and store what was saved, unless somebody was faster.

    A save that is refused opens again with the reasons as comments; saved once more as it is, that ends it.
    """
    app.format((), "text")
    _, refs = refs_of(words)
    if len(refs) != 1:
        raise UsageError("edit takes one id", hint="primectl edit KIND ID")
    program = _editor(app)
    ref = app.full(refs[0])
    try:
        before = app.client.get(app.path(ref))
    except ApiError as exc:
        raise app.explained(exc, ref) from exc
    session = _Editing(app, ref, before, program)
    try:
        outcome = session.run()
    except BaseException:
        session.keep()
        raise
    session.remove()
    app.console.line(outcome)


def _editor(app: App) -> list[str]:
    env = app.console.env
    text = next((env[name] for name in _VARIABLES if env.get(name)), "")
    if not text and not (app.console.in_tty and app.console.out_tty):
        raise UsageError("edit needs a terminal", hint="export PRIMECTL_EDITOR=PROGRAM, or use primectl apply -f FILE")
    try:
        program = shlex.split(text or "vi")
    except ValueError as exc:
        raise UsageError(f"the editor {text!r} cannot be read as a command line: {exc}") from exc
    if not program or shutil.which(program[0], path=env.get("PATH")) is None:
        raise UsageError(f"there is no editor {program[0] if program else text!r}", hint="export EDITOR=nano")
    return program


class _Editing:
    """The file, from the first look to the end. `text` is what is in it without the comment at its top."""

    def __init__(self, app: App, ref: Ref, before: Reply, program: list[str]) -> None:
        self.app, self.ref, self.before, self.program = app, ref, before, program
        self.folder = Path(tempfile.mkdtemp(prefix="primectl-edit-"))  # 0700
        self.file = self.folder / f"{ref.kind.name}.yaml"
        spec = present.manifest(ref.kind, before.object)["spec"]
        self.text = present.to_yaml({"kind": ref.kind.name, "spec": spec}, ref.kind)
        self.edited = False

    def run(self) -> str:
        """The line for the end; raises what could not be mended in the editor."""
        problems: list[str] = []
        refusal: CliError | None = None
        while True:
            self._write(self._header(problems) + self.text)
            self._open()
            saved = _TOP.sub("", self._read(), count=1)
            if saved == self.text or not _content(saved):
                if refusal is not None and _content(saved):
                    raise _unmended(refusal, problems)
                return _CANCELLED
            self.edited, self.text = True, saved
            try:
                after = self._store()
            except CliError as exc:
                if exc.exit is not Exit.USAGE and not _immutable(exc):
                    raise
                refusal, problems = exc, self._placed(exc)
                continue
            return _CANCELLED if same_spec(self.before, after) else f"{self.ref} configured"

    def keep(self) -> None:
        """Leaves the file where it is and says so; without a change there is nothing to keep."""
        if self.edited:
            self.app.console.note(f"your text is kept in {self.file}")
        else:
            self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _header(self, problems: Sequence[str]) -> str:
        lines = [f"# {self.ref}\n", _MORE]
        shift = len(lines) + len(problems) + 1
        for problem in problems:
            placed = _LINE.sub(lambda found: str(int(found[1]) + shift), problem)
            lines.append(f"# {placed}\n")
        return "".join(lines) + "#\n"

    def _placed(self, exc: CliError) -> list[str]:
        """The lines of a refusal, counted from the first line of the text itself."""
        header = self._read().count("\n") - self.text.count("\n")
        mark = re.compile(rf"^{re.escape(str(self.file))}:(\d+): ?")
        lines = [mark.sub(lambda m: f"error: line {int(m[1]) - header}: ", line) for line in exc.lines]
        return [inert(line, lines=False) for line in [*lines, *([f"hint: {exc.hint}"] if _useful(exc.hint) else [])]]

    def _write(self, text: str) -> None:
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)

    def _read(self) -> str:
        try:
            return self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"{self.file}: cannot be read as UTF-8 text") from exc

    def _open(self) -> None:
        try:
            code = subprocess.run([*self.program, str(self.file)], check=False).returncode
        except OSError as exc:
            raise UsageError(f"{self.program[0]}: {(exc.strerror or 'cannot be started').lower()}") from exc
        if code != 0:
            raise CliError(f"the editor {self.program[0]} ended with {code}; nothing was sent")

    def _store(self) -> Reply:
        documents = manifest.load([str(self.file)], self.app.console.inp)
        if len(documents) != 1 or documents[0].kind is not self.ref.kind:
            raise UsageError(f"the file must hold one {self.ref.kind.name}")
        document = documents[0]
        if document.ref is not None and document.ref != self.ref:
            raise UsageError(f"spec.id: cannot be changed: it is {self.ref.id}", hint="create another object instead")
        if self.ref.kind is SESSION:
            return self._patched(document)
        return replaced(self.app, document, self.ref, self.before)

    def _patched(self, document: Document) -> Reply:
        """A session takes changes of some fields only: what differs is sent, and the server says which."""
        live: dict[str, Any] = present.manifest(self.ref.kind, self.before.object)["spec"]
        changes = {key: value for key, value in document.spec.items() if live.get(key) != value}
        headers = {"If-Match": self.before.etag} if self.before.etag else None
        try:
            return self.app.client.call("PATCH", self.app.path(self.ref), body=changes, headers=headers, retry=False)
        except ApiError as exc:
            raise refused(self.app, exc, self.ref.kind, document.spec, document) from exc


def _content(text: str) -> str:
    """What is left without comments and blanks."""
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _immutable(exc: CliError) -> bool:
    return exc.exit is Exit.CONFLICT and bool(exc.fields)


def _unmended(refusal: CliError, problems: Sequence[str]) -> CliError:
    """The refusal that an editor left as it was, with the lines as they are counted in the text."""
    lines = [line.removeprefix("error: ") for line in problems if not line.startswith("hint: ")]
    hint = refusal.hint if _useful(refusal.hint) else ""
    return CliError(*lines, exit=refusal.exit, hint=hint, code=refusal.code, fields=refusal.fields)


def _useful(hint: str) -> bool:
    return bool(hint) and "primectl apply -f" not in hint
