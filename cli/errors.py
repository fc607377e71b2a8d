"""What can go wrong, and the exit code and lines each of it gets: the table of codes lives here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes are a contract: scripts branch on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    UNREACHABLE = 6
    WAITED = 7
    WARNINGS = 8
    SESSION_FAILED = 10
    SESSION_CANCELLED = 11
    SESSION_LIMIT = 12
    SESSION_INTERRUPTED = 13
    EXEC_TIMEOUT = 124
    EXEC_LOST = 125
    CTRL_C = 130
    OOM = 137
    CLOSED_PIPE = 141
    TERMINATED = 143


MEANING: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "the thing asked for failed",
    Exit.USAGE: "wrong usage, a bad file, or the server refused the values",
    Exit.NOT_FOUND: "not found",
    Exit.DENIED: "not logged in, or not allowed",
    Exit.CONFLICT: "in conflict with what is there, in use, or changed by someone else",
    Exit.UNREACHABLE: "the server cannot be reached, or is not able to answer now",
    Exit.WAITED: "waited long enough; what was waited for goes on",
    Exit.WARNINGS: "doctor: warnings only",
    Exit.SESSION_FAILED: "the session ended: failed",
    Exit.SESSION_CANCELLED: "the session ended: cancelled",
    Exit.SESSION_LIMIT: "the session ended: timed_out or limit",
    Exit.SESSION_INTERRUPTED: "the session ended: interrupted",
    Exit.EXEC_TIMEOUT: "run, exec: ended by its timeout",
    Exit.EXEC_LOST: "run, exec: could not run, or was lost",
    Exit.CTRL_C: "Ctrl-C, or cancelled by somebody else",
    Exit.OOM: "run, exec: 128 + n is an end by signal n; 137 also one by oom and by output_cap",
    Exit.CLOSED_PIPE: "the reader of the output went away",
    Exit.TERMINATED: "SIGTERM",
}

# The stable codes of the API; where a code is not known, its HTTP status decides.
BY_CODE: dict[str, Exit] = {
    "invalid": Exit.USAGE,
    "not_text": Exit.USAGE,
    "too_large": Exit.USAGE,
    "not_found": Exit.NOT_FOUND,
    "unauthenticated": Exit.DENIED,
    "forbidden": Exit.DENIED,
    "conflict": Exit.CONFLICT,
    "in_use": Exit.CONFLICT,
    "workspace_not_running": Exit.CONFLICT,
    "workspace_lost": Exit.FAILED,
    "precondition_failed": Exit.CONFLICT,
    "llm_config": Exit.FAILED,
    "llm_unavailable": Exit.FAILED,
    "rate_limited": Exit.UNREACHABLE,
    "engine_unavailable": Exit.UNREACHABLE,
    "timeout": Exit.UNREACHABLE,
    "disk_full": Exit.FAILED,
}
BY_STATUS: dict[int, Exit] = {
    400: Exit.USAGE,
    401: Exit.DENIED,
    403: Exit.DENIED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    424: Exit.FAILED,
    429: Exit.UNREACHABLE,
    507: Exit.FAILED,
}


# The workspace of a call is not where it could answer.
NOT_THERE = ("workspace_lost", "workspace_not_running")
# A proxy says so while the server behind it restarts.
RESTARTING = (502, 503, 504)


def exit_for(status: int, code: str = "") -> Exit:
    """The exit code of an HTTP answer that is not a success."""
    if code in BY_CODE:
        return BY_CODE[code]
    return BY_STATUS.get(status, Exit.UNREACHABLE if status >= 500 else Exit.FAILED)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong value: `field` is a dotted path, `message` what must change."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class CliError(Exception):
    """A failure with its sentence, its next step and its exit code. Each line becomes one `error:` line."""

    def __init__(
        self,
        *lines: str,
        exit: Exit = Exit.FAILED,
        hint: str = "",
        code: str = "",
        fields: Sequence[FieldError] = (),
        request_id: str = "",
    ) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)
        self.exit = exit
        self.hint = hint
        self.code = code or exit.name.lower()
        self.fields = list(fields)
        self.request_id = request_id

    def to_dict(self) -> dict[str, Any]:
        """The object that `-o json` puts on stderr."""
        return {
            "error": {
                "code": self.code,
                "message": "; ".join(self.lines),
                "errors": [{"field": f.field, "message": f.message} for f in self.fields],
                "hint": self.hint,
                "request_id": self.request_id,
            }
        }


class UsageError(CliError):
    """The command line or a file is wrong; nothing was sent."""

    def __init__(self, *lines: str, hint: str = "", fields: Sequence[FieldError] = ()) -> None:
        super().__init__(*lines, exit=Exit.USAGE, hint=hint, code="usage", fields=fields)


class ApiError(CliError):
    """The server answered with a problem; `status` is its HTTP status, `detail` its sentence.

    `again`: the call had been sent before, and that first time, whose answer was lost, may have done what was asked.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after: str = "", again: bool = False) -> None:
        self.status, self.again = status, again
        self.detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
        code = str(problem.get("code") or "")
        fields = _fields(problem.get("errors"))
        lines = [str(f) for f in fields] or [self.detail]
        hint = str(problem.get("hint") or "")
        if retry_after and status in (429, 503):
            hint = f"{hint} (try again in {retry_after} s)".strip()
        super().__init__(
            *lines,
            exit=exit_for(status, code),
            hint=hint,
            code=code or f"http_{status}",
            fields=fields,
            request_id=str(problem.get("request_id") or ""),
        )

    @property
    def contradicted(self) -> bool:
        """Whether it may be our own first try that a condition does not hold against any more."""
        return self.again and self.status in (409, 412)


class Unreachable(CliError):
    """No usable answer came from the server."""

    def __init__(self, *lines: str, hint: str = "", code: str = "unreachable") -> None:
        super().__init__(*lines, exit=Exit.UNREACHABLE, hint=hint, code=code)


def passing(failure: CliError) -> bool:
    """Whether a failure looks like a server that restarts: the same question is worth asking again."""
    if isinstance(failure, ApiError):
        return failure.status in RESTARTING and failure.code.startswith("http_")
    return isinstance(failure, Unreachable) and failure.code in ("unreachable", "timeout")


class OutputFailed(CliError):
    """Standard output does not take what is written to it: a full disk, for one. `why` is the system's word for it."""

    def __init__(self, why: str) -> None:
        hint = "what arrived of the output is not all of it: make room and run this again"
        super().__init__(f"the output could not be written: {why}", hint=hint, code="output_failed")


class ClosedPipe(Exception):
    """The reader of our standard output went away."""


class Terminated(BaseException):
    """SIGTERM arrived. A BaseException, so that nothing that handles failures handles this."""


class Done(Exception):
    """Leave with this exit code; everything there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = int(code)


def _fields(errors: Any) -> list[FieldError]:
    if not isinstance(errors, list):
        return []
    return [
        FieldError(str(e.get("field") or ""), str(e.get("message") or "is not valid"))
        for e in errors
        if isinstance(e, dict)
    ]
