"""What can go wrong between the control plane and a sandbox, as sentences; nothing here quotes engine text or host paths."""

from __future__ import annotations

from typing import Any

from primer_site.errors import (
    Conflict,
    FieldError,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    PrimerError,
    Timeout,
    TooLarge,
    printable,
)
from workspaces.providers.base import ChannelClosed, ProviderError


class ProtocolError(ProviderError):
    """The sandbox answered something that the protocol does not allow."""

    code, status = "protocol_error", 502
    hint = "Stop the workspace and start it again; its files stay."


class SandboxRefused(ProviderError):
    """The sandbox does not accept this server's proof, so it belongs to another one or was taken over."""

    code, status = "sandbox_refused", 502
    hint = "Stop the workspace and start it again; its files stay."


class SandboxBusy(PrimerError):
    """The sandbox runs as many programs or calls as it can."""

    code, status, retryable = "sandbox_busy", 503, True
    hint = "Wait for one of them to end, or cancel one."


class StartFailure(PrimerError):
    """The program could not be started."""

    code, status = "cannot_start", 422

    def __init__(self, detail: str = "", *, part: str = "argv0", reason: str = "error", **kwargs: Any) -> None:
        super().__init__(detail, **kwargs)
        self.part = part  # which part of the request: "cwd" or "argv0"
        self.reason = reason  # not_found, not_executable, is_a_directory, argument_too_long, no_process, …


class ExecUnknown(NotFound):
    """There is no such exec in this sandbox."""


class FileMissing(NotFound):
    """There is no such file."""


class NotAFile(Conflict):
    """The path does not lead to a regular file."""

    code = "not_regular"


class IsADirectory(Conflict):
    """The path leads to a directory."""

    code = "is_dir"


class NotADirectory(Conflict):
    """A part of the path is not a directory."""

    code = "not_dir"


class LinkRefused(Conflict):
    """A symbolic link is on the path; links are shown and never followed."""

    code = "symlink"


class FileExists(Conflict):
    """There is something of that name already."""

    code = "exists"


class DirectoryNotEmpty(Conflict):
    """The directory is not empty."""

    code = "not_empty"
    hint = "Delete it with recursive=true."


class FileChanged(Conflict):
    """The file was changed while it was being read."""

    code, retryable = "changed", True


class FilePermission(Forbidden):
    """The sandbox's own user is not allowed to do this."""

    code = "permission"


class NameTooLong(Invalid):
    """A name is longer than 255 bytes, or the path is too long."""

    code = "name_too_long"


class DiskFull(PrimerError):
    """The disk of the workspace is full."""

    code, status = "disk_full", 507
    hint = "Delete files, or use a template with a larger disk."


_FILES: dict[str, type[PrimerError]] = {
    "not_found": FileMissing,
    "not_regular": NotAFile,
    "is_dir": IsADirectory,
    "not_dir": NotADirectory,
    "symlink": LinkRefused,
    "exists": FileExists,
    "not_empty": DirectoryNotEmpty,
    "changed": FileChanged,
    "permission": FilePermission,
    "name_too_long": NameTooLong,
    "no_space": DiskFull,
    "too_large": TooLarge,
    "precondition_failed": PreconditionFailed,
    "timeout": Timeout,
    "busy": SandboxBusy,
}
_INVALID_PATHS = {  # of the runtime's sentences those that we know, and the field that each is about
    "the path is not text": "path",
    "the path holds a NUL": "path",
    "the path holds a character that no file name can hold": "path",
    "the path is not beneath the workspace": "path",
    "the path goes up with ..": "path",
    "the path names no file": "path",
    "the path ends in a slash, which names no file": "path",
    "the cursor is not one of ours": "cursor",
    "a directory cannot be moved into itself": "target",
    "source and target are on different file systems": "target",
}
_START = {
    "not_found": "there is no such file",
    "not_executable": "it is not executable",
    "permission": "it is not executable",
    "is_a_directory": "it is a directory",
    "not_a_directory": "a part of its path is not a directory",
    "not_a_program": "it is not a program: no known binary format and no #! line",
    "no_interpreter": "the interpreter it names is missing",
    "argument_too_long": "an argument, or all arguments and variables together, are longer than the kernel takes",
    "name_too_long": "its name is too long",
    "symlink_loop": "its symbolic links form a loop",
    "no_process": "the limit of processes of this sandbox is reached",
    "no_memory": "there is no memory left",
    "busy": "it is open for writing",
    "killed": "a program of this sandbox killed it at birth",
}


def file_error(code: str, message: str) -> PrimerError:
    """The typed error of a failed file call. The runtime's own words are shown only when they are ones we know."""
    kind = _FILES.get(code)
    if kind is not None:
        named = issubclass(kind, Invalid)
        return kind(errors=[FieldError("path", "is too long, or has a name of more than 255 bytes")] if named else None)
    if code == "invalid":
        shown = message.replace(" ..", ' ".."')  # or the dots are read as the end of the sentence
        if message not in _INVALID_PATHS:
            return Invalid()
        errors = [FieldError(_INVALID_PATHS[message], shown.removeprefix("the path "))]
        return Invalid(shown[0].upper() + shown[1:] + ".", errors=errors)
    if code == "unknown_operation":
        return ProtocolError("The runtime of this sandbox is too old for this call.")
    return ProviderError("The sandbox could not do this: an input/output error.")


PROGRAM = "argv[0]"  # the field that a program stands in
CWD_HINT = "Make it first, or leave cwd out: then it is the workspace itself."
_CWD_HINTS = {
    "not_executable": "Let its owner enter it (chmod u+rwx), or leave cwd out: then it is the workspace itself."
}
_ROOT_HINT = "The directory is not the sandbox user's own: give it back to that user, or create a new workspace."
END_OTHERS = "End other programs of this workspace"
_START_HINTS = {
    "not_found": "Check the name. The program and each of its arguments are items of argv; a shell line goes into command.",
    "not_executable": "Make it executable (chmod +x), or name its interpreter first: python3 FILE.",
    "permission": "Make it executable (chmod +x), or name its interpreter first: python3 FILE.",
    "is_a_directory": "Name a program in it.",
    "not_a_program": "Begin it with a line such as #!/bin/sh, or name its interpreter first: python3 FILE.",
    "no_interpreter": "The program that its first line names is not in this image.",
    "argument_too_long": "Write the code to a file, or pass it on stdin.",
    "no_process": f"{END_OTHERS}, or use a template with a larger pids_limit.",
    "no_memory": f"{END_OTHERS}, or use a template with more memory.",
}


def with_commands(hint: str, workspace: str) -> str:
    """The hint for whoever has our command line (an agent has not): how the other programs are found and ended."""
    how = f"primectl workspace execs {workspace}, primectl workspace kill {workspace} EXEC"
    return hint.replace(END_OTHERS, f"{END_OTHERS} ({how})")


def exec_error(code: str, message: str, facts: dict[str, Any], *, program: str = "", cwd: str = "") -> PrimerError:
    """The typed error of an exec that did not start; `program` and `cwd` are what was asked for, where that is known."""
    if code == "cannot_start":
        part = "cwd" if facts.get("part") == "cwd" else "argv0"
        reason = str(facts.get("reason"))
        reason = reason if reason in _START else "error"
        where = f"in the working directory {printable(cwd)}" if cwd else "in the workspace"
        subject = where if part == "cwd" else f"the program {printable(program)}"
        why = _START.get(reason, "the kernel refused it")
        hint = _START_HINTS.get(reason, "")
        if part == "cwd":
            why = "its permissions refuse it" if reason == "not_executable" else why
            hint = _CWD_HINTS.get(reason, CWD_HINT) if cwd else _ROOT_HINT
        errors = [FieldError("cwd" if part == "cwd" else PROGRAM, why)]
        return StartFailure(
            f"Cannot start {subject.strip()}: {why}.", part=part, reason=reason, hint=hint, errors=errors
        )
    if code == "not_found":
        return ExecUnknown()
    if code == "busy":
        return SandboxBusy()
    if code == "invalid":
        return Invalid("The exec request is not valid: a field is empty, has a wrong type, or holds a NUL.")
    return ProtocolError()


__all__ = [
    "ChannelClosed",
    "DirectoryNotEmpty",
    "DiskFull",
    "ExecUnknown",
    "FileChanged",
    "FileExists",
    "FileMissing",
    "FilePermission",
    "IsADirectory",
    "LinkRefused",
    "NameTooLong",
    "NotADirectory",
    "NotAFile",
    "ProtocolError",
    "SandboxBusy",
    "SandboxRefused",
    "StartFailure",
    "exec_error",
    "file_error",
]
